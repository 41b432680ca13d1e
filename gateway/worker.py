"""One worker: the app under its server. `python -m gateway.worker` is one of several (`tiergate serve --workers N`)."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys

import msgspec
import uvicorn

from gateway.app import App, build_app
from gateway.crew import WORKER
from gateway.process import Stop, listen, run_loop
from gateway.settings import Settings
from gateway.telemetry.log import Log, make_log
from router.policy_file import Loaded, PolicyError, load_policy, read_policy, read_text

BACKLOG = 2048


def main() -> int:
    """One of several workers: everything it needs is in the environment variable `TIERGATE_WORKER`."""
    stop = Stop()
    settings = msgspec.json.decode(os.environ[WORKER], type=Settings)
    log = make_log(settings.log_level)
    with listen(settings, shared=True) as sock:
        return run_loop(work(settings, _read(settings, log), sock, stop))


def _read(settings: Settings, log: Log) -> Loaded:
    """The policy file, or the last policy that worked."""
    try:
        return read_policy(settings.policy, os.environ)
    except PolicyError as exc:
        log.error("policy_reload_failed", problems=str(exc).splitlines(), kept="the last policy that worked")
        return load_policy(read_text(settings.last_good), os.environ, settings.policy)


async def work(settings: Settings, loaded: Loaded, sock: socket.socket, stop: Stop) -> int:
    """Answer requests until told to stop; gives the exit code."""
    app = build_app(settings, loaded)
    server = stop.server = uvicorn.Server(_config(app, settings))
    if stop.requested:
        return 0
    app.reloader.reload_on_signal()
    _rest_garbage_collector()
    orphaned = asyncio.create_task(_stop_when_orphaned(server)) if WORKER in os.environ else None
    await server.serve(sockets=[sock])
    if orphaned is not None:
        orphaned.cancel()
    return 0 if server.started or stop.requested else 1


def _config(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app, http="httptools", ws="none", lifespan="on", access_log=False, log_config=None, server_header=False,
        date_header=False, proxy_headers=False, backlog=BACKLOG, timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.grace_s)),
    )  # fmt: skip


async def _stop_when_orphaned(server: uvicorn.Server) -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(1)
    server.should_exit = True


def _rest_garbage_collector() -> None:
    """Requests leave no circles behind, so the collector has little to find; what has been imported it need not see.

    Measured at 64 connections: a quarter of the CPU time, and the longest pauses.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)


if __name__ == "__main__":
    sys.exit(main())
