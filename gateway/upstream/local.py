"""Embedded models: one supervised child process each, on a loopback port that all workers share.

The gateway then talks to it as to any OpenAI-compatible server, at `http://127.0.0.1:PORT/v1`. While a child starts
again, connections are refused (or answered 503 "Loading model"): a failed attempt like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from gateway.pull import find_model, packaged_model
from gateway.upstream.http1 import Dropped, Pool, destination
from gateway.upstream.local_server import HOST, READY
from router.policy import Policy, Tier

FIRST_DELAY_S, MAX_DELAY_S = 0.2, 10.0
LONG_LIFE_S = 60.0  # a child that lived this long has earned the first delay again
START_S = 300.0  # large files come slowly from slow disks
STOP_S = 2.0
DEFAULT_PARALLEL, MAX_PARALLEL = 4, 8
MIN_CTX = 2048
WARM_UP = b'{"messages":[{"role":"user","content":"Hello"}],"max_tokens":1}'
LOG_PREFIX = re.compile(r"^[\d.]+ [A-Z] \w+ *(\S*: )?")


class Report(Protocol):
    """Told what happens to the children: `local_model_ready`, `local_model_died`, `local_model_failed`."""

    def __call__(self, event: str, /, **fields: str | int | float) -> None: ...


class ModelFailed(Exception):
    """The child ended before it could answer; the text is for operators and names the file."""


@dataclass(frozen=True)
class LocalSpec:
    """One model to serve."""

    model: str  # as the policy names it: local/...
    path: Path  # a GGUF file
    parallel: int = DEFAULT_PARALLEL  # answers at the same time; each has a context of its own
    ctx: int = MIN_CTX  # tokens of one request, prompt and answer together
    threads: int | None = None  # default: `local_server.default_threads`
    temperature: float | None = None  # for requests that do not say; default: the file's, else llama.cpp's
    top_p: float | None = None


def local_specs(policy: Policy) -> tuple[LocalSpec, ...]:
    """One spec for each embedded model of a policy. Raises `gateway.pull.ModelNotFound`."""
    specs: dict[str, LocalSpec] = {}
    for tier in policy.tiers.values():
        for deployment in tier.deployments:
            if deployment.provider == "local":
                known = specs.get(deployment.model) or _smallest_spec(deployment.model)
                parallel = max(known.parallel, _parallel(tier))
                ctx = max(known.ctx, deployment.context_window or MIN_CTX)
                specs[deployment.model] = replace(known, parallel=parallel, ctx=ctx)
    return tuple(specs.values())


def _smallest_spec(model: str) -> LocalSpec:
    packaged = packaged_model(model)
    temperature, top_p = (packaged.temperature, packaged.top_p) if packaged else (None, None)
    return LocalSpec(model, find_model(model), 1, temperature=temperature, top_p=top_p)


def _parallel(tier: Tier) -> int:
    return min(MAX_PARALLEL, tier.concurrency.max) if tier.concurrency else DEFAULT_PARALLEL


class LocalModels:
    """Owner of the children and of their ports.

    Either `start()`, or `start_children()` and then `supervise()` in a task of the caller's; `aclose()` after both.
    """

    def __init__(self, specs: Iterable[LocalSpec], report: Report) -> None:
        self._children = {spec.model: _Child(spec, report) for spec in specs}
        self._task: asyncio.Task[None] | None = None

    @property
    def ports(self) -> Mapping[str, int]:
        """Port by model, from `start_children` on; a model keeps its port when it is started again."""
        return {model: child.port for model, child in self._children.items() if child.port}

    @property
    def pids(self) -> Mapping[str, int]:
        """Process id by model, of the children that run."""
        return {model: child.pid for model, child in self._children.items() if child.pid}

    async def start_children(self) -> Mapping[str, int]:
        """Start all processes without waiting for them; gives `ports`. Raises `OSError` if one cannot be started."""
        for child in self._children.values():
            await child.start()
        return self.ports

    async def supervise(self) -> None:
        """Warm the children, and start each again that ends, until cancelled."""
        self._task = asyncio.current_task()
        async with asyncio.TaskGroup() as group:
            for child in self._children.values():
                group.create_task(child.keep())

    async def start(self) -> None:
        """Start, supervise, and wait until all are warm. Raises `ModelFailed`; nothing runs then."""
        try:
            await self.start_children()
            self._task = asyncio.create_task(self.supervise())
            for model in self._children:
                await self.ready(model)
        except BaseException:
            await self.aclose()
            raise

    async def ready(self, model: str) -> None:
        """Until this model is warm. Raises `ModelFailed` if its child ends before that."""
        await self._children[model].ready()

    async def aclose(self) -> None:
        """End all children; afterwards none is left, whatever they were doing."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])  # it may be starting a child just now
        await asyncio.gather(*(child.stop() for child in self._children.values()))


