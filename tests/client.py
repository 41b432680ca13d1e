"""A client on the socket level: any bytes out, arrival times in, and leaving whenever a test wants to.

client = Client(gateway.url, key="key-alice")
reply = await client.chat("hi", stream=True)
reply = await client.chat("你好", stream=True, leave=Leave(after_events=3))
reply = await client.send(request_bytes("POST", "/v1/chat/completions", [("x", "y" * 9000)], b"{...}"))
assert ("ok", "medium", "2") == (reply.text, reply.tier, reply.attempts)
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from tests.sse import Event, Sse, SseError, SseReader, parse_sse

__all__ = [
    "Client",
    "Event",
    "Leave",
    "Reply",
    "Sse",
    "SseError",
    "SseReader",
    "check_form",
    "parse_sse",
    "request_bytes",
]

Headers = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True)
class Leave:
    """When the client goes away; the first that comes true counts. `reset`: with a TCP reset instead of a close."""

    after_s: float | None = None  # since the request was sent
    after_events: int | None = None
    after_text: str | None = None  # once this was in the data of an event
    at_once: bool = False  # right after the request's last byte
    reset: bool = False

    def wants_to(self, events: list[Event]) -> bool:
        return (self.after_events is not None and len(events) >= self.after_events) or (
            self.after_text is not None and any(self.after_text in event.data for event in events)
        )


@dataclass
class Reply:
    """What came back. Times are seconds since the request was sent."""

    status: int = 0  # 0: no answer came
    headers: list[tuple[str, str]] = field(default_factory=list)
    raw_head: bytes = b""
    body: bytes = b""
    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # of the body, as they were read
    complete: bool = False  # the body came to the end that its framing promised
    reset: bool = False  # the other side reset the connection
    left: bool = False  # we went away
    sent_at: float = 0.0  # time.monotonic()
    head_at: float | None = None
    duration: float = 0.0
    sse: Sse = field(default_factory=Sse)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def about(self, name: str) -> str | None:
        """The header `x-tiergate-NAME`."""
        return self.header(f"x-tiergate-{name}")

    @property
    def is_stream(self) -> bool:
        return (self.header("content-type") or "").startswith("text/event-stream")

    @cached_property
    def decoded(self) -> bytes:
        """The body, with the encoding undone that its header declares."""
        return gzip.decompress(self.body) if self.header("content-encoding") == "gzip" else self.body

    @cached_property
    def json(self) -> Any:
        return json.loads(self.decoded)

    @property
    def events(self) -> list[Event]:
        return self.sse.events

    @property
    def text(self) -> str:
        return self.sse.text if self.is_stream else self.json["choices"][0]["message"]["content"]

    @property
    def finish(self) -> str | None:
        return self.sse.finish if self.is_stream else self.json["choices"][0]["finish_reason"]

    @property
    def usage(self) -> dict[str, Any] | None:
        return self.sse.usage if self.is_stream else self.json.get("usage")

    @property
    def error(self) -> dict[str, Any] | None:
        """The error object, of the body or of the stream's error event."""
        if self.is_stream:
            return self.sse.error
        return self.json.get("error") if self.status >= 400 else None

    tier = property(lambda self: self.about("tier"))
    route = property(lambda self: self.about("route"))
    deployment = property(lambda self: self.about("deployment"))
    model = property(lambda self: self.about("model"))
    attempts = property(lambda self: self.about("attempts"))
    cache = property(lambda self: self.about("cache"))
    reason = property(lambda self: self.about("reason"))
    difficulty = property(lambda self: self.about("difficulty"))
    request_id = property(lambda self: self.about("request-id"))


def check_form(reply: Reply) -> None:
    """What holds for every reply of the OpenAI surface that came to its end, whatever a test looks at."""
    if not reply.complete:
        return
    assert reply.request_id, f"no x-tiergate-request-id among {reply.headers}"
    error = reply.error
    if reply.status >= 400:
        assert error is not None, f"status {reply.status} without an error object: {reply.body[:300]!r}"
    if error is not None:
        assert isinstance(error.get("message"), str), error
        assert error["message"], error
        assert isinstance(error.get("type"), str), error
        for name in ("code", "param"):
            assert name in error, error
            assert error[name] is None or (isinstance(error[name], str) and error[name] != "None"), error


def request_bytes(
    method: str, path: str, headers: Headers = (), body: bytes | None = None, *, chunked: bool = False
) -> bytes:
    """A request on the wire; framing headers are added unless `headers` has them already."""
    lines: list[tuple[str, str | bytes]] = list(headers)
    names = {name.lower() for name, _ in lines}
    if "host" not in names:
        lines.insert(0, ("host", "gateway.test"))
    if chunked and body is not None:
        lines.append(("transfer-encoding", "chunked"))
        body = b"".join(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in _cut(body)) + b"0\r\n\r\n"
    elif body is not None and "content-length" not in names:
        lines.append(("content-length", str(len(body))))
    head = b"".join(name.encode("latin-1") + b": " + _bytes(value) + b"\r\n" for name, value in lines)
    return f"{method} {path} HTTP/1.1\r\n".encode() + head + b"\r\n" + (body or b"")


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8")


