"""A tier of Claude behind the whole gateway: what the adapter promises, as callers meet it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client import Leave
from tests.gateway.conftest import Gateway, Start, tier
from tests.gateway.upstream.providers import (
    CLAUDE,
    KEY,
    LITELLM_WARNINGS,
    claude_end,
    claude_error,
    claude_message,
    claude_start,
    claude_text,
    events,
)
from tests.upstream import Hang, Upstream, answer, json_reply

pytestmark = LITELLM_WARNINGS

# LiteLLM is imported by the first request: seconds, on a busy machine.
TIMEOUTS = {"connect": "30s", "first_token": "60s", "first_byte": "60s", "idle": "30s", "total": "60s"}


async def started(start: Start, small: Upstream, medium: Upstream) -> Gateway:
    claude = tier(
        f"http://127.0.0.1:{small.port}", "small", timeouts=TIMEOUTS, deployment={"model": CLAUDE, "api_key": KEY}
    )
    tiers: dict[str, Any] = {"small": claude, "medium": tier(medium, "medium")}
    gateway: Gateway = await start({"tiers": tiers, "routes": {"auto": {"tier": "small"}}})
    return gateway


async def test_claude_answers_through_the_gateway(start: Start, small: Upstream, medium: Upstream) -> None:
    """Streamed and not: text, usage and cost as from any other tier, cached tokens at their own price."""
    gateway = await started(start, small, medium)
    small.script(json_reply(200, claude_message({"type": "text", "text": "你好"})))
    small.script(*events(claude_start(), *claude_text("Hel", "lo"), *claude_end()))

    whole = await gateway.chat("你好")
    streamed = await gateway.chat("hello", stream=True)

    assert ("你好", "stop", "small") == (whole.text, whole.finish, whole.tier)
    assert ("Hello", "stop", "small") == (streamed.text, streamed.finish, streamed.tier)
    for line in await gateway.settled(2):
        assert (117, 100, 33) == (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"])
        assert pytest.approx((117 * 1.0 + 33 * 2.0) / 1e6) == line["cost_usd"]


async def test_overloaded_claude_falls_back(start: Start, small: Upstream, medium: Upstream) -> None:
    """The reason for a second tier; the caller does not notice."""
    gateway = await started(start, small, medium)
    small.script(json_reply(529, claude_error("overloaded_error", "Overloaded")))
    medium.script(answer("好"))

    reply = await gateway.chat("hi")

    assert ("好", "medium", "2") == (reply.text, reply.tier, reply.attempts)


async def test_field_that_claude_lacks_is_the_callers_to_mend(start: Start, small: Upstream, medium: Upstream) -> None:
    """Where nobody else may answer: a 400 that names the field, and no request to anybody."""
    gateway = await started(start, small, medium)

    reply = await gateway.chat("hi", model="small-1", api_base="http://127.0.0.1:9")

    assert 400 == reply.status
    assert reply.error is not None
    assert ("api_base", "unsupported_parameter") == (reply.error["param"], reply.error["code"])


async def test_field_that_claude_lacks_goes_to_a_tier_that_takes_it(
    start: Start, small: Upstream, medium: Upstream
) -> None:
    """What one provider has no place for another may have; the caller asked for no provider in particular."""
    gateway = await started(start, small, medium)
    medium.script(answer("taken"))

    reply = await gateway.chat("hi", some_new_field=1)

    assert ("taken", "medium") == (reply.text, reply.tier)
    assert 1 == medium.requests[0].json["some_new_field"]


async def test_client_gone_in_mid_stream_frees_claude(start: Start, small: Upstream, medium: Upstream) -> None:
    """Through all layers: the provider's connection closes when the client's does."""
    gateway = await started(start, small, medium)
    small.script(*events(claude_start(), *claude_text("half")[:2], ends=False), Hang())

    await gateway.chat("hi", stream=True, leave=Leave(after_text="half"))

    await small.wait_for_disconnect(2.0)
    await gateway.settled(1)
