"""Names, then rules, then difficulty: the same call and policy always give the same decision, with its reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.decide import MAX_REGEX_CHARS, Decider
from router.features import Features
from router.types import Call, Decision
from tests.router.policy_text import THREE, policy

AUTO = THREE + "routes: {auto: {thresholds: {medium: 0.35, large: 0.7}}}\n"


class Fixed:
    """A classifier that always says the same; `None`: it fails."""

    def __init__(self, difficulty: float | None) -> None:
        self._difficulty = difficulty
        self.asked = 0

    def difficulty(self, features: Features, /) -> float:
        self.asked += 1
        if self._difficulty is None:
            raise RuntimeError("weights are gone")
        return self._difficulty


def call(ask: str = "hello", **fields: Any) -> Call:
    return Call(**{
        "request_id": "r", "surface": "chat", "body": b"{}", "model": "auto", "last_user": ask, "text": ask, **fields,
    })  # fmt: skip


def decide(text: str, asked: Call, difficulty: float | None = 0.0, key: str = "-") -> Decision:
    return Decider(policy(text), Fixed(difficulty), lambda exc: None).decide(asked, key)


def rule(condition: str, then: str = "tier: large") -> str:
    return AUTO + f"rules: [{{name: the rule, when: {{{condition}}}, {then}}}]\n"


# --- difficulty and thresholds ---


@pytest.mark.parametrize(
    ("difficulty", "tier"),
    [(0.0, "small"), (0.3499, "small"), (0.35, "medium"), (0.6999, "medium"), (0.7, "large"), (1.0, "large")],
)
def test_tier_is_the_highest_whose_threshold_is_reached(difficulty: float, tier: str) -> None:
    """The bounds belong to the larger tier: an operator who writes 0.35 means from 0.35 on."""
    decision = decide(AUTO, call(), difficulty)

    assert (tier, "difficulty", difficulty) == (decision.tier, decision.by, decision.difficulty)
    assert f"{difficulty:.2f}" in decision.reason
    assert {"medium": 0.35, "large": 0.7} == dict(decision.thresholds)


@given(st.floats(0, 1), st.floats(0, 1))
def test_harder_never_means_smaller(one: float, other: float) -> None:
    """A router is one number and some comparisons; it must be monotonic."""
    order = policy(AUTO).tier_names.index
    low, high = sorted((one, other))

    assert order(decide(AUTO, call(), low).tier) <= order(decide(AUTO, call(), high).tier)


def test_route_uses_only_its_own_tiers() -> None:
    """`max_tier` is a promise about cost, `min_tier` one about quality."""
    text = THREE + (
        "routes: {cheap: {max_tier: medium}, good: {min_tier: medium}, one: {min_tier: medium, max_tier: medium}}\n"
    )

    assert "medium" == decide(text, call(model="cheap"), 1.0).tier
    assert "medium" == decide(text, call(model="good"), 0.0).tier
    assert {"medium"} == {decide(text, call(model="one"), value).tier for value in (0.0, 0.5, 1.0)}


# --- a classifier that fails ---


def test_broken_classifier_sends_to_the_default_tier_and_is_reported() -> None:
    """Nothing optional may break an answer, and nobody should have to find out from the bill."""
    failures: list[BaseException] = []
    text = THREE + "routes: {auto: {default_tier: large}}\n"

    decision = Decider(policy(text), Fixed(None), failures.append).decide(call(), "-")

    assert ("large", "default", None) == (decision.tier, decision.by, decision.difficulty)
    assert "classifier" in decision.reason
    assert ["weights are gone"] == [str(failure) for failure in failures]


@pytest.mark.parametrize(
    ("route", "tier"),
    [
        ("{}", "medium"),
        ("{max_tier: medium}", "medium"),
        ("{max_tier: small}", "small"),
        ("{min_tier: large}", "large"),
    ],
)
def test_default_tier_is_the_middle_of_what_the_route_may_use(route: str, tier: str) -> None:
    """Neither the bill nor the answers go to an extreme while the classifier is away."""
    assert tier == decide(THREE + f"routes: {{auto: {route}}}\n", call(), None).tier


def test_rule_bounds_hold_for_the_default_tier_too() -> None:
    """`min_tier` for tools must hold on the day the classifier fails."""
    text = rule("has_tools: true", "min_tier: large")

    assert "large" == decide(text, call(has_tools=True), None).tier


# --- rules: each condition ---

ENGLISH = "Please summarise the following report in three sentences for the board."
CHINESE = "请用三句话总结下面这份给董事会的报告。"
CONDITIONS: list[tuple[str, Call, Call]] = [
    ("has_tools: true", call(has_tools=True), call()),
    ("has_tools: false", call(), call(has_tools=True)),
    ("has_images: true", call(has_images=True), call()),
    ("response_format: json_schema", call(response_format="json_schema"), call(response_format="json_object")),
    ("response_format: [json_object, text]", call(), call(response_format="json_schema")),
    ("turns: {ge: 3}", call(turns=3), call(turns=2)),
    ("turns: {lt: 3}", call(turns=2), call(turns=3)),
    ("prompt_tokens: {gt: 1000}", call("long words " * 2000), call("short")),
    ("prompt_tokens: {gt: 1000}", call("很长的文字" * 2000), call("短")),
    ("prompt_tokens: {le: 50}", call("短"), call("很长的文字" * 2000)),
    ("language: zh", call(CHINESE), call(ENGLISH)),
    ("language: [en, de]", call(ENGLISH), call(CHINESE)),
    ("last_user: {matches: '(?i)\\bSQL\\b'}", call("write some sql for me"), call("sqlite is fine")),
    ("last_user: {matches: '合同|发票'}", call("请审查这份合同"), call("请审查这份报告")),
    ("headers: {X-Team: {matches: '^legal$'}}", call(headers={"x-team": "legal"}), call(headers={"x-team": "sales"})),
    ("headers: {x-team: {matches: '.'}}", call(headers={"x-team": "a"}), call()),
    ("route: auto", call(), call(model="other")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "yes", "no"), CONDITIONS, ids=[f"{c}-{n}" for n, (c, *_) in enumerate(CONDITIONS)]
)
def test_condition_holds_for_one_call_and_not_for_another(condition: str, yes: Call, no: Call) -> None:
    """Every condition of the policy is looked at, in English and in Chinese."""
    text = rule(condition).replace("routes: {auto:", "routes: {other: {}, auto:")

    matched, passed_by = decide(text, yes), decide(text, no)

    assert ("large", "rule", "the rule") == (matched.tier, matched.by, matched.rule)
    assert "rule: the rule" == matched.reason
    assert ("small", "difficulty", None) == (passed_by.tier, passed_by.by, passed_by.rule)


def test_rule_by_key_looks_at_the_keys_name() -> None:
    """Internal batch jobs may be sent to the cheap tier whatever they ask."""
    keys = "keys: [{name: batch, hash: 'sha256:" + "0" * 64 + "'}]\n"

    assert "large" == decide(rule("key: batch") + keys, call(), key="batch").tier
    assert "small" == decide(rule("key: batch") + keys, call(), key="app").tier


def test_all_conditions_of_a_rule_must_hold() -> None:
    """`when` is a conjunction; alternatives are two rules."""
    text = rule("has_tools: true, language: zh")

    assert "large" == decide(text, call(CHINESE, has_tools=True)).tier
    assert "small" == decide(text, call(ENGLISH, has_tools=True)).tier
    assert "small" == decide(text, call(CHINESE)).tier


def test_last_user_turn_is_matched_and_not_the_rest_of_the_conversation() -> None:
    """A greeting ten turns ago must not send today's proof to the small tier."""
    text = rule("last_user: {matches: '^(hi|你好)$'}")

    assert "large" == decide(text, call("你好")).tier
    assert "small" == decide(text, call("prove it", text="hi\n你好\nprove it", system="你好")).tier


