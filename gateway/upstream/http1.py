"""A small HTTP/1.1 client on httptools: POST bytes, get the head, then the body as it comes. One pool for a process.

It leaves out what a gateway to model servers does not use (redirects, cookies, proxies, HTTP/2), and with it most of a
general client's time. Time limits are the caller's: whoever cancels a wait aborts the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools
import msgspec

IDLE_S = 15.0  # a connection that rested longer is not used again
HIGH_WATER_BYTES = 256 * 1024  # of a body that nobody has read yet: from here on the sender has to wait
MAX_HEAD_BYTES = 256 * 1024


class Dropped(Exception):
    """The connection broke. `untouched`: it had served before, and not a byte of this answer had come, so its server
    had most likely closed it at the very moment at which it was used again."""

    def __init__(self, *, untouched: bool = False) -> None:
        super().__init__("the connection was lost")
        self.untouched = untouched


class TooMuch(Exception):
    """The answer is larger than the caller accepts."""


class Origin(msgspec.Struct, frozen=True):
    host: str
    port: int
    tls: bool


class Destination(msgspec.Struct, frozen=True):
    """Where a kind of request goes, and its head up to the length; made once."""

    origin: Origin
    head: bytes


def destination(url: str, headers: Mapping[str, str]) -> Destination:
    """For POST requests to an http or https URL. Raises `ValueError` for a header that would break the head."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {path} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header holds a line end")
    head = "\r\n".join([*lines, "Content-Length: "]).encode("latin-1")
    return Destination(Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls), head)


class Connection(asyncio.Protocol):
    """One connection, one answer at a time. Taken from a `Pool` and given back to it."""

    def __init__(self, pool: Pool, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self._pool, self.origin, self._loop = pool, origin, loop
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._served = 0
        self.error: BaseException | None = None
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}  # lower-case names
        self.complete = False  # the body came to its end
        self.keep_alive = False
        self._framed = False  # the body's end is told; otherwise the connection's end is its end
        self._started = False  # a byte of the answer has come
        self._surplus = False  # bytes after the answer's end: nobody asked for them
        self._paused = False
        self._body: list[bytes] = []
        self._size = self._head_bytes = 0

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        self._started = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._fail(exc)
        if self.status < 200:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(ValueError("the head of the answer has no end"))
        self._wake()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.keep_alive = False
        if not self.complete:
            if self.status >= 200 and not self._framed and exc is None:
                self.complete = True
            else:
                self.error = self.error or exc or EOFError()
        self._pool.forget(self)
        self._wake()

    def _fail(self, exc: BaseException) -> None:
        self.keep_alive = False
        if not self.complete:
            self.error = exc
        self.transport.abort()

    # --- httptools ---

    def on_message_begin(self) -> None:
        if self.complete:
            self._surplus, self.keep_alive = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._surplus:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if not self._surplus:
            self.status = self._parser.get_status_code()
            self._framed = "content-length" in self.headers or "transfer-encoding" in self.headers

    def on_body(self, data: bytes) -> None:
        if self._surplus:
            return
        self._body.append(data)
        self._size += len(data)
        if self._size > HIGH_WATER_BYTES and not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._surplus:
            return
        if self.status < 200:  # 100 Continue and its kin: the answer is still to come
            self._reset()
            return
        self.complete = True
        self.keep_alive = self._parser.should_keep_alive() and not self.transport.is_closing()

    # --- for its user ---

    async def post(self, head: bytes, body: bytes) -> None:
        """Send, and wait for the head of the answer. Raises `Dropped`."""
        if self._served:
            self._reset()
        self._served += 1
        self.transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        while self.status < 200:
            if self.error is not None:
                raise Dropped(untouched=self._served > 1 and not self._started) from self.error
            await self._wait()

    async def read(self, max_bytes: int) -> bytes:
        """The whole body. Raises `Dropped` or `TooMuch`."""
        pieces, size = [], 0
        while piece := await self.readany():
            size += len(piece)
            if size > max_bytes:
                raise TooMuch
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def readany(self) -> bytes:
        """What has come since the last time, at least a byte; empty at the end. Raises `Dropped`."""
        while not self._body:
            if self.complete:
                return b""
            if self.error is not None:
                raise Dropped from self.error
            await self._wait()
        body = self._body
        self._body, self._size = [], 0
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        return body[0] if len(body) == 1 else b"".join(body)

    @property
    def at_end(self) -> bool:
        """Nothing is left to read."""
        return self.complete and not self._body

    async def _wait(self) -> None:
        self._waiter = waiter = self._loop.create_future()
        await waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Pool:
    """Idle connections by origin, the last used first. Made inside the loop that uses it."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._tls: ssl.SSLContext | None = None
        self._loop = asyncio.get_running_loop()
        self.closed = False

    def take(self, origin: Origin) -> Connection | None:
        """An idle connection that may be used, or None."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.keep_alive and self._loop.time() - connection.idle_since < IDLE_S:
                return connection
            connection.transport.abort()
        return None

    async def connect(self, origin: Origin) -> Connection:
        """A new connection. Raises `OSError` (`ssl.SSLError` among them)."""
        if origin.tls and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads the system's certificates
        _, connection = await self._loop.create_connection(
            lambda: Connection(self, origin, self._loop),
            origin.host,
            origin.port,
            ssl=self._tls if origin.tls else None,
        )
        return connection

    def give(self, connection: Connection) -> None:
        """Done with: kept if its answer was read to the end, aborted otherwise."""
        if not (connection.at_end and connection.keep_alive) or self.closed:
            connection.transport.abort()
            return
        connection.idle_since = self._loop.time()
        idle = self._idle.setdefault(connection.origin, [])
        if idle and connection.idle_since - idle[0].idle_since > IDLE_S:
            idle.pop(0).transport.abort()  # the one that has rested longest; one each time is enough to get rid of all
        idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """It was lost."""
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def close(self) -> None:
        """Abort what is idle; what is in use is aborted when it is given back."""
        self.closed = True
        for idle in self._idle.values():
            for connection in tuple(idle):
                connection.transport.abort()
        self._idle.clear()
