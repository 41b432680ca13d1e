"""The real command as a child process: start, wait until ready, signal, read its output, see it end.

async with Process(policy_file, env={"KEY": "..."}, workers=2) as gateway:
    await gateway.ready()
    ...  # requests to gateway.url
    gateway.send_signal(signal.SIGTERM)
    assert await gateway.exit(timeout=5) == 0
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.client import Client

ROOT = Path(__file__).resolve().parent.parent
KEPT = ("PATH", "HOME", "TMPDIR", "LANG", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "COVERAGE_FILE")


class NotReady(AssertionError):
    """The command ended, or did not get ready in time; the message has its output."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """`tiergate serve` with this policy file. `env` is all that it sees, besides what Python itself needs."""

    def __init__(
        self, policy: Path, *, env: Mapping[str, str] | None = None, workers: int = 1, grace: str = "15s",
        log_level: str = "info", port: int = 0,
    ) -> None:  # fmt: skip
        self.policy = policy
        self.port = port or free_port()
        self.env = {name: os.environ[name] for name in KEPT if name in os.environ} | dict(env or {})
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env |= {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(paths)}
        self.arguments = [
            "serve", "--policy", str(policy), "--host", "127.0.0.1", "--port", str(self.port),
            "--workers", str(workers), "--grace", grace, "--log-level", log_level,
        ]  # fmt: skip
        self._out, self._err = bytearray(), bytearray()
        self._readers: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def stdout(self) -> str:
        return self._out.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self._err.decode(errors="replace")

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON lines of stderr; other lines are left out."""
        return [json.loads(line) for line in self.stderr.splitlines() if line.startswith("{") and line.endswith("}")]

    @property
    def pid(self) -> int:
        return self._process.pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.started = time.monotonic()
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.cli", *self.arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=self.env, cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            asyncio.create_task(_collect(self._process.stdout, self._out)),
            asyncio.create_task(_collect(self._process.stderr, self._err)),
        ]

    async def ready(self, timeout: float = 30.0) -> Self:
        """Until `GET /health/ready` says 200."""
        client = Client(self.url, timeout=5.0, check=False)
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if self._process.returncode is not None:
                await self.exit(1)
                raise NotReady(f"ended with code {self._process.returncode}\n{self.stdout}\n{self.stderr}")
            try:
                if (await client.get("/health/ready")).status == 200:
                    return self
            except OSError:
                pass  # not listening yet; also TimeoutError
            await asyncio.sleep(0.05)
        raise NotReady(f"not ready within {timeout} s\n{self.stdout}\n{self.stderr}")

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    async def exit(self, timeout: float = 20.0) -> int:
        """The exit code, once it has ended and all of its output is here; TimeoutError if it goes on."""
        async with asyncio.timeout(timeout):
            code = await self._process.wait()
            self.ended = time.monotonic()
            await asyncio.gather(*self._readers)
        return code

    async def stop(self, timeout: float = 10.0) -> None:
        """SIGTERM, then SIGKILL to the whole group: nothing of it is left."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            await self.exit(timeout)
        except TimeoutError:
            self._kill_group()
            await self._process.wait()
        self._kill_group()
        await asyncio.gather(*self._readers)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # all gone
            os.killpg(self._process.pid, signal.SIGKILL)

    def children(self) -> list[int]:
        """Process ids of the direct children, oldest first (Linux)."""
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill_worker(self, number: int = signal.SIGKILL) -> int:
        """End one worker; its process id."""
        worker = next(pid for pid in reversed(self.children()) if b"resource_tracker" not in _command(pid))
        os.kill(worker, number)
        return worker

    def memory_bytes(self) -> int:
        """Resident memory of the command and its children (Linux)."""
        return sum(_resident(pid) for pid in (self.pid, *self.children()))


async def _collect(stream: asyncio.StreamReader, into: bytearray) -> None:
    while piece := await stream.read(65536):
        into += piece


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
