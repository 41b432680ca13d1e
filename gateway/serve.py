"""Processes: one worker in this process, or several under a small supervisor; embedded models beside them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
import uvicorn

from gateway.app import build_app
from gateway.banner import banner
from gateway.pull import ModelNotFound
from gateway.settings import Settings
from gateway.telemetry.log import Log, make_log
from gateway.telemetry.metrics import MULTIPROCESS
from gateway.upstream.local import LocalModels, LocalSpec, local_specs
from router.policy_file import Loaded, read_policy

WORKER = "TIERGATE_WORKER"
BACKLOG = 2048
RESTART_DELAY_S = 1.0


class ServeError(Exception):
    """The gateway cannot start; the text says what to do about it."""


def serve(settings: Settings, loaded: Loaded) -> int:
    """Run until a signal says stop; gives the exit code. Raises `ServeError`."""
    if not settings.is_loopback and not loaded.policy.keys:
        raise ServeError(
            f"{settings.host} can be reached from other machines, and the policy has no keys. Add one "
            "(`tiergate keys new NAME`), or listen on 127.0.0.1."
        )
    _leave_exit_code_alone()
    with _listen(settings) as sock:
        port: int = sock.getsockname()[1]
        settings = msgspec.structs.replace(settings, port=port)
        return _run(_supervise(settings, loaded, sock))


def work() -> int:
    """One of several workers: everything it needs is in the environment variable `TIERGATE_WORKER`."""
    settings = msgspec.json.decode(os.environ[WORKER], type=Settings)
    _leave_exit_code_alone()
    with _listen(settings) as sock:
        return _run(_work(settings, read_policy(settings.policy, os.environ), sock, make_log(settings.log_level)))


def _run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Any:
    try:
        import uvloop  # absent on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop


def _leave_exit_code_alone() -> None:
    """uvicorn raises the signal that stopped it once more at its end; a clean stop is exit code 0, not -15."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)


def _listen(settings: Settings) -> socket.socket:
    """A socket of its own for each worker, all on one port: the kernel shares connections out evenly."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if settings.workers > 1:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as exc:
        sock.close()
        raise ServeError(f"cannot listen on {settings.host} port {settings.port}: {exc.strerror}") from exc
    return sock


async def _supervise(settings: Settings, loaded: Loaded, sock: socket.socket) -> int:
    log = make_log(settings.log_level)

    def report(event: str, /, **fields: Any) -> None:
        log.warning(event, **fields) if "died" in event or "failed" in event else log.info(event, **fields)

    models = LocalModels(_specs(loaded), report)
    try:
        ports = dict(await models.start_children())
        settings = msgspec.structs.replace(settings, local_ports=ports)
        sys.stderr.write(banner(loaded, settings, settings.port))
        sys.stderr.flush()
        warming = asyncio.create_task(models.supervise())
        try:
            if settings.workers == 1:
                return await _work(settings, loaded, sock, log)
            return await _many(settings, log)
        finally:
            warming.cancel()
    finally:
        await models.aclose()


def _specs(loaded: Loaded) -> tuple[LocalSpec, ...]:
    try:
        return local_specs(loaded.policy)
    except ModelNotFound as exc:
        raise ServeError(str(exc)) from exc


async def _work(settings: Settings, loaded: Loaded, sock: socket.socket, log: Log) -> int:
    app = build_app(settings, loaded, log=log)
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="on", access_log=False, log_config=None, server_header=False,
        date_header=False, proxy_headers=False, backlog=BACKLOG, timeout_keep_alive=75,
        timeout_graceful_shutdown=max(1, round(settings.grace_s)),
    )  # fmt: skip
    server = uvicorn.Server(config)
    app.reloader.reload_on_signal()
    orphaned = asyncio.create_task(_stop_when_orphaned(server)) if WORKER in os.environ else None
    await server.serve(sockets=[sock])
    if orphaned is not None:
        orphaned.cancel()
    return 0 if server.started else 1


async def _stop_when_orphaned(server: uvicorn.Server) -> None:
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(1)
    server.should_exit = True


async def _many(settings: Settings, log: Log) -> int:
    """Keep `settings.workers` workers alive until told to stop; their metrics meet in a folder of this boot."""
    folder = tempfile.mkdtemp(prefix="tiergate-metrics-")
    environ = {**os.environ, MULTIPROCESS: folder, WORKER: msgspec.json.encode(settings).decode()}
    crew = _Crew(environ, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, crew.stop)
    loop.add_signal_handler(signal.SIGHUP, crew.tell, signal.SIGHUP)
    try:
        await asyncio.gather(*(crew.keep() for _ in range(settings.workers)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return crew.exit_code


class _Crew:
    """The worker processes; one `keep` for each place."""

    def __init__(self, environ: Mapping[str, str], log: Log) -> None:
        self._environ = environ
        self._log = log
        self._stopping = False
        self._processes: set[asyncio.subprocess.Process] = set()
        self.exit_code = 0

    async def keep(self) -> None:
        while not self._stopping:
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway.worker", env=dict(self._environ), start_new_session=True
            )
            self._processes.add(process)
            if self._stopping:
                process.terminate()
            code = await process.wait()
            self._processes.discard(process)
            _forget_gauges(process.pid, self._environ[MULTIPROCESS])
            if self._stopping:
                self.exit_code = self.exit_code or code
                return
            self._log.error("worker_died", pid=process.pid, exit_code=code)
            if time.monotonic() - started < RESTART_DELAY_S:
                await asyncio.sleep(RESTART_DELAY_S)

    def stop(self) -> None:
        self._stopping = True
        self.tell(signal.SIGTERM)

    def tell(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _forget_gauges(pid: int, folder: str) -> None:
    from prometheus_client.multiprocess import mark_process_dead  # only with several workers

    mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
