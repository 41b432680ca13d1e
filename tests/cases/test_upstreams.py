"""The words of `upstream` and `request` are played and sent as the cases mean them."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import pytest

from tests.cases.bodies import wire
from tests.cases.checks_later import message_of
from tests.cases.upstreams import make_upstream
from tests.client import Client, Leave, Reply


async def ask(replies: list[dict[str, Any]], count: int = 1, *, anthropic: bool = False, **fields: Any) -> list[Reply]:
    async with make_upstream("small", replies, anthropic=anthropic) as upstream:
        client = Client(upstream.url, check=False)
        return [await client.chat(**fields) for _ in range(count)]


async def test_a_tier_without_a_script_answers_as_asked() -> None:
    """Whole or streamed; usage in the stream only if it was asked for."""
    (whole,) = await ask([])
    (streamed,) = await ask([], stream=True)
    (counted,) = await ask([], stream=True, stream_options={"include_usage": True})

    assert "ok from small" == whole.text == streamed.text
    assert {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15} == whole.usage == counted.usage
    assert streamed.usage is None
    assert (True, "stop") == (streamed.sse.done, streamed.finish)


async def test_replies_come_in_order_and_the_last_one_repeats() -> None:
    """`times` uses one several times."""
    replies = await ask(
        [{"times": 2, "status": 429, "text": "no"}, {"ok": {"text": "一"}}, {"echo_call_number": True}], 5
    )

    assert [429, 429, 200, 200, 200] == [reply.status for reply in replies]
    assert ["一", "4", "5"] == [reply.text for reply in replies[2:]]


async def test_alternating_replies_take_turns() -> None:
    """For faults that come and go."""
    replies = await ask([{"alternate": [{"ok": {"text": "a"}}, {"status": 500, "text": "b"}]}], 4)

    assert [200, 500, 200, 500] == [reply.status for reply in replies]


async def test_conditions_on_the_body_choose_the_reply() -> None:
    """A reply that does not fit is passed over, not used up."""
    replies: list[dict[str, Any]] = [
        {"when_body_contains": "北京", "ok": {"text": "matched"}},
        {"ok": {"text": "other"}},
    ]
    async with make_upstream("small", replies) as upstream:
        client = Client(upstream.url, check=False)
        texts = [(await client.chat(prompt)).text for prompt in ("hi", "北京", "北京")]

    assert ["other", "matched", "other"] == texts


async def test_steps_of_a_stream_are_played_as_written() -> None:
    """Each kind of step once; bytes of raw and hex untouched."""
    steps: list[Any] = [
        {"role": "assistant"}, {"reasoning": "想"}, {"repeat": {"times": 3, "steps": [{"text": "a"}]}},
        {"wait_ms": 100},
        {"raw": 'data: {"id":"c","choices":[{"index":0,"delta":{"content":"'}, {"hex": "e58c97"}, {"raw": '"}}]}\n\n'},
        {"text_repeat": {"unit": "xy", "times": 2}}, {"tool": {"index": 0, "id": "c1", "name": "f", "args": "{"}},
        {"tool": {"index": 0, "args": "}"}}, {"finish": "tool_calls"},
        {"usage": {"prompt": 3, "completion": 0}}, "done",
    ]  # fmt: skip
    started = time.monotonic()
    (reply,) = await ask([{"sse": steps}], stream=True)

    assert ("aaa北xyxy", "想", "tool_calls", True) == (reply.text, reply.sse.reasoning, reply.finish, reply.sse.done)
    assert [{"index": 0, "id": "c1", "name": "f", "arguments": "{}"}] == reply.sse.tool_calls
    assert time.monotonic() - started >= 0.1
    assert reply.complete


@pytest.mark.parametrize(("end", "complete", "reset"), [("close", True, False), ("reset", False, True)])
async def test_ends_of_streams_differ(end: str, complete: bool, reset: bool) -> None:
    """A tidy close ends the body as its framing says; a reset does not."""
    (reply,) = await ask([{"sse": [{"text": "x"}, {"end": end}]}], stream=True)

    assert ("x", complete, reset) == (reply.text, complete and reply.complete, reply.reset)


async def test_hanging_streams_end_with_the_client() -> None:
    """Nothing more comes, and the connection stays."""
    (reply,) = await ask([{"sse": [{"text": "x"}, {"end": "hang"}]}], stream=True, leave=Leave(after_s=0.2))

    assert ("x", True) == (reply.text, reply.left)


async def test_usage_may_wait_until_it_is_asked_for() -> None:
    """As engines do."""
    replies = [
        {"usage_only_if_requested": True, "sse": [{"text": "x"}, {"usage": {"prompt": 1, "completion": 1}}, "done"]}
    ]
    (silent,) = await ask(replies, stream=True)
    (counted,) = await ask(replies, stream=True, stream_options={"include_usage": True})

    assert ([], 1) == (silent.sse.usage_chunks, len(counted.sse.usage_chunks))


async def test_encoding_follows_the_header() -> None:
    """Compressed pieces are flushed one by one; without the header nothing is compressed."""
    reply_words = {"when_header": {"accept-encoding": "gzip"}, "encode": "gzip"}
    whole, streamed = {**reply_words, "ok": {"text": "p"}}, {**reply_words, "sse": [{"text": "p"}, "done"]}
    zipped = {"accept-encoding": "gzip, br"}

    (plain,) = await ask([whole])
    (packed,) = await ask([whole], headers=zipped)
    async with make_upstream("small", [streamed]) as upstream:
        packed_stream = await Client(upstream.url, check=False).chat(stream=True, headers=zipped)

    assert (None, "gzip") == (plain.header("content-encoding"), packed.header("content-encoding"))
    assert "p" == packed.text
    assert "gzip" == packed_stream.header("content-encoding")
    assert ("p", True) == (packed_stream.text, packed_stream.sse.done)


async def test_objections_are_answered_with_400() -> None:
    """Servers that refuse fields they do not know."""
    assert [400] == [r.status for r in await ask([{"require_absent": ["top_k"], "ok": {"text": "x"}}], top_k=3)]
    assert [200] == [r.status for r in await ask([{"require_absent": ["top_k"], "ok": {"text": "x"}}])]
    assert [400] == [r.status for r in await ask([{"allow_only_fields": ["model"], "ok": {"text": "x"}}])]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_anthropic_form_is_spoken(stream: bool) -> None:
    """Whole and streamed, with its own usage fields."""
    replies = [{"anthropic_ok": {"text": "嗨", "input_tokens": 9, "output_tokens": 3}}]
    (reply,) = await ask(replies, anthropic=True, stream=stream)
    message = message_of(reply)

    assert ("嗨", "end_turn", 9, 3) == (
        message.text, message.stop_reason, message.usage["input_tokens"], message.usage["output_tokens"],
    )  # fmt: skip
    assert message.well_formed


# --- requests ---


def body_of(act: dict[str, Any], number: int = 1) -> Any:
    return json.loads(wire(act, number, {"bad": "http://127.0.0.1:9/v1"}).partition(b"\r\n\r\n")[2])


def test_the_usual_request_says_hello() -> None:
    """What a case gets that says nothing."""
    raw = wire({}, 1, {})

    assert raw.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert b"authorization: Bearer key-alice\r\n" in raw
    assert {"model": "auto", "messages": [{"role": "user", "content": "Hello"}]} == body_of({})


def test_content_is_generated_and_numbered() -> None:
    """Large content stands in the cases as a recipe."""
    image = {"type": "image_url", "image_url": {"url": {"url_data_fill": {"mime": "image/png", "bytes": 6}}}}
    messages = [
        {"role": "user", "content_repeat": {"unit": "长", "times": 3}},
        {"role": "user", "content": [image]},
    ]
    act: dict[str, Any] = {
        "messages": messages,
        "merge_each": {"user": "u-{i}-{i_mod_4}"},
        "merge": {"api_base": "@bad"},
        "tools": "now",
    }
    body = body_of(act, 6)

    assert "长长长" == body["messages"][0]["content"]
    assert "data:image/png;base64,AAAAAAAA" == body["messages"][1]["content"][0]["image_url"]["url"]
    assert ("u-6-2", "http://127.0.0.1:9/v1") == (body["user"], body["api_base"])
    assert "get_now" == body["tools"][0]["function"]["name"]
    assert 5000 == len(wire({"body_fill_bytes": 5000}, 1, {}).partition(b"\r\n\r\n")[2])


def test_odd_bytes_reach_the_wire() -> None:
    """What a normal client would not send."""
    assert b"authorization: Bearer sk\xe2\x80\x9c\r\n" in wire({"auth_raw_hex": "42656172657220736be2809c"}, 1, {})
    assert b"x-request-id: AAAA\r\n" in wire({"headers_repeat": {"x-request-id": {"unit": "A", "times": 4}}}, 1, {})
    assert b"authorization" not in wire({"no_auth": True}, 1, {})
    assert wire({"raw_body": '{"a":'}, 1, {}).endswith(b'content-length: 5\r\n\r\n{"a":')
    assert wire({"method": "GET", "path": "/x"}, 1, {}).startswith(b"GET /x HTTP/1.1\r\n")
    packed = wire({"encode_body": "gzip"}, 1, {})
    assert b"content-encoding: gzip" in packed
    assert b"Hello" in gzip.decompress(packed.partition(b"\r\n\r\n")[2])
    assert b"transfer-encoding: chunked" in wire({"transfer": "chunked"}, 1, {})
