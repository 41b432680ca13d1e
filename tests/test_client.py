"""The strict parser decides what counts as a good stream, so it must refuse what SDKs stumble over."""

from __future__ import annotations

import json

import pytest

from tests.client import Reply, SseError, SseReader, check_form, parse_sse, request_bytes
from tests.upstream import DONE, chunk_object, data, event, finish, role, usage_event


def body_of(*events: bytes) -> bytes:
    return b"".join(events)


@pytest.mark.parametrize("line_end", [b"\r\n", b"\n", b"\r"], ids=["crlf", "lf", "cr"])
def test_all_line_ends_are_read_alike(line_end: bytes) -> None:
    """The rules of server-sent events allow three."""
    sse = parse_sse(body_of(role(), event("你"), event("好"), finish(), DONE).replace(b"\n", line_end))

    assert ("你好", "stop", True, None) == (sse.text, sse.finish, sse.done, sse.error)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pieces_may_end_anywhere(size: int) -> None:
    """In a character, between CR and LF, within a field name."""
    body = body_of(": 注释\n\n".encode(), event("北京\u2028天气"), finish("length"), DONE).replace(b"\n", b"\r\n")
    reader = SseReader()
    for at in range(0, len(body), size):
        reader.feed(body[at : at + size], at=float(at))
    sse = reader.close()

    assert ("北京\u2028天气", "length", True) == (sse.text, sse.finish, sse.done)
    assert ["注释"] == [text for _, text in sse.comments]
    assert sorted(event.at for event in sse.events) == [event.at for event in sse.events]


def test_bytes_that_are_no_utf8_are_refused() -> None:
    """Replacement characters hide a character that was cut."""
    with pytest.raises(SseError, match="UTF-8"):
        parse_sse(b"data: \xe5\x8c\n\n")


def test_data_that_is_no_json_is_refused() -> None:
    """An SDK raises here, so the parser does."""
    with pytest.raises(SseError, match="neither JSON"):
        _ = parse_sse(b"data: : still working\n\n").text


def test_lines_outside_the_format_are_refused() -> None:
    """A raw JSON error body in a stream must not pass as an empty stream."""
    with pytest.raises(SseError, match="no field"):
        parse_sse(b'{"error": {"message": "x"}}\n\n')


def test_anything_after_the_end_marker_is_refused() -> None:
    """Clients stop reading there."""
    with pytest.raises(SseError, match="end marker"):
        _ = parse_sse(body_of(event("a"), DONE, event("b"))).done


def test_an_event_without_its_blank_line_does_not_count() -> None:
    """A cut event was never sent."""
    sse = parse_sse(body_of(event("a"), event("b").removesuffix(b"\n\n")))

    assert "a" == sse.text
    assert '"b"' in sse.unfinished


def test_an_error_event_is_told_apart_from_chunks() -> None:
    """After the first token, an error can only come in band."""
    sse = parse_sse(body_of(event("a"), data({"error": {"message": "m", "type": "t"}})))

    assert ("a", False, {"message": "m", "type": "t"}) == (sse.text, sse.done, sse.error)


def test_usage_reasoning_and_tool_calls_are_put_together() -> None:
    """As SDKs do: by index, arguments joined."""

    def tool(**call: object) -> bytes:
        return data(chunk_object([{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]))

    sse = parse_sse(
        body_of(
            event(reasoning_content="想"),
            tool(index=0, id="c1", type="function", function={"name": "f", "arguments": '{"a"'}),
            tool(index=0, function={"arguments": ":1}"}),
            finish("tool_calls"),
            usage_event(7, 3),
            DONE,
        )
    )

    assert "想" == sse.reasoning
    assert [{"index": 0, "id": "c1", "name": "f", "arguments": '{"a":1}'}] == sse.tool_calls
    assert 1 == len(sse.usage_chunks)
    assert sse.usage is not None
    assert 10 == sse.usage["total_tokens"]


def test_requests_are_framed_as_asked() -> None:
    """Duplicates and odd bytes of headers must reach the wire untouched."""
    plain = request_bytes("POST", "/x", [("a", "1"), ("a", b"\xe2\x80\x9c")], b"{}")
    chunked = request_bytes("POST", "/x", [], b"0123456789", chunked=True)

    assert b"a: 1\r\na: \xe2\x80\x9c\r\ncontent-length: 2\r\n\r\n{}" in plain
    assert chunked.endswith(b"\r\n\r\n7\r\n0123456\r\n3\r\n789\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "error",
    [
        {"message": "", "type": "t", "code": None, "param": None},
        {"message": "m", "type": None, "code": None, "param": None},
        {"message": "m", "type": "t", "code": 400, "param": None},
        {"message": "m", "type": "t", "code": None, "param": "None"},
        {"message": "m", "type": "t", "code": None},
    ],
)
def test_errors_of_the_wrong_form_are_noticed(error: dict[str, object]) -> None:
    """Every reply in every gateway test goes through this check."""
    reply = Reply(400, [("x-tiergate-request-id", "r")], complete=True, body=json.dumps({"error": error}).encode())

    with pytest.raises(AssertionError):
        check_form(reply)
