"""A model server that plays a script: a raw TCP server, because a fake object cannot cut a chunk in half.

    async with Upstream() as small:
        small.script(Send(HEAD), Send(event("hel")), Send(event("lo")), Send(finish()), Send(DONE))
        small.script(json_reply(429, {...}, {"retry-after": "1"}))
        small.script(answer("你好"))
        ...  # the gateway calls small.url
        assert not small.unused

Each request takes the next script; after the last one the `default` plays, and without a default an error 500 is
answered and counted in `unexpected`. A reply whose head tells neither a length nor chunks ends by closing.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tests.script import (
    DONE,
    END_CHUNKS,
    HEAD,
    HEAD_CHUNKED,
    Chunk,
    Close,
    Hang,
    Reset,
    Send,
    Step,
    Until,
    Wait,
    answer,
    chunk_object,
    completion,
    data,
    error_reply,
    event,
    finish,
    framed,
    http,
    json_reply,
    role,
    stream,
    usage,
    usage_event,
)  # fmt: skip

__all__ = [
    "DONE", "END_CHUNKS", "HEAD", "HEAD_CHUNKED", "Chunk", "Close", "Hang", "Received", "Reset", "Script", "Send",
    "Step", "Until", "Upstream", "Wait", "answer", "chunk_object", "completion", "data", "error_reply", "event",
    "finish", "framed", "http", "json_reply", "role", "stream", "usage", "usage_event",
]  # fmt: skip


@dataclass
class Received:
    """One request as it came over the wire."""

    method: str
    path: str
    headers: list[tuple[str, str]]  # names as sent
    body: bytes  # without its framing
    raw_head: bytes
    at: float = field(default_factory=time.monotonic)
    replied: float | None = None  # time.monotonic() when the script was played to its end
    disconnected: float | None = None  # time.monotonic() when the other side left before that

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


Script = Sequence[Step] | Callable[[Received], Sequence[Step]]


class Upstream:
    """A scripted server on a free port of 127.0.0.1. `refuse=True`: the port is held, connections are refused."""

    def __init__(self, *, refuse: bool = False) -> None:
        self.requests: list[Received] = []
        self.unexpected: list[Received] = []
        self.active = 0  # scripts that play now
        self.max_parallel = 0
        self.connections_made = 0
        self.bad_requests: list[bytes] = []  # what was not HTTP
        self._refuse = refuse
        self._scripts: list[Script] = []
        self._default: Script | None = None
        self._connections: set[_Connection] = set()
        self._socket = socket.socket()
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        if not self._refuse:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: _Connection(self), sock=self._socket, backlog=1024
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [connection.stop() for connection in tuple(self._connections)]
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def script(self, *steps: Step) -> None:
        """The reply to the next request that has none yet."""
        self._scripts.append(steps)

    def default(self, *steps: Step) -> None:
        """The reply to every request after the scripts."""
        self._default = steps

    def respond(self, choose: Callable[[Received], Sequence[Step]]) -> None:
        """As `default`, chosen by looking at the request."""
        self._default = choose

    @property
    def unused(self) -> list[Script]:
        return self._scripts

    @property
    def open_connections(self) -> int:
        return len(self._connections)

    async def wait_for(self, condition: Callable[[], object], timeout: float = 5.0) -> None:
        """Until `condition()` holds; it is looked at whenever a request, a reply's end or a disconnect happens."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def wait_for_requests(self, count: int = 1, timeout: float = 5.0) -> None:
        await self.wait_for(lambda: len(self.requests) >= count, timeout)

    async def wait_for_disconnect(self, timeout: float = 5.0, count: int = 1) -> None:
        """Until the other side has left `count` requests before their scripts had ended."""
        await self.wait_for(lambda: sum(r.disconnected is not None for r in self.requests) >= count, timeout)

    def _take(self, request: Received) -> Sequence[Step]:
        self.requests.append(request)
        script = self._scripts.pop(0) if self._scripts else self._default
        if script is None:
            self.unexpected.append(request)
            return (error_reply(500, "the test has no script for this request", type="unexpected"),)
        return script(request) if callable(script) else script