def test_expression_sees_a_bounded_part_of_the_turn() -> None:
    """A megabyte of pasted log must not be searched by every rule on the event loop."""
    text = rule("last_user: {matches: needle}")

    assert "large" == decide(text, call("x" * (MAX_REGEX_CHARS - 6) + "needle")).tier
    assert "small" == decide(text, call("x" * MAX_REGEX_CHARS + "needle")).tier


# --- rules: which, and what follows ---


def test_first_match_wins() -> None:
    """Order is the operator's only way to say which rule matters more."""
    text = AUTO + (
        "rules:\n"
        "  - {name: none, when: {has_images: true}, tier: medium}\n"
        "  - {name: first, when: {has_tools: true}, tier: large}\n"
        "  - {name: second, when: {has_tools: true}, tier: medium}\n"
    )

    decision = decide(text, call(has_tools=True))

    assert ("first", "large") == (decision.rule, decision.tier)


def test_rule_with_a_tier_does_not_ask_the_classifier() -> None:
    """That is what makes rules cheap, and what keeps them alive when the classifier is not."""
    classifier = Fixed(0.9)

    decision = Decider(policy(rule("has_tools: true", "tier: small")), classifier, lambda exc: None).decide(
        call(has_tools=True), "-"
    )

    assert ("small", None, 0) == (decision.tier, decision.difficulty, classifier.asked)


@pytest.mark.parametrize(
    ("then", "difficulty", "tier"),
    [
        ("min_tier: medium", 0.0, "medium"),
        ("min_tier: medium", 0.9, "large"),
        ("min_tier: small, max_tier: medium", 0.9, "medium"),
        ("min_tier: medium, max_tier: medium", 0.0, "medium"),
        ("min_tier: medium, max_tier: medium", 1.0, "medium"),
    ],
)
def test_bounds_of_a_rule_hold_and_difficulty_decides_between_them(then: str, difficulty: float, tier: str) -> None:
    """Tools need at least a medium model, and a hard question with tools still a large one."""
    decision = decide(rule("has_tools: true", then), call(has_tools=True), difficulty)

    assert (tier, "difficulty", "the rule", difficulty) == (
        decision.tier, decision.by, decision.rule, decision.difficulty,
    )  # fmt: skip
    assert "rule: the rule" in decision.reason