def _cut(body: bytes, size: int = 7) -> list[bytes]:
    """Pieces that cut words and characters; large bodies in larger ones."""
    size = max(size, len(body) // 50)
    return [body[at : at + size] for at in range(0, len(body), size)]


class Client:
    """One caller of a server. Every request gets a connection of its own, unless `keep_alive`.

    `check`: every reply of `/v1/` must carry our request id, and every error the OpenAI form.
    """

    def __init__(
        self, url: str, key: str | None = None, *, keep_alive: bool = False, timeout: float = 60.0, check: bool = True
    ) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.key = key
        self.timeout = timeout
        self.check = check
        self._keep_alive = keep_alive
        self._connection: _Connection | None = None

    async def chat(
        self, prompt: str | list[dict[str, Any]] = "Hello", *, model: str = "auto", stream: bool = False,
        headers: Mapping[str, str] | None = None, leave: Leave | None = None, **fields: Any,
    ) -> Reply:  # fmt: skip
        """POST /v1/chat/completions; `fields` go into the body."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        body = {"model": model, "messages": messages, **({"stream": True} if stream else {}), **fields}
        return await self.post("/v1/chat/completions", body, headers=headers, leave=leave)

    async def post(
        self, path: str, body: Any, *, headers: Mapping[str, str] | None = None, leave: Leave | None = None
    ) -> Reply:
        """POST JSON (or bytes, as they are)."""
        content = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        return await self.send(request_bytes("POST", path, self._headers(headers), content), leave=leave)

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return await self.send(request_bytes("GET", path, self._headers(headers)))

    def _headers(self, headers: Mapping[str, str] | None) -> list[tuple[str, str | bytes]]:
        own = {"authorization": f"Bearer {self.key}"} if self.key is not None else {}
        return list({**own, "content-type": "application/json", **(headers or {})}.items())

    async def send(self, request: bytes, *, leave: Leave | None = None) -> Reply:
        """Exactly these bytes; the reply, as far as it came."""
        reply = Reply()
        connection = await self._open()
        try:
            async with asyncio.timeout(self.timeout):
                await connection.exchange(request, reply, leave or Leave())
        finally:
            reply.duration = time.monotonic() - reply.sent_at
            await self._done_with(connection, reply)
        if self.check and request.split(b" ", 2)[1].startswith(b"/v1/"):
            check_form(reply)
        return reply

    async def _open(self) -> _Connection:
        if self._connection is None:
            return await _Connection.open(self.host, self.port)
        connection, self._connection = self._connection, None
        return connection

    async def _done_with(self, connection: _Connection, reply: Reply) -> None:
        closes = (reply.header("connection") or "").lower() == "close"
        if self._keep_alive and reply.complete and not closes and self._connection is None:
            self._connection = connection
        else:
            await connection.close()

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.buffer = b""

    @classmethod
    async def open(cls, host: str, port: int) -> _Connection:
        return cls(*await asyncio.open_connection(host, port))

    async def close(self, *, reset: bool = False) -> None:
        if reset:
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort()
        self.writer.close()
        with contextlib.suppress(OSError):  # it was gone already
            await self.writer.wait_closed()

    async def exchange(self, request: bytes, reply: Reply, leave: Leave) -> None:
        reply.sent_at = time.monotonic()
        try:
            self.writer.write(request)
            await self.writer.drain()
        except OSError:
            reply.reset = True  # refused in mid-request, perhaps with an answer that is there to be read
        if leave.at_once:
            await self._leave(reply, leave)
            return
        try:
            async with asyncio.timeout(leave.after_s):
                await self._read(reply, leave)
        except TimeoutError:
            if leave.after_s is None:
                raise
            await self._leave(reply, leave)

    async def _leave(self, reply: Reply, leave: Leave) -> None:
        reply.left = True
        await self.close(reset=leave.reset)

    async def _read(self, reply: Reply, leave: Leave) -> None:
        events = SseReader()
        reply.sse = events.sse
        try:
            await self._head(reply)
            zipped, unzipped = reply.header("content-encoding") == "gzip", zlib.decompressobj(wbits=31)
            async for piece in self._body(reply):
                at = time.monotonic() - reply.sent_at
                reply.pieces.append((at, piece))
                if reply.is_stream:
                    events.feed(unzipped.decompress(piece) if zipped else piece, at)
                if leave.wants_to(reply.events):
                    await self._leave(reply, leave)
                    break
            else:
                reply.complete = True
        except ConnectionError:
            reply.reset = True
        except EOFError:
            pass
        reply.body = b"".join(piece for _, piece in reply.pieces)
        if reply.complete:
            events.close()

    async def _head(self, reply: Reply) -> None:
        status = 100
        while status < 200:
            raw = await self._until(b"\r\n\r\n")
            status = int(raw.split(b" ", 2)[1])
        reply.status, reply.raw_head = status, raw
        reply.head_at = time.monotonic() - reply.sent_at
        for line in raw.decode("latin-1").split("\r\n")[1:-2]:
            name, _, value = line.partition(":")
            reply.headers.append((name, value.strip()))

    async def _body(self, reply: Reply) -> Any:
        if (reply.header("transfer-encoding") or "").lower() == "chunked":
            while size := int((await self._until(b"\r\n")).split(b";")[0], 16):
                yield (await self._exactly(size + 2))[:-2]
            await self._until(b"\r\n")
        elif (length := reply.header("content-length")) is not None:
            left = int(length)
            while left:
                piece = await self._exactly(min(left, 65536))
                left -= len(piece)
                yield piece
        elif reply.status not in (204, 304):
            while piece := self.buffer or await self.reader.read(65536):
                self.buffer = b""
                yield piece

    async def _more(self) -> None:
        piece = await self.reader.read(65536)
        if not piece:
            raise EOFError
        self.buffer += piece

    async def _until(self, mark: bytes) -> bytes:
        while (end := self.buffer.find(mark)) < 0:
            await self._more()
        return self._pop(end + len(mark))

    async def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            await self._more()
        return self._pop(size)

    def _pop(self, size: int) -> bytes:
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken
