"""The scripted upstream is what all gateway tests stand on, so it is tested itself, with the socket client."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.client import Client, Leave, Reply, request_bytes
from tests.upstream import (
    DONE,
    HEAD,
    HEAD_CHUNKED,
    Chunk,
    Close,
    Hang,
    Reset,
    Send,
    Until,
    Upstream,
    Wait,
    answer,
    error_reply,
    event,
    finish,
    json_reply,
    role,
    stream,
    usage,
    usage_event,
)  # fmt: skip


def caller(upstream: Upstream, **options: bool) -> Client:
    return Client(upstream.url, "up-key", check=False, **options)


async def test_scripts_play_in_order_and_the_default_after_them() -> None:
    """A test says what each attempt meets; nothing may be answered twice or out of turn."""
    async with Upstream() as upstream:
        upstream.script(error_reply(429, headers={"retry-after": "1"}))
        upstream.script(answer("第二", usage(3, 4)))
        upstream.default(answer("and on"))
        client = caller(upstream)

        replies = [await client.chat("你好") for _ in range(4)]

    assert [429, 200, 200, 200] == [reply.status for reply in replies]
    assert ["第二", "and on", "and on"] == [reply.text for reply in replies[1:]]
    assert "1" == replies[0].header("retry-after")
    assert 7 == replies[1].json["usage"]["total_tokens"]
    assert not upstream.unused
    assert "你好" == upstream.requests[3].json["messages"][0]["content"]
    assert "Bearer up-key" == upstream.requests[0].header("Authorization")


async def test_a_request_without_a_script_is_noticed() -> None:
    """One call too many must fail the test that did not plan it."""
    async with Upstream() as upstream:
        reply = await caller(upstream).chat()

        assert 500 == reply.status
        assert 1 == len(upstream.unexpected)


async def test_a_stream_arrives_event_by_event() -> None:
    """Times of arrival are what the first-token and gap checks read."""
    async with Upstream() as upstream:
        go = asyncio.Event()
        upstream.script(
            Send(HEAD), Send(role()), Send(event("a")), Until(go), Send(event("b")), Send(finish()),
            Send(usage_event(5, 2, cached=1, reasoning=1)), Send(DONE),
        )  # fmt: skip
        asyncio.get_running_loop().call_later(0.2, go.set)

        reply = await caller(upstream).chat(stream=True)

    assert ("ab", "stop", True, None) == (reply.text, reply.finish, reply.sse.done, reply.error)
    assert reply.complete
    first, last = reply.events[1].at, reply.events[2].at
    assert last - first > 0.15
    assert first == reply.sse.first_text_at
    assert reply.usage is not None
    assert 1 == reply.usage["prompt_tokens_details"]["cached_tokens"]


async def test_chunked_replies_keep_the_connection_open() -> None:
    """Whether the gateway reuses its connections can only be seen if the upstream allows it."""
    async with Upstream() as upstream:
        upstream.script(*stream("a", "b", counts=(3, 2)))
        upstream.script(answer("c"))
        client = caller(upstream, keep_alive=True)

        streamed, whole = await client.chat(stream=True), await client.chat()

        assert ("ab", "c") == (streamed.text, whole.text)
        assert (1, 1) == (upstream.connections_made, upstream.open_connections)
        await client.aclose()
        await upstream.wait_for(lambda: upstream.open_connections == 0)


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["close", "reset"])
async def test_a_cut_stream_is_not_complete(end: Close | Reset) -> None:
    """A cut after some text is what a broken provider looks like; the text before it did arrive."""
    async with Upstream() as upstream:
        upstream.script(Send(HEAD_CHUNKED), Chunk(event("half")), end)

        reply = await caller(upstream).chat(stream=True)

    assert "half" == reply.text
    assert not reply.complete
    assert isinstance(end, Reset) == reply.reset


async def test_a_cut_may_fall_into_a_character() -> None:
    """Bytes go out exactly as written, so a three-byte character can be cut in two."""
    async with Upstream() as upstream:
        whole = event("北京")
        middle = whole.index("北".encode()) + 2
        upstream.script(Send(HEAD), Send(whole[:middle]), Wait(0.05), Send(whole[middle:]), Send(finish()), Send(DONE))

        reply = await caller(upstream).chat(stream=True)

    assert "北京" == reply.text
    assert len(reply.pieces) > 1


async def test_hanging_lasts_until_the_other_side_leaves() -> None:
    """Silence must be real, and leaving must be seen."""
    async with Upstream() as upstream:
        upstream.script(Send(HEAD), Send(event("x")), Hang())

        reply = await caller(upstream).chat(stream=True, leave=Leave(after_events=1))
        await upstream.wait_for_disconnect(timeout=2)

        assert reply.left
        assert upstream.requests[0].disconnected is not None
        assert 0 == upstream.active


async def test_silence_before_the_headers_is_possible() -> None:
    """Accepting and then saying nothing is the worst thing that providers do."""
    async with Upstream() as upstream:
        upstream.script(Hang())

        reply = await caller(upstream).chat(leave=Leave(after_s=0.1, reset=True))

        assert (0, True) == (reply.status, reply.left)
        await upstream.wait_for_disconnect(timeout=2)


async def test_a_refusing_upstream_holds_its_port() -> None:
    """Refused, and nobody else can take the port meanwhile."""
    async with Upstream(refuse=True) as upstream:
        with pytest.raises(ConnectionRefusedError):
            await caller(upstream).chat()


async def test_parallel_requests_are_counted() -> None:
    """Caps on a deployment are checked against this number."""
    async with Upstream() as upstream:
        go = asyncio.Event()
        upstream.default(Until(go), answer("x"))
        client = caller(upstream)
        calls = [asyncio.create_task(client.chat()) for _ in range(5)]
        await upstream.wait_for_requests(5)
        assert 5 == upstream.active
        go.set()
        await asyncio.gather(*calls)

        assert (5, 0) == (upstream.max_parallel, upstream.active)


async def test_a_chunked_request_is_put_together() -> None:
    """The gateway may send a body in either framing; the body is what counts."""
    async with Upstream() as upstream:
        upstream.script(json_reply(200, {"ok": True}, encode="gzip"))
        body = '{"text": "分块"}'.encode()

        reply: Reply = await caller(upstream).send(request_bytes("POST", "/v1/x", [], body, chunked=True))

    assert body == upstream.requests[0].body
    assert upstream.requests[0].header("content-length") is None
    assert "gzip" == reply.header("content-encoding")


async def test_waiting_in_a_script_takes_that_long() -> None:
    """Slow first tokens are scripted as waits."""
    async with Upstream() as upstream:
        upstream.script(Wait(0.2), answer("late"))
        started = time.monotonic()
        await caller(upstream).chat()
        assert time.monotonic() - started >= 0.2
