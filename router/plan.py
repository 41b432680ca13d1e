"""Decision and health → the ordered attempts, fallbacks included."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from router.health import Health
from router.names import Target
from router.policy import Deployment, Policy, Tier
from router.types import MODE_OF, Attempt, Call, Decision, Plan, Skipped

ANSWER_RESERVE = 16  # tokens that an answer needs at the least


class Planner:
    """Makes plans; holds only the turn counters of round robin."""

    def __init__(self, policy: Policy, health: Health, uniform: Callable[[float, float], float]) -> None:
        self._policy = policy
        self._health = health
        self._uniform = uniform
        self._turns = dict.fromkeys(policy.tiers, 0)

    def plan(self, decision: Decision, call: Call, target: Target, *, on_paper: bool = False) -> Plan:
        """Attempts in order. Those of deployments that cool down are left out, unless there is nobody else.

        `on_paper`: nobody will walk this plan, so it takes no turn of a round robin.
        """
        wanted, skipped = self._candidates(decision, call, target)
        ready: list[Attempt] = []
        resting: list[Attempt] = []
        for attempt in wanted:
            (ready if self._health.ready(attempt.deployment.name) else resting).append(attempt)
        if resting and not ready:
            ready = [min(resting, key=lambda attempt: self._health.ready_at(attempt.deployment.name))]
            resting.remove(ready[0])
        if not on_paper:
            self._turns[decision.tier] += 1
        skipped += [Skipped(one.tier.name, one.deployment.name, "cooling down") for one in resting]
        return Plan(tuple(ready), tuple(skipped))

    def _candidates(self, decision: Decision, call: Call, target: Target) -> tuple[list[Attempt], list[Skipped]]:
        wanted: list[Attempt] = []
        skipped: list[Skipped] = []
        need = decision.prompt_tokens + min(call.max_output_tokens or ANSWER_RESERVE, ANSWER_RESERVE)
        for tier in self._tiers(decision, target):
            for deployment in self._ordered(tier):
                if decision.only_deployment not in (None, deployment.name) or deployment.mode != MODE_OF[call.surface]:
                    continue
                if (reason := _too_small(deployment, need, call.max_output_tokens or 0)) is not None:
                    skipped.append(Skipped(tier.name, deployment.name, reason))
                else:
                    wanted.append(Attempt(tier, deployment))
        return wanted, skipped

    def _tiers(self, decision: Decision, target: Target) -> Iterator[Tier]:
        """The tier decided on, then its fallbacks: those that the route may use."""
        policy, order = self._policy, self._policy.tier_names.index
        yield policy.tiers[decision.tier]
        if decision.only_deployment is not None:
            return
        route = target.route
        low = order(route.min_tier) if route and route.min_tier else 0
        high = order(route.max_tier) if route and route.max_tier else len(policy.tiers)
        for name in policy.fallback.get(decision.tier, ()):
            if low <= order(name) <= high:
                yield policy.tiers[name]

    def _ordered(self, tier: Tier) -> tuple[Deployment, ...]:
        deployments = tier.deployments
        if len(deployments) == 1:
            return deployments
        if tier.balance == "round_robin":
            first = self._turns[tier.name] % len(deployments)
            return deployments[first:] + deployments[:first]
        # Weighted order without replacement: by u**(1/w), the largest first (Efraimidis and Spirakis).
        return tuple(sorted(deployments, key=lambda one: self._uniform(0.0, 1.0) ** (1.0 / one.weight), reverse=True))


def _too_small(deployment: Deployment, need: int, output: int) -> str | None:
    """Why this model cannot take the call: its window, or the longest answer that it can give."""
    if deployment.context_window is not None and need > deployment.context_window:
        return f"about {need} tokens do not fit into its {deployment.context_window}"
    if deployment.max_output_tokens is not None and output > deployment.max_output_tokens:
        return f"its answers have at most {deployment.max_output_tokens} tokens, and {output} are asked for"
    return None
