"""Server-sent events as they come from an upstream: cut at event boundaries, byte for byte, and read one by one.

Line ends may be LF, CR LF or CR; a boundary may fall between two network reads, as may any character. Nothing is
decoded to text here, so a three-byte character that was cut in half is never seen in half.
"""

from __future__ import annotations

import re

import msgspec

from router.types import Usage

# Two line ends in a row. The atomic group keeps CR LF from being read as two of them.
_BOUNDARY = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")

DONE = b"data: [DONE]\n\n"
MAX_EVENT_BYTES = 64 * 2**20


class EventTooLarge(ValueError):
    """An upstream wrote more than `MAX_EVENT_BYTES` without ending an event."""


class Splitter:
    """Bytes in, whole events out (each with the blank line that ended it)."""

    __slots__ = ("_buffer", "_searched")

    def __init__(self) -> None:
        self._buffer = b""
        self._searched = 0  # no boundary starts before this offset: a large event is searched once

    def feed(self, data: bytes) -> list[bytes]:
        if not self._buffer and data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
            return [data]  # the usual case: one read, one event
        return self._cut(data)

    def _cut(self, data: bytes) -> list[bytes]:
        buffer = self._buffer + data
        events, start = [], 0
        for match in _BOUNDARY.finditer(buffer, self._searched):
            events.append(buffer[start : match.end()])
            start = match.end()
        self._buffer = buffer[start:]
        self._searched = max(0, len(self._buffer) - 3)
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise EventTooLarge
        return events

    def rest(self) -> bytes:
        """What came after the last boundary, at the end of the stream: an event whose blank line is missing."""
        rest, self._buffer, self._searched = self._buffer, b"", 0
        return rest


def payload(event: bytes) -> bytes | None:
    """The event's data (its `data:` lines joined by LF), or None if it has none (a comment, a lone `event:`)."""
    if event.startswith(b"data: {") and event.endswith(b"}\n\n") and event.find(b"\n", 0, -2) < 0:
        return event[6:-2]
    lines = []
    for line in _LINE_END.split(event):
        if line.startswith(b"data:"):
            lines.append(line[6:] if line.startswith(b"data: ") else line[5:])
    return b"\n".join(lines) if lines else None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_creation_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None
    image_tokens: int | None = None


class WireUsage(msgspec.Struct):
    """Usage as OpenAI writes it; DeepSeek's and Anthropic-like names for cached tokens are read too."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cache_creation_input_tokens: int | None = None

    def buckets(self) -> Usage:
        """Disjoint buckets: cached tokens are part of the prompt's count, reasoning tokens of the completion's."""
        prompt, completion = self.prompt_tokens or 0, self.completion_tokens or 0
        details, more = self.prompt_tokens_details, self.completion_tokens_details
        cached = (details and details.cached_tokens) or self.prompt_cache_hit_tokens or 0
        written = (details and details.cache_creation_tokens) or self.cache_creation_input_tokens or 0
        reasoning = (more and more.reasoning_tokens) or 0
        image = (more and more.image_tokens) or 0
        cached = min(cached, prompt)
        written = min(written, prompt - cached)
        image = min(image, completion)
        reasoning = min(reasoning, completion - image)
        return Usage(
            input=prompt - cached - written,
            cached_input=cached,
            cache_write=written,
            output=completion - reasoning - image,
            reasoning=reasoning,
            image_output=image,
        )


class Choice(msgspec.Struct):
    index: int = 0
    delta: dict[str, msgspec.Raw] | None = None
    finish_reason: str | None = None
    text: str | None = None


class Chunk(msgspec.Struct):
    """The parts of a `chat.completion.chunk` that we act on."""

    choices: list[Choice] | None = None
    usage: WireUsage | None = None
    error: msgspec.Raw = msgspec.Raw()
    model: str | None = None

    @property
    def error_object(self) -> bytes | None:
        """The in-band error's JSON, if there is one."""
        return None if (found := bytes(self.error)) in NO_ERROR else found

    def has_content(self) -> bool:
        """True from the first content token on: text, reasoning, a tool call, anything but a role or emptiness."""
        return any(_says_something(choice) for choice in self.choices or ())

    @property
    def finish_reason(self) -> str | None:
        for choice in self.choices or ():
            if choice.finish_reason:
                return choice.finish_reason
        return None

    @property
    def is_usage_only(self) -> bool:
        return not self.choices and self.usage is not None


NO_ERROR = frozenset((b"", b"null", b"{}"))
_EMPTY = frozenset((b"", b"null", b'""', b"[]", b"{}"))


def _says_something(choice: Choice) -> bool:
    if choice.text:
        return True
    return any(name != "role" and bytes(value) not in _EMPTY for name, value in (choice.delta or {}).items())


decode_chunk = msgspec.json.Decoder(Chunk).decode
