"""A decision told in full, for people and for `POST /v1/route`."""

from __future__ import annotations

import json

import orjson
import pytest

from router.decide import Decider
from router.explain import ASSUMED_OUTPUT_TOKENS, explain
from router.names import targets
from tests.router.test_decide import Fixed, call
from tests.router.test_plan import ONCE, Bench, tiers

PRICED = tiers(
    "a , price: {input: 1, output: 2}; b", rest="rules: [{name: 长文, when: {has_images: true}, tier: large}]\n"
)


def told(bench: Bench, **fields: object) -> dict[str, object]:
    asked = call("解释一下相对论", **fields)
    decider = Decider(bench.policy, Fixed(0.25), lambda exc: None)
    decision = decider.decide(asked, "-")
    plan = bench.planner.plan(decision, asked, targets(bench.policy)[asked.model])
    return explain(asked, decision, plan, decider.judge(asked))


def test_everything_that_led_to_the_decision_is_told() -> None:
    """Who asks why should not have to read the code."""
    seen = told(Bench(PRICED))

    assert ("auto", "small", "difficulty", 0.25) == tuple(seen[name] for name in ("route", "tier", "by", "difficulty"))
    assert {"large": 0.5} == seen["thresholds"]
    assert "zh" == seen["features"]["language"]  # type: ignore[index]
    assert {"a", "b", "z"} == {attempt["deployment"] for attempt in seen["attempts"]}  # type: ignore[attr-defined]


def test_cost_is_that_of_the_first_attempt() -> None:
    """The estimate is for the usual case, not for every fallback together."""
    bench = Bench(tiers("a , price: {input: 1000, output: 2000}"))

    seen = told(bench, max_output_tokens=100)

    expected = (seen["prompt_tokens"] * 1000 + 100 * 2000) / 1_000_000  # type: ignore[operator]
    assert pytest.approx(expected) == seen["estimated_cost_usd"]
    assert 100 == seen["assumed_output_tokens"]


def test_unknown_price_is_unknown_and_not_zero() -> None:
    """A free-looking estimate would be believed."""
    assert told(Bench(tiers("a")))["estimated_cost_usd"] is None


def test_output_is_assumed_where_the_caller_sets_no_limit_or_a_huge_one() -> None:
    """max_tokens is a limit, not a forecast."""
    assert ASSUMED_OUTPUT_TOKENS == told(Bench(PRICED))["assumed_output_tokens"]
    assert ASSUMED_OUTPUT_TOKENS == told(Bench(PRICED), max_output_tokens=1_000_000)["assumed_output_tokens"]


def test_rule_and_skipped_deployments_are_named() -> None:
    """The two most frequent reasons for a surprising tier."""
    bench = Bench(PRICED)
    bench.health.failed("z", ONCE)

    seen = told(bench, has_images=True)

    assert ("长文", "rule") == (seen["rule"], seen["by"])
    assert 0.25 == seen["difficulty"], "told even where it did not decide"
    assert [{"tier": "large", "deployment": "z", "reason": "cooling down"}] == seen["skipped"]
    assert {"a", "b"} == {attempt["deployment"] for attempt in seen["attempts"]}  # type: ignore[attr-defined]


def test_nobody_to_ask_is_told_as_such() -> None:
    """An empty plan has no cost, rather than a cost of nothing."""
    bench = Bench(tiers("a , context_window: 1", rest="fallback: {small: [], large: []}\n"))

    seen = told(bench)

    assert ([], None) == (seen["attempts"], seen["estimated_cost_usd"])


def test_it_is_plain_json() -> None:
    """It goes over HTTP and into `--json` as it is."""
    seen = told(Bench(PRICED))

    assert seen == json.loads(orjson.dumps(seen))
    assert "相对论" not in orjson.dumps(seen).decode()