@pytest.mark.parametrize(
    ("route", "wanted", "tier"),
    [
        ("{max_tier: medium}", "large", "medium"),
        ("{max_tier: small}", "large", "small"),
        ("{min_tier: medium}", "small", "medium"),
        ("{min_tier: large}", "small", "large"),
    ],
)
def test_rule_cannot_leave_the_tiers_of_the_route(route: str, wanted: str, tier: str) -> None:
    """A rule for all routes meets a route that may not use its tier: the nearest one that it may."""
    text = THREE + f"routes: {{auto: {route}}}\nrules: [{{name: r, when: {{has_tools: true}}, tier: {wanted}}}]\n"

    assert tier == decide(text, call(has_tools=True)).tier


# --- names ---


@pytest.mark.parametrize(
    ("name", "route", "tier", "deployment"),
    [
        ("bot", "bot", "medium", None),
        ("gpt-4o-mini", "alias:gpt-4o-mini", "small", None),
        ("便宜", "alias:便宜", "large", "c"),
        ("medium", "tier:medium", "medium", None),
        ("b", "deployment:b", "medium", "b"),
    ],
)
def test_fixed_names_skip_rules_and_classifier(name: str, route: str, tier: str, deployment: str | None) -> None:
    """Who names a tier has decided already, whatever the prompt looks like."""
    text = rule("prompt_tokens: {ge: 0}").replace("routes: {", "routes: {bot: {tier: medium}, ")
    classifier = Fixed(1.0)
    decider = Decider(policy(text + "aliases: {gpt-4o-mini: small, 便宜: c}\n"), classifier, lambda exc: None)

    decision = decider.decide(call(model=name, has_tools=True), "-")

    assert (route, tier, "fixed", deployment) == (
        decision.route, decision.tier, decision.by, decision.only_deployment,
    )  # fmt: skip
    assert (None, None, 0) == (decision.rule, decision.difficulty, classifier.asked)
    assert "requested" == decision.response_model
    assert name in decision.reason or tier in decision.reason


def test_response_model_follows_the_route() -> None:
    """A route that chooses tells which model answered, a fixed one the name asked for; either can be changed."""
    text = THREE + (
        "routes: {auto: {}, quiet: {response_model: requested}, bot: {tier: small}, "
        "open: {tier: small, response_model: answered}}\n"
    )

    told = [decide(text, call(model=name)).response_model for name in ("auto", "quiet", "bot", "open")]

    assert ["answered", "requested", "requested", "answered"] == told


# --- embeddings ---

EMBEDDING = """\
version: 1
tiers:
  small: {deployments: [{name: a, model: openai/a, api_base: "http://a/v1"}]}
  medium: {deployments: [{name: e, model: openai/e, api_base: "http://e/v1", mode: embedding}]}
  large:
    deployments:
      - {name: f, model: openai/f, api_base: "http://f/v1", mode: embedding}
      - {name: c, model: openai/c, api_base: "http://c/v1"}
routes: {auto: {}}
"""


def test_embeddings_go_to_the_first_tier_that_makes_them_and_are_not_judged() -> None:
    """Difficulty is about answers in words."""
    classifier = Fixed(1.0)

    decision = Decider(policy(EMBEDDING), classifier, lambda exc: None).decide(call(surface="embeddings"), "-")

    assert ("medium", "default", 0) == (decision.tier, decision.by, classifier.asked)


def test_chat_is_not_sent_to_a_tier_of_embedding_models() -> None:
    """A threshold may point at a tier that cannot chat; the next larger one that can is used."""
    tiers = {decide(EMBEDDING, call(), difficulty).tier for difficulty in (0.0, 0.4, 0.5, 0.6, 1.0)}

    assert {"small", "large"} == tiers


# --- what a decision shows ---


@pytest.mark.parametrize("text", [ENGLISH, CHINESE])
def test_decision_shows_its_features_and_no_word_of_the_prompt(text: str) -> None:
    """It goes into headers, logs and `/v1/route`."""
    decision = decide(AUTO, call(text), 0.5)

    shown = dict(decision.features)
    assert {"language", "prompt_tokens", "turns"} <= shown.keys()
    assert len(shown) == len(decision.features)
    assert shown["prompt_tokens"] == decision.prompt_tokens > 0
    assert not any(word in f"{shown} {decision.reason}" for word in ("summarise", "board", "总结", "董事会"))


@given(st.text(max_size=300), st.booleans(), st.integers(0, 50), st.sampled_from(["auto", "small", "a"]))
def test_any_text_gives_a_decision_within_the_policy(text: str, tools: bool, turns: int, model: str) -> None:
    """Emoji, half surrogates, right-to-left marks: a prompt is never a reason to fail."""
    decision = decide(rule("has_tools: true"), call(text, has_tools=tools, turns=turns, model=model), 0.4)

    assert decision.tier in ("small", "medium", "large")
    assert decision.reason.isascii()
