"""The real SmolLM2 in a real child, for the tests beside this file: start it, ask it, see that nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from gateway.pull import pull
from gateway.upstream.local import LocalModels, LocalSpec

MODEL = "local/smollm2-135m-instruct"
ROOT = Path(__file__).resolve().parents[3]


def weights_file() -> Path:
    """The model's file, fetched into the user's cache folder if it is not there yet."""
    return pull("smollm2", progress=False)


class Events:
    """What the supervisor reports, and a way to wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.times: list[float] = []
        self._came = asyncio.Event()

    def __call__(self, event: str, /, **fields: str | int | float) -> None:
        self.seen.append((event, dict(fields)))
        self.times.append(time.monotonic())
        self._came.set()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    async def count(self, event: str, times: int) -> dict[str, Any]:
        """The fields of this event when it comes for the n-th time."""
        async with asyncio.timeout(60):
            while self.names.count(event) < times:
                self._came.clear()
                await self._came.wait()
        return [fields for name, fields in self.seen if name == event][times - 1]


@asynccontextmanager
async def running(weights: Path, **options: Any) -> AsyncIterator[tuple[LocalModels, Events]]:
    """The model, warm; afterwards nothing of it is left, which is checked each time."""
    events = Events()
    models = LocalModels([LocalSpec(MODEL, weights, **options)], events)
    await models.start()
    pids, ports = dict(models.pids), dict(models.ports)
    try:
        yield models, events
    finally:
        pids |= models.pids
        await models.aclose()
    assert_gone(pids[MODEL], ports[MODEL])


def assert_gone(pid: int, port: int) -> None:
    assert not runs(pid)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def runs(pid: int) -> bool:
    """Whether the process does anything still; a zombie that its new parent has not reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return True


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while runs(pid):  # no event tells of the end of somebody else's child
            await asyncio.sleep(0.02)


def chat(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": prompt}], "max_tokens": 16, **fields}


async def ask(models: LocalModels, body: dict[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of one chat completion."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session, session.post(url(models), data=data, headers=headers) as answer:
        return answer.status, await answer.json()


def url(models: LocalModels) -> str:
    return f"http://127.0.0.1:{models.ports[MODEL]}/v1/chat/completions"


async def stream(models: LocalModels, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The events of a streamed chat completion; the end marker must come."""
    async with aiohttp.ClientSession() as session, session.post(url(models), json={**body, "stream": True}) as answer:
        assert "text/event-stream" == answer.content_type
        done = False
        async for line in answer.content:
            done = done or line.strip() == b"data: [DONE]"
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
        assert done
