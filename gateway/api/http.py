"""The little HTTP that the data path needs: read a request, notice that its caller left, send an answer. Raw ASGI."""

from __future__ import annotations

import asyncio
import os
import re
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from gateway import errors
from gateway.errors import BadRequest, CallerLeft, GatewayError, TooLarge, UnsupportedMedia
from router.types import NO_CACHE_CONTROL, CacheControl
from router.units import parse_duration

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
JSON = (b"content-type", b"application/json")
EVENTS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx and its kin would hold events back
]


def request_id(given: bytes | None) -> str:
    """The caller's `x-request-id` where it is a plain short word, else a new random one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    return os.urandom(16).hex()


async def read_body(headers: dict[bytes, bytes], receive: Receive, max_bytes: int) -> bytes:
    """The whole body, decompressed. The declared size is checked before a byte is read."""
    declared = headers.get(b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body", False) or message["type"] == "http.disconnect":
        body = await _rest_of_body(message, receive, max_bytes)
    elif len(body) > max_bytes:
        raise _too_large(max_bytes)
    encoding = headers.get(b"content-encoding", b"identity").lower()
    return body if encoding == b"identity" else _decompress(body, encoding, max_bytes)


async def _rest_of_body(message: MutableMapping[str, Any], receive: Receive, max_bytes: int) -> bytes:
    pieces, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise CallerLeft
        piece = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return b"".join(pieces)
        message = await receive()


def _decompress(body: bytes, encoding: bytes, max_bytes: int) -> bytes:
    if encoding not in (b"gzip", b"x-gzip", b"deflate"):
        raise UnsupportedMedia("the body's content-encoding is not supported; send gzip, deflate or no encoding")
    unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        plain = unzip.decompress(body, max_bytes + 1)
    except zlib.error:
        raise BadRequest("the body is not what its content-encoding says") from None
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    if not unzip.eof:
        raise BadRequest("the compressed body is cut short")
    return plain


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"the request body is larger than {max_bytes} bytes, the limit of this gateway (max_body)")


def time_limit(given: bytes | None, most: float) -> float:
    """Seconds for the whole request: the policy's, or less if `x-tiergate-timeout` says so (`2.5`, `500ms`, `30s`)."""
    if given is None:
        return most
    text = given.decode("latin-1").strip()
    try:
        seconds = float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise BadRequest("x-tiergate-timeout is not a time; send seconds (2.5) or a duration (500ms, 30s)",
                         param="x-tiergate-timeout")  # fmt: skip
    return min(seconds, most)


def cache_control(given: bytes | None) -> CacheControl:
    """`Cache-Control: no-cache, no-store, max-age=N`; other directives and nonsense are ignored, as HTTP wants."""
    if given is None:
        return NO_CACHE_CONTROL
    words = {word.strip() for word in given.decode("latin-1").lower().split(",")}
    ages = [word[8:].strip('"') for word in words if word.startswith("max-age=")]
    age = float(ages[0]) if ages and ages[0].isdecimal() else None
    return CacheControl("no-cache" in words, "no-store" in words, age)


def header_value(text: str) -> bytes:
    """Any text as a header value: what is not printable ASCII is percent-encoded as UTF-8."""
    if text.isascii() and text.isprintable():
        return text.encode("ascii")
    return quote(text, safe=" !#$&'()*+,/:;=?@[]<>^`{|}~").encode("ascii")


async def send_bytes(send: Send, status: int, headers: Headers, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: BaseException, call_id: str, explaining: Headers | None = None) -> None:
    """An error object with its status, request id and, where there is one, Retry-After."""
    body = errors.body(error, call_id)
    headers = [*error_headers(error, call_id), JSON, (b"content-length", b"%d" % len(body))]
    headers += [header for header in explaining or () if not header[0].endswith(b"request-id")]
    await send_bytes(send, errors.wire(error).status, headers, body)


def error_headers(error: BaseException, call_id: str) -> Headers:
    """What every error carries besides its object."""
    name = call_id.encode("ascii")
    headers: Headers = [(b"x-request-id", name), (b"x-tiergate-request-id", name)]
    if isinstance(error, GatewayError) and error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after))))
    if errors.wire(error).status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


class Leaving:
    """Cancels the request's task when its caller goes away. `watch` from when there is something to cancel."""

    __slots__ = ("_main", "_receive", "_watcher", "left")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._main: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.left = False

    def watch(self) -> None:
        if self._watcher is None:
            self._main = asyncio.current_task()
            self._watcher = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._main is not None:
            self.left = True
            self._main.cancel()

    def stop(self) -> None:
        """Before the last byte is sent: from then on the server itself says `http.disconnect`."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = self._main = None  # no circle for the garbage collector to find
