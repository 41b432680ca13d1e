"""A checked policy → one that can be run: adapted to what is off here, and with everything filled in.

Values in, values out. Each departure from the file is one line of the notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from router.policy import Deployment, Frozen, Key, Policy, Price, Route, Rule, Text, Tier
from router.policy_checks import OPENAI, allowed_tiers
from router.prices import Known, known_model

AUTO = "auto"  # the route of a policy that has none

T = TypeVar("T", bound=Frozen)
V = TypeVar("V")


class Lost(msgspec.Struct, frozen=True):
    """What is configured and cannot be used here."""

    order: tuple[str, ...]  # the tiers of the file that can chat, cheapest first
    tiers: frozenset[str] = frozenset()  # those of them in which no deployment for chat is left
    deployments: Mapping[str, str] = {}  # name of a deployment that is off → its tier

    def instead_of(self, tier: str) -> str:
        """The nearest larger tier that is left, else the nearest smaller one."""
        if tier not in self.tiers:
            return tier
        place = self.order.index(tier)
        candidates = (*self.order[place + 1 :], *reversed(self.order[:place]))
        return next(each for each in candidates if each not in self.tiers)


def complete(policy: Policy, baseline_price: Price | None) -> Policy:
    """Prices, fallbacks, the baseline, thresholds and the `auto` route, filled in where nothing is said."""
    tiers = {name: _complete_tier(tier) for name, tier in policy.tiers.items()}
    ladder = chat_tiers(tiers)
    taken = {*tiers, *policy.aliases, *(each.name for tier in tiers.values() for each in tier.deployments)}
    routes = dict(policy.routes) or ({} if AUTO in taken else {AUTO: Route(name=AUTO)})
    return _with(
        policy,
        tiers=_frozen(tiers),
        fallback=_frozen({name: policy.fallback.get(name, default_fallback(name, ladder)) for name in tiers}),
        baseline=policy.baseline or ladder[-1],
        baseline_price=baseline_price,
        routes=_frozen({name: _complete_route(route, ladder) for name, route in routes.items()}),
        rules=tuple(_complete_rule(rule) for rule in policy.rules),
    )


def chat_tiers(tiers: Mapping[str, Tier]) -> tuple[str, ...]:
    """The tiers that a chat can be sent to: all but those that only embed (unless there are no others)."""
    chat = tuple(name for name, tier in tiers.items() if any(each.mode == "chat" for each in tier.deployments))
    return chat or tuple(tiers)


def default_fallback(tier: str, ladder: tuple[str, ...]) -> tuple[str, ...]:
    """Upwards, then down: for medium of three, `(large, small)`."""
    if tier not in ladder:
        return ()
    place = ladder.index(tier)
    return (*ladder[place + 1 :], *reversed(ladder[:place]))


def default_thresholds(tiers: list[str]) -> dict[str, float]:
    """Evenly spaced over the tiers but the lowest: 0.5 for two, 0.35 and 0.70 for three."""
    steps = {name: index / len(tiers) for index, name in enumerate(tiers)}
    if len(tiers) == 3:
        steps = {name: 0.35 * index for index, name in enumerate(tiers)}
    return {name: round(steps[name], 4) for name in tiers[1:]}


def deployment_price(model: str, api_base: str | None) -> Known:
    """What LiteLLM's map says of a deployment. Nothing where `openai/` means a server of one's own."""
    own = model.startswith("openai/") and api_base is not None and api_base.rstrip("/") != OPENAI
    return Known() if own else known_model(model)


def _complete_tier(tier: Tier) -> Tier:
    return _with(tier, deployments=tuple(_complete_deployment(each) for each in tier.deployments))


def _complete_deployment(deployment: Deployment) -> Deployment:
    base = deployment.api_base
    if base is None and deployment.provider == "openai":
        base = OPENAI
    deployment = _with(deployment, api_base=base.rstrip("/") if base else None)
    if deployment.price is not None:
        return deployment
    known = deployment_price(deployment.model, base)
    return _with(
        deployment,
        price=known.price,
        context_window=deployment.context_window or known.context_window,
        max_output_tokens=deployment.max_output_tokens or known.max_output_tokens,
    )


def _complete_route(route: Route, ladder: tuple[str, ...]) -> Route:
    if route.tier is not None:
        return _with(route, strategy="fixed", response_model=route.response_model or "requested")
    allowed = allowed_tiers(ladder, route.min_tier, route.max_tier)
    return _with(
        route,
        thresholds=_frozen(
            {name: route.thresholds[name] for name in allowed[1:] if name in route.thresholds}
            if route.thresholds
            else default_thresholds(allowed)
        ),
        default_tier=route.default_tier or allowed[len(allowed) // 2],
        response_model=route.response_model or "answered",
    )


def _complete_rule(rule: Rule) -> Rule:
    headers: dict[str, Text] = {name.lower(): text for name, text in rule.when.headers.items()}
    return _with(rule, when=_with(rule.when, headers=_frozen(headers)))


def adapt(policy: Policy, lost: Lost) -> tuple[Policy, tuple[str, ...]]:
    """The policy without references to what is lost, and one note for each change. At least one tier must be left."""
    notes: list[str] = [f"tier {name} is off: none of its deployments can be used here" for name in _lost(lost)]
    adapted = _with(
        policy,
        fallback=_frozen(
            {
                tier: tuple(each for each in targets if each not in lost.tiers)
                for tier, targets in policy.fallback.items()
                if tier not in lost.tiers
            }
        ),
        baseline=_adapt_baseline(policy, lost, notes),
        routes=_frozen({name: _adapt_route(route, lost, notes) for name, route in policy.routes.items()}),
        aliases=_frozen({name: _adapt_alias(name, target, lost, notes) for name, target in policy.aliases.items()}),
        rules=tuple(_adapt_rule(rule, lost, notes) for rule in policy.rules),
        keys=tuple(_adapt_key(key, policy, lost, notes) for key in policy.keys),
    )
    return adapted, (*notes, *_skipped_tiers(adapted))


def _lost(lost: Lost) -> list[str]:
    return [name for name in lost.order if name in lost.tiers]


def _adapt_baseline(policy: Policy, lost: Lost, notes: list[str]) -> str:
    wanted = policy.baseline or lost.order[-1]
    if wanted not in lost.tiers:
        return policy.baseline
    left = _left(lost)
    price = "baseline_price" if policy.baseline_price else f"{wanted}'s price"
    notes.append(f"baseline: {wanted} is off, so it is {left[-1]}; savings are still counted against {price}")
    return left[-1]


def _adapt_route(route: Route, lost: Lost, notes: list[str]) -> Route:
    where = f"routes.{route.name}"
    thresholds = {tier: value for tier, value in route.thresholds.items() if tier not in lost.tiers}
    if len(thresholds) < len(route.thresholds):
        gone = ", ".join(tier for tier in route.thresholds if tier in lost.tiers)
        notes.append(f"{where}: the threshold of {gone} is dropped, as that tier is off")
    low, high = _adapt_range(route, lost, notes, where)
    default = _moved(route.default_tier, lost, notes, f"{where}.default_tier")
    if default is not None and default not in allowed_tiers(_left(lost), low, high):
        default = None
    tier = _moved(route.tier, lost, notes, f"{where}.tier")
    return _with(route, tier=tier, thresholds=_frozen(thresholds), min_tier=low, max_tier=high, default_tier=default)


def _left(lost: Lost) -> list[str]:
    return [name for name in lost.order if name not in lost.tiers]


def _adapt_range(part: Route | Rule, lost: Lost, notes: list[str], where: str) -> tuple[str | None, str | None]:
    """`min_tier` moves up and `max_tier` down, each to the nearest tier that is left; they never cross."""
    low = _moved(part.min_tier, lost, notes, f"{where}.min_tier")
    high = part.max_tier
    if high in lost.tiers:
        below = [name for name in lost.order[: lost.order.index(high)] if name not in lost.tiers]
        high = below[-1] if below else lost.instead_of(high)
        notes.append(f"{where}.max_tier: {part.max_tier} is off, so it is {high}")
    place = {name: index for index, name in enumerate(lost.order)}
    if low is not None and high is not None and place.get(low, 0) > place.get(high, len(place)):
        high = low
        notes.append(f"{where}: no tier from min_tier to max_tier is left, so {low} is used")
    return low, high


def _moved(tier: str | None, lost: Lost, notes: list[str], where: str) -> str | None:
    if tier is None or tier not in lost.tiers:
        return tier
    instead = lost.instead_of(tier)
    notes.append(f"{where}: {tier} is off, so it is {instead}")
    return instead


def _adapt_alias(name: str, target: str, lost: Lost, notes: list[str]) -> str:
    """To the nearest tier; an alias of a deployment that is off to that deployment's tier."""
    if target in lost.deployments:
        tier = lost.instead_of(lost.deployments[target])
        notes.append(f"aliases.{name}: {target} is off, so it is {tier}")
        return tier
    return _moved(target, lost, notes, f"aliases.{name}") or target


