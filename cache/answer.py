"""An answer as it is kept, and its two forms: whole, and as a stream of events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import orjson

from router.types import Usage

ENTRY_OVERHEAD_BYTES = 600  # what an entry costs in memory besides its body (540 by tracemalloc, 20,000 entries)
PIECE_CHARS = 8192  # longest text in one event: well inside the 64 KiB lines that many stream readers stop at

_END = b"[DONE]"
_COMPLETE = frozenset({"stop", "tool_calls", "function_call"})
_STREAM_ONLY = frozenset(
    {"choices", "object", "obfuscation"}
)  # top-level fields that a whole answer has not, or not so
_FIRST_COUNTS = frozenset({"id", "created", "model"})  # some servers open with a chunk in which these are empty
_SAID_ONCE = frozenset({"role", "id", "type", "name"})  # servers that repeat them in every delta mean the same
_NESTED = frozenset({"function", "custom", "function_call", "audio"})  # objects whose strings arrive in fragments
_TEXTS = ("reasoning_content", "reasoning", "content", "refusal")  # in the order in which models speak


class StoredAnswer(msgspec.Struct, frozen=True, gc=False):
    """A whole, good answer with what it took to make it."""

    body: bytes  # JSON of a `chat.completion` object or of an embeddings list
    usage: Usage
    tier: str
    deployment: str
    model: str  # the model that answered
    route: str
    stored_at: float  # time.monotonic(), when the answer was complete
    baseline_usd: float | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.body) + ENTRY_OVERHEAD_BYTES


def storable(body: bytes) -> bool:
    """Whether this answer may be given to somebody else.

    Not: errors under a good status, no content, refusals, answers cut by a limit or a filter (asking again may do
    better), finish reasons that we do not know, and audio (its id expires at the provider).
    """
    try:
        whole = orjson.loads(body)
    except ValueError:
        return False
    if not isinstance(whole, dict) or whole.get("error"):
        return False
    if isinstance(choices := whole.get("choices"), list):
        return bool(choices) and all(_choice_is_whole(choice) for choice in choices)
    data = whole.get("data")
    return isinstance(data, list) and bool(data) and all(isinstance(e, dict) and e.get("embedding") for e in data)


def _choice_is_whole(choice: Any) -> bool:
    if not isinstance(choice, dict) or choice.get("finish_reason") not in _COMPLETE:
        return False
    message = choice.get("message")
    if not isinstance(message, dict) or message.get("audio") or message.get("refusal"):
        return False
    content = message.get("content")
    has_text = bool(content.strip() if isinstance(content, str) else content)
    return has_text or bool(message.get("tool_calls") or message.get("function_call"))


def assemble(events: Iterable[bytes]) -> bytes | None:
    """The `data:` payloads of a chat stream, in order → the same answer whole, as a `chat.completion` in JSON.

    None if the stream was cut, held an error or nonsense, or cannot be put together.
    """
    assembly = Assembly()
    for event in events:
        assembly.add(event)
    return assembly.whole()


class Assembly:
    """`assemble` as the events come, 1 to 2 µs each: at the end of a long stream all at once would hold up others."""

    __slots__ = ("_choices", "_ended", "_failed", "_top")

    def __init__(self) -> None:
        self._top: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._ended = self._failed = False

    def add(self, event: bytes) -> None:
        """One `data:` payload. After the end marker or an error nothing counts."""
        if self._ended or self._failed:
            return
        if event == _END:
            self._ended = True
            return
        try:
            self._add(orjson.loads(event))
        except (ValueError, TypeError, AttributeError):  # not JSON, or not of the form: nothing that can be repeated
            self._failed = True

    def whole(self) -> bytes | None:
        """The answer so far; None if it is not complete or cannot be repeated."""
        if self._failed or "error" in self._top or not self._choices:
            return None
        try:
            choices = [choice.whole(index) for index, choice in sorted(self._choices.items())]
            if not all(choice["finish_reason"] for choice in choices):
                return None
            return orjson.dumps({"object": "chat.completion", **self._top, "choices": choices})
        except TypeError:  # an index that is no number
            return None

    def _add(self, chunk: dict[str, Any]) -> None:
        top = self._top
        for name, value in chunk.items():
            if value is not None and name not in _STREAM_ONLY and not (name in _FIRST_COUNTS and top.get(name)):
                top[name] = value
        for said in chunk.get("choices") or ():
            index = said.get("index") or 0
            choice = self._choices.get(index)
            if choice is None:
                choice = self._choices[index] = _Choice()
            choice.add(said)


class _Choice:
    """One choice in the making."""

    __slots__ = ("_calls", "_logprobs", "_message", "_rest", "_where")

    def __init__(self) -> None:
        self._message = _Parts()
        self._calls: list[tuple[int, _Parts]] = []
        self._where: dict[int | None, _Parts] = {}  # index in the stream → the call that is being told there
        self._logprobs: dict[str, Any] | None = None
        self._rest = _Parts(adds_up=False)

    def add(self, said: dict[str, Any]) -> None:
        for name, value in said.items():
            if value is None or name in ("index", "message"):
                continue
            if name == "delta":
                self._add_delta(value)
            elif name == "logprobs":
                self._add_logprobs(value)
            else:
                self._rest.add_one(name, value)

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for name, value in delta.items():
            if name == "tool_calls":
                for fragment in value or ():
                    self._add_call(fragment)
            elif value is not None:
                self._message.add_one(name, value)

    def _add_call(self, fragment: dict[str, Any]) -> None:
        index, id_ = fragment.get("index"), fragment.get("id")
        call = self._where.get(index)
        # Some servers count every call as number 0, or not at all: then a new id is what tells a new call.
        if call is None or (id_ and (call.values.get("id") or id_) != id_):
            call = self._where[index] = _Parts()
            self._calls.append((index or 0, call))
        for name, value in fragment.items():
            if value is not None and name != "index":
                call.add_one(name, value)

    def _add_logprobs(self, said: dict[str, Any]) -> None:
        if self._logprobs is None:
            self._logprobs = said
            return
        for name, tokens in said.items():
            if before := self._logprobs.get(name):
                before.extend(tokens or ())
            else:
                self._logprobs[name] = tokens

    def whole(self, index: int) -> dict[str, Any]:
        message = {"role": "assistant", "content": None, **self._message.whole()}
        if self._calls:
            in_order = sorted(self._calls, key=lambda indexed: indexed[0])
            message["tool_calls"] = [_call_as_whole(call.whole()) for _, call in in_order]
        about = {"index": index, "message": message, "logprobs": self._logprobs, "finish_reason": None}
        return about | self._rest.whole()


def _call_as_whole(call: dict[str, Any]) -> dict[str, Any]:
    if "function" in call:
        call.setdefault("type", "function")
    return call


class _Parts:
    """An object told in fragments: strings add up (unless told otherwise), lists grow, of the rest the last counts."""

    __slots__ = ("_adds_up", "_texts", "values")

    def __init__(self, adds_up: bool = True) -> None:
        self._adds_up = adds_up
        self._texts: dict[str, list[str]] = {}
        self.values: dict[str, Any] = {}

    def add_one(self, name: str, value: Any) -> None:
        if isinstance(value, str) and self._adds_up and name not in _SAID_ONCE:
            if name in self.values:
                raise TypeError(f"{name} changes its type")
            self._texts.setdefault(name, []).append(value)
            return
        if name in self._texts:
            raise TypeError(f"{name} changes its type")
        if name in _NESTED:
            nested = self.values.setdefault(name, _Parts())
            for inner, part in value.items():
                if part is not None:
                    nested.add_one(inner, part)
        elif isinstance(value, list) and (before := self.values.get(name)):
            before.extend(value)
        elif name not in _SAID_ONCE or not self.values.get(name):
            self.values[name] = value

    def whole(self) -> dict[str, Any]:
        whole = {name: value.whole() if isinstance(value, _Parts) else value for name, value in self.values.items()}
        for name, parts in self._texts.items():
            whole[name] = "".join(parts)
        return whole


def replay(body: bytes, include_usage: bool) -> bytes:
    """A whole `chat.completion` (as `storable` lets pass) → the complete event stream that tells the same, end marker
    included.

    With `include_usage` the usage comes as OpenAI sends it: null in all events and then one with empty choices. A body
    without usage has no such event.
    """
    whole = orjson.loads(body)
    choices = whole.pop("choices")
    usage = whole.pop("usage", None)
    whole["object"] = "chat.completion.chunk"
    if include_usage := include_usage and usage is not None:
        whole["usage"] = None
    head, tail = b"data: " + orjson.dumps(whole)[:-1] + b',"choices":[', b"]}\n\n"
    events = [head + orjson.dumps(piece) + tail for choice in choices for piece in _pieces(choice)]
    if include_usage:
        events.append(b"data: " + orjson.dumps({**whole, "choices": [], "usage": usage}) + b"\n\n")
    events.append(b"data: [DONE]\n\n")
    return b"".join(events)


def _pieces(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One choice of a whole answer → the choices of the chunks that tell it."""
    index, logprobs, message = choice.pop("index", 0), choice.pop("logprobs", None), choice.pop("message", None) or {}
    for delta in _deltas(message):
        here = logprobs if "content" in delta and "role" not in delta else None
        yield {"index": index, "delta": delta, "logprobs": here, "finish_reason": None}
        logprobs = None if here else logprobs
    yield {"index": index, "delta": {}, "logprobs": logprobs, **choice}


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A message → its deltas: role, reasoning, content, refusal, whatever else there is, and the tool calls."""
    yield {"role": message.pop("role", "assistant"), "content": "" if isinstance(message.get("content"), str) else None}
    calls = message.pop("tool_calls", None) or ()
    for name in _TEXTS:
        value = message.pop(name, None)
        for piece in _split(value) if isinstance(value, str) else (value,):
            if piece:
                yield {name: piece}
    if rest := {name: value for name, value in message.items() if value is not None}:
        yield rest
    for index, call in enumerate(calls):
        for fragment in _fragments(call):
            yield {"tool_calls": [{"index": index, **fragment}]}


def _fragments(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A tool call → itself; or, where its arguments are long, itself with their beginning and then the rest."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), str):
        yield call
        return
    first, *rest = _split(arguments) or [""]
    yield {**call, "function": {**function, "arguments": first}}
    for more in rest:
        yield {"function": {"arguments": more}}


def _split(text: str) -> list[str]:
    return [text[start : start + PIECE_CHARS] for start in range(0, len(text), PIECE_CHARS)]