class _Child:
    """One child process after another on one port."""

    def __init__(self, spec: LocalSpec, report: Report) -> None:
        self._spec = spec
        self._report = report
        self._port_holder: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: asyncio.Task[str] | None = None
        self._state: Literal["starting", "ready", "failed"] = "starting"
        self._changed = asyncio.Event()
        self._failure = ""
        self._restarts = 0
        self.port = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        if self._port_holder is None:
            self._port_holder = _hold_port()
            self.port = self._port_holder.getsockname()[1]
        pipe = asyncio.subprocess.PIPE
        # A session of its own: Ctrl-C in a terminal is for the gateway, which still has answers to finish.
        spawning = asyncio.ensure_future(asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway.upstream.local_server", *self._arguments(),
            stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True,
        ))  # fmt: skip
        try:
            self._process = await asyncio.shield(spawning)
        except asyncio.CancelledError:
            self._process = await spawning  # milliseconds; without it nobody would know of the child
            raise
        assert self._process.stderr is not None
        self._stderr = asyncio.create_task(_first_words(self._process.stderr))
        self._turn("starting")

    def _arguments(self) -> tuple[str, ...]:
        spec = self._spec
        options = {
            "model": spec.path, "alias": spec.model.removeprefix("local/"), "port": self.port,
            "parallel": spec.parallel, "ctx": spec.ctx, "threads": spec.threads,
            "temperature": spec.temperature, "top-p": spec.top_p,
        }  # fmt: skip
        return tuple(f"--{name}={value}" for name, value in options.items() if value is not None)

    async def keep(self) -> None:
        """Wait for the child's end, again and again."""
        delay = FIRST_DELAY_S
        while True:
            started = time.monotonic()
            await self._live(started)
            if time.monotonic() - started > LONG_LIFE_S:
                delay = FIRST_DELAY_S
            await asyncio.sleep(delay)
            delay = min(2 * delay, MAX_DELAY_S)
            self._restarts += 1
            with contextlib.suppress(OSError):  # no memory or processes left: counts as one more failed start
                await self.start()

    async def _live(self, started: float) -> None:
        """One child, from its start to its end."""
        assert self._process is not None
        if await self._answers():
            self._report("local_model_ready", **self._fields(), seconds=round(time.monotonic() - started, 2))
            self._turn("ready")
            await self._process.wait()
            code = await self._end()
            self._turn("starting")
            self._report("local_model_died", **self._fields(), exit_code=code)
            return
        code = await self._end()
        assert self._stderr is not None
        why = await self._stderr or f"exit code {code}"
        self._failure = f"{self._spec.model} ({self._spec.path}) cannot be served: {why}"
        self._turn("failed")
        self._report("local_model_failed", **self._fields(), exit_code=code, why=why)

    def _fields(self) -> dict[str, str | int]:
        assert self._process is not None
        spec = self._spec
        return {"model": spec.model, "port": self.port, "pid": self._process.pid, "restarts": self._restarts}

    async def _answers(self) -> bool:
        """Until the child has greeted and has worked once, so that the first caller finds it warm."""
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(TimeoutError, OSError, Dropped):
            async with asyncio.timeout(START_S):
                return await self._process.stdout.readline() == READY and await _warm(self.port)
        return False

    def _turn(self, state: Literal["starting", "ready", "failed"]) -> None:
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def ready(self) -> None:
        while self._state != "ready":
            if self._state == "failed":
                raise ModelFailed(self._failure)
            await self._changed.wait()

    async def stop(self) -> None:
        """End the child and give the port back."""
        try:
            await self._end()
        finally:
            if self._port_holder is not None:
                self._port_holder.close()

    async def _end(self) -> int:
        """SIGTERM, a moment, SIGKILL (at once if we are cancelled ourselves); gives the exit code."""
        process = self._process
        if process is None:
            return 0
        _send(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            _send(process, signal.SIGKILL)
        code = await process.wait()
        await self._close_pipes(process)
        return code

    async def _close_pipes(self, process: asyncio.subprocess.Process) -> None:
        """Of a child that has ended; the event loop keeps them open until they are read to the end."""
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        await process.stdout.read()
        if self._stderr is not None:
            await self._stderr


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Not by the process's own methods: they look for its end first, and asyncio then never learns its exit code."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _hold_port() -> socket.socket:
    """A free loopback port, kept for us: bound and not listening, it refuses callers until the child listens there."""
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((HOST, 0))
    except OSError:
        holder.close()
        raise
    return holder


async def _first_words(stderr: asyncio.StreamReader) -> str:
    """Why a start failed. What comes after the beginning is read and forgotten: it might show a prompt."""
    words = b""
    while chunk := await stderr.read(4096):
        words = (words + chunk)[:4096]
    lines = words.decode(errors="replace").splitlines() or [""]
    # The library's own first complaint is the most exact one. It may come after our child's: it logs in a thread.
    return next((LOG_PREFIX.sub("", line) for line in lines if LOG_PREFIX.match(line)), lines[0]).strip()


async def _warm(port: int) -> bool:
    """One token through the whole path."""
    where = destination(f"http://{HOST}:{port}/v1/chat/completions", {"Content-Type": "application/json"})
    pool = Pool()
    connection = await pool.connect(where.origin)
    try:
        await connection.post(where.head, WARM_UP)
        return connection.status == 200
    finally:
        pool.give(connection)
        pool.close()
