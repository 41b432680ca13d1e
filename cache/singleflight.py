"""Identical calls at the same time share one upstream call."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from cache.answer import StoredAnswer

PATIENCE = 3  # so many callers in a row may fail on behalf of all; then the others stop waiting and ask for themselves
REMEMBERED = 1024  # calls known to have answers that are not to be shared


class _Flight:
    """One upstream call and those who wait for it; changed by `Flights` alone."""

    __slots__ = ("failures", "key", "waiters")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.failures = 0
        self.waiters: deque[asyncio.Future[Turn | StoredAnswer | None]] = deque()

    def next_waiter(self) -> asyncio.Future[Turn | StoredAnswer | None] | None:
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():  # done: it left, or its time was up
                return waiter
        return None


class Turn:
    """The right and the duty to make a call, for everybody who waits for it. It is ended once; more does nothing."""

    __slots__ = ("_flight", "_flights")

    def __init__(self, flights: Flights, flight: _Flight) -> None:
        self._flights = flights
        self._flight: _Flight | None = flight

    def done(self, answer: StoredAnswer | None) -> None:
        """The answer goes to all who wait. None (the call failed, or its caller left): exactly one of them is next."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        if answer is None:
            self._flights.pass_on(flight)
        else:
            self._flights.land(flight, answer)

    def dissolve(self) -> None:
        """There is an answer, but none to share (cut at its length limit, say). Those who wait go on by themselves at
        once: to try one after the other would most likely give each the same, later. And next time nobody waits."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._flights.scatter(flight)


class Flights:
    """The calls under way, by key. One event loop; no tasks, only the futures of those who wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[bytes, _Flight] = {}
        self._alone: OrderedDict[bytes, None] = OrderedDict()  # keys that are not merged, the latest last

    def __len__(self) -> int:
        return len(self._open)

    def lead(self, key: bytes) -> Turn | None:
        """The turn, unless somebody has it: then `join`."""
        if key in self._alone:
            return self.solo(key)
        if key in self._open:
            return None
        flight = self._open[key] = _Flight(key)
        return Turn(self, flight)

    def solo(self, key: bytes) -> Turn:
        """A turn for one call that nobody waits for."""
        return Turn(self, _Flight(key))

    async def join(self, key: bytes, until: float) -> Turn | StoredAnswer:
        """Take the turn if it is free; else wait for the answer, or for the turn if its holder fails.

        Who still waits at `until` (seconds of the clock), or learns that there is nothing to share, gets a turn alone.
        """
        if (turn := self.lead(key)) is not None:
            return turn
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Turn | StoredAnswer | None] = loop.create_future()
        self._open[key].waiters.append(waiter)
        alarm = loop.call_later(max(0.0, until - self._clock()), _stop_waiting, waiter)
        try:
            return await waiter or self.solo(key)
        except asyncio.CancelledError:
            # Cancelled in the moment in which it was handed the turn: nobody may wait for somebody who has left.
            if not waiter.cancelled() and isinstance(handed := waiter.result(), Turn):
                handed.done(None)
            raise
        finally:
            alarm.cancel()

    def pass_on(self, flight: _Flight) -> None:
        """The call failed: on to the one that has waited longest, unless none is left or too many have failed."""
        flight.failures += 1
        if flight.failures < PATIENCE and (waiter := flight.next_waiter()) is not None:
            waiter.set_result(Turn(self, flight))
        else:
            self._close(flight, None)

    def land(self, flight: _Flight, answer: StoredAnswer) -> None:
        """The call was answered, for all."""
        self._alone.pop(flight.key, None)
        self._close(flight, answer)

    def scatter(self, flight: _Flight) -> None:
        """The call was answered, for its own caller only."""
        self._alone[flight.key] = None
        if len(self._alone) > REMEMBERED:
            self._alone.popitem(last=False)
        self._close(flight, None)

    def _close(self, flight: _Flight, result: StoredAnswer | None) -> None:
        if self._open.get(flight.key) is flight:  # not one that flies alone
            del self._open[flight.key]
        while (waiter := flight.next_waiter()) is not None:
            waiter.set_result(result)


def _stop_waiting(waiter: asyncio.Future[Turn | StoredAnswer | None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
