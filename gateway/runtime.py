"""What a process runs: a policy, and everything compiled or opened for it. A reload makes a new one and swaps it in."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from cache.lookup import Cache, Lead
from gateway.admission.keys import Keyring
from gateway.admission.slots import slots
from gateway.errors import AttemptError, BadRequest, CallerLeft, GatewayError, TooLong, wire
from gateway.execute import Executor
from gateway.settle import Settler
from gateway.stream import Stream
from gateway.telemetry.log import Log, log_internal
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request_log import RequestLogWriter
from gateway.upstream.base import Upstream
from gateway.upstream.openai import OpenAIUpstream
from router.decide import Classifier, Decider
from router.health import Health
from router.plan import Planner
from router.policy import Policy
from router.types import Call, Decision, Outcome, Plan

OPENAI_PROVIDERS = ("openai", "local")


class Equipment(msgspec.Struct, frozen=True):
    """What outlives a policy: made once for each process."""

    metrics: Metrics
    log: Log
    classifier: Classifier
    local_ports: Mapping[str, int]


class Runtime:
    """One policy at work. `enter` and `leave` count the calls that use it; retired, it closes after the last."""

    def __init__(self, policy: Policy, equipment: Equipment, previous: Runtime | None = None) -> None:
        metrics, log = equipment.metrics, equipment.log
        self.policy = policy
        self.equipment = equipment
        self.health = Health(time.monotonic)
        self.keyring = Keyring(policy)
        self.rule_headers = tuple((name.encode("latin-1"), name) for name in sorted(policy.rule_headers))
        self.decider = Decider(policy, equipment.classifier, self._classifier_failed)
        self.planner = Planner(policy, self.health, random.uniform)
        self.cache: Cache = (
            previous.cache.replaced(policy.cache.exact) if previous else Cache(policy.cache.exact, self._count_cache)
        )
        self.request_log = RequestLogWriter(policy.log, metrics.log_dropped.inc)
        self._upstreams: Mapping[str, Upstream] = _upstreams(policy, equipment, previous._upstreams if previous else {})
        by_deployment = {
            deployment.name: self._upstreams["openai" if deployment.provider in OPENAI_PROVIDERS else "litellm"]
            for tier in policy.tiers.values()
            for deployment in tier.deployments
        }
        self.executor = Executor(policy, by_deployment, slots(policy, metrics), self.health, metrics, log)
        self.settler = Settler(policy, metrics, self.health, self.request_log, log)
        self._ready = {
            deployment.name: metrics.ready.labels(tier.name, deployment.name)
            for tier in policy.tiers.values()
            for deployment in tier.deployments
        }
        self.tell_health()
        self._calls = 0
        self._retired = False
        self._idle = asyncio.Event()

    # -- the stages, as the pipeline names them ------------------------------------------------------------------

    def decide(self, call: Call, outcome: Outcome) -> Decision:
        outcome.decision = self.decider.decide(call, outcome.grant.tenant)
        return outcome.decision

    def plan(self, decision: Decision, call: Call) -> Plan:
        """Raises `TooLong` or `BadRequest` where no deployment can serve the call."""
        plan = self.planner.plan(decision, call, self.decider.targets[call.model])
        if plan.attempts:
            return plan
        if plan.skipped:
            raise TooLong(
                f"no model here can take a prompt of about {decision.prompt_tokens} tokens"
                + (f" and give an answer of {call.max_output_tokens}" if call.max_output_tokens else "")
            )
        raise BadRequest(f"{call.model!r} has no deployment for {call.surface}", param="model", code="model_not_found")

    async def execute(self, plan: Plan, call: Call, outcome: Outcome) -> Stream:
        stream = await self.executor.run(plan, call, outcome)
        try:
            self.settler.price(outcome, stream)
        except BaseException:
            stream.finish()
            await stream.aclose()
            raise
        return stream

    def settle(
        self, outcome: Outcome, stream: Stream | None, lead: Lead | None, error: BaseException | None = None
    ) -> None:
        if outcome.settled:
            return
        if isinstance(error, asyncio.CancelledError | CallerLeft):
            outcome.status = 499
        elif error is not None:
            outcome.error, outcome.status = error, wire(error).status
            if not isinstance(error, GatewayError):
                log_internal(self.equipment.log, error, outcome.call.request_id)
        self.settler.settle(outcome, stream, lead)

    def tell_health(self) -> None:
        """Which deployments are in use, into the metrics."""
        for name, gauge in self._ready.items():
            gauge.set(float(self.health.ready(name)))

    # -- life ----------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        self._calls += 1

    def leave(self) -> None:
        self._calls -= 1
        if self._retired and self._calls == 0:
            self._idle.set()

    async def prepare(self) -> None:
        """Import in the background what the first request would have to wait for."""
        for upstream in self._upstreams.values():
            with suppress(AttemptError):  # told to the first call that needs it
                await upstream.prepare()

    async def retire(self, successor: Runtime | None = None) -> None:
        """Close what only this runtime uses, after the last of its calls."""
        self._retired = True
        if self._calls:
            await self._idle.wait()
        for name, upstream in self._upstreams.items():
            if successor is None or successor._upstreams.get(name) is not upstream:
                await upstream.aclose()
        self.request_log.close()

    def _classifier_failed(self, exc: BaseException) -> None:
        self.equipment.metrics.classifier_errors.inc()
        self.equipment.log.error("classifier_failed", error=type(exc).__name__)

    @property
    def _count_cache(self) -> Callable[[str], None]:
        event_of = self.equipment.metrics.cache_event_of
        return lambda result: event_of("exact", result).inc()


def _upstreams(policy: Policy, equipment: Equipment, previous: Mapping[str, Upstream]) -> Mapping[str, Upstream]:
    """By kind. LiteLLM keeps its clients for the whole process, so its upstream is handed on from policy to policy."""
    made: dict[str, Upstream] = {"openai": OpenAIUpstream(policy, equipment.local_ports)}
    providers = {deployment.provider for tier in policy.tiers.values() for deployment in tier.deployments}
    if not providers <= set(OPENAI_PROVIDERS):
        from gateway.upstream.litellm import LiteLLMUpstream  # only for a policy that needs it

        made["litellm"] = previous.get("litellm") or LiteLLMUpstream()
    return made
