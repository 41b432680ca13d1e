"""Server-sent events: cut where they end, wherever the network cut them, and every byte as it was."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream import sse
from gateway.upstream.sse import Chunk, EventTooLarge, Splitter, decode_chunk, payload

ENDS = ("\n", "\r\n", "\r")
WORDS = (
    "Hello",
    "你好，世界",
    "👩‍👩‍👧 ok",
    "naïve café",
    '{"a":"b\\n"}',
    "[DONE]",
    "",
    " leading",
    "a: b",
    "\u2028",
    "한국어",
)


@st.composite
def events(draw: Any) -> list[tuple[bytes, bytes | None]]:
    """Events with their data (None: no data field), each with line ends of its own."""
    made = []
    for _ in range(draw(st.integers(1, 6))):
        end = draw(st.sampled_from(ENDS))
        lines, data = [], []
        for _ in range(draw(st.integers(1, 4))):
            word = draw(st.sampled_from(WORDS))
            kind = draw(st.sampled_from(("data: ", "data:", ": ", "event: ", "id: ", "retry: ")))
            lines.append(kind + word)
            if kind.startswith("data:"):
                data.append(word if kind == "data: " else word.removeprefix(" "))
        made.append(((end.join(lines) + end + end).encode(), "\n".join(data).encode() if data else None))
    return made


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(raw) + 1) for place in places), len(raw)]
    return [raw[low:high] for low, high in pairwise(bounds) if high > low]


def split(pieces: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = Splitter()
    found = [event for piece in pieces for event in splitter.feed(piece)]
    return found, splitter.rest()


@given(events(), st.lists(st.integers(0, 10**6), max_size=40))
def test_any_cutting_of_any_stream_gives_the_same_events(
    made: list[tuple[bytes, bytes | None]], places: list[int]
) -> None:
    """LF, CR LF, CR, mixed; boundaries and characters cut in half."""
    raw = b"".join(event for event, _ in made)

    found, rest = split(cut(raw, places))

    assert raw == b"".join(found) + rest
    assert [data for _, data in made if data is not None] == [
        data for event in (*found, rest) if (data := payload(event)) is not None
    ]


@given(st.lists(st.sampled_from([b"\n", b"\r", b"data: x", b"d", b": c", b"\r\n", "数据".encode()]), max_size=40),
       st.lists(st.integers(0, 10**6), max_size=20))  # fmt: skip
def test_cutting_never_changes_what_is_said(parts: list[bytes], places: list[int]) -> None:
    """Also for streams that no server should send: the same data in the same order, however the network cut them."""
    raw = b"".join(parts)

    whole, pieces = split([raw] if raw else []), split(cut(raw, places))

    assert raw == b"".join(pieces[0]) + pieces[1]
    assert [payload(event) for event in (*whole[0], whole[1]) if payload(event)] == [
        payload(event) for event in (*pieces[0], pieces[1]) if payload(event)
    ]


@pytest.mark.parametrize("end", ENDS)
def test_every_byte_alone_gives_whole_events(end: str) -> None:
    """A proxy that writes byte by byte is slow, not wrong."""
    raw = f'data: {{"t":"你好👋"}}{end}{end}: ping{end}{end}data: [DONE]{end}{end}'.encode()

    found, rest = split([bytes([byte]) for byte in raw])

    assert [b'{"t":"' + "你好👋".encode() + b'"}', b"[DONE]"] == [
        data for event in (*found, rest) if (data := payload(event)) is not None
    ]


def test_event_is_given_out_as_soon_as_it_is_whole() -> None:
    """A splitter that waited for the next event would delay every token by one."""
    splitter = Splitter()

    assert [] == splitter.feed(b"data: on")
    assert [b"data: one\n\n"] == splitter.feed(b"e\n\n")
    assert [b"data: two\n\n"] == splitter.feed(b"data: two\n\n")


def test_crlf_event_is_given_out_by_its_last_byte() -> None:
    """Also with the line ends that HTTP people like, cut between the last two bytes."""
    splitter = Splitter()

    found = splitter.feed(b"data: one\r\n\r") + splitter.feed(b"\n") + splitter.feed(b"data: two\r\n\r\n")

    assert [b"one", b"two"] == [data for event in found if (data := payload(event)) is not None]
    assert b"" == splitter.rest()


def test_what_is_left_at_the_end_is_an_event_too() -> None:
    """Some servers forget the last blank line."""
    splitter = Splitter()
    splitter.feed(b"data: one\n\ndata: [DONE]\n")

    assert b"data: [DONE]\n" == splitter.rest()
    assert b"" == splitter.rest()


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b'data: {"a":1}\n\n', b'{"a":1}'),
        (b'data:{"a":1}\n\n', b'{"a":1}'),
        (b'data: {"a":1}\r\n\r\n', b'{"a":1}'),
        (b"data: {\ndata: }\n\n", b"{\n}"),
        (b'id: 7\nevent: x\ndata: {"a":1}\n\n', b'{"a":1}'),
        (b"data: [DONE]\n\n", b"[DONE]"),
        (b"data\n\n", None),
        (b"data:\n\n", b""),
        (b": keep-alive\n\n", None),
        (b"event: ping\n\n", None),
        (b"database: no\n\n", None),
        (b"\n", None),
        (b"", None),
    ],
)  # fmt: skip
def test_data_of_an_event(event: bytes, data: bytes | None) -> None:
    """As the standard says, as far as servers use it."""
    assert data == payload(event)


def test_large_event_is_searched_once() -> None:
    """Ten megabytes in small pieces: looking from the start at each would be 40,000 times the work."""
    splitter, piece = Splitter(), b"x" * 1000
    splitter.feed(b"data: ")

    for _ in range(200):
        splitter.feed(piece)
        assert len(splitter._buffer) - splitter._searched <= 3, "all but the last bytes have been looked at"

    assert 1 == len(splitter.feed(b"\n\n"))
    assert 0 == len(splitter._buffer)


def test_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never ends an event must not fill the memory."""
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    splitter = Splitter()

    for _ in range(10):
        splitter.feed(b"x" * 100)

    with pytest.raises(EventTooLarge):
        splitter.feed(b"x")


