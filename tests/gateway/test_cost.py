"""Tokens in disjoint buckets and what they cost: unknown is never zero, and no token is paid twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.cost import cost_usd
from gateway.upstream.sse import WireUsage
from router.policy import Price
from router.types import Usage
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import DONE, HEAD, Send, Upstream, answer, event, finish, json_reply, usage, usage_event

FULL = Price(input=1.0, output=4.0, cached_input=0.1, cache_write=1.25, output_image=40.0)
COUNT = st.integers(0, 10**7)


def buckets(raw: dict[str, Any]) -> Usage:
    return msgspec.convert(raw, WireUsage).buckets()


# --- buckets ---


@given(COUNT, COUNT, st.none() | COUNT, st.none() | COUNT, st.none() | COUNT, st.none() | COUNT)
def test_buckets_add_up_to_what_the_provider_counted(
    prompt: int, completion: int, cached: int | None, written: int | None, reasoning: int | None, image: int | None
) -> None:
    """Cached tokens are part of the prompt and reasoning tokens of the completion, however wrong the details are."""
    found = buckets({
        "prompt_tokens": prompt, "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_creation_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning, "image_tokens": image},
    })  # fmt: skip

    assert (prompt, completion) == (found.prompt_tokens, found.completion_tokens)
    parts = (found.input, found.cached_input, found.cache_write, found.output, found.reasoning, found.image_output)
    assert prompt + completion == sum(parts)
    assert min(parts) >= 0


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, Usage(input=10, output=5)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": None}, Usage(input=10, output=5)),
        ({"prompt_tokens": 10, "completion_tokens": 0, "prompt_cache_hit_tokens": 8}, Usage(input=2, cached_input=8)),
        ({"prompt_tokens": 10, "cache_creation_input_tokens": 4}, Usage(input=6, cache_write=4)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 99}}, Usage(cached_input=10)),
        ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 9}}, Usage(reasoning=9)),
        ({}, Usage()),
    ],
)  # fmt: skip
def test_provider_dialects_are_read(raw: dict[str, Any], expected: Usage) -> None:
    """OpenAI, DeepSeek and Anthropic-like servers name the same things differently."""
    assert expected == buckets(raw)


# --- cost ---


def test_each_bucket_costs_its_own_price() -> None:
    """Per million tokens, as price lists say it."""
    million = 10**6
    usage = Usage(input=million, cached_input=million, cache_write=million, output=million, reasoning=million,
                  image_output=million)  # fmt: skip

    assert pytest.approx(1.0 + 0.1 + 1.25 + 4.0 + 4.0 + 40.0) == cost_usd(usage, FULL)


@given(COUNT, COUNT, COUNT, COUNT, COUNT, COUNT)
def test_buckets_without_a_price_cost_what_their_parents_cost(a: int, b: int, c: int, d: int, e: int, f: int) -> None:
    """A simple price list is a complete one: details never make tokens free."""
    used, price = Usage(a, b, c, d, e, f), Price(input=3.0, output=15.0)

    assert cost_usd(used, price) == pytest.approx((used.prompt_tokens * 3.0 + used.completion_tokens * 15.0) / 10**6)


def test_price_of_zero_is_a_price() -> None:
    """Free cached input is not "as input"."""
    price = Price(input=1.0, output=2.0, cached_input=0.0)

    assert 0.0 == cost_usd(Usage(cached_input=10**6), price)
    assert 0.0 == cost_usd(Usage(input=5), Price(input=0.0, output=0.0))


def test_unknown_is_none_and_nothing_is_zero() -> None:
    """A dashboard that shows zero for unknown shows savings that do not exist."""
    assert cost_usd(None, FULL) is None
    assert cost_usd(Usage(input=1), None) is None
    assert 0.0 == cost_usd(Usage(), FULL)
    assert 0.0 == cost_usd(Usage(), None), "no tokens cost nothing, whatever they would cost"


# --- on the path ---


async def test_cost_and_savings_are_told_in_header_log_and_metrics_alike(
    start: Start, small: Upstream, medium: Upstream
) -> None:
    """Three places, one record."""
    tiers = {
        "small": tier(small, "small", deployment={"price": {"input": 1, "output": 2}}),
        "medium": tier(medium, "medium", deployment={"price": {"input": 10, "output": 20}}),
    }
    gateway = await start({"tiers": tiers})
    small.script(answer("便宜", usage(1000, 500)))

    reply = await gateway.chat(model="small")

    [line] = await gateway.settled(1)
    assert ("0.002", "0.018") == (reply.about("cost-usd"), reply.about("saved-usd"))
    assert (0.002, 0.02) == (line["cost_usd"], line["baseline_usd"])
    assert pytest.approx(0.018) == line["saved_usd"]
    assert 0.002 == gateway.metric("tiergate_cost_usd_total", tier="small")
    assert 0.02 == gateway.metric("tiergate_baseline_cost_usd_total", tier="small")
    assert pytest.approx(0.018) == gateway.metric("tiergate_saved_usd", tier="small")
    assert (1000, 500) == (
        gateway.metric("tiergate_tokens_total", kind="input"),
        gateway.metric("tiergate_tokens_total", kind="output"),
    )


async def test_cached_and_reasoning_tokens_are_counted_once(gateway: Gateway, small: Upstream) -> None:
    """Summing the kinds of a dashboard must give the provider's bill."""
    small.script(answer("ok", usage(1000, 500, cached=900, reasoning=400)))

    await gateway.chat()

    kinds = {
        kind: gateway.metric("tiergate_tokens_total", kind=kind)
        for kind in ("input", "cached_input", "output", "reasoning")
    }
    assert {"input": 100, "cached_input": 900, "output": 100, "reasoning": 400} == kinds


