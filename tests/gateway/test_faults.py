"""What providers do wrong, with two tiers, over real sockets: an answer, or an honest error, in time."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.client import Leave
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import (
    DONE,
    HEAD,
    Close,
    Hang,
    Reset,
    Send,
    Upstream,
    Wait,
    answer,
    data,
    error_reply,
    event,
    finish,
    http,
    json_reply,
    role,
    stream,
    usage_event,
)

GOOD = stream("from ", "medium")


async def test_rate_limit_with_a_long_retry_after_goes_to_the_next_tier_at_once(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """Waiting twenty seconds for a small model while a larger one is free helps nobody."""
    small.script(error_reply(429, "slow down", type="rate_limit_error", headers={"retry-after": "20"}))
    medium.script(*GOOD)

    reply = await gateway.chat("你好", stream=True)

    assert "from medium" == reply.text
    assert ("medium", "2") == (reply.tier, reply.attempts)
    assert reply.duration < 1
    assert 1 == gateway.metric("tiergate_fallbacks_total", from_tier="small", to_tier="medium")


async def test_short_retry_after_is_waited_for(start: Start, small: Upstream, medium: Upstream) -> None:
    """A server that says when to come back is asked again then, not before."""
    retry = {"attempts": 1, "backoff": {"initial": "10ms", "max": "2s"}}
    gateway = await start({"tiers": {"small": tier(small, "small", retry=retry), "medium": tier(medium, "medium")},
                           "routes": {"auto": {"tier": "small"}}})  # fmt: skip
    small.script(error_reply(429, headers={"retry-after": "0.3"}))
    small.script(*stream("again"))

    reply = await gateway.chat(stream=True)

    assert ("again", "small", "2") == (reply.text, reply.tier, reply.attempts)
    assert small.requests[1].at - small.requests[0].at >= 0.3
    assert 1 == gateway.metric("tiergate_retries_total", tier="small")


@pytest.mark.parametrize("status", [429, 503])
async def test_persistent_overload_uses_the_retries_then_falls_back(
    start: Start, small: Upstream, medium: Upstream, status: int
) -> None:
    """Retries are counted once, by us alone, and then the next tier answers."""
    retry = {"attempts": 2, "backoff": {"initial": "10ms", "max": "50ms"}}
    gateway = await start({"tiers": {"small": tier(small, "small", retry=retry), "medium": tier(medium, "medium")},
                           "routes": {"auto": {"tier": "small"}}})  # fmt: skip
    for _ in range(3):
        small.script(error_reply(status))
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium", "4") == (reply.text, reply.tier, reply.attempts)


async def test_one_server_error_falls_back(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """A 500 may have cost its server much; it is not asked for the same again."""
    small.script(error_reply(500, "boom"))
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium") == (reply.text, reply.tier)
    [line] = await gateway.settled(1)
    assert ["broken", "ok"] == [attempt["outcome"] for attempt in line["attempts"]]
    assert [500, 200] == [attempt["status"] for attempt in line["attempts"]]


async def test_reset_before_the_headers_falls_back(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """A server that dies with the request in hand must not take the request with it."""
    small.script(Reset())
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium", "2") == (reply.text, reply.tier, reply.attempts)


async def test_refused_connection_falls_back(start: Start, medium: Upstream) -> None:
    """A server that is down is the most usual fault of all."""
    async with Upstream(refuse=True) as small:
        gateway = await start({"tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium")},
                               "routes": {"auto": {"tier": "small"}}})  # fmt: skip
        medium.script(*GOOD)

        reply = await gateway.chat(stream=True)

    assert ("from medium", "medium") == (reply.text, reply.tier)
    [line] = await gateway.settled(1)
    assert "unreachable" == line["attempts"][0]["outcome"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_silent_server_is_not_asked_again(
    start: Start, small: Upstream, medium: Upstream, streamed: bool
) -> None:
    """Accepting a request and then saying nothing must not keep the caller waiting, nor be tried twice."""
    retry = {"attempts": 3, "backoff": {"initial": "10ms", "max": "50ms"}}
    gateway = await start({"tiers": {"small": tier(small, "small", retry=retry), "medium": tier(medium, "medium")},
                           "routes": {"auto": {"tier": "small"}}})  # fmt: skip
    small.script(Hang())
    medium.script(*(GOOD if streamed else [answer("from medium")]))

    reply = await gateway.chat(stream=streamed)

    assert ("from medium", "medium", "2") == (reply.text, reply.tier, reply.attempts)
    assert reply.duration < 3
    await small.wait_for_disconnect()


async def test_silence_after_the_headers_falls_back(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """The first-token limit covers the wait after the headers as well."""
    small.script(Send(HEAD), Send(role()), Hang())
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium") == (reply.text, reply.tier)
    [line] = await gateway.settled(1)
    assert "timed_out" == line["attempts"][0]["outcome"]


async def test_slow_first_token_within_the_limit_is_waited_for(gateway: Gateway, small: Upstream) -> None:
    """Slow is not broken."""
    small.script(Send(HEAD), Wait(0.3), Send(event("worth it")), Send(finish()), Send(DONE))

    reply = await gateway.chat(stream=True)

    assert ("worth it", "small", "1") == (reply.text, reply.tier, reply.attempts)


async def test_trickle_of_bytes_without_a_token_does_not_fool_the_limit(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """One byte now and then is no first token: the limit is on content, not on bytes."""
    slow = event("too late")
    steps = [step for byte in slow[:12] for step in (Send(bytes([byte])), Wait(0.1))]
    small.script(Send(HEAD), *steps, Hang())
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium") == (reply.text, reply.tier)
    assert reply.duration < 2


async def test_cut_before_the_first_content_token_is_invisible(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """A role is no content: the caller has seen nothing of the first attempt."""
    small.script(Send(HEAD), Send(role()), Close())
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "stop", True) == (reply.text, reply.finish, reply.sse.done)
    assert reply.error is None


async def test_error_event_as_first_event_falls_back(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """A 200 was promised too early; nothing was passed on yet, so it can be taken back."""
    small.script(Send(HEAD), Send(data({"error": {"message": "overloaded", "type": "overloaded_error", "code": None}})))
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium") == (reply.text, reply.tier)
    [line] = await gateway.settled(1)
    assert "overloaded" == line["attempts"][0]["outcome"]


async def test_malformed_event_before_the_first_token_falls_back(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """What cannot be read is not passed on in the hope that the caller can."""
    small.script(Send(HEAD), Send(b"data: {broken\n\n"))
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium") == (reply.text, reply.tier)


async def test_malformed_event_in_mid_stream_ends_with_an_error(gateway: Gateway, small: Upstream) -> None:
    """After the first token there is no second model, only honesty."""
    small.script(Send(HEAD), Send(event("part")), Send(b"data: {broken\n\n"), Send(event("never")), Send(DONE))

    reply = await gateway.chat(stream=True)

    assert "part" == reply.text
    assert reply.error is not None
    assert not reply.sse.done


async def test_missing_end_marker_after_a_finish_reason_is_supplied(gateway: Gateway, small: Upstream) -> None:
    """Some servers just close when they are done; the finish reason says that they are."""
    small.script(Send(HEAD), Send(event("whole")), Send(finish()), Close())

    reply = await gateway.chat(stream=True)

    assert ("whole", "stop", True) == (reply.text, reply.finish, reply.sse.done)
    assert reply.error is None


async def test_server_that_never_closes_after_its_finish_reason_is_left(gateway: Gateway, small: Upstream) -> None:
    """Nor may a connection held open after the last event hold the caller."""
    small.script(Send(HEAD), Send(event("whole")), Send(finish()), Hang())

    reply = await gateway.chat(stream=True)

    assert ("whole", True) == (reply.text, reply.sse.done)
    assert reply.duration < 3
    await small.wait_for_disconnect()


@pytest.mark.parametrize("end", [Close(), Reset()])
async def test_stream_cut_in_the_middle_never_looks_like_success(
    gateway: Gateway, small: Upstream, end: Close | Reset
) -> None:
    """Half an answer that ends well is the worst answer: clients would act on it."""
    small.script(Send(HEAD), Send(event("Step 1: open the")), end)

    reply = await gateway.chat(stream=True)

    assert "Step 1: open the" == reply.text
    assert reply.error is not None
    assert not reply.sse.done
    [line] = await gateway.settled(1)
    assert "error" == line["outcome"]
    assert 1 == gateway.metric("tiergate_stream_truncated_total", tier="small")
    assert "stream_broken" in gateway.log.events()


async def test_silence_in_mid_stream_ends_with_an_error(gateway: Gateway, small: Upstream) -> None:
    """The idle limit is on silence between chunks."""
    small.script(Send(HEAD), Send(event("one ")), Send(event("two")), Hang())

    reply = await gateway.chat(stream=True)

    assert "one two" == reply.text
    assert "upstream_timeout" == reply.error["code"]  # type: ignore[index]
    await small.wait_for_disconnect()


async def test_too_long_a_prompt_goes_only_to_a_larger_window(start: Start, small: Upstream, medium: Upstream) -> None:
    """A window that is no larger would only fail again, and cost a round trip."""
    async with Upstream() as large:
        windows = [{"context_window": 8192}, {"context_window": 8192}, {"context_window": 200_000}]
        names = [(small, "small"), (medium, "medium"), (large, "large")]
        tiers = {name: tier(up, name, deployment=window) for (up, name), window in zip(names, windows, strict=True)}
        gateway = await start({"tiers": tiers, "routes": {"auto": {"tier": "small"}}})
        small.script(error_reply(400, "This model's maximum context length is 8192 tokens. However, you requested 9001",
                                 type="invalid_request_error", code="context_length_exceeded"))  # fmt: skip
        large.script(*stream("fits"))

        reply = await gateway.chat(stream=True)

        assert ("fits", "large", "2") == (reply.text, reply.tier, reply.attempts)
        assert not medium.requests


async def test_prompt_that_fits_nowhere_is_told_with_the_documented_code(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """Clients look for context_length_exceeded to shorten their conversation."""
    refusal = error_reply(400, "prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error")
    small.script(refusal)
    medium.script(refusal)

    reply = await gateway.chat(stream=True)

    assert (400, "context_length_exceeded") == (reply.status, reply.error["code"])  # type: ignore[index]


async def test_prompt_over_every_known_window_is_refused_without_a_call(start: Start, small: Upstream) -> None:
    """Nobody is asked what cannot be answered."""
    gateway = await start({"tiers": {"small": tier(small, "small", deployment={"context_window": 64})}})

    reply = await gateway.chat("长" * 500, model="small")

    assert (400, "context_length_exceeded") == (reply.status, reply.error["code"])  # type: ignore[index]
    assert not small.requests


async def test_content_filter_is_not_retried_nor_routed_around(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """What one provider's rules refuse is not shopped around; its reason is the caller's to read."""
    small.script(error_reply(400, "The response was filtered", type="invalid_request_error", code="content_filter"))

    reply = await gateway.chat(stream=True)

    assert 400 == reply.status
    assert ("content_filter", "The response was filtered") == (reply.error["code"], reply.error["message"])  # type: ignore[index]
    assert not medium.requests


async def test_content_filter_as_a_finish_reason_is_passed_on(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """The same in a stream: an answer without content, but with a reason."""
    small.script(Send(HEAD), Send(role()), Send(finish("content_filter")), Send(DONE))

    reply = await gateway.chat(stream=True)

    assert ("", "content_filter", True) == (reply.text, reply.finish, reply.sse.done)
    assert not medium.requests


async def test_gzip_answer_that_nobody_asked_for_is_read(gateway: Gateway, small: Upstream) -> None:
    """Some proxies compress whatever they are told."""
    small.script(json_reply(200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": "平"},
                                               "finish_reason": "stop"}]}, encode="gzip"))  # fmt: skip
    body = gzip.compress(event("p") + event("q") + finish() + DONE)
    small.script(Send(http(200, {"content-type": "text/event-stream", "content-encoding": "gzip"}, body)))

    whole, streamed = await gateway.chat(), await gateway.chat(stream=True)

    assert "平" == whole.text
    assert whole.header("content-encoding") is None
    assert ("pq", True) == (streamed.text, streamed.sse.done)


async def test_garbage_after_the_end_marker_is_dropped(gateway: Gateway, small: Upstream) -> None:
    """The end is the end."""
    small.script(Send(HEAD), Send(event("ok")), Send(finish()), Send(DONE + b"data: {garbage\n\n<html>"), Close())

    reply = await gateway.chat(stream=True)

    assert ("ok", True) == (reply.text, reply.sse.done)
    assert reply.body.endswith(DONE)
    assert reply.error is None


async def test_client_gone_before_the_first_token_frees_everything(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """Nobody is listening: the model need not think, and no fallback is started."""
    small.script(Send(HEAD), Hang())

    await gateway.chat(stream=True, leave=Leave(after_s=0.15))

    await small.wait_for_disconnect(1.5)
    [line] = await gateway.settled(1)
    assert ("client_closed", 499) == (line["outcome"], line["status"])
    assert "cancelled" == line["attempts"][0]["outcome"]
    assert not medium.requests


async def test_client_gone_in_mid_stream_frees_everything(gateway: Gateway, small: Upstream) -> None:
    """The upstream hears of it within a moment, and what was produced is still accounted for."""
    small.script(Send(HEAD), *(step for _ in range(100) for step in (Send(event("x")), Wait(0.02))), Send(DONE))

    await gateway.chat("数数", stream=True, leave=Leave(after_events=5))

    await small.wait_for_disconnect(1.5)
    [line] = await gateway.settled(1)
    assert "client_closed" == line["outcome"]
    assert line["usage_estimated"]
    assert line["completion_tokens"] >= 5
    assert line["cost_usd"] > 0


async def test_client_gone_from_a_whole_answer_cancels_the_upstream(gateway: Gateway, small: Upstream) -> None:
    """Not only streams: a plain request that nobody waits for is cancelled just as well."""
    small.script(Hang())

    await gateway.chat(leave=Leave(after_s=0.15))

    await small.wait_for_disconnect(1.0)
    [line] = await gateway.settled(1)
    assert "client_closed" == line["outcome"]


async def test_own_deadline_of_the_caller_bounds_all_attempts(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """One budget of time for everything: the second attempt gets what is left, not a fresh limit."""
    small.script(Send(HEAD), Send(role()), Hang())
    medium.script(Send(HEAD), Hang())

    reply = await gateway.chat(stream=True, headers={"x-tiergate-timeout": "0.7"})

    assert (504, "upstream_timeout") == (reply.status, reply.error["code"])  # type: ignore[index]
    assert 0.6 < reply.duration < 1.5


async def test_wrong_provider_key_is_not_the_callers_401(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """The operator's mistake: told in the log, answered by the next tier, and never echoed."""
    refusal = error_reply(401, "Incorrect API key provided: up-key-sm***", code="invalid_api_key")
    small.script(refusal)
    medium.script(refusal)

    reply = await gateway.chat()

    assert 502 == reply.status
    assert b"up-key" not in reply.body
    assert 2 == gateway.log.events().count("upstream_misconfigured")


