"""Which tier answers, and why: names, then rules, then difficulty. Plain functions over frozen values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from router.features import Features, features
from router.names import Target, targets
from router.policy import Policy, Route, Rule, When
from router.types import MODE_OF, Call, Decision

MAX_REGEX_CHARS = 8192  # a rule's expression sees at most this much of the last user turn, or of a header


class Classifier(Protocol):
    def difficulty(self, features: Features, /) -> float:
        """In [0, 1]: the calibrated probability that the small tier's answer is not good enough."""
        ...


Condition = Callable[[Call, Features, str, str], bool]  # call, features, key's name, route's name


class _Compiled(msgspec.Struct, frozen=True):
    rule: Rule
    conditions: tuple[Condition, ...]


class Decider:
    """A policy's names and rules, compiled before any traffic."""

    def __init__(
        self, policy: Policy, classifier: Classifier, on_classifier_error: Callable[[BaseException], None]
    ) -> None:
        self._tiers = policy.tier_names
        self._classifier = classifier
        self._on_classifier_error = on_classifier_error
        self._rules = tuple(_Compiled(rule, _conditions(rule.when)) for rule in policy.rules)
        self.targets: Mapping[str, Target] = targets(policy)
        self._usable = {
            (name, surface): _usable(policy, target.route, mode)
            for name, target in self.targets.items() if target.route
            for surface, mode in MODE_OF.items()
        }  # fmt: skip

    def decide(self, call: Call, key: str) -> Decision:
        """The decision for a call that names a known model (`targets`). `key` is the name of the caller's API key."""
        target = self.targets[call.model]
        route = target.route
        seen = features(call)
        if route is None or route.tier is not None:
            return _fixed(target, seen)
        tiers = self._usable[call.model, call.surface]
        if call.surface != "chat":
            return _decision(route, tiers[0], "default", f"{call.surface} are not judged by difficulty", seen)
        return self._choose(call, key, route, tiers, seen)

    def judge(self, call: Call) -> float | None:
        """The difficulty of a call, whoever decides on it; None if the classifier fails."""
        return self._difficulty(features(call))

    def _choose(self, call: Call, key: str, route: Route, tiers: tuple[str, ...], seen: Features) -> Decision:
        rule = self._first_rule(call, seen, key, route.name)
        if rule is not None and rule.tier is not None:
            return _decision(route, self._clamp(rule.tier, tiers), "rule", f"rule: {rule.name}", seen, rule=rule)
        difficulty = self._difficulty(seen)
        if difficulty is None:
            tier, by, reason = route.default_tier or tiers[len(tiers) // 2], "default", "the classifier failed"
        else:
            tier, by, reason = _by_difficulty(difficulty, tiers, route.thresholds)
        if rule is not None:
            tier = self._within(tier, rule, tiers)
            reason = f"{reason}; rule: {rule.name}"
        return _decision(route, tier, by, reason, seen, rule=rule, difficulty=difficulty)

    def _first_rule(self, call: Call, seen: Features, key: str, route: str) -> Rule | None:
        for compiled in self._rules:
            if all(holds(call, seen, key, route) for holds in compiled.conditions):
                return compiled.rule
        return None

    def _difficulty(self, seen: Features) -> float | None:
        try:
            return self._classifier.difficulty(seen)
        except Exception as exc:  # noqa: BLE001 - nothing optional may break an answer: counted, and the default tier used
            self._on_classifier_error(exc)
            return None

    def _clamp(self, tier: str, tiers: tuple[str, ...]) -> str:
        """The tier itself where the route may use it, else the nearest that it may, larger ones first."""
        order = self._tiers.index
        larger = [name for name in tiers if order(name) >= order(tier)]
        return larger[0] if larger else tiers[-1]

    def _within(self, tier: str, rule: Rule, tiers: tuple[str, ...]) -> str:
        order = self._tiers.index
        if rule.min_tier is not None and order(tier) < order(rule.min_tier):
            tier = rule.min_tier
        if rule.max_tier is not None and order(tier) > order(rule.max_tier):
            tier = rule.max_tier
        return self._clamp(tier, tiers)


def _by_difficulty(difficulty: float, tiers: tuple[str, ...], thresholds: Mapping[str, float]) -> tuple[str, Any, str]:
    chosen, bound = tiers[0], None
    for tier in tiers[1:]:
        if (threshold := thresholds.get(tier)) is not None and difficulty >= threshold:
            chosen, bound = tier, threshold
    if bound is None:
        return chosen, "difficulty", f"difficulty {difficulty:.2f} below all thresholds"
    return chosen, "difficulty", f"difficulty {difficulty:.2f} >= {bound:g}"


def _fixed(target: Target, seen: Features) -> Decision:
    route = target.route
    model = route.response_model if route is not None else None
    return Decision(
        route=target.label, tier=target.tier, by="fixed", reason=f"the name asked for stands for {target.label}"
        if route is None else f"route {route.name} has the fixed tier {target.tier}",
        prompt_tokens=seen.prompt_tokens, only_deployment=target.deployment, response_model=model or "requested",
        features=LazyFeatures(seen),
    )  # fmt: skip


def _decision(
    route: Route, tier: str, by: Any, reason: str, seen: Features, *, rule: Rule | None = None,
    difficulty: float | None = None,
) -> Decision:  # fmt: skip
    return Decision(
        route=route.name, tier=tier, by=by, reason=reason, rule=rule.name if rule else None, difficulty=difficulty,
        thresholds=route.thresholds, features=LazyFeatures(seen), prompt_tokens=seen.prompt_tokens,
        response_model=route.response_model or "answered",
    )  # fmt: skip


class LazyFeatures(Mapping[str, Any]):
    """The features by name, spelled out only where somebody reads them (explain, /v1/route)."""

    __slots__ = ("_features",)

    def __init__(self, seen: Features) -> None:
        self._features = seen

    def __getitem__(self, name: str) -> Any:
        return self._features.as_mapping()[name]

    def __iter__(self) -> Any:
        return iter(self._features.as_mapping())

    def __len__(self) -> int:
        return len(self._features.as_mapping())


def _usable(policy: Policy, route: Route, mode: str) -> tuple[str, ...]:
    """The tiers that a route may use, in order: those with a deployment of this mode (all, where there is none)."""
    names = policy.tier_names
    low = names.index(route.min_tier) if route.min_tier else 0
    high = names.index(route.max_tier) if route.max_tier else len(names) - 1
    allowed = names[low : high + 1]
    return tuple(name for name in allowed if any(one.mode == mode for one in policy.tiers[name].deployments)) or allowed


def _conditions(when: When) -> tuple[Condition, ...]:
    """A rule's conditions, the cheap ones first."""
    made: list[Condition] = []
    for field, make in _CONDITIONS.items():
        if (wanted := getattr(when, field)) is not None and wanted != {}:
            made.append(make(wanted))
    return tuple(made)


def _text_condition(wanted: Any) -> Condition:
    search = re.compile(wanted.matches).search
    return lambda call, seen, key, route: search(call.last_user[:MAX_REGEX_CHARS]) is not None


def _header_condition(wanted: Any) -> Condition:
    searches = {name.lower(): re.compile(text.matches).search for name, text in wanted.items()}
    return lambda call, seen, key, route: all(
        (value := call.headers.get(name)) is not None and search(value[:MAX_REGEX_CHARS]) is not None
        for name, search in searches.items()
    )


_CONDITIONS: Mapping[str, Callable[[Any], Condition]] = {
    "has_tools": lambda wanted: lambda call, seen, key, route: call.has_tools is wanted,
    "has_images": lambda wanted: lambda call, seen, key, route: call.has_images is wanted,
    "response_format": lambda wanted: lambda call, seen, key, route: call.response_format in wanted,
    "route": lambda wanted: lambda call, seen, key, route: route in wanted,
    "key": lambda wanted: lambda call, seen, key, route: key in wanted,
    "turns": lambda wanted: lambda call, seen, key, route: wanted.holds(call.turns),
    "prompt_tokens": lambda wanted: lambda call, seen, key, route: wanted.holds(seen.prompt_tokens),
    "language": lambda wanted: lambda call, seen, key, route: seen.language in wanted,
    "headers": _header_condition,
    "last_user": _text_condition,
}
