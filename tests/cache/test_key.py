"""The key: everything that changes an answer, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.key import NOT_IN_KEY, bypass_reason, cache_key
from router.policy import ExactCache, RequestLog, Rule, When
from router.types import CacheControl, Call
from tests.cache.samples import CHINESE, ENGLISH, body, call, policy

POLICY = policy()
SHARED = policy(ExactCache(shared=True))


def key(of: Call, tenant: str = "alice") -> bytes:
    return cache_key(of, tenant, POLICY)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, 'tab\t and " and \\ and 👩‍🚀'])
def test_form_of_the_json_does_not_matter(text: str) -> None:
    """Two client libraries that write the same request differently share an answer."""
    fields = body(text, temperature=0, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    backwards = {name: fields[name] for name in reversed(fields)}
    backwards["messages"] = [dict(reversed(message.items())) for message in fields["messages"]]

    escaped = call(raw=json.dumps(backwards, indent=2, ensure_ascii=True).encode())
    plain = call(raw=json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode())

    assert key(plain) == key(escaped)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 16}, {"max_completion_tokens": 16}, {"stop": ["END"]}, {"temperature": 0.5}, {"top_p": 0.5},
        {"n": 2}, {"seed": 1}, {"presence_penalty": 1}, {"frequency_penalty": 1}, {"logit_bias": {"5": 1}},
        {"logprobs": True}, {"top_logprobs": 2}, {"tools": []}, {"tool_choice": "none"}, {"parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}}, {"reasoning_effort": "low"}, {"modalities": ["text"]},
        {"a_field_of_next_year": 1}, {"model": "large"},
    ],
    ids=lambda fields: next(iter(fields)),
)  # fmt: skip
def test_every_field_that_changes_the_answer_counts(fields: dict[str, Any]) -> None:
    """A key that forgets the output limit replays a cut answer to a caller who wanted all of it (cache-01)."""
    assert key(call()) != key(call(**fields))


@pytest.mark.parametrize("name", sorted(NOT_IN_KEY))
def test_fields_that_do_not_change_the_answer_do_not_count(name: str) -> None:
    """Otherwise an app that sends a user id, or streams, would never see a hit."""
    assert key(call()) == key(call(raw=orjson.dumps(body(**{name: "x"}))))


def test_nested_values_of_such_names_count() -> None:
    """`user` is dropped at the top alone: in a tool's parameters it is part of the question."""
    assert key(call(tools=[{"user": "a"}])) != key(call(tools=[{"user": "b"}]))


def test_order_of_messages_counts() -> None:
    """A list is a sequence: another order is another conversation."""
    one, two = {"role": "user", "content": ENGLISH}, {"role": "user", "content": CHINESE}

    assert key(call(messages=[one, two])) != key(call(messages=[two, one]))


def test_earlier_conversation_counts() -> None:
    """The same follow-up question about somebody else is another question (cache-08)."""
    about = [
        [{"role": "user", "content": f"Who leads {name}?"}, {"role": "user", "content": "多大年纪？"}] for name in "AB"
    ]

    assert key(call(messages=about[0])) != key(call(messages=about[1]))


def test_zero_is_zero_however_it_is_written() -> None:
    """Some client libraries write temperature 0, others 0.0; left out, it is one."""
    assert key(call(temperature=0)) == key(call(temperature=0.0))
    assert key(call(temperature=0)) != key(call())


def test_tenants_do_not_share_unless_the_policy_says_so() -> None:
    """One app never sees another's answer (cache-03)."""
    assert key(call(), "alice") != key(call(), "bob")
    assert cache_key(call(), "alice", SHARED) == cache_key(call(), "bob", SHARED)


def test_sharing_stops_where_a_rule_tells_keys_apart() -> None:
    """If a rule sends one key to another tier, its answers are of another tier too."""
    rules = (Rule(name="vip", when=When(key=("vip",)), tier="small"),)
    shared = policy(ExactCache(shared=True), rules=rules)

    assert cache_key(call(), "alice", shared) == cache_key(call(), "bob", shared)
    assert cache_key(call(), "vip", shared) != cache_key(call(), "bob", shared)


def test_another_policy_is_another_key() -> None:
    """After a reload no answer of the old rules may come back."""
    other = policy(log=RequestLog(path="off"))

    assert key(call()) != cache_key(call(), "alice", other)


