"""The whole life of a request, in order: recall, decide, plan, execute, relay, settle."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType

from cache.answer import replay
from cache.lookup import Lead, Recalled
from gateway.deadline import Limit
from gateway.runtime import Runtime
from gateway.stream import Live, Stream, Whole
from router.types import Call, Outcome


async def answer(call: Call, outcome: Outcome, rt: Runtime, may_wait: Callable[[], None]) -> Served:
    """The whole life of one admitted call, up to an open answer; closing the answer settles the call.

    `may_wait` is called before the first wait for somebody else (a hit in memory never gets there).
    Raises `GatewayError`; what raises has been settled.
    """
    lead = None
    try:
        recalled = await recall(call, outcome, rt, may_wait)
        lead = recalled.lead
        if recalled.answer is not None:
            return Served(_replayed(recalled, call, outcome), outcome, None, rt)
        may_wait()
        decision = rt.decide(call, outcome)
        plan = rt.plan(decision, call)
        stream = await rt.execute(plan, call, outcome)
    except BaseException as exc:
        rt.settle(outcome, None, lead, error=exc)
        raise
    return Served(stream, outcome, lead, rt)


async def recall(call: Call, outcome: Outcome, rt: Runtime, may_wait: Callable[[], None]) -> Recalled:
    """Look into the cache; where an identical call is under way, wait for its answer."""
    target = rt.decider.targets[call.model]
    caching = target.route is None or target.route.cache
    recalled = rt.cache.peek(call, outcome.grant.tenant, rt.policy, caching)
    if recalled is None:
        may_wait()
        began = time.monotonic()
        recalled = await rt.cache.recall(call, outcome.grant.tenant, rt.policy, caching, outcome.grant.deadline)
        outcome.upstream_s += time.monotonic() - began
    outcome.cache, outcome.cache_age_s = recalled.status, recalled.age_s
    outcome.keep = recalled.lead is not None
    return recalled


def _replayed(recalled: Recalled, call: Call, outcome: Outcome) -> Stream:
    """A stored answer in the form that the caller wants. It costs nothing, and saves what it would have cost."""
    stored = recalled.answer
    assert stored is not None
    outcome.tier, outcome.deployment, outcome.model = stored.tier, stored.deployment, stored.model
    outcome.cached_route = stored.route
    outcome.usage, outcome.cost_usd, outcome.baseline_usd = stored.usage, 0.0, stored.baseline_usd
    outcome.first_token = time.monotonic()
    return Whole(replay(stored.body, call.wants_usage) if call.stream else stored.body)


class Served:
    """An open answer together with the record of its call. Leave its `async with` block, and the call is settled."""

    __slots__ = ("_lead", "_rt", "_stream", "outcome")

    def __init__(self, stream: Stream, outcome: Outcome, lead: Lead | None, rt: Runtime) -> None:
        self._stream, self.outcome, self._lead, self._rt = stream, outcome, lead, rt

    @property
    def whole(self) -> bytes | None:
        return self._stream.whole

    @property
    def last(self) -> Limit:
        """When the answer has to be at its end: the attempt's limit, or the call's."""
        return self._stream.last if isinstance(self._stream, Live) else Limit(self.outcome.grant.deadline, "deadline")

    def events(self) -> AsyncIterator[bytes]:
        return self._stream.events()

    async def __aenter__(self) -> Served:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.finish()
        self._rt.settle(self.outcome, self._stream, self._lead, error=error)
        await self._stream.aclose()