class _Connection(asyncio.Protocol):
    """One accepted connection: reads requests, plays a script for each; ends with the connection."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.buffer = bytearray()
        self.arrived = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.upstream._connections.add(self)
        self.upstream.connections_made += 1
        self.task = asyncio.get_running_loop().create_task(self.serve())
        self._tell()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.arrived.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream._connections.discard(self)
        self.task.cancel()
        self._tell()

    def stop(self) -> asyncio.Task[None]:
        self.transport.abort()
        self.task.cancel()
        return self.task

    def _tell(self) -> None:
        self.upstream._changed.set()

    async def serve(self) -> None:
        keep = True
        while keep:
            try:
                request = await self._request()
            except ValueError:
                self.upstream.bad_requests.append(bytes(self.buffer))
                break
            keep = await self._reply(request)
        self.transport.close()

    async def _reply(self, request: Received) -> bool:
        """Play the script; whether the connection may carry another request."""
        upstream = self.upstream
        steps = upstream._take(request)
        upstream.active += 1
        upstream.max_parallel = max(upstream.max_parallel, upstream.active)
        self._tell()
        try:
            keep = await self._play(steps)
            request.replied = time.monotonic()
        except asyncio.CancelledError:
            request.disconnected = time.monotonic()
            raise
        finally:
            upstream.active -= 1
            self._tell()
        return keep and (request.header("connection") or "").lower() != "close"

    async def _play(self, steps: Sequence[Step]) -> bool:
        head = b""
        for step in steps:
            match step:
                case Send(piece):
                    head += piece if b"\r\n\r\n" not in head else b""
                    await self._write(piece)
                case Chunk(piece):
                    await self._write(framed(piece))
                case Wait(seconds):
                    await asyncio.sleep(seconds)
                case Until(event):
                    await event.wait()
                case Hang():
                    await asyncio.get_running_loop().create_future()
                case Reset(after):
                    await self._reset(after)
                    return False
                case Close():
                    return False
        return _stays_open(head)

    async def _write(self, piece: bytes) -> None:
        await self.writable.wait()
        self.transport.write(piece)
        await asyncio.sleep(0)

    async def _reset(self, after: float) -> None:
        await self.writable.wait()
        await asyncio.sleep(after)
        linger = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.abort()

    # --- reading ---

    async def _until(self, mark: bytes) -> bytes:
        while (end := self.buffer.find(mark)) < 0:
            await self._more()
        return self._pop(end + len(mark))

    async def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            await self._more()
        return self._pop(size)

    def _pop(self, size: int) -> bytes:
        taken = bytes(self.buffer[:size])
        del self.buffer[:size]
        return taken

    async def _more(self) -> None:
        self.arrived.clear()
        await self.arrived.wait()

    async def _request(self) -> Received:
        raw = await self._until(b"\r\n\r\n")
        first, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, path, _version = first.split(" ", 2)
        headers = []
        for line in lines:
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        request = Received(method, path, headers, b"", raw)
        request.body = await self._body(request)
        return request

    async def _body(self, request: Received) -> bytes:
        if (request.header("transfer-encoding") or "").lower() != "chunked":
            return await self._exactly(int(request.header("content-length") or 0))
        pieces = []
        while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
            pieces.append((await self._exactly(size + 2))[:-2])
        await self._until(b"\r\n")
        return b"".join(pieces)


def _stays_open(head: bytes) -> bool:
    """Whether the reply with this head has an end of its own."""
    lower = head.partition(b"\r\n\r\n")[0].lower()
    ends = b"\r\ncontent-length:" in lower or b"\r\ntransfer-encoding: chunked" in lower
    return ends and b"\r\nconnection: close" not in lower