async def test_idle_connection_closed_by_its_server_costs_no_request(gateway: Gateway, small: Upstream) -> None:
    """Servers close idle connections; the request that finds one closed goes out on another."""
    small.script(answer("one"))
    small.script(answer("two"))

    first = await gateway.chat("一")
    for connection in tuple(small._connections):
        connection.transport.close()
    await asyncio.sleep(0)
    second = await gateway.chat("二")

    assert ("one", "two") == (first.text, second.text)
    assert "1" == second.attempts


async def test_usage_event_tells_the_cost_where_the_policy_says_so(start: Start, small: Upstream) -> None:
    """Headers leave before a stream's cost is known; its usage event does not."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "usage_cost": True})
    small.script(Send(HEAD), Send(event("x")), Send(finish()), Send(usage_event(70, 30)), Send(DONE))

    reply = await gateway.chat(model="small", stream=True, stream_options={"include_usage": True})

    assert (70, 0.00013, 0.0) == tuple(reply.usage[name] for name in ("prompt_tokens", "cost_usd", "saved_usd"))  # type: ignore[index]


async def test_usage_of_a_stream_is_asked_for_and_hidden(gateway: Gateway, small: Upstream) -> None:
    """Costs need tokens; a caller who did not ask for usage must not see the event."""
    small.script(Send(HEAD), Send(event("x")), Send(finish()), Send(usage_event(70, 30)), Send(DONE))

    reply = await gateway.chat(stream=True)

    assert {"include_usage": True} == small.requests[0].json["stream_options"]
    assert [] == reply.sse.usage_chunks
    [line] = await gateway.settled(1)
    assert (70, 30, 0.00013) == (line["prompt_tokens"], line["completion_tokens"], line["cost_usd"])


async def test_good_events_before_a_bad_one_in_the_same_read_are_passed_on(gateway: Gateway, small: Upstream) -> None:
    """Network reads do not end where events do: what was said before the fault was said."""
    small.script(Send(HEAD), Send(event("Hel")), Wait(0.05), Send(event("lo world") + b"data: {broken\n\n"), Hang())

    reply = await gateway.chat(stream=True)

    assert "Hello world" == reply.text
    assert reply.error is not None
    assert not reply.sse.done


async def test_fault_in_the_same_read_after_the_finish_reason_costs_nothing(gateway: Gateway, small: Upstream) -> None:
    """A whole answer is a whole answer, even if it comes in one piece with garbage behind it."""
    small.script(Send(HEAD), Send(event("whole") + finish() + b"data: {broken\n\n"), Hang())

    reply = await gateway.chat(stream=True)

    assert ("whole", "stop", True) == (reply.text, reply.finish, reply.sse.done)
    assert ("small", "1") == (reply.tier, reply.attempts)


async def test_end_marker_alone_is_no_answer(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """An empty success would be taken for the model's word."""
    small.script(Send(HEAD), Send(DONE))
    medium.script(*GOOD)

    reply = await gateway.chat(stream=True)

    assert ("from medium", "medium") == (reply.text, reply.tier)