# --- chunks ---


def chunk(**delta: Any) -> Chunk:
    return decode_chunk(json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode())


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "你"},
        {"content": " "},
        {"role": "assistant", "content": "x"},
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"refusal": "no"},
        {"tool_calls": [{"index": 0, "function": {"name": "f"}}]},
        {"audio": {"data": "AAAA"}},
        {"something_new": 1},
    ],
)
def test_content_is_anything_that_says_something(delta: dict[str, Any]) -> None:
    """Reasoning and tool calls commit just as text does, and so does what nobody has invented yet."""
    assert chunk(**delta).has_content()


@pytest.mark.parametrize(
    "delta",
    [
        {},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
        {"content": "", "reasoning_content": "", "annotations": [], "extra": {}},
    ],
)
def test_roles_and_emptiness_are_no_content(delta: dict[str, Any]) -> None:
    """Held back: until then another model can still answer."""
    assert not chunk(**delta).has_content()


def test_chunk_of_another_shape_is_still_read() -> None:
    """Unknown fields, null choices, old completions: what we do not act on is not looked at."""
    assert not decode_chunk(b'{"choices":null,"usage":null,"x":[1,{"y":2}]}').has_content()
    assert decode_chunk(b'{"choices":[{"text":"old"}]}').has_content()
    assert "stop" == decode_chunk(b'{"choices":[{"delta":null,"finish_reason":"stop"}]}').finish_reason


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b'{"error":{"message":"x"}}', b'{"message":"x"}'),
        (b'{"error":"text"}', b'"text"'),
        (b'{"error":null,"choices":[]}', None),
        (b'{"error":{},"choices":[]}', None),
        (b'{"choices":[]}', None),
    ],
)
def test_in_band_error_is_told_from_an_empty_field(raw: bytes, error: bytes | None) -> None:
    """Some servers send `error: null` with every chunk."""
    assert error == decode_chunk(raw).error_object


def test_usage_event_is_one_without_choices() -> None:
    """Only that one is hidden from callers who did not ask for usage."""
    assert decode_chunk(b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}').is_usage_only
    assert not decode_chunk(b'{"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":1}}').is_usage_only
    assert not decode_chunk(b'{"choices":[],"usage":null}').is_usage_only
