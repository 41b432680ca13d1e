"""An open answer and its owner: whoever got a `Stream` closes it, and closing gives everything back.

Until the first content token nothing has gone to the caller: `Live.begin` holds back role-only and empty events, and
any failure is still an `AttemptError` that `execute` may answer with the next attempt (the commit point). After it,
a failure can only be told in the stream itself: an error object as the last event, and no end marker.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol

import msgspec

from cache.answer import Assembly
from gateway import errors
from gateway.deadline import Limit, within
from gateway.errors import AttemptError, Broken
from gateway.upstream.base import Reply
from gateway.upstream.body import replace_fields, with_cost
from gateway.upstream.failures import classify_event
from gateway.upstream.sse import DONE, Chunk, EventTooLarge, Splitter, decode_chunk, payload
from router.types import Attempt, AttemptOutcome, AttemptRecord, Usage

FINISH_GRACE_S = 1.0  # after the finish reason: time for usage and end marker, which some servers never send
LEFTOVER_S = 0.05  # after the end marker: time for the end of the HTTP body, so that its connection can be used again
LEFTOVER_READS = 4


class Stream(Protocol):
    """What the pipeline hands to a surface: a whole body, or events to come."""

    @property
    def whole(self) -> bytes | None:
        """The complete body, or None if `events` is to be read."""
        ...

    def events(self) -> AsyncIterator[bytes]:
        """Bytes for the caller as they come; never raises `AttemptError`: a failure is the last event."""
        ...

    def finish(self) -> None:
        """The caller has all that it will get: note how it ended, give the slot back. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Free the upstream, after `finish`. Idempotent, and completed even if cancelled meanwhile."""
        ...


class Whole:
    """A complete answer; everything it needed has been given back already."""

    __slots__ = ("whole",)

    def __init__(self, body: bytes) -> None:
        self.whole: bytes = body

    async def events(self) -> AsyncIterator[bytes]:
        yield self.whole

    def finish(self) -> None:
        return

    async def aclose(self) -> None:
        return


_ERROR_EVENT = re.compile(rb"^event: ?error\s*$", re.MULTILINE)
CostOf = Callable[[Usage], tuple[float | None, float | None]]  # usage → cost and saved, USD


class Relay(msgspec.Struct, frozen=True):
    """How events are passed on."""

    request_id: str
    hide_usage: bool  # the caller did not ask for the usage event that we asked for
    rename: bytes | None  # JSON string to put in place of the model's name
    idle_s: float
    last: Limit  # the end of the attempt
    choices: int = 1
    record: bool = False  # the answer may be stored
    cost_of: CostOf | None = None  # the usage event also tells the cost


class Live:
    """A stream that still runs. Owns the upstream's reply and the concurrency slot (`release`)."""

    __slots__ = (
        "_chunks", "_closed", "_finished", "_held", "_late", "_relay", "_release", "_reply", "_splitter", "assembly",
        "attempt", "content_events", "done", "error", "finish_reason", "finished", "first_token", "last_token",
        "record", "usage",
    )  # fmt: skip
    whole: bytes | None = None

    def __init__(
        self, attempt: Attempt, record: AttemptRecord, reply: Reply, relay: Relay, release: Callable[[], None]
    ) -> None:
        self.attempt, self.record = attempt, record
        self._reply, self._relay, self._release = reply, relay, release
        self._chunks = reply.chunks()
        self._splitter = Splitter()
        self._held: list[bytes] = []
        self._closed = self._finished = False
        self.assembly = Assembly() if relay.record else None  # puts the whole answer together, for the cache
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.finished: set[int] = set()  # choices with a finish reason
        self.done = False  # the end marker came
        self.content_events = 0
        self.first_token = self.last_token = 0.0
        self.error: AttemptError | None = None
        self._late: AttemptError | None = None  # read already, to be raised with the next read

    async def begin(self) -> None:
        """Read up to the first content token (or the end of an answer without any). Raises `AttemptError`."""
        while not (self.content_events or self._complete):
            self._raise_late()
            data = await anext(self._chunks, b"")
            if not data:
                if last := self._take_rest():
                    self._held.append(last)
                break
            if out := self._take(data):
                self._held.append(out)
        if not (self.finish_reason or self.content_events):  # an end marker alone is no answer
            raise Broken("the stream ended before it said anything")
        self.first_token = self.first_token or time.monotonic()

    async def events(self) -> AsyncIterator[bytes]:
        if self._held:
            yield b"".join(self._held)
            self._held.clear()
        try:
            while not self.done and (out := await self._next()) is not None:
                if out:
                    yield out
        except AttemptError as exc:
            if not self._complete:  # a fault after the finish reason costs nobody anything
                self.error = exc
                yield b"data: " + errors.body(exc, self._relay.request_id) + b"\n\n"
                return
        yield DONE

    @property
    def last(self) -> Limit:
        return self._relay.last

    @property
    def _complete(self) -> bool:
        return self.done or len(self.finished) >= self._relay.choices

    async def _next(self) -> bytes | None:
        """The next bytes for the caller, empty if there are none yet; None at a good end."""
        self._raise_late()
        wait = FINISH_GRACE_S if self._complete else self._relay.idle_s
        async with within(*min(Limit(time.monotonic() + wait, "idle"), self._relay.last)):
            data = await anext(self._chunks, b"")
        if data:
            return self._take(data)
        if rest := self._take_rest():
            return rest
        if not self._complete:
            raise Broken("the stream ended in the middle of the answer")
        return None

    def _take(self, data: bytes) -> bytes:
        try:
            events = self._splitter.feed(data)
        except EventTooLarge as exc:
            raise Broken("the model's server sent an event that is too large") from exc
        if len(events) == 1:
            return self._read(events[0])
        out: list[bytes] = []
        for event in events:
            if self.done:
                break  # garbage after the end marker
            try:
                out.append(self._read(event))
            except AttemptError as exc:
                if not out:
                    raise
                self._late = exc  # what came before it in the same read is passed on first
                break
        return b"".join(out)

    def _raise_late(self) -> None:
        if self._late is not None:
            raise self._late

    def _take_rest(self) -> bytes:
        rest = self._splitter.rest()
        return self._read(rest.rstrip(b"\r\n") + b"\n\n") if rest.strip() and not self.done else b""

    def _read(self, event: bytes) -> bytes:
        """Note what one event says, and give the bytes to pass on (none for the end marker and hidden usage)."""
        data = payload(event)
        if data is None:
            return event if self.content_events else b""  # a comment: keeps the line busy, once we have begun
        if data.strip() == b"[DONE]":
            self.done = True
            return b""
        chunk = _decode(event, data)
        self._note(chunk)
        if self._relay.rename is not None and chunk.model is not None:
            data = replace_fields(data, {"model": self._relay.rename})
            event = b"data: " + data + b"\n\n"
        if self.assembly is not None:
            self.assembly.add(data)
        if self._relay.cost_of is not None and chunk.usage is not None and self.usage is not None:
            event = b"data: " + with_cost(data, *self._relay.cost_of(self.usage)) + b"\n\n"
        return b"" if chunk.is_usage_only and self._relay.hide_usage else event

    def _note(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage.buckets()  # the last one counts: some servers repeat a growing total
        if chunk.choices:
            if chunk.has_content():
                self.last_token = time.monotonic()
                self.first_token = self.first_token or self.last_token
                self.content_events += 1
            if reason := chunk.finish_reason:
                self.finish_reason = reason
                self.finished.update(choice.index for choice in chunk.choices if choice.finish_reason)

    def finish(self) -> None:
        if self._finished:
            return
        self._finished = True
        self._settle_record()
        self._release()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.shield(self._let_go())

    async def _let_go(self) -> None:
        try:
            if self.done and self.error is None:
                await self._drain()
        finally:
            await self._reply.aclose()

    async def _drain(self) -> None:
        """Usually only the end of the HTTP body is outstanding, in the same packet or the next."""
        with suppress(TimeoutError, AttemptError):
            async with asyncio.timeout(LEFTOVER_S):
                for _ in range(LEFTOVER_READS):
                    if not await anext(self._chunks, b""):
                        break

    def _settle_record(self) -> None:
        record = self.record
        record.ended = time.monotonic()
        record.usage = self.usage
        if self.error is not None:
            record.outcome, record.error = self.error.outcome, str(self.error)
        else:
            record.outcome = AttemptOutcome.OK if self._complete else AttemptOutcome.CANCELLED


def _decode(event: bytes, data: bytes) -> Chunk:
    try:
        chunk = decode_chunk(data)
    except msgspec.MsgspecError as exc:
        raise Broken("the model's server sent an event that cannot be read") from exc
    if (error := chunk.error_object) is not None:
        raise classify_event(error)
    if b"event:" in event and _ERROR_EVENT.search(event):
        raise classify_event(data)
    return chunk