async def test_caller_who_reads_nothing_does_not_keep_the_slot(start: Start, small: Upstream) -> None:
    """Four such callers would close a small tier for everybody."""
    limits = {"connect": "1s", "first_token": "1s", "idle": "1s", "total": "1s"}
    gateway = await start({"tiers": {"small": tier(small, "small", timeouts=limits)}})
    piece = event("x" * 60_000)
    small.script(Send(HEAD), *(Send(piece) for _ in range(400)), Hang())
    reader, writer = await asyncio.open_connection(gateway.host, gateway.port, limit=1024)
    body = b'{"model":"small","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    await reader.readline()

    [line] = await gateway.settled(1, timeout=6)

    assert line["outcome"] in ("client_closed", "error")
    assert 0 == gateway.metric("tiergate_in_flight")
    writer.transport.abort()


async def test_word_about_money_in_a_callers_own_mistake_is_no_empty_account(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """Three callers with a tool of that name must not close the tier for all tenants."""
    small.script(error_reply(400, "Invalid schema for function 'get_billing_info'", type="invalid_request_error"))

    reply = await gateway.chat()

    assert (400, "1") == (reply.status, reply.attempts)
    assert not medium.requests


async def test_tools_count_into_the_prompt(start: Start, small: Upstream, medium: Upstream) -> None:
    """A window that the tools alone overflow is not tried."""
    windows = {"small": 1000, "medium": 100_000}
    tiers = {
        name: tier(up, name, deployment={"context_window": windows[name]})
        for name, up in (("small", small), ("medium", medium))
    }
    gateway = await start({"tiers": tiers, "routes": {"auto": {"tier": "small"}}})
    medium.script(answer("fits"))
    function = {"name": "f", "description": "d" * 8000, "parameters": {"type": "object"}}

    reply = await gateway.chat("天气?", tools=[{"type": "function", "function": function}])

    assert ("fits", "medium", "1") == (reply.text, reply.tier, reply.attempts)


async def test_answers_are_counted_from_one(gateway: Gateway) -> None:
    """A count that makes no sense must not make a cut stream look whole."""
    reply = await gateway.chat(stream=True, n=-1)

    assert (400, "n") == (reply.status, reply.error["param"])  # type: ignore[index]


async def test_answer_without_usage_is_counted_by_its_words(gateway: Gateway, small: Upstream) -> None:
    """Not by the JSON around them."""
    message = {"role": "assistant", "content": "Hi!"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    small.script(json_reply(200, {"id": "x" * 500, "choices": [choice]}))

    await gateway.chat()

    [line] = await gateway.settled(1)
    assert line["usage_estimated"]
    assert line["completion_tokens"] <= 4


async def test_errors_explain_themselves_too(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """Whoever sees a 502 wants to know what was tried."""
    small.script(error_reply(500))
    medium.script(error_reply(500))

    reply = await gateway.chat()

    assert (502, "auto", "2") == (reply.status, reply.route, reply.attempts)
