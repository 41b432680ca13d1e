"""An answer's two forms: whole and streamed, each made from the other."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from cache.answer import PIECE_CHARS, Assembly, assemble, replay, storable
from tests.cache.samples import ABOUT, chunk, said, whole
from tests.sse import Sse, parse_sse


def tool(index: int | None, arguments: str, id_: str | None = None, name: str | None = None, **fields: Any) -> bytes:
    function = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    fragment = {"function": function, **({} if index is None else {"index": index}), **fields}
    if id_ is not None:
        fragment |= {"id": id_, "type": "function"}
    return said({"tool_calls": [fragment]})


def put_together(*events: bytes) -> dict[str, Any]:
    body = assemble(events)
    assert body is not None
    answer: dict[str, Any] = orjson.loads(body)
    return answer


def message_of(*events: bytes) -> dict[str, Any]:
    message: dict[str, Any] = put_together(*events, said(finish="stop"))["choices"][0]["message"]
    return message


def replayed(body: bytes, include_usage: bool = False) -> Sse:
    return parse_sse(replay(body, include_usage))


def payloads(stream: Sse) -> list[bytes]:
    return [event.data.encode() for event in stream.events]


def test_a_stream_becomes_a_whole_answer() -> None:
    """A later caller who does not stream gets plain JSON of the official form (cache-04)."""
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    events = [
        said({"role": "assistant", "content": ""}), said({"content": "巴"}), said({"content": "黎 👩‍🚀"}),
        said(finish="stop"), chunk([], usage=usage), b"[DONE]",
    ]  # fmt: skip

    choice = {
        "index": 0, "message": {"role": "assistant", "content": "巴黎 👩‍🚀"}, "logprobs": None, "finish_reason": "stop"
    }  # fmt: skip
    expected = {**ABOUT, "object": "chat.completion", "choices": [choice], "usage": usage}
    assert expected == put_together(*events)


@pytest.mark.parametrize(
    "events",
    [
        [],
        [said({"role": "assistant"}), said({"content": "half"})],
        [said({"content": "half"}), b"[DONE]"],
        [said({"content": "one"}, 0, "stop"), said({"content": "two is cut"}, 1)],
        [said({"content": "a"}, finish="stop"), b'{"error":{"message":"overloaded"}}'],
        [said({"content": "a"}), b'{"choices":[{"index":0,"del', said(finish="stop")],
        [said({"content": "a"}, finish="stop"), b"[]"],
        [said({"content": "a"}, finish="stop"), b'{"choices":["a"]}'],
        [said({"content": [{"type": "text", "text": "a"}]}), said({"content": "b"}, finish="stop")],
        [said({"content": "a"}), said({"content": [{"type": "text", "text": "b"}]}, finish="stop")],
        [said({"content": "a"}, finish="stop"), chunk([{"index": "x", "delta": {}, "finish_reason": "stop"}])],
    ],
    ids=[
        "nothing", "no finish", "end marker without finish", "one choice of two", "error event", "half an event",
        "not an object", "no choice", "parts, then text", "text, then parts", "odd index",
    ],
)  # fmt: skip
def test_what_is_not_whole_is_no_answer(events: list[bytes]) -> None:
    """A broken stream that is stored is replayed to everybody who tries again (cache-05)."""
    assert assemble(events) is None


def test_nothing_counts_after_the_end_marker() -> None:
    """Some servers send garbage there, or a keep-alive."""
    assert "a" == message_of(said({"content": "a"}), said(finish="stop"), b"[DONE]", b"garbage")["content"]


def test_an_answer_can_be_put_together_as_it_comes() -> None:
    """So that a long stream does not cost milliseconds at once when it ends; an event after the finish still counts."""
    assembly = Assembly()
    assembly.add(said({"content": "a"}))
    before = assembly.whole()
    assembly.add(said(finish="stop"))
    assembly.add(chunk([], usage={"total_tokens": 3}))

    assert before is None
    assert {"total_tokens": 3} == orjson.loads(assembly.whole() or b"{}")["usage"]


def test_reasoning_and_refusal_are_kept_apart_from_content() -> None:
    """Three texts may grow in one message."""
    message = message_of(
        said({"role": "assistant"}), said({"reasoning_content": "想"}), said({"reasoning_content": "一想"}),
        said({"content": "a"}), said({"refusal": "n"}), said({"refusal": "o", "content": "b"}),
    )  # fmt: skip

    assert {"role": "assistant", "reasoning_content": "想一想", "content": "ab", "refusal": "no"} == message


def test_fragments_of_tool_calls_are_joined_by_index() -> None:
    """Two calls told in turns; the id and the name stand in the first fragment only."""
    calls = message_of(
        tool(0, "", "c0", "weather"), tool(1, "", "c1", "time"), tool(0, '{"city":'), tool(1, "{}"), tool(0, '"巴黎"}')
    )["tool_calls"]

    assert [
        {"id": "c0", "type": "function", "function": {"name": "weather", "arguments": '{"city":"巴黎"}'}},
        {"id": "c1", "type": "function", "function": {"name": "time", "arguments": "{}"}},
    ] == calls


def test_tool_calls_stand_in_the_order_of_their_indexes() -> None:
    """In whatever order a server begins them."""
    calls = message_of(tool(1, "{}", "c1", "f"), tool(0, "{}", "c0", "f"))["tool_calls"]

    assert ["c0", "c1"] == [call["id"] for call in calls]


@pytest.mark.parametrize("index", [0, None])
def test_another_id_at_the_same_index_is_another_call(index: int | None) -> None:
    """Some servers count every call as number 0, or not at all; merged, their arguments would be nonsense."""
    calls = message_of(
        tool(index, '{"a":', "c0", "f"), tool(index, "1}"), tool(index, '{"b":', "c1", "f"), tool(index, "2}")
    )["tool_calls"]

    assert [("c0", '{"a":1}'), ("c1", '{"b":2}')] == [(call["id"], call["function"]["arguments"]) for call in calls]


def test_what_servers_repeat_is_said_once() -> None:
    """Role, id and name in every delta, or empty in the later ones, as some servers do."""
    message = message_of(
        said({"role": "assistant", "content": "a"}), said({"role": "", "content": "b"}), tool(0, "{", "c0", "f"),
        tool(0, "}", "c0", "f"), tool(0, "", "", ""),
        said({"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": ""}}]}),
    )  # fmt: skip

    assert ("assistant", "ab") == (message["role"], message["content"])
    assert [{"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}] == message["tool_calls"]


def test_an_id_that_comes_late_is_the_same_call() -> None:
    """An empty id at first is no id."""
    calls = message_of(tool(0, "{", "", "f"), tool(0, "}", "c0"))["tool_calls"]

    assert [("c0", "{}")] == [(call["id"], call["function"]["arguments"]) for call in calls]


def test_a_custom_tool_is_joined_too() -> None:
    """Its input is text under another name."""
    first = {"index": 0, "id": "c0", "type": "custom", "custom": {"name": "sql", "input": "select "}}
    more = {"index": 0, "custom": {"input": "1"}}

    events = [said({"tool_calls": [first], "content": None}), said({"tool_calls": [more]}), said({"tool_calls": None})]
    calls = message_of(*events)["tool_calls"]

    assert [{"id": "c0", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}] == calls
    assert [{"index": 0, **calls[0]}] == replayed(whole(None, tool_calls=calls)).tool_deltas


def test_logprobs_are_strung_together() -> None:
    """Each event holds those of its own tokens."""
    answer = put_together(
        said({"content": "a"}, logprobs={"content": [{"token": "a"}], "refusal": None}),
        said({"content": "b"}, logprobs={"content": [{"token": "b"}], "refusal": None}),
        said({"refusal": "c"}, logprobs={"content": None, "refusal": [{"token": "c"}]}),
        said(finish="stop"),
    )

    expected = {"content": [{"token": "a"}, {"token": "b"}], "refusal": [{"token": "c"}]}
    assert expected == answer["choices"][0]["logprobs"]


def test_unknown_fields_are_kept() -> None:
    """Servers add fields all the time, and some apps rely on them."""
    answer = put_together(
        chunk([], prompt_filter_results=[{"prompt_index": 0}], id="", model="", created=0),
        chunk([{"index": 0, "delta": {"reasoning_details": [1], "mood": "so "}}], new={"a": 1}, obfuscation="xx"),
        chunk([{"index": 0, "delta": {"reasoning_details": [2], "mood": "so"}, "token_ids": [5]}]),
        chunk([{"index": 0, "delta": None, "finish_reason": "stop", "stop_reason": 2, "token_ids": [6]}], id="", t=1),
    )  # fmt: skip

    choice = answer["choices"][0]
    assert {
        "id": "chatcmpl-1",
        "model": "a",
        "created": 7,
        "new": {"a": 1},
        "t": 1,
    }.items() <= (answer.items())
    assert [{"prompt_index": 0}] == answer["prompt_filter_results"]
    assert "obfuscation" not in answer
    assert ([1, 2], "so so") == (choice["message"]["reasoning_details"], choice["message"]["mood"])
    assert (2, [5, 6]) == (choice["stop_reason"], choice["token_ids"])


def test_choices_may_come_in_any_order() -> None:
    """With n = 2 the events of both are mixed."""
    answer = put_together(
        said({"content": "b"}, 1), said({"content": "a"}, 0), said({"content": "B"}, 1, "stop"), said({}, 0, "length")
    )

    assert [(0, "a", "length"), (1, "bB", "stop")] == [
        (choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in answer["choices"]
    ]


def test_replay_is_a_stream_of_the_official_form() -> None:
    """Role first, then text, then the finish, then the end marker, all under the answer's own id (cache-04)."""
    stream = replayed(whole("巴黎 is it 👩‍🚀"))

    assert ("巴黎 is it 👩‍🚀", "stop", True) == (stream.text, stream.finish, stream.done)
    assert "assistant" == stream.choices()[0]["delta"]["role"]
    assert all("usage" not in chunk for chunk in stream.chunks)
    assert {("chatcmpl-1", "chat.completion.chunk", 7, "a")} == {
        (chunk["id"], chunk["object"], chunk["created"], chunk["model"]) for chunk in stream.chunks
    }


def test_usage_is_told_only_to_those_who_asked() -> None:
    """It comes last, without choices, and as null in all other events."""
    body = orjson.dumps({**orjson.loads(whole()), "usage": {"total_tokens": 3}})

    asked, not_asked = replayed(body, include_usage=True), replayed(body)

    assert [{"total_tokens": 3}] == [chunk["usage"] for chunk in asked.usage_chunks]
    assert asked.chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in asked.chunks[:-1])
    assert not_asked.usage is None
    assert replayed(whole(), include_usage=True).usage is None


def test_reasoning_is_told_before_content() -> None:
    """Apps show one after the other."""
    stream = replayed(whole("a", reasoning_content="想"))

    told = [name for choice in stream.choices() for name, text in choice["delta"].items() if text and name != "role"]
    assert ["reasoning_content", "content"] == told


def test_tool_calls_are_replayed_with_their_indexes() -> None:
    """An SDK joins them by index."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": f'{{"a":{i}}}'}} for i in (0, 1)
    ]
    stream = replayed(whole(None, "tool_calls", tool_calls=calls))

    assert [(0, "c0", "f", '{"a":0}'), (1, "c1", "f", '{"a":1}')] == [tuple(c.values()) for c in stream.tool_calls]
    assert stream.choices()[0]["delta"]["content"] is None
    assert "tool_calls" == stream.finish


def test_long_texts_are_told_in_pieces() -> None:
    """Many stream readers give up on a line beyond 64 KiB."""
    text, arguments = "答" * (3 * PIECE_CHARS + 1), '"' + "参" * 2 * PIECE_CHARS + '"'
    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    stream = replayed(whole(text, tool_calls=[call]))

    assert text == stream.text
    assert [arguments] == [call["arguments"] for call in stream.tool_calls]
    assert max(len(event.data.encode()) for event in stream.events) < 65536
    assert len(stream.events) < 12


def test_logprobs_and_other_fields_survive_the_replay() -> None:
    """What was stored from a stream comes back in the next one."""
    body = assemble(
        [
            said({"role": "assistant", "content": "a"}, logprobs={"content": [{"token": "a"}]}),
            said({"function_call": {"name": "f", "arguments": "{}"}, "annotations": [{"type": "url"}]}),
            said({}, finish="stop", stop_reason=2),
        ]
    )
    assert body is not None

    assert body == assemble(payloads(replayed(body)))


@pytest.mark.parametrize(
    ("body", "fit"),
    [
        (whole("Paris"), True),
        (whole("好"), True),
        (whole(None, "tool_calls", tool_calls=[{"id": "c"}]), True),
        (whole(None, "function_call", function_call={"name": "f"}), True),
        (whole([{"type": "text", "text": "a"}]), True),  # type: ignore[arg-type]
        (whole(""), False),
        (whole(" \n"), False),
        (whole(None), False),
        (whole(None, reasoning_content="only thought"), False),
        (whole("half", "length"), False),
        (whole("", "content_filter"), False),
        (whole("a", "error"), False),
        (whole("a", "a_reason_of_next_year"), False),
        (whole(None, refusal="I cannot"), False),
        (whole("I cannot", refusal="I cannot"), False),
        (whole("a", audio={"id": "audio_1"}), False),
        (b'{"error":{"message":"overloaded"}}', False),
        (orjson.dumps({**orjson.loads(whole()), "error": {"code": 502}}), False),
        (orjson.dumps({**orjson.loads(whole()), "error": None}), True),
        (orjson.dumps({"choices": [*orjson.loads(whole())["choices"], {"finish_reason": "length"}]}), False),
        (b'{"choices":[]}', False),
        (b'{"choices":["a"]}', False),
        (b'{"choices":[{"finish_reason":"stop"}]}', False),
        (b'{"object":"list","data":[{"index":0,"embedding":[0.1]}]}', True),
        (b'{"object":"list","data":[{"index":0,"embedding":"AAAA"}]}', True),
        (b'{"object":"list","data":[]}', False),
        (b'{"object":"list","data":[{"index":0,"embedding":[]}]}', False),
        (b"<html>502</html>", False),
        (b"", False),
        (b"[]", False),
        (b"{}", False),
    ],
)  # fmt: skip
def test_what_may_be_stored(body: bytes, fit: bool) -> None:
    """Errors under a good status, empty and cut answers were stored and replayed as successes (cache-06)."""
    assert fit is storable(body)


def test_the_official_client_reads_both_forms() -> None:
    """Its models are strict about what an answer and a chunk look like."""
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = orjson.dumps({**orjson.loads(whole("a", tool_calls=[call])), "usage": None})

    answer = ChatCompletion.model_validate_json(body, strict=True)
    chunks = [ChatCompletionChunk.model_validate_json(data, strict=True) for data in payloads(replayed(body))[:-1]]

    assert "a" == answer.choices[0].message.content
    assert "assistant" == chunks[0].choices[0].delta.role
    assert "stop" == chunks[-1].choices[0].finish_reason
