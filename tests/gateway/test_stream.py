"""An open stream: what is held back and passed on, how it ends, when its slot and connection are given back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.upstream import sse
from tests.gateway.conftest import TIMEOUTS, Gateway, Start, tier
from tests.upstream import (
    DONE,
    END_CHUNKS,
    HEAD,
    HEAD_CHUNKED,
    Chunk,
    Close,
    Hang,
    Send,
    Until,
    Upstream,
    Wait,
    answer,
    chunk_object,
    data,
    event,
    finish,
    http,
    role,
    stream,
    usage_event,
)


@pytest.fixture
async def gateway(start: Start, small: Upstream, medium: Upstream) -> Gateway:
    """Two tiers; the answer keeps the model's own name, so that its bytes are those of the upstream."""
    made: Gateway = await start({
        "tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium")},
        "routes": {"auto": {"tier": "small", "response_model": "answered"}},
    })  # fmt: skip
    return made


async def test_role_and_empty_events_are_held_back_and_then_passed_on(gateway: Gateway, small: Upstream) -> None:
    """Nothing goes out before the first content token, and nothing is lost by that."""
    gate = asyncio.Event()
    small.script(Send(HEAD), Send(role()), Until(gate), Send(event("好")), Send(finish()), Send(DONE))
    reading = asyncio.create_task(gateway.chat("你好", stream=True))
    await small.wait_for_requests(1)
    await asyncio.sleep(0.1)

    gate.set()
    reply = await reading

    assert reply.head_at is not None
    assert reply.head_at > 0.1, "no status before there is something to say"
    assert role() + event("好") + finish() + DONE == reply.body


async def test_comments_pass_only_once_the_answer_has_begun(gateway: Gateway, small: Upstream) -> None:
    """They keep the line busy; before the first token they would commit us to nothing."""
    small.script(Send(HEAD), Send(b": waiting\n\n"), Send(event("a")), Send(b": alive\n\n"), Send(finish()), Send(DONE))

    reply = await gateway.chat(stream=True)

    assert event("a") + b": alive\n\n" + finish() + DONE == reply.body


async def test_end_marker_comes_once_and_last(gateway: Gateway, small: Upstream) -> None:
    """Whether the upstream sent one, none, or one without its blank line."""
    for end in (DONE, b"", b"data: [DONE]", b"data: [DONE]\r\n\r\n", DONE + DONE):
        small.script(Send(HEAD), Send(event("x")), Send(finish()), *([Send(end)] if end else []), Close())

    for _ in range(5):
        reply = await gateway.chat(stream=True)

        assert ("x", True, None) == (reply.text, reply.sse.done, reply.error)
        assert 1 == reply.body.count(b"[DONE]")


async def test_one_read_with_many_events_and_one_event_in_many_reads(gateway: Gateway, small: Upstream) -> None:
    """How the network cuts a stream changes nothing of it."""
    whole = role() + b"".join(event(text) for text in "春眠不觉晓") + finish() + DONE
    small.script(Send(HEAD + whole))
    small.script(Send(HEAD), *(Send(whole[at : at + 7]) for at in range(0, len(whole), 7)))

    at_once, in_pieces = await gateway.chat(stream=True), await gateway.chat(stream=True)

    assert whole == at_once.body == in_pieces.body


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
async def test_line_ends_of_any_kind_are_understood(gateway: Gateway, small: Upstream, end: bytes) -> None:
    """The standard has three."""
    said = (event("你") + event("好") + finish() + DONE).replace(b"\n", end)
    small.script(Send(HEAD), Send(said))

    reply = await gateway.chat(stream=True)

    assert ("你好", "stop", True) == (reply.text, reply.finish, reply.sse.done)


async def test_large_event_passes(gateway: Gateway, small: Upstream) -> None:
    """An image or a long tool call may come as one event of megabytes."""
    text = "长" * 500_000
    small.script(Send(HEAD), Send(event(text)), Send(finish()), Send(DONE))

    assert text == (await gateway.chat(stream=True)).text


async def test_stream_with_a_length_passes(gateway: Gateway, small: Upstream) -> None:
    """Some servers know the whole answer before they send it."""
    body = event("known") + finish() + DONE
    small.script(Send(http(200, {"content-type": "text/event-stream"}, body)))

    assert body == (await gateway.chat(stream=True)).body


