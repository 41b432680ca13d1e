"""Processes: one worker in this process, or several under a small supervisor; embedded models beside them."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import msgspec

from gateway.banner import banner
from gateway.crew import keep_workers
from gateway.process import ServeError, Stop, listen, run_loop
from gateway.pull import ModelNotFound
from gateway.settings import Settings
from gateway.telemetry.log import make_log
from gateway.telemetry.request_log import RequestLogWriter
from gateway.upstream.local import LocalModels, LocalSpec, ModelFailed, local_specs
from router.policy_file import Loaded, read_text

GREET_S = 10.0


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
        listen(settings, shared=False).close()  # sharing a port is for our own workers, not for another gateway
    with listen(settings, shared=settings.workers > 1) as sock:
        settings = msgspec.structs.replace(settings, port=sock.getsockname()[1])
        return run_loop(_supervise(settings, loaded, sock, stop))


def _check_request_log(loaded: Loaded) -> None:
    try:
        RequestLogWriter(loaded.policy.log, lambda _: None).close()
    except OSError as exc:
        raise ServeError(f"log.path {loaded.policy.log.path}: {exc.strerror}; name a file that can be written") from exc


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
                from gateway.worker import work  # not in a supervisor: its workers import it themselves

                return await work(settings, loaded, sock, stop)
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