def test_headers_that_rules_look_at_count() -> None:
    """They decide the tier, so they decide the answer; their order does not."""
    one = call(headers={"x-team": "a", "x-plan": "b"})

    assert key(one) == key(call(headers={"x-plan": "b", "x-team": "a"}))
    assert key(one) != key(call(headers={"x-team": "b", "x-plan": "a"}))
    assert key(one) != key(call())


def test_model_asked_for_and_surface_count() -> None:
    """Also where they are not in the body."""
    asked = call()

    assert key(asked) != key(msgspec.structs.replace(asked, model="large"))
    assert key(asked) != key(msgspec.structs.replace(asked, surface="embeddings"))


@pytest.mark.parametrize(
    "odd",
    [
        b'{"seed":123456789012345678901234567890}', rb'{"messages":[{"content":"\ud83d half an emoji"}]}',
        b'{"x":1e999}', b"[" * 5000 + b"]" * 5000, b"[1]", b"\xff\xfe", b"",
        '{"a":"\ud800"}'.encode("utf8", "surrogatepass"),
    ],
    ids=lambda odd: repr(odd[:20]),
)  # fmt: skip
def test_odd_bodies_have_a_key(odd: bytes) -> None:
    """What another parser let through must not break the look-up: equal bytes, equal key."""
    assert key(call(raw=odd)) == key(call(raw=bytes(odd)))
    assert key(call(raw=odd)) != key(call(raw=odd + b" "))
    assert key(call(raw=odd), "alice") != key(call(raw=odd), "bob")


def test_large_numbers_are_told_apart() -> None:
    """As floats these two seeds would be the same."""
    assert key(call(raw=b'{"seed":100000000000000000000001}')) != key(call(raw=b'{"seed":100000000000000000000002}'))


def test_a_model_name_that_is_no_text_has_a_key() -> None:
    """A lone surrogate in the name cannot be written as UTF-8."""
    assert key(msgspec.structs.replace(call(), model="\ud800")) != key(call())


def test_key_is_short_and_holds_no_prompt() -> None:
    """Keys go into stores and logs; prompts do not (cache-14)."""
    made = key(call("CANARY-PROMPT-7781"))

    assert 32 == len(made)
    assert b"CANARY" not in made


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.floats(-1e300, 1e300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def written(value: Any) -> Any:
    """JSON value → a form in which two values are equal only if they are written equally (1 is not True or 1.0)."""
    return json.dumps(value, sort_keys=True)


@settings(deadline=None, max_examples=200)
@given(JSON, JSON)
def test_keys_are_equal_exactly_if_the_bodies_are(one: Any, two: Any) -> None:
    """No two requests meet by accident, and no two forms of one miss each other."""
    first, again = (call(raw=json.dumps({"x": one}, indent=i).encode()) for i in (None, 1))
    second = call(raw=json.dumps({"x": two}).encode())

    assert key(first) == key(again)
    assert (key(first) == key(second)) == (written(one) == written(two))


@pytest.mark.parametrize(
    ("asked", "exact", "route", "reason"),
    [
        (call(), ExactCache(), True, None),
        (call(), None, True, "off"),
        (call(), ExactCache(), False, "route"),
        (call(control=CacheControl(no_store=True)), ExactCache(), True, "no-store"),
        (call(control=CacheControl(no_cache=True)), ExactCache(), True, None),
        (call(control=CacheControl(max_age_s=5)), ExactCache(), True, None),
        (call(n=2), ExactCache(), True, "n"),
        (call(n=2), ExactCache(allow_n=True), True, None),
        (call(), ExactCache(only_deterministic=True), True, "temperature"),
        (call(temperature=0.7), ExactCache(only_deterministic=True), True, "temperature"),
        (call(temperature=0), ExactCache(only_deterministic=True), True, None),
        (call(temperature=0.7), ExactCache(), True, None),
        (msgspec.structs.replace(call(), has_tool_results=True), ExactCache(), True, None),
        (msgspec.structs.replace(call(), has_tool_results=True), ExactCache(tool_results=False), True, "tool-results"),
        (msgspec.structs.replace(call(), surface="embeddings"), ExactCache(only_deterministic=True), True, None),
    ],
)  # fmt: skip
def test_what_is_left_alone(asked: Call, exact: ExactCache | None, route: bool, reason: str | None) -> None:
    """The policy, the route and the caller each have a say; embeddings have no temperature (cache-02)."""
    assert reason == bypass_reason(asked, exact, route)
