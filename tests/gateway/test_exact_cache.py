"""The exact cache on the path of a request."""

from __future__ import annotations

import asyncio

from gateway.admission.keys import hash_key
from tests.client import Client, Leave
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import DONE, HEAD, Hang, Send, Upstream, Wait, answer, error_reply, event, stream

CACHE = {"cache": {"exact": {"ttl": "1h"}}}


async def _gateway(start: Start, small: Upstream, **policy: object) -> Gateway:
    gateway: Gateway = await start(
        {"tiers": {"small": tier(small, "small")}, "routes": {"auto": {"tier": "small"}}, **CACHE, **policy}
    )
    return gateway


async def test_second_identical_request_makes_no_upstream_call(start: Start, small: Upstream) -> None:
    """The cheapest tier of all: it costs nothing, and the saving is counted."""
    gateway = await _gateway(start, small)
    small.script(answer("巴黎", {"prompt_tokens": 1000, "completion_tokens": 500}))

    first, second = await gateway.chat("法国的首都?"), await gateway.chat("法国的首都?")

    assert ("miss", "hit-exact") == (first.cache, second.cache)
    assert first.body == second.body
    assert ("0", "0.002", "small") == (second.about("cost-usd"), second.about("saved-usd"), second.tier)
    assert second.header("age") is not None
    assert 1 == gateway.metric("tiergate_cache_events_total", result="hit")


async def test_answer_is_replayed_in_either_form(start: Start, small: Upstream) -> None:
    """Stored once, from a stream or whole; given out as the caller wants it."""
    gateway = await _gateway(start, small)
    small.script(*stream("a", "b", counts=(4, 2)))

    live = await gateway.chat(stream=True)
    whole = await gateway.chat()
    again = await gateway.chat(stream=True, stream_options={"include_usage": True})

    assert ["miss", "hit-exact", "hit-exact"] == [live.cache, whole.cache, again.cache]
    assert ("ab", "ab", "ab") == (live.text, whole.text, again.text)
    assert ("application/json", True) == (whole.header("content-type"), again.sse.done)
    assert 4 == again.usage["prompt_tokens"]  # type: ignore[index]


async def test_no_key_sees_anothers_answer(start: Start, small: Upstream) -> None:
    """One tenant's answer may hold what another must not read."""
    keys = [{"name": name, "hash": hash_key(name.encode())} for name in ("alice", "bob")]
    gateway = await _gateway(start, small, keys=keys)
    small.script(answer("for alice"))
    small.script(answer("for bob"))
    url = f"http://{gateway.host}:{gateway.port}"

    alice, bob, again = [await Client(url, key).chat("余额?") for key in ("alice", "bob", "alice")]

    assert ["miss", "miss", "hit-exact"] == [alice.cache, bob.cache, again.cache]
    assert ("for bob", "for alice") == (bob.text, again.text)


async def test_callers_cache_control_is_obeyed(start: Start, small: Upstream) -> None:
    """no-store leaves no trace, no-cache asks anew and stores, max-age=0 trusts nothing old."""
    gateway = await _gateway(start, small)
    for number in range(4):
        small.script(answer(f"answer {number}"))

    replies = [
        await gateway.chat(headers={"cache-control": value})
        for value in ("no-store", "", "no-cache", "max-age=0", "max-age=60")
    ]

    assert ["answer 0", "answer 1", "answer 2", "answer 3", "answer 3"] == [reply.text for reply in replies]
    assert "hit-exact" == replies[-1].cache


async def test_cut_stream_is_not_stored(start: Start, small: Upstream) -> None:
    """Replaying half an answer for an hour is worse than asking again."""
    gateway = await _gateway(start, small)
    small.script(Send(HEAD), Send(event("half")))
    small.script(*stream("whole"))

    cut, whole = await gateway.chat(stream=True), await gateway.chat(stream=True)

    assert cut.error is not None
    assert ("miss", "whole") == (whole.cache, whole.text)


async def test_identical_requests_at_once_share_one_call(start: Start, small: Upstream) -> None:
    """A burst of the same question is asked once."""
    gateway = await _gateway(start, small)
    small.script(Wait(0.1), answer("one"))

    replies = await asyncio.gather(*(gateway.chat("同一个问题") for _ in range(12)))

    assert {"one"} == {reply.text for reply in replies}
    assert 1 == len(small.requests)
    assert 11 == gateway.metric("tiergate_cache_events_total", result="merged")


async def test_failure_of_the_first_does_not_fail_the_others(start: Start, small: Upstream) -> None:
    """The next one in line asks for all; eleven of twelve are answered."""
    gateway = await _gateway(start, small)
    small.script(Wait(0.1), error_reply(500))
    small.script(Wait(0.1), answer("fine"))

    replies = await asyncio.gather(*(gateway.chat() for _ in range(12)))

    assert [200] * 11 + [502] == sorted(reply.status for reply in replies)
    assert 2 == len(small.requests)


async def test_leader_that_leaves_hands_over(start: Start, small: Upstream) -> None:
    """The caller who asked first goes away; who waited still gets an answer."""
    gateway = await _gateway(start, small)
    small.script(Send(HEAD), Hang())
    small.script(*stream("for you"))
    leader = asyncio.create_task(gateway.chat(stream=True, leave=Leave(after_s=0.2)))
    await small.wait_for_requests(1)

    reply = await gateway.chat(stream=True)
    await leader

    assert "for you" == reply.text
    assert DONE in reply.body


async def test_hit_keeps_the_name_that_was_asked_for(start: Start, small: Upstream) -> None:
    """An alias is an alias whether its answer is fresh or not, and whether it was stored from a stream or not."""
    gateway = await _gateway(start, small, aliases={"gpt-4o-mini": "small"})
    small.script(*stream("hi"))

    live = await gateway.chat(model="gpt-4o-mini", stream=True)
    hit = await gateway.chat(model="gpt-4o-mini")

    assert "hit-exact" == hit.cache
    assert {"gpt-4o-mini"} == {live.sse.chunks[0]["model"], hit.json["model"]}
