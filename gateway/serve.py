"""Processes: one worker in this process, or several under a small supervisor; embedded models beside them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec
import uvicorn

from gateway.app import App, build_app
from gateway.banner import banner
from gateway.crew import WORKER, keep_workers
from gateway.pull import ModelNotFound
from gateway.settings import Settings
from gateway.telemetry.log import Log, make_log
from gateway.telemetry.request_log import RequestLogWriter
from gateway.upstream.local import LocalModels, LocalSpec, ModelFailed, local_specs
from router.policy_file import Loaded, PolicyError, load_policy, read_policy, read_text

BACKLOG = 2048
GREET_S = 10.0


class ServeError(Exception):
    """The gateway cannot start; the text says what to do about it."""


class Stop:
    """Remembers a signal to stop that comes before uvicorn listens to signals itself.

    It stays the handler behind uvicorn's own: uvicorn raises the signal that stopped it once more at its end, and a
    clean stop is exit code 0.
    """

    def __init__(self) -> None:
        self.requested = False
        self.server: uvicorn.Server | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)

    def __call__(self, *_: object) -> None:
        self.requested = True
        if self.server is not None:
            self.server.should_exit = True


def serve(settings: Settings, loaded: Loaded) -> int:
    """Run until a signal says stop; gives the exit code. Raises `ServeError`."""
    if not settings.is_loopback and not loaded.policy.keys:
        raise ServeError(
            f"{settings.host} can be reached from other machines, and the policy has no keys. Add one "
            "(`tiergate keys new NAME`), or listen on 127.0.0.1."
        )
    stop = Stop()
    _check_request_log(loaded)
    if settings.workers > 1 and settings.port:
        _listen(settings, shared=False).close()  # sharing a port is for our own workers, not for another gateway
    with _listen(settings, shared=settings.workers > 1) as sock:
        settings = msgspec.structs.replace(settings, port=sock.getsockname()[1])
        return _run(_supervise(settings, loaded, sock, stop))


def work() -> int:
    """One of several workers: everything it needs is in the environment variable `TIERGATE_WORKER`."""
    stop = Stop()
    settings = msgspec.json.decode(os.environ[WORKER], type=Settings)
    log = make_log(settings.log_level)
    with _listen(settings, shared=True) as sock:
        return _run(_work(settings, _read(settings, log), sock, stop))


def _read(settings: Settings, log: Log) -> Loaded:
    """The policy file, or the last policy that worked."""
    try:
        return read_policy(settings.policy, os.environ)
    except PolicyError as exc:
        log.error("policy_reload_failed", problems=str(exc).splitlines(), kept="the last policy that worked")
        return load_policy(read_text(settings.last_good), os.environ, settings.policy)


def _run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Any:
    try:
        import uvloop  # absent on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop


def _check_request_log(loaded: Loaded) -> None:
    try:
        RequestLogWriter(loaded.policy.log, lambda _: None).close()
    except OSError as exc:
        raise ServeError(f"log.path {loaded.policy.log.path}: {exc.strerror}; name a file that can be written") from exc


def _listen(settings: Settings, *, shared: bool) -> socket.socket:
    """A socket of its own for each worker, all on one port: the kernel shares connections out evenly."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as exc:
        sock.close()
        raise ServeError(f"cannot listen on {settings.host} port {settings.port}: {exc.strerror}") from exc
    return sock


async def _supervise(settings: Settings, loaded: Loaded, sock: socket.socket, stop: Stop) -> int:
    log = make_log(settings.log_level)

    def report(event: str, /, **fields: Any) -> None:
        log.warning(event, **fields) if "died" in event or "failed" in event else log.info(event, **fields)

    models = LocalModels(_specs(loaded), report)
    try:
        settings = msgspec.structs.replace(settings, local_ports=dict(await models.start_children()))
        beside = [asyncio.create_task(models.supervise()), asyncio.create_task(_greet(settings, loaded, models))]
        try:
            if settings.workers == 1:
                return await _work(settings, loaded, sock, stop)
            return 0 if stop.requested else await keep_workers(settings, read_text(settings.policy), log)
        finally:
            for task in beside:
                task.cancel()
    finally:
        await models.aclose()


async def _greet(settings: Settings, loaded: Loaded, models: LocalModels) -> None:
    """Say what is on once the embedded models answer, so that the line to try works when it is pasted."""
    try:
        async with asyncio.timeout(GREET_S):
            for model in models.ports:
                await models.ready(model)
    except (TimeoutError, ModelFailed):
        pass  # the log tells
    sys.stderr.write(banner(loaded, settings, settings.port))
    sys.stderr.flush()


def _specs(loaded: Loaded) -> tuple[LocalSpec, ...]:
    try:
        return local_specs(loaded.policy)
    except ModelNotFound as exc:
        raise ServeError(str(exc)) from exc


async def _work(settings: Settings, loaded: Loaded, sock: socket.socket, stop: Stop) -> int:
    app = build_app(settings, loaded)
    server = stop.server = uvicorn.Server(_config(app, settings))
    if stop.requested:
        return 0
    app.reloader.reload_on_signal()
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
