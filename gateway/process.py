"""What every process of the gateway needs before it has an app: a socket, an event loop, ears for signals."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Coroutine
from typing import Any, Protocol

from gateway.settings import Settings


class ServeError(Exception):
    """The gateway cannot start; the text says what to do about it."""


class Stoppable(Protocol):
    should_exit: bool


class Stop:
    """Remembers a signal to stop that comes before uvicorn listens to signals itself.

    It stays the handler behind uvicorn's own: uvicorn raises the signal that stopped it once more at its end, and a
    clean stop is exit code 0.
    """

    def __init__(self) -> None:
        self.requested = False
        self.server: Stoppable | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)

    def __call__(self, *_: object) -> None:
        self.requested = True
        if self.server is not None:
            self.server.should_exit = True


def listen(settings: Settings, *, shared: bool) -> socket.socket:
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


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run to the end; gives the exit code."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(main)


def _loop_factory() -> Any:
    try:
        import uvloop  # absent on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop
