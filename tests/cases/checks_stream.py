"""Checks of OpenAI-style streams, read by the strict parser."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import openai

from tests.cases.case import UnknownWord, known
from tests.cases.checks import Scope, assert_part, assert_said, assert_same, check
from tests.cases.run import Run
from tests.client import Reply, Sse, parse_sse
from tests.script import http
from tests.upstream import Send, Upstream

Word = Callable[[Sse, Any], None]
WORDS: dict[str, Word] = {}


def word(name: str) -> Callable[[Word], Word]:
    def add(function: Word) -> Word:
        WORDS[name] = function
        return function

    return add


def stream_of(reply: Reply) -> Sse:
    assert reply.is_stream, f"status {reply.status}, no stream: {reply.body[:300]!r}"
    return reply.sse


def simple(attribute: str) -> Word:
    return lambda sse, expected: assert_same(expected, getattr(sse, attribute), attribute)


WORDS |= {name: simple(name) for name in ("text", "reasoning", "finish", "done")}


@word("error")
def error(sse: Sse, expected: bool) -> None:
    assert expected == (sse.error is not None), f"error event: {sse.error}"


@word("error_object")
def error_object(sse: Sse, expected: dict[str, Any]) -> None:
    assert sse.error is not None, "no error event"
    for name, value in expected.items():
        assert_said(value, sse.error.get(name), f"error.{name}")


@word("done_without_error")
def done_without_error(sse: Sse, expected: bool) -> None:
    held = sse.done and sse.error is None and sse.finish is None
    assert expected == held, f"done {sse.done}, error {sse.error}, finish {sse.finish}"


@word("usage")
def usage(sse: Sse, expected: Any) -> None:
    assert_part(expected, sse.usage, "usage")


@word("usage_chunk")
def usage_chunk(sse: Sse, expected: dict[str, Any]) -> None:
    assert sse.usage_chunks, f"no chunk with usage and no choices among {sse.objects}"
    assert_part(expected, sse.usage_chunks[-1], "usage chunk")


@word("usage_chunk_count")
def usage_chunk_count(sse: Sse, expected: int) -> None:
    assert_same(expected, len(sse.usage_chunks), "usage chunks")


@word("usage_in_other_chunks")
def usage_in_other_chunks(sse: Sse, expected: str) -> None:
    if expected != "null_or_absent":
        raise UnknownWord(f"usage_in_other_chunks: {expected}")
    others = [chunk["usage"] for chunk in sse.chunks if chunk["choices"] and chunk.get("usage") is not None]
    assert not others, f"{others}"


@word("text_length_chars")
def text_length_chars(sse: Sse, expected: int) -> None:
    assert_same(expected, len(sse.text), "characters")


@word("text_count")
def text_count(sse: Sse, expected: dict[str, Any]) -> None:
    known(expected, frozenset({"needle", "equals"}), "text_count")
    assert_same(expected["equals"], sse.text.count(expected["needle"]), f"number of {expected['needle']!r}")


@word("tool_calls")
def tool_calls(sse: Sse, expected: list[dict[str, Any]]) -> None:
    assert_same(len(expected), len(sse.tool_calls), "number of tool calls")
    for wanted, call in zip(expected, sse.tool_calls, strict=True):
        read = {**call, "arguments_json": json.loads(call["arguments"] or "{}")}
        assert_part(wanted, read, "tool call")


@word("every_tool_delta")
def every_tool_delta(sse: Sse, expected: dict[str, Any]) -> None:
    known(expected, frozenset({"arguments", "type_first"}), "every_tool_delta")
    assert sse.tool_deltas, "no tool calls"
    for delta in sse.tool_deltas:
        assert isinstance(delta["function"]["arguments"], str), f"{delta}"
    if "type_first" in expected:
        assert_same(expected["type_first"], sse.tool_deltas[0].get("type"), "type of the first delta")


@word("choices")
def choices(sse: Sse, expected: int) -> None:
    indexes = {choice["index"] for chunk in sse.chunks for choice in chunk["choices"]}
    assert_same(expected, len(indexes), "choices")


@word("every_data_is_json_or_done")
def every_data_is_json_or_done(sse: Sse, expected: bool) -> None:
    assert all(isinstance(obj, dict) for obj in sse.objects), f"{sse.events}"
    assert not sse.unfinished, f"an event that never ended: {sse.unfinished!r}"


@word("first_delta_role")
def first_delta_role(sse: Sse, expected: str) -> None:
    assert_same(expected, sse.choices()[0]["delta"].get("role"), "role of the first delta")


@word("first_logprob")
def first_logprob(sse: Sse, expected: dict[str, Any]) -> None:
    told = [entry for choice in sse.choices() for entry in (choice.get("logprobs") or {}).get("content") or []]
    assert told, "no logprobs"
    assert_part(expected, told[0], "first logprob")


@word("every_chunk_model")
def every_chunk_model(sse: Sse, expected: str) -> None:
    assert {expected} == {chunk["model"] for chunk in sse.chunks}, f"{sse.objects}"


STREAM_FIELDS = {*WORDS, "official_sdk_parses"}


def assert_stream(reply: Reply, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if name in WORDS:
            WORDS[name](stream_of(reply), value)


@check("sse", fields=STREAM_FIELDS)
async def sse(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    for reply in run.replies(scope.req_no, fits=lambda reply: reply.is_stream):
        assert_stream(reply, expected)
        if "official_sdk_parses" in expected:
            await official_sdk_parses(run, expected["official_sdk_parses"], scope)


@check("all_streams", fields=STREAM_FIELDS)
async def all_streams(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    for reply in run.replies("all" if scope.req_no is None else scope.req_no):
        assert_stream(reply, expected)


@check("official_sdk_parses")
async def official_sdk_parses(run: Run, name: str, scope: Scope) -> None:
    """The recorded bytes are served once more, to the SDK."""
    if name != "openai":
        raise UnknownWord(f"official_sdk_parses: {name}")
    for reply in run.replies(scope.req_no):
        async with Upstream() as replay:
            headers = {"content-type": reply.header("content-type") or ""}
            replay.script(Send(http(reply.status, headers, reply.decoded)))
            assert_same(_text(reply), await _through_sdk(replay.url, stream=reply.is_stream), "text that the SDK reads")


def _text(reply: Reply) -> str:
    return parse_sse(reply.decoded).text if reply.is_stream else str(reply.text)


async def _through_sdk(url: str, *, stream: bool) -> str:
    async with openai.AsyncOpenAI(base_url=url, api_key="key-alice", max_retries=0) as sdk:
        messages: list[Any] = [{"role": "user", "content": "Hello"}]
        if not stream:
            answer = await sdk.chat.completions.create(model="auto", messages=messages)
            return answer.choices[0].message.content or ""
        text = ""
        async for chunk in await sdk.chat.completions.create(model="auto", messages=messages, stream=True):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        return text


# --- times ---


@check("first_text_within_ms")
async def first_text_within_ms(run: Run, limit: int, scope: Scope) -> None:
    for reply in run.replies(scope.req_no, fits=lambda reply: reply.is_stream):
        at = stream_of(reply).first_text_at
        assert at is not None, "no text came"
        assert at * 1000 <= limit, f"the first text came after {at * 1000:.0f} ms"


@check("bytes_seen", fields={"every_ms", "until"})
async def bytes_seen(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    if expected["until"] != "first_text":
        raise UnknownWord(f"until: {expected['until']}")
    for reply in run.replies(scope.req_no, fits=lambda reply: reply.is_stream):
        end = stream_of(reply).first_text_at
        assert end is not None, "no text came"
        times = [0.0, *(at for at, _ in reply.pieces if at < end), end]
        longest = max(later - earlier for earlier, later in itertools.pairwise(times))
        assert longest * 1000 <= expected["every_ms"], f"{longest * 1000:.0f} ms without a byte"