async def test_answer_without_a_price_is_counted_as_unknown(start: Start, small: Upstream) -> None:
    """No header rather than a zero; and the operator can see how many there are."""
    gateway = await start({"tiers": {"small": tier(small, "small", deployment={"price": None})}})
    small.script(answer("ok", usage(10, 5)))

    reply = await gateway.chat(model="small")

    [line] = await gateway.settled(1)
    assert (None, None, None) == (reply.about("cost-usd"), reply.about("saved-usd"), line["cost_usd"])
    assert 1 == gateway.metric("tiergate_cost_unknown_total", tier="small")
    assert 0 == gateway.metric("tiergate_cost_usd_total")


async def test_failed_attempts_that_used_tokens_are_paid_too(gateway: Gateway, small: Upstream) -> None:
    """A cut stream costs what it said so far."""
    small.script(Send(HEAD), Send(event("half")), Send(usage_event(1000, 500)))

    reply = await gateway.chat(stream=True)

    [line] = await gateway.settled(1)
    assert reply.error is not None
    assert (1000, 500, 0.002) == (line["prompt_tokens"], line["completion_tokens"], line["cost_usd"])


async def test_server_that_counts_nothing_is_estimated_and_marked(gateway: Gateway, small: Upstream) -> None:
    """An estimate is better than nothing, as long as it says that it is one."""
    small.script(Send(HEAD), *(Send(event("字")) for _ in range(20)), Send(finish()), Send(DONE))

    await gateway.chat("写二十个字", stream=True)

    [line] = await gateway.settled(1)
    assert (True, 20) == (line["usage_estimated"], line["completion_tokens"])
    assert line["prompt_tokens"] > 0


async def test_vectors_without_usage_are_not_counted_as_words(start: Start, small: Upstream) -> None:
    """An embedding has no output tokens; a thousand floats look like three thousand."""
    gateway = await start({"tiers": {"small": tier(small, "small", deployment={"mode": "embedding"})}})
    vector = [0.123456789] * 1000
    small.script(json_reply(200, {"object": "list", "data": [{"index": 0, "embedding": vector}]}))

    await gateway.post("/v1/embeddings", {"model": "small", "input": "向量"})

    [line] = await gateway.settled(1)
    assert 0 == (line["completion_tokens"] or 0)
