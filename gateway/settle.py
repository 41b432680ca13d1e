"""After the answer: usage, cost, cache store, metrics, log line. Runs once for each call and never fails one."""

from __future__ import annotations

import time

from cache.answer import StoredAnswer
from cache.lookup import Lead
from gateway.answer import said
from gateway.execute import blamed
from gateway.stream import Live, Stream, Whole
from gateway.telemetry.cost import baseline_price, cost_usd
from gateway.telemetry.log import Log
from gateway.telemetry.metrics import Metrics, Served
from gateway.telemetry.request_log import RequestLogWriter, outcome_label
from router.health import Health
from router.policy import Policy
from router.tokens import estimate_tokens
from router.types import MODE_OF, AttemptOutcome, AttemptRecord, Outcome, Usage

NOBODY = "none"  # the tier and deployment of a call that nobody answered
TRUNCATION_SHARE = 0.5  # an upstream that counts less than this share of our estimate has probably cut the prompt
TRUNCATION_FLOOR = 1000  # tokens; below it the estimate is too coarse to accuse anybody


class Settler:
    def __init__(
        self, policy: Policy, metrics: Metrics, health: Health, request_log: RequestLogWriter, log: Log
    ) -> None:
        self._deployments = {d.name: d for tier in policy.tiers.values() for d in tier.deployments}
        self._baseline = {surface: baseline_price(policy, surface) for surface in MODE_OF}
        self._metrics = metrics
        self._health = health
        self._request_log = request_log
        self._log = log

    def price(self, outcome: Outcome, stream: Stream) -> None:
        """Fill in what a whole answer's headers tell: who answered, usage, cost. For a stream: who answers."""
        record = outcome.attempts[-1]
        deployment = self._deployments[record.deployment]
        outcome.tier, outcome.deployment, outcome.model = record.tier, record.deployment, deployment.model_id
        if isinstance(stream, Whole):
            record.usage = record.usage or _estimate(outcome, _completion_tokens(outcome, stream.whole))
            self._count_cost(outcome)

    def settle(self, outcome: Outcome, stream: Stream | None, lead: Lead | None) -> None:
        """The one end of every call. Idempotent; nothing that goes wrong here reaches the caller."""
        if outcome.settled:
            return
        outcome.settled = True
        outcome.ended = time.monotonic()
        try:
            if isinstance(stream, Live):
                self._finish_stream(outcome, stream)
            self._keep(outcome, stream, lead)
            self._count(outcome)
            if self._request_log.on:
                self._request_log.write(outcome)
        except Exception as exc:  # noqa: BLE001 - the answer is out already: say so, and leave it at that
            self._log.error("settle_failed", request_id=outcome.call.request_id, error=type(exc).__name__)
        finally:
            if lead is not None:
                lead.drop()

    def _finish_stream(self, outcome: Outcome, live: Live) -> None:
        record = live.record
        outcome.finish_reason = live.finish_reason
        if live.error is not None:
            outcome.error = live.error
            blamed(self._health, self._metrics, live.attempt, live.error)
            self._metrics.truncated.labels(record.tier, record.deployment).inc()
            self._log.error(
                "stream_broken", request_id=outcome.call.request_id, tier=record.tier, deployment=record.deployment,
                outcome=live.error.outcome, error=str(live.error),
            )  # fmt: skip
        elif record.outcome is AttemptOutcome.OK:
            self._health.succeeded(record.deployment)
        if live.content_events > 1:
            gap = (live.last_token - live.first_token) / (live.content_events - 1)
            self._metrics.served(*_served_by(outcome)).per_token.observe(gap)
        if record.usage is None and live.content_events:
            record.usage = _estimate(outcome, live.content_events)
        self._count_cost(outcome)

    def _count_cost(self, outcome: Outcome) -> None:
        """Cost of all attempts that used tokens; unknown as soon as one of them has no price."""
        total: float | None = 0.0
        for record in outcome.attempts:
            if record.usage is not None:
                record.cost_usd = cost_usd(record.usage, self._deployments[record.deployment].price)
                total = None if total is None or record.cost_usd is None else total + record.cost_usd
        outcome.usage = outcome.attempts[-1].usage
        outcome.cost_usd = total if outcome.usage is not None else None
        outcome.baseline_usd = cost_usd(outcome.usage, self._baseline[outcome.call.surface])

    def _keep(self, outcome: Outcome, stream: Stream | None, lead: Lead | None) -> None:
        if lead is None or stream is None or outcome.status != 200 or outcome.error is not None:
            return
        body = stream.assembly.whole() if isinstance(stream, Live) and stream.assembly else stream.whole
        if body is None:
            return
        usage = outcome.usage or Usage()
        lead.store(
            StoredAnswer(
                body=body, usage=usage, tier=outcome.tier or NOBODY, deployment=outcome.deployment or NOBODY,
                model=outcome.model or "", route=_served_by(outcome)[0],
                stored_at=time.monotonic(), baseline_usd=outcome.baseline_usd,
            )
        )  # fmt: skip

    def _count(self, outcome: Outcome) -> None:
        metrics, label = self._metrics, outcome_label(outcome)
        by = _served_by(outcome)
        served, route = metrics.served(*by), by[0]
        if label == "ok":
            served.requests_ok.inc()
        else:
            metrics.requests.labels(*by, label).inc()
        assert outcome.ended is not None
        served.duration.observe(outcome.ended - outcome.started)
        metrics.overhead_of(route, outcome.cache).observe(outcome.overhead_s)
        if outcome.first_token is not None:
            served.ttft.observe(outcome.first_token - outcome.started)
        for record in outcome.attempts:
            metrics.attempt_of(record.tier, record.deployment, record.outcome or AttemptOutcome.CANCELLED).inc()
        if (decision := outcome.decision) is not None and outcome.attempts:
            metrics.decision_of(decision.route, decision.tier, decision.by).inc()
            if decision.difficulty is not None:
                metrics.difficulty_of(decision.route).observe(decision.difficulty)
        self._count_money(outcome, served)

    def _count_money(self, outcome: Outcome, served: Served) -> None:
        usage = outcome.usage
        if usage is None:
            if outcome.attempts and outcome.error is None:
                served.cost_unknown.inc()
            return
        if outcome.attempts:
            _count_tokens(usage, served)
            self._check_truncation(outcome, usage)
        if outcome.cost_usd is None:
            served.cost_unknown.inc()
        elif outcome.cost_usd:
            served.cost.inc(outcome.cost_usd)
        # A baseline without a cost would look like a saving of all of it.
        if outcome.baseline_usd and outcome.cost_usd is not None:
            served.baseline.inc(outcome.baseline_usd)
        if saved := outcome.saved_usd:
            served.saved.inc(saved)

    def _check_truncation(self, outcome: Outcome, usage: Usage) -> None:
        expected = outcome.decision.prompt_tokens if outcome.decision else 0
        if expected < TRUNCATION_FLOOR or usage.estimated or usage.prompt_tokens >= expected * TRUNCATION_SHARE:
            return
        record: AttemptRecord = outcome.attempts[-1]
        self._metrics.prompt_truncation.labels(record.tier, record.deployment).inc()
        self._log.warning(
            "prompt_truncation_suspected", request_id=outcome.call.request_id, tier=record.tier,
            deployment=record.deployment, expected_tokens=expected, reported_tokens=usage.prompt_tokens,
        )  # fmt: skip


def _served_by(outcome: Outcome) -> tuple[str, str, str, str]:
    """Route, tier, deployment and surface, for labels: names from the policy, or `none`."""
    route = outcome.decision.route if outcome.decision else outcome.cached_route
    return route or NOBODY, outcome.tier or NOBODY, outcome.deployment or NOBODY, outcome.call.surface


def _completion_tokens(outcome: Outcome, body: bytes) -> int:
    return estimate_tokens(said(body)) if outcome.call.surface == "chat" else 0


def _estimate(outcome: Outcome, completion_tokens: int) -> Usage:
    prompt = outcome.decision.prompt_tokens if outcome.decision else 0
    return Usage(input=prompt, output=completion_tokens, estimated=True)


def _count_tokens(usage: Usage, served: Served) -> None:
    for counter, tokens in (
        (served.input, usage.input), (served.cached_input, usage.cached_input), (served.cache_write, usage.cache_write),
        (served.output, usage.output), (served.reasoning, usage.reasoning), (served.image_output, usage.image_output),
    ):  # fmt: skip
        if tokens:
            counter.inc(tokens)