def _adapt_rule(rule: Rule, lost: Lost, notes: list[str]) -> Rule:
    where = f"rules '{rule.name}'"
    low, high = _adapt_range(rule, lost, notes, where)
    return _with(rule, tier=_moved(rule.tier, lost, notes, f"{where}.tier"), min_tier=low, max_tier=high)


def _adapt_key(key: Key, policy: Policy, lost: Lost, notes: list[str]) -> Key:
    """Without the names that are off: an empty list allows nothing, and only `null` allows all."""
    if key.routes is None:
        return key
    off = {*lost.deployments, *(name for name in lost.tiers if name not in policy.tiers)}
    gone = [name for name in key.routes if name in off]
    if gone:
        notes.append(f"keys '{key.name}': {', '.join(gone)} is off, so the key cannot name it")
    return _with(key, routes=tuple(name for name in key.routes if name not in gone))


def _skipped_tiers(policy: Policy) -> Iterable[str]:
    ladder = chat_tiers(policy.tiers)
    for route in policy.routes.values():
        if route.tier is None and route.thresholds:
            for name in allowed_tiers(ladder, route.min_tier, route.max_tier)[1:]:
                if name not in route.thresholds:
                    yield f"routes.{route.name}: {name} has no threshold, so difficulty never chooses it"


def _with(value: T, **changes: Any) -> T:
    return value.model_copy(update=changes)


def _frozen(value: dict[str, V]) -> Mapping[str, V]:
    return MappingProxyType(value)
