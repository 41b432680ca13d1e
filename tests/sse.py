"""A strict reader of OpenAI-style streams: whatever is out of order is an exception here, not a shrug.

`parse_sse(bytes)` gives a `Sse`; `SseReader.feed` does the same piece by piece and notes when each event came.
"""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass, field
from typing import Any


class SseError(AssertionError):
    """The stream breaks the rules of server-sent events or of chat completion chunks."""


@dataclass(frozen=True)
class Event:
    """One dispatched event. `at`: seconds since the request was sent."""

    data: str
    at: float = 0.0
    name: str | None = None

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.data)
        except ValueError as exc:
            raise SseError(f"the data of an event is neither JSON nor [DONE]: {self.data[:200]!r}") from exc


@dataclass
class Sse:
    """What a stream said. Text, reasoning, tool calls and finish are those of choice 0."""

    events: list[Event] = field(default_factory=list)
    comments: list[tuple[float, str]] = field(default_factory=list)  # (seconds, text)
    unfinished: str = ""  # bytes after the last blank line: an event that never ended

    @property
    def data_events(self) -> list[Event]:
        return [event for event in self.events if event.data != "[DONE]"]

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [event.json for event in self.data_events]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [obj for obj in self.objects if "error" not in obj]

    @property
    def done(self) -> bool:
        """The end marker came, once and as the last event."""
        marks = [event.data == "[DONE]" for event in self.events]
        if marks.count(True) > 1 or (any(marks) and not marks[-1]):
            raise SseError("the end marker came twice, or something came after it")
        return any(marks)

    @property
    def error(self) -> dict[str, Any] | None:
        """The object of the error event, if one came."""
        found = [obj["error"] for obj in self.objects if "error" in obj]
        return found[0] if found else None

    def choices(self, index: int = 0) -> list[dict[str, Any]]:
        return [
            choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index
        ]  # fmt: skip

    def joined(self, name: str, index: int = 0) -> str:
        return "".join(choice["delta"].get(name) or "" for choice in self.choices(index))

    @property
    def text(self) -> str:
        return self.joined("content")

    @property
    def reasoning(self) -> str:
        return self.joined("reasoning_content")

    @property
    def finish(self) -> str | None:
        found = [reason for choice in self.choices() if (reason := choice.get("finish_reason"))]
        if len(found) > 1:
            raise SseError(f"more than one finish reason: {found}")
        return found[0] if found else None

    @property
    def usage_chunks(self) -> list[dict[str, Any]]:
        """Chunks with usage and no choice."""
        return [chunk for chunk in self.chunks if not chunk["choices"] and chunk.get("usage")]

    @property
    def usage(self) -> dict[str, Any] | None:
        """The usage that was told last, wherever it stood."""
        found = [chunk["usage"] for chunk in self.chunks if chunk.get("usage")]
        return found[-1] if found else None

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Tool calls put together by index as SDKs do: `index`, `id`, `name`, `arguments`."""
        calls: dict[int, dict[str, Any]] = {}
        for delta in self.tool_deltas:
            call = calls.setdefault(delta["index"], {"index": delta["index"], "id": None, "name": "", "arguments": ""})
            call["id"] = delta.get("id") or call["id"]
            function = delta.get("function") or {}
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""
        return [calls[index] for index in sorted(calls)]

    @property
    def tool_deltas(self) -> list[dict[str, Any]]:
        return [delta for choice in self.choices() for delta in choice["delta"].get("tool_calls") or []]

    @property
    def first_text_at(self) -> float | None:
        """Seconds until the first event with content."""
        for event in self.data_events:
            for choice in event.json.get("choices", []):
                if (choice.get("delta") or {}).get("content"):
                    return event.at
        return None


class SseReader:
    """Bytes → events, as the WHATWG rules have it: lines end with CR LF, LF or CR; a blank line ends an event."""

    def __init__(self) -> None:
        self.sse = Sse()
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="strict").decode
        self._line = ""
        self._skip_lf = False
        self._data: list[str] = []
        self._name: str | None = None

    def feed(self, piece: bytes, at: float = 0.0) -> None:
        for run in _lines(self._text(piece)):
            self._take(run, at)

    def close(self) -> Sse:
        """The end of the body."""
        self._text(b"", final=True)
        self.sse.unfinished = "\n".join(self._data) + self._line
        return self.sse

    def _text(self, piece: bytes, *, final: bool = False) -> str:
        try:
            return self._decode(piece, final)
        except UnicodeDecodeError as exc:
            raise SseError(f"bytes that are no UTF-8: {piece[:200]!r}") from exc

    def _take(self, run: str, at: float) -> None:
        if self._skip_lf and run == "\n":
            self._skip_lf = False
            return
        self._skip_lf = run.endswith("\r")
        self._line += run
        if not run.endswith(("\n", "\r")):
            return
        line, self._line = self._line.rstrip("\r\n"), ""
        self._line_done(line, at)

    def _line_done(self, line: str, at: float) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            self._dispatch(at)
        elif not name:
            self.sse.comments.append((at, value))
        elif name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value
        elif name not in ("id", "retry"):
            raise SseError(f"a line that is no field of an event: {line[:200]!r}")

    def _dispatch(self, at: float) -> None:
        if self._data:
            self.sse.events.append(Event("\n".join(self._data), at, self._name))
        self._data, self._name = [], None


def _lines(text: str) -> list[str]:
    """`text` cut after each CR, LF or CR LF; `str.splitlines` would also cut at U+2028 and others."""
    return [part for part in text.replace("\r\n", "\n").replace("\r", "\r\0").replace("\n", "\n\0").split("\0") if part]


def parse_sse(body: bytes) -> Sse:
    """A whole body."""
    reader = SseReader()
    reader.feed(body)
    return reader.close()