async def test_whole_answer_to_a_streaming_request_falls_back(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """A server that ignores `stream` has said nothing that a streaming client could read."""
    small.script(answer("whole"))
    medium.script(*stream("streamed"))

    reply = await gateway.chat(stream=True)

    assert ("streamed", "medium") == (reply.text, reply.tier)


async def test_usage_event_is_passed_to_who_asked_for_it(gateway: Gateway, small: Upstream) -> None:
    """As it came."""
    small.script(Send(HEAD), Send(event("x")), Send(finish()), Send(usage_event(7, 3)), Send(DONE))

    reply = await gateway.chat(stream=True, stream_options={"include_usage": True})

    assert event("x") + finish() + usage_event(7, 3) + DONE == reply.body


async def test_last_of_a_growing_usage_counts(gateway: Gateway, small: Upstream) -> None:
    """Some servers send a running total with every chunk."""

    def counted(text: str, tokens: int) -> Send:
        chunk = json.loads(event(text)[6:])
        return Send(
            b"data: "
            + json.dumps({**chunk, "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}).encode()
            + b"\n\n"
        )

    small.script(Send(HEAD), counted("a", 1), counted("b", 2), Send(finish()), Send(DONE))

    await gateway.chat(stream=True)

    [line] = await gateway.settled(1)
    assert (9, 2) == (line["prompt_tokens"], line["completion_tokens"])


@pytest.mark.parametrize("first", [b"", event("begun")])
async def test_event_without_end_is_given_up(
    gateway: Gateway, small: Upstream, medium: Upstream, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """It would fill the memory: before the first token another model answers, after it an error is told."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 5000)
    small.script(Send(HEAD + first), *(Send(b"x" * 1000) for _ in range(20)), Hang())
    if not first:
        medium.script(*stream("saved"))

    reply = await gateway.chat(stream=True)

    assert (("saved", None) if not first else ("begun", "upstream_error")) == (
        reply.text, reply.error and reply.error["code"],
    )  # fmt: skip
    await small.wait_for_disconnect()


# --- several choices ---


def choice(index: int, text: str = "", reason: str | None = None) -> bytes:
    return data(chunk_object([{"index": index, "delta": {"content": text} if text else {}, "finish_reason": reason}]))


async def test_stream_of_two_choices_ends_with_the_second(gateway: Gateway, small: Upstream) -> None:
    """The finish reason of the first is not the end."""
    said = choice(0, "a") + choice(0, reason="stop") + choice(1, "b") + choice(1, reason="stop")
    small.script(Send(HEAD), Send(said), Close())

    reply = await gateway.chat(stream=True, n=2)

    assert said + DONE == reply.body


async def test_stream_cut_between_two_choices_never_looks_like_success(gateway: Gateway, small: Upstream) -> None:
    """One of two answers is half an answer."""
    small.script(Send(HEAD), Send(choice(0, "a") + choice(0, reason="stop") + choice(1, "b")), Close())

    reply = await gateway.chat(stream=True, n=2)

    assert reply.error is not None
    assert not reply.sse.done


# --- limits ---


async def test_total_limit_ends_a_stream_that_never_stops(start: Start, small: Upstream) -> None:
    """Idle never fires while it babbles; the total does, and says which it was."""
    gateway = await start({"tiers": {"small": tier(small, "small", timeouts={**TIMEOUTS, "total": "400ms"})}})
    small.script(Send(HEAD), *(step for _ in range(100) for step in (Send(event("和")), Wait(0.05))))

    reply = await gateway.chat("说个不停", model="small", stream=True)

    assert "upstream_timeout" == reply.error["code"]  # type: ignore[index]
    assert "total" in reply.error["message"]  # type: ignore[index]
    assert 0.3 < reply.duration < 1.5
    await small.wait_for_disconnect()


async def test_callers_deadline_ends_a_running_stream_with_an_error(gateway: Gateway, small: Upstream) -> None:
    """The budget covers the whole answer, not the first token alone."""
    small.script(Send(HEAD), *(step for _ in range(100) for step in (Send(event("x")), Wait(0.05))))

    reply = await gateway.chat(stream=True, headers={"x-tiergate-timeout": "400ms"})

    assert 200 == reply.status
    assert "upstream_timeout" == reply.error["code"]  # type: ignore[index]
    assert not reply.sse.done
    assert reply.duration < 1.5


async def test_failure_in_mid_stream_counts_against_the_deployment(
    start: Start, small: Upstream, medium: Upstream
) -> None:
    """A server that breaks off every answer is as bad as one that refuses."""
    cooldown = {"allowed_fails": 1, "cooldown_time": "30s"}
    gateway = await start(
        {"tiers": {"small": tier(small, "small", cooldown=cooldown), "medium": tier(medium, "medium")}}
    )
    small.script(Send(HEAD), Send(event("half")), Close())
    medium.script(*stream("medium"))

    broken = await gateway.chat(model="small", stream=True)
    await gateway.settled(1)
    after = await gateway.chat(model="small", stream=True)

    assert broken.error is not None
    assert ("medium", "1") == (after.tier, after.attempts)


@pytest.mark.parametrize("streamed", [True, False])
async def test_impatient_caller_does_not_close_a_tier_for_everybody(
    start: Start, small: Upstream, medium: Upstream, streamed: bool
) -> None:
    """With x-tiergate-timeout: 50ms any caller could open the breaker of a healthy deployment."""
    cooldown = {"allowed_fails": 1, "cooldown_time": "30s"}
    gateway = await start(
        {"tiers": {"small": tier(small, "small", cooldown=cooldown), "medium": tier(medium, "medium")}}
    )
    small.script(Wait(0.2), answer("late"))
    small.default(answer("healthy"))
    medium.default(answer("medium"))

    impatient = await gateway.chat(model="small", stream=streamed, headers={"x-tiergate-timeout": "50ms"})
    patient = await gateway.chat(model="small")

    assert 504 == impatient.status
    assert "small" == patient.tier


# --- giving back ---


async def test_connection_is_used_again_after_a_good_stream(gateway: Gateway, small: Upstream) -> None:
    """A new connection for every answer would cost each a round trip, and TLS."""
    for _ in range(4):
        small.script(*stream("a", "b"))

    for _ in range(4):
        await gateway.chat(stream=True)
        await asyncio.sleep(0.02)

    assert 1 == small.connections_made


async def test_connection_with_bytes_still_to_come_is_not_used_again(gateway: Gateway, small: Upstream) -> None:
    """The next answer would begin with the rest of the last one."""
    small.script(
        Send(HEAD_CHUNKED),
        Chunk(event("x")),
        Chunk(finish()),
        Chunk(DONE),
        Wait(0.4),
        Chunk(event("stale")),
        END_CHUNKS,
    )
    small.script(*stream("fresh"))

    await gateway.chat(stream=True)
    await small.wait_for_disconnect()

    assert "fresh" == (await gateway.chat(stream=True)).text


async def test_slot_is_free_when_the_caller_has_everything(start: Start, small: Upstream) -> None:
    """A server that lingers after the end marker must not hold a place in the line."""
    gateway = await start({"tiers": {"small": tier(small, "small", concurrency={"max": 1, "queue": 0})}})
    for _ in range(5):
        small.script(Send(HEAD_CHUNKED), Chunk(event("x")), Chunk(finish()), Chunk(DONE), Hang())

    replies = [await gateway.chat(model="small", stream=True) for _ in range(5)]

    assert [200] * 5 == [reply.status for reply in replies]


async def test_caller_that_reads_slowly_is_waited_for(gateway: Gateway, small: Upstream) -> None:
    """Back pressure goes through to the upstream: nothing is dropped, and memory is not the buffer."""
    texts = ["数" * 2000] * 300
    small.script(Send(HEAD), *(Send(event(text)) for text in texts), Send(finish()), Send(DONE))
    reader, writer = await asyncio.open_connection(gateway.host, gateway.port, limit=4096)
    body = json.dumps({"model": "auto", "stream": True, "messages": [{"role": "user", "content": "慢"}]}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )

    seen: Any = b""
    await asyncio.sleep(0.3)
    while piece := await reader.read(65536):
        seen += piece
    writer.close()

    assert 300 == seen.count("数".encode() * 2000)
    assert DONE in seen
