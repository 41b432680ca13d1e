"""Streamed, stored, streamed again: `assemble` and `replay` together, over all that a stream may hold."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cache.answer import assemble, replay
from tests.cache.samples import chunk, said
from tests.sse import Sse, parse_sse

ODD = ["", "Paris", "法国的首都", "👩‍🚀", "𠀀", "\u2028", "data: [DONE]\n\n", '"\\', "e\u0301", "\x00"]
TEXT = st.sampled_from(ODD) | st.text(max_size=9)


@st.composite
def choices(draw: st.DrawFn, index: int) -> list[bytes]:
    """The events of one choice of a stream, in order."""
    events = [said({"role": "assistant"}, index)]
    for name in ("reasoning_content", "content"):
        events += [said({name: text}, index) for text in draw(st.lists(TEXT, max_size=4))]
    calls = draw(st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=3))
    for at, arguments in enumerate(calls):
        head = {"id": f"c{at}", "type": "function"}
        for number, text in enumerate(arguments):
            function = {"name": "f", "arguments": text} if number == 0 else {"arguments": text}
            events.append(
                said({"tool_calls": [{"index": at, "function": function, **({} if number else head)}]}, index)
            )
    return [*events, said({}, index, "tool_calls" if calls else "stop")]


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """A stream of up to three choices, their events mixed, each choice's own in order."""
    each = [draw(choices(index)) for index in range(draw(st.integers(1, 3)))]
    order = draw(st.permutations([index for index, events in enumerate(each) for _ in events]))
    rest = [iter(events) for events in each]
    usage = draw(st.sampled_from([[], [chunk([], usage={"total_tokens": 9})]]))
    return [*(next(rest[index]) for index in order), *usage]


def heard(stream: Sse, index: int) -> tuple[Any, ...]:
    """What a strict reader makes of one choice."""
    deltas = [delta for choice in stream.choices(index) for delta in choice["delta"].get("tool_calls") or []]
    by_call = itertools.groupby(sorted(deltas, key=lambda delta: delta["index"]), key=lambda delta: delta["index"])
    calls = []
    for at, group in by_call:
        fragments = list(group)
        arguments = "".join(fragment["function"]["arguments"] for fragment in fragments)
        calls.append((at, fragments[0]["id"], fragments[0]["function"]["name"], arguments))
    finishes = [choice["finish_reason"] for choice in stream.choices(index) if choice["finish_reason"]]
    return stream.joined("reasoning_content", index), stream.joined("content", index), calls, finishes


@settings(deadline=None, max_examples=150)
@given(streams())
def test_a_replayed_stream_says_what_the_first_one_said(events: list[bytes]) -> None:
    """In every language, with tools, reasoning and several choices: nobody may notice a hit by its content."""
    original = parse_sse(b"".join(b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"]))
    body = assemble(events)
    assert body is not None

    again = parse_sse(replay(body, include_usage=True))

    assert again.done
    assert original.usage == again.usage
    assert [heard(original, index) for index in range(3)] == [heard(again, index) for index in range(3)]
