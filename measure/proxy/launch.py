"""Start targets, wait until each answers, stop them all at the end."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from measure.proxy.processes import Memory, cpu_s, memory, start, stop, tree
from measure.proxy.targets import PATH, Target

READY_S = 120.0
SETTLE_S = 1.0  # between the first answer and the reading of the idle memory
POLL_S = 0.01
TAIL = 400  # characters of a target's output that say why it did not start


class Startup(msgspec.Struct, frozen=True):
    """From the start of a target to its first good answer, and what it holds when idle."""

    seconds: float
    cpu_s: float
    processes: int
    idle: Memory


class NotReady(Exception):
    """A target ended, or gave no good answer in time; the text says what it said last."""


class Crew:
    """The processes of a run. Leaving the `with` block ends them."""

    def __init__(self, work: Path, nice: int = 0) -> None:
        self._work = work
        self._nice = nice
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in reversed(list(self._running)):
            self._end(name)

    def start(self, target: Target) -> Startup:
        """Start it and wait for its first 200. Raises `NotReady`; then nothing of it is left."""
        if _is_taken(target.port):  # the answers would be somebody else's
            raise NotReady(f"port {target.port} is taken; choose others with --port")
        began = time.monotonic()
        output = self._work / f"{target.name}.log"
        with output.open("wb") as log:
            process = start(
                target.command, log, self._nice, cores="0" if target.workers == 1 else "0,1", environ=target.environ
            )
        self._running[target.name] = process
        try:
            _wait_for_answer(target, process, began + READY_S)
        except NotReady as exc:
            self._end(target.name)
            raise NotReady(f"{exc} {output.read_text(errors='replace')[-TAIL:]}".strip()) from None
        seconds = time.monotonic() - began
        time.sleep(SETTLE_S)
        pids = self.pids(target.name)
        return Startup(round(seconds, 2), round(cpu_s(pids), 2), len(pids), memory(pids))

    def pids(self, name: str) -> tuple[int, ...]:
        """All processes of a target now."""
        return tree(self._running[name].pid)

    def _end(self, name: str) -> None:
        stop(self._running.pop(name))


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait_for_answer(target: Target, process: subprocess.Popen[bytes], end: float) -> None:
    error = "no answer"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise NotReady(f"ended with code {process.returncode}")
        try:
            ask(target)
        except urllib.error.HTTPError as exc:
            error = f"{exc.code} {exc.read()[:TAIL]!r}"
        except OSError as exc:
            error = str(exc)
        else:
            return
        time.sleep(POLL_S)
    raise NotReady(error)


def ask(target: Target) -> bytes:
    """One small request; gives the body of a 200. Raises OSError (HTTPError with another status)."""
    body = json.dumps({"model": target.model, "messages": [{"role": "user", "content": "hello 你好"}]}).encode()
    headers = {"Content-Type": "application/json", **dict(header.split(": ", 1) for header in target.headers)}
    request = urllib.request.Request(f"http://127.0.0.1:{target.port}{PATH}", body, headers)
    with contextlib.closing(urllib.request.urlopen(request, timeout=10)) as response:
        answer: bytes = response.read()
    return answer
