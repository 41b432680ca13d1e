"""From a decision to the attempts in their order: balance, fallback, cooldown, windows."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from router.decide import Decider
from router.health import Health
from router.names import targets
from router.plan import Planner
from router.policy import Cooldown, Policy
from router.types import Call, Decision, Plan
from tests.router.policy_text import THREE, policy
from tests.router.test_decide import EMBEDDING, Fixed, call

ONCE = Cooldown(allowed_fails=1, cooldown_time="30s")  # type: ignore[arg-type]


class Bench:
    """A policy with its health and planner, on a clock of its own."""

    def __init__(self, text: str, seed: int = 1) -> None:
        self.now = 0.0
        self.policy: Policy = policy(text)
        self.health = Health(lambda: self.now)
        self.planner = Planner(self.policy, self.health, random.Random(seed).uniform)

    def plan(self, asked: Call | None = None, difficulty: float = 0.0, **changed: Any) -> Plan:
        asked = asked or call()
        decision = Decider(self.policy, Fixed(difficulty), lambda exc: None).decide(asked, "-")
        if changed:
            fields = {name: getattr(decision, name) for name in Decision.__struct_fields__}
            decision = Decision(**{**fields, **changed})
        return self.planner.plan(decision, asked, targets(self.policy)[asked.model])

    def names(self, asked: Call | None = None, difficulty: float = 0.0) -> list[str]:
        return [attempt.deployment.name for attempt in self.plan(asked, difficulty).attempts]


def tiers(small: str, rest: str = "", **settings: str) -> str:
    """One tier of deployments `NAME: fields`, and one behind it."""
    listed = ", ".join(
        f"{{name: {name}, model: openai/{name}, api_base: 'http://{name}/v1'{more}}}"
        for name, _, more in (item.partition(" ") for item in small.split("; "))
    )
    fields = "".join(f", {name}: {value}" for name, value in settings.items())
    return (
        f"version: 1\ntiers:\n  small: {{deployments: [{listed}]{fields}}}\n"
        '  large: {deployments: [{name: z, model: openai/z, api_base: "http://z/v1"}]}\n'
        f"routes: {{auto: {{}}}}\n{rest}"
    )


# --- fallback ---


@pytest.mark.parametrize(
    ("difficulty", "order"), [(0.0, ["a", "b", "c"]), (0.5, ["b", "c", "a"]), (1.0, ["c", "b", "a"])]
)
def test_fallback_goes_up_and_then_down(difficulty: float, order: list[str]) -> None:
    """A larger model can do what a smaller one should have done; a smaller one is still better than an error."""
    text = THREE + "routes: {auto: {thresholds: {medium: 0.35, large: 0.7}}}\n"

    assert order == Bench(text).names(difficulty=difficulty)


def test_fallback_of_the_policy_replaces_the_default() -> None:
    """An operator may want no fallback at all, or another order."""
    text = THREE + "routes: {auto: {}}\nfallback: {small: [large], medium: []}\n"

    assert ["a", "c"] == Bench(text).names()
    assert ["b"] == Bench(text).names(call(model="medium"))


def test_route_bounds_its_fallbacks() -> None:
    """`max_tier` is about money: a failing medium tier must not send everything to the large one."""
    text = THREE + "routes: {auto: {max_tier: medium}, good: {min_tier: medium}}\n"

    assert ["a", "b"] == Bench(text).names()
    assert ["b", "c"] == Bench(text).names(call(model="good"))


def test_named_deployment_is_the_only_attempt() -> None:
    """Who names one deployment wants that one, for a comparison perhaps."""
    bench = Bench(tiers("a; b; c"))

    assert ["b"] == bench.names(call(model="b"))


def test_named_tier_falls_back_like_any_other() -> None:
    """An alias for a tier is no reason to fail."""
    assert ["b", "c", "a"] == Bench(THREE).names(call(model="medium"))


def test_fixed_route_falls_back_over_all_tiers() -> None:
    """`support-bot: {tier: medium}` is a fixed tier with its fallback."""
    assert ["b", "c", "a"] == Bench(THREE + "routes: {bot: {tier: medium}}\n").names(call(model="bot"))


# --- balance within a tier ---


def test_every_deployment_of_a_tier_is_tried_before_the_next_tier() -> None:
    """The same model elsewhere is the nearest substitute."""
    order = Bench(tiers("a; b; c")).names()

    assert {"a", "b", "c"} == set(order[:3])
    assert "z" == order[3]


def test_weights_are_shares_of_the_first_place() -> None:
    """Weight 6 of 9 gets two thirds of the traffic (three standard deviations: 1.4 points of a hundred)."""
    bench = Bench(tiers("a , weight: 6; b , weight: 2; c , weight: 1"))

    firsts = Counter(bench.names()[0] for _ in range(10_000))

    assert pytest.approx(6 / 9, abs=0.015) == firsts["a"] / 10_000
    assert pytest.approx(2 / 9, abs=0.015) == firsts["b"] / 10_000
    assert pytest.approx(1 / 9, abs=0.015) == firsts["c"] / 10_000


def test_weights_hold_among_those_that_remain() -> None:
    """When the first fails, its traffic is shared by the others in proportion."""
    bench = Bench(tiers("a , weight: 6; b , weight: 2; c , weight: 1"))

    seconds = Counter(names[1] for names in (bench.names() for _ in range(10_000)) if names[0] == "a")

    assert pytest.approx(2 / 3, abs=0.02) == seconds["b"] / seconds.total()


def test_round_robin_takes_turns() -> None:
    """Equal shares without chance, and the rest of the circle as fallback."""
    bench = Bench(tiers("a; b; c", balance="round_robin"))

    orders = ["".join(bench.names()[:3]) for _ in range(6)]

    assert ["abc", "bca", "cab", "abc", "bca", "cab"] == orders


def test_round_robin_of_a_tier_does_not_turn_while_it_is_only_a_fallback() -> None:
    """With calls for small and large in turn, each of large's two deployments still gets half of large's calls."""
    text = (
        tiers("a", rest="")
        .replace("large: {", "large: {balance: round_robin, ")
        .replace("[{name: z,", '[{name: y, model: openai/y, api_base: "http://y/v1"}, {name: z,')
    )
    bench = Bench(text)

    firsts = []
    for _ in range(10):
        bench.names(call(model="small"))
        firsts.append(bench.names(call(model="large"))[0])

    assert {"y": 5, "z": 5} == Counter(firsts)


# --- cooldown ---


def test_cooling_deployment_is_left_out_and_said_so() -> None:
    """Nobody waits for what is known to be down, and the decision explains itself."""
    bench = Bench(tiers("a; b"))
    bench.health.failed("a", ONCE)

    plan = bench.plan()

    assert ["b", "z"] == [attempt.deployment.name for attempt in plan.attempts]
    assert [("small", "a", "cooling down")] == [(one.tier, one.deployment, one.reason) for one in plan.skipped]


def test_cooled_down_deployment_is_asked_again() -> None:
    """A breaker that never closed would be an outage of its own."""
    bench = Bench(tiers("a"))
    bench.health.failed("a", ONCE)
    assert ["z"] == bench.names()

    bench.now = 30.0

    assert ["a", "z"] == bench.names()


def test_when_all_cool_down_the_one_that_is_ready_first_is_tried() -> None:
    """An attempt that may fail beats an error that is certain."""
    bench = Bench(tiers("a; b"))
    for number, name in enumerate(("b", "z", "a")):
        bench.now = float(number)
        bench.health.failed(name, ONCE)

    plan = bench.plan()

    assert ["b"] == [attempt.deployment.name for attempt in plan.attempts]
    assert {"a", "z"} == {one.deployment for one in plan.skipped}


# --- windows and modes ---


def test_prompt_goes_only_where_it_fits() -> None:
    """A window that cannot hold the prompt would refuse it anyway, after a round trip."""
    text = tiers("a , context_window: 2000; b , context_window: 100000")

    plan = Bench(text).plan(call("很长的提示 " * 3000))

    assert ["b", "z"] == [attempt.deployment.name for attempt in plan.attempts]
    [skipped] = plan.skipped
    assert "a" == skipped.deployment
    assert "2000" in skipped.reason


def test_answer_needs_room_too() -> None:
    """A prompt that fills the window to the last token leaves nothing to answer with."""
    text = tiers("a , context_window: 1000")

    fits, full = Bench(text).plan(prompt_tokens=984), Bench(text).plan(prompt_tokens=985)

    assert "a" == fits.attempts[0].deployment.name
    assert "a" != full.attempts[0].deployment.name


def test_large_max_tokens_does_not_rule_out_a_small_window() -> None:
    """Clients send max_tokens out of habit; servers cut the answer, they do not refuse it."""
    plan = Bench(tiers("a , context_window: 1000")).plan(call(max_output_tokens=100_000), prompt_tokens=500)

    assert "a" == plan.attempts[0].deployment.name


def test_prompt_that_fits_nowhere_gives_an_empty_plan_with_reasons() -> None:
    """The caller is told why, and no model is called."""
    text = tiers("a , context_window: 100", rest="fallback: {small: [], large: []}\n")

    plan = Bench(text).plan(prompt_tokens=5000)

    assert () == plan.attempts
    assert ["a"] == [one.deployment for one in plan.skipped]


def test_embeddings_and_chat_never_share_a_deployment() -> None:
    """A tier may hold both kinds. Embeddings stay in their tier: vectors of two models cannot be compared."""
    bench = Bench(EMBEDDING)

    assert ["e"] == bench.names(call(surface="embeddings"))
    assert ["f"] == bench.names(call(surface="embeddings", model="large"))
    assert ["a", "c"] == bench.names(call())


def test_planning_is_not_an_attempt() -> None:
    """`/v1/route` and `tiergate explain` plan without touching anybody's health."""
    bench = Bench(tiers("a; b"))

    for _ in range(50):
        bench.plan()

    assert bench.health.ready("a")
    assert bench.health.ready("b")
