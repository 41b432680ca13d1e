"""Walk a plan until an answer has begun: slot, attempt, retry, next.

What to do after a failure is read from the error (`then`, `blame`), never from its class.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping

import orjson

from gateway.admission.slots import Slot
from gateway.answer import read_answer
from gateway.deadline import Limit, within
from gateway.errors import AttemptError, Exhausted
from gateway.stream import CostOf, Live, Relay, Stream, Whole
from gateway.telemetry.cost import baseline_price, cost_usd
from gateway.telemetry.log import Log
from gateway.telemetry.metrics import Metrics
from gateway.upstream.base import Upstream
from gateway.upstream.body import replace_fields, rewrite
from router.backoff import delay
from router.health import Health
from router.policy import Deployment, Policy
from router.types import Attempt, AttemptOutcome, AttemptRecord, Call, Outcome, Plan, Usage


class Executor:
    """Everything that attempts need, for the life of one runtime."""

    def __init__(
        self,
        policy: Policy,
        upstreams: Mapping[str, Upstream],
        slots: Mapping[str, Slot],
        health: Health,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._upstreams = upstreams  # by deployment
        self._slots = slots
        self._health = health
        self._metrics = metrics
        self._log = log
        self._usage_cost, self._baseline = policy.usage_cost, baseline_price(policy, "chat")
        self._uniform: Callable[[float, float], float] = random.uniform
        self._sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def run(self, plan: Plan, call: Call, outcome: Outcome) -> Stream:
        """The first answer that begins well. Raises `Refused`, or `Exhausted` with every cause."""
        causes: list[AttemptError] = []
        previous: Attempt | None = None
        window = 0  # a prompt has been refused as too long for this many tokens
        for attempt in plan.attempts:
            if window and (attempt.deployment.context_window or window + 1) <= window:
                continue
            if previous is not None and previous.tier.name != attempt.tier.name:
                self._metrics.fallbacks.labels(previous.tier.name, attempt.tier.name).inc()
            previous = attempt
            stream = await self._step(attempt, call, outcome, causes)
            if stream is not None:
                return stream
            if causes[-1].then == "larger":
                window = max(window, attempt.deployment.context_window or 1)
            if time.monotonic() >= outcome.grant.deadline:
                break
        raise Exhausted(tuple(causes))

    async def _step(self, attempt: Attempt, call: Call, outcome: Outcome, causes: list[AttemptError]) -> Stream | None:
        """One deployment, with its retries. None: on to the next."""
        for retry in itertools.count():
            record = AttemptRecord(attempt.tier.name, attempt.deployment.name, time.monotonic(), retry)
            outcome.attempts.append(record)
            try:
                return await self._attempt(attempt, record, call, outcome)
            except AttemptError as exc:
                self._note_failure(attempt, record, exc, call)
                causes.append(exc)
                if exc.then == "stop":
                    raise
                wait = self._wait_before_retry(attempt, exc, retry + 1, outcome)
            except BaseException:
                record.outcome, record.ended = AttemptOutcome.CANCELLED, time.monotonic()
                raise
            if wait is None:
                return None
            self._metrics.retries.labels(attempt.tier.name, attempt.deployment.name).inc()
            await self._sleep(wait)
            outcome.upstream_s += wait
        return None

    def _wait_before_retry(self, attempt: Attempt, exc: AttemptError, retry: int, outcome: Outcome) -> float | None:
        policy = attempt.tier.retry
        if exc.then != "retry" or retry > policy.attempts:
            return None
        wait = delay(retry, policy.backoff, self._uniform, exc.retry_after)
        if wait is None or time.monotonic() + wait >= outcome.grant.deadline:
            return None
        return wait

    async def _attempt(self, attempt: Attempt, record: AttemptRecord, call: Call, outcome: Outcome) -> Stream:
        try:
            return await self._in_slot(attempt, record, call, outcome)
        finally:
            outcome.upstream_s += time.monotonic() - record.started

    async def _in_slot(self, attempt: Attempt, record: AttemptRecord, call: Call, outcome: Outcome) -> Stream:
        slot, cap, deadline = self._slots[attempt.deployment.name], attempt.tier.concurrency, outcome.grant.deadline
        own = Limit(deadline, "deadline")
        await slot.acquire(min(Limit(record.started + cap.queue_timeout, "total"), own) if cap else own)
        self._health.trying(attempt.deployment.name)
        try:
            last = min(Limit(time.monotonic() + attempt.tier.timeouts.total, "total"), Limit(deadline, "deadline"))
            if call.stream:
                return await self._begin_stream(attempt, record, call, outcome, last)  # which owns the slot from now on
            body = await self._whole(attempt, record, call, outcome, last)
        except BaseException:
            slot.release()
            raise
        slot.release()
        return Whole(body)

    async def _begin_stream(
        self, attempt: Attempt, record: AttemptRecord, call: Call, outcome: Outcome, last: Limit
    ) -> Live:
        first = Limit(time.monotonic() + attempt.tier.timeouts.first_token, "first_token")
        upstream, reply, live = self._upstreams[attempt.deployment.name], None, None
        try:
            async with within(*min(first, last)):
                reply = await upstream.open(call, attempt, rewrite(call, attempt.deployment))
                relay = Relay(
                    call.request_id, not call.wants_usage, rename(call, outcome), attempt.tier.timeouts.idle, last,
                    call.n, outcome.keep, self._cost_of(attempt.deployment) if call.wants_usage else None,
                )  # fmt: skip
                live = Live(attempt, record, reply, relay, self._slots[attempt.deployment.name].release)
                await live.begin()
        except BaseException:
            if reply is not None:
                await reply.aclose()
            raise
        record.status, record.first_token = 200, live.first_token
        outcome.first_token = live.first_token
        return live

    async def _whole(self, attempt: Attempt, record: AttemptRecord, call: Call, outcome: Outcome, last: Limit) -> bytes:
        timeouts = attempt.tier.timeouts
        first = Limit(time.monotonic() + (timeouts.first_byte or timeouts.total), "first_byte")
        reply = None
        try:
            async with within(*min(first, last)):
                upstream = self._upstreams[attempt.deployment.name]
                reply = await upstream.open(call, attempt, rewrite(call, attempt.deployment))
            async with within(*last):
                body = await reply.read()
            record.status, record.ended = 200, time.monotonic()
            answer = read_answer(body, call)
        finally:
            if reply is not None:
                await reply.aclose()
        record.outcome, record.usage, record.first_token = AttemptOutcome.OK, answer.usage, record.ended
        outcome.first_token, outcome.finish_reason = record.ended, answer.finish_reason
        self._health.succeeded(attempt.deployment.name)
        if (name := rename(call, outcome)) is not None and answer.model is not None:
            return replace_fields(body, {"model": name})
        return body

    def _cost_of(self, deployment: Deployment) -> CostOf | None:
        if not self._usage_cost:
            return None

        def cost_of(usage: Usage) -> tuple[float | None, float | None]:
            cost, baseline = cost_usd(usage, deployment.price), cost_usd(usage, self._baseline)
            return cost, None if cost is None or baseline is None else baseline - cost

        return cost_of

    def _note_failure(self, attempt: Attempt, record: AttemptRecord, exc: AttemptError, call: Call) -> None:
        record.outcome, record.error, record.status = exc.outcome, str(exc), exc.status
        record.ended = time.monotonic()
        blamed(self._health, self._metrics, attempt, exc)
        level = self._log.error if exc.outcome is AttemptOutcome.MISCONFIGURED else self._log.warning
        level(
            "upstream_misconfigured" if exc.outcome is AttemptOutcome.MISCONFIGURED else "attempt_failed",
            request_id=call.request_id, tier=attempt.tier.name, deployment=attempt.deployment.name,
            outcome=exc.outcome, status=exc.status, error=str(exc),
        )  # fmt: skip


def blamed(health: Health, metrics: Metrics, attempt: Attempt, exc: AttemptError) -> None:
    """Count a failure against its deployment, where it is the deployment's."""
    if exc.blame and health.failed(attempt.deployment.name, attempt.tier.cooldown, exc.retry_after):
        metrics.cooldowns.labels(attempt.tier.name, attempt.deployment.name).inc()
        metrics.ready.labels(attempt.tier.name, attempt.deployment.name).set(0)


def rename(call: Call, outcome: Outcome) -> bytes | None:
    """The model name that the caller asked for, as JSON, where the answer is to carry it."""
    decision = outcome.decision
    return orjson.dumps(call.model) if decision is not None and decision.response_model == "requested" else None
