"""Cap and queue of each deployment: at most `max` attempts open at once in this process, the next ones wait in line."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from gateway.deadline import Limit, within
from gateway.errors import QueueFull, TimedOut
from gateway.telemetry.metrics import Metrics
from router.policy import Concurrency, Policy


class Slot:
    """The places of one deployment. `release` after every `acquire` that returned, exactly once."""

    def __init__(self, tier: str, deployment: str, cap: Concurrency | None, metrics: Metrics) -> None:
        self._cap = cap
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.open = 0
        self._in_flight = metrics.in_flight.labels(tier, deployment)
        self._depth = metrics.queue_depth.labels(tier, deployment)
        self._full = metrics.queue_rejected.labels(tier, deployment, "full")
        self._late = metrics.queue_rejected.labels(tier, deployment, "timeout")

    async def acquire(self, limit: Limit) -> None:
        """Take a place, waiting in line until `limit` at most. Raises `QueueFull`, or `TimedOut` at the deadline."""
        if self._cap is not None and (self.open >= self._cap.max or self._waiting):
            await self._wait(self._cap, limit)  # the place is handed over by `release`
        else:
            self.open += 1
        self._in_flight.inc()

    async def _wait(self, cap: Concurrency, limit: Limit) -> None:
        if len(self._waiting) >= cap.queue:
            self._full.inc()
            raise _queue_full(cap)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._depth.inc()
        try:
            async with within(*limit):
                await turn
        except BaseException as exc:
            self._leave(turn)
            if isinstance(exc, TimedOut) and exc.phase != "deadline":
                self._late.inc()
                raise _queue_full(cap) from exc
            raise
        finally:
            self._depth.dec()

    def _leave(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            self._pass_on()  # the place came in the moment of leaving
        elif turn in self._waiting:  # `_pass_on` may have thrown it out already
            self._waiting.remove(turn)

    def release(self) -> None:
        self._in_flight.dec()
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.open -= 1


def _queue_full(cap: Concurrency) -> QueueFull:
    return QueueFull("the model's queue is full", retry_after=cap.queue_timeout)


def slots(policy: Policy, metrics: Metrics) -> Mapping[str, Slot]:
    """One `Slot` for each deployment, by name."""
    return {
        deployment.name: Slot(tier.name, deployment.name, tier.concurrency, metrics)
        for tier in policy.tiers.values()
        for deployment in tier.deployments
    }
