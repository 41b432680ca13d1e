"""Time limits: an `asyncio.timeout` that knows which limit it is, and that no late cancellation escapes from."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import NamedTuple

from gateway.errors import Phase, TimedOut


class Limit(NamedTuple):
    """Until when, and what it means if that passes. The smaller of two limits is the earlier one."""

    due: float  # time.monotonic() seconds
    phase: Phase


class within:  # lower case: it reads as a preposition, `async with within(due, "idle")`
    """Raise `TimedOut(phase)` if the block still runs at `due` (time.monotonic() seconds)."""

    __slots__ = ("_cancelling", "_due", "_fired", "_handle", "_phase", "_task")

    def __init__(self, due: float, phase: Phase) -> None:
        self._due = due
        self._phase = phase
        self._fired = False

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task: asyncio.Task[object] = task
        self._cancelling = task.cancelling()
        self._handle = loop.call_later(max(0.0, self._due - time.monotonic()), self._fire)

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()
        if not self._fired:
            return
        others = self._task.uncancel() > self._cancelling
        if kind is not None and kind is not asyncio.CancelledError:
            await self._swallow()
            return
        if kind is None:
            await self._swallow()
        if not others:
            raise TimedOut(self._phase) from error

    async def _swallow(self) -> None:
        """The block ended in the very turn in which the time ran out: our cancellation is still to be delivered."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self._task.cancelling() > self._cancelling:
                raise
