"""The words of `upstream`: what each scripted server answers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.cases.case import UnknownWord, known
from tests.script import (
    END_CHUNKS,
    HEAD_CHUNKED,
    Chunk,
    Close,
    Hang,
    Reset,
    Send,
    Step,
    Wait,
    chunk_object,
    completion,
    data,
    event,
    finish,
    http,
    json_reply,
    role,
    usage,
    usage_event,
)  # fmt: skip
from tests.upstream import Received, Upstream

Reply = dict[str, Any]

REPLY_WORDS = frozenset(
    {
        "ok", "anthropic_ok", "status", "headers", "json", "text", "delay_ms", "connect", "encode", "transfer",
        "echo_call_number", "end_of_body", "then", "sse", "times", "alternate", "when_header", "when_body_contains",
        "usage_only_if_requested", "require_absent", "allow_only_fields", "reject_if_both", "model",
    }
)  # fmt: skip
STEP_WORDS = frozenset(
    {
        "role", "text", "reasoning", "finish", "text_repeat", "tool", "usage", "raw_choice", "done", "raw", "hex",
        "wait_ms", "repeat", "end",
    }
)  # fmt: skip
USAGE_WORDS = frozenset({"prompt", "completion", "cached", "reasoning"})
CONNECT = ("refuse", "accept_then_silent")


def check_words(replies: list[Reply], where: str) -> None:
    """`UnknownWord` unless all words of these replies are known."""
    for reply in replies:
        known(reply, REPLY_WORDS, where)
        known(reply.get("ok", {}), frozenset({"text", "finish", "usage", "model"}), where)
        check_words(reply.get("alternate", []), where)
        _check_steps(reply.get("sse", []), where)
        if reply.get("connect", CONNECT[0]) not in CONNECT:
            raise UnknownWord(f"{where}: connect: {reply['connect']}")


def _check_steps(steps: list[Any], where: str) -> None:
    for step in steps:
        words = {step: None} if isinstance(step, str) else step
        known(words, STEP_WORDS, where)
        known(words.get("usage") or {}, USAGE_WORDS, where)
        _check_steps((words.get("repeat") or {}).get("steps", []), where)


def make_upstream(tier: str, replies: list[Reply], *, anthropic: bool = False) -> Upstream:
    """A server that answers as the case says; with nothing said, with "ok from TIER"."""
    upstream = Upstream(refuse=any(reply.get("connect") == "refuse" for reply in replies))
    upstream.respond(Responder(tier, replies or [{"ok": {"text": f"ok from {tier}"}}], anthropic))
    return upstream


@dataclass
class Responder:
    """Takes the replies of one server in order; the last one repeats."""

    tier: str
    replies: list[Reply]
    anthropic: bool
    calls: int = 0
    uses: list[int] = field(default_factory=list)

    def __call__(self, request: Received) -> Sequence[Step]:
        self.calls += 1
        self.uses = self.uses or [0] * len(self.replies)
        at = next(at for at in range(len(self.replies)) if self._serves(at, request))
        self.uses[at] += 1
        reply = self.replies[at]
        if "alternate" in reply:
            reply = reply["alternate"][(self.uses[at] - 1) % len(reply["alternate"])]
        return list(_Play(reply, request, self).steps())

    def _serves(self, at: int, request: Received) -> bool:
        last = at == len(self.replies) - 1
        if not last and not _fits(self.replies[at], request):
            return False
        return last or self.uses[at] < self._times(at)

    def _times(self, at: int) -> int:
        return int(self.replies[at].get("times", 1))


def _fits(reply: Reply, request: Received) -> bool:
    """Whether the conditions on the whole reply hold. `when_header` with `encode` is about the encoding alone."""
    needle = reply.get("when_body_contains")
    return ("encode" in reply or _header_fits(reply, request)) and (needle is None or needle.encode() in request.body)


def _header_fits(reply: Reply, request: Received) -> bool:
    wanted = reply.get("when_header", {})
    return all(value in (request.header(name) or "") for name, value in wanted.items())


@dataclass
class _Play:
    reply: Reply
    request: Received
    responder: Responder

    def steps(self) -> Iterator[Step]:
        reply = self.reply
        if "delay_ms" in reply:
            yield Wait(reply["delay_ms"] / 1000)
        if reply.get("connect") == "accept_then_silent":
            yield Hang()
        elif objection := self._objection():
            yield json_reply(400, {"error": {"message": objection, "type": "invalid_request_error"}})
        elif "sse" in reply:
            yield from self._stream(list(self._events(reply["sse"])))
        else:
            yield from self._whole()
        if "then" in reply:
            yield Wait(reply["then"]["close_idle_connection_after_ms"] / 1000)
            yield Close()

    def _objection(self) -> str | None:
        """What this server does not accept about the request, if anything."""
        reply, request = self.reply, self.request
        fields = set(request.json) if request.body else set()
        if broken := fields & set(reply.get("require_absent", ())):
            return f"unknown field: {', '.join(broken)}"
        if "allow_only_fields" in reply and (broken := fields - set(reply["allow_only_fields"])):
            return f"unknown field: {', '.join(broken)}"
        both = reply.get("reject_if_both", ())
        if both and all(request.header(name) is not None for name in both):
            return f"both of {both}"
        return None

    # --- whole answers ---

    def _whole(self) -> Iterator[Step]:
        reply = self.reply
        if "status" in reply or "json" in reply:
            yield from self._literal(reply.get("status", 200))
            return
        text, reason = self._text(), reply.get("ok", {}).get("finish", "stop")
        if self._speaks_anthropic():
            yield from self._anthropic(text)
        elif self._field("stream"):
            yield from self._stream(list(self._ok_events(text, reason)))
        else:
            body = completion(text, model=self._model(), reason=reason, counts=usage(**self._usage()))
            yield from self._body(200, {}, json.dumps(body, ensure_ascii=False).encode())

    def _literal(self, status: int) -> Iterator[Step]:
        reply = self.reply
        headers = dict(reply.get("headers", {}))
        if "json" in reply:
            body = json.dumps(reply["json"], ensure_ascii=False).encode()
        else:
            body = str(reply.get("text", "")).encode()
            headers.setdefault("content-type", "text/plain")
        yield from self._body(status, headers, body)

    def _body(self, status: int, headers: dict[str, str], body: bytes) -> Iterator[Step]:
        if self._encodes():
            headers, body = {**headers, "content-encoding": "gzip"}, _Gzip().whole(body)
        raw = http(status, headers, body, chunked=self.reply.get("transfer") == "chunked")
        if self.reply.get("end_of_body") == "hang":
            yield Send(http(status, headers, body, chunked=True).removesuffix(END_CHUNKS.data))
            yield Hang()
        yield Send(raw)

    def _text(self) -> str:
        if self.reply.get("echo_call_number"):
            return str(self.responder.calls)
        said: Reply = self.reply.get("ok") or self.reply.get("anthropic_ok") or {}
        return str(said.get("text", f"ok from {self.responder.tier}"))

    def _usage(self) -> dict[str, int]:
        return dict(self.reply.get("ok", {}).get("usage") or {"prompt": 10, "completion": 5})

    def _model(self) -> str:
        told = self.reply.get("model") or self.reply.get("ok", {}).get("model") or self._field("model")
        return str(told or "m")

    def _field(self, name: str) -> Any:
        return self.request.json.get(name) if self.request.body else None

    def _encodes(self) -> bool:
        return self.reply.get("encode") == "gzip" and _header_fits(self.reply, self.request)

    # --- streams ---

    def _ok_events(self, text: str, reason: str) -> Iterator[Step | bytes]:
        model = self._model()
        yield from (role(model), event(text, model=model), finish(reason, model=model))
        if self._wants_usage():
            yield usage_event(**self._usage(), model=model)
        yield b"data: [DONE]\n\n"

    def _wants_usage(self) -> bool:
        return bool((self._field("stream_options") or {}).get("include_usage"))

    def _stream(self, parts: list[Step | bytes]) -> Iterator[Step]:
        """Events as bytes become chunks, flushed one by one; the end is tidy unless a step said otherwise."""
        zipped = _Gzip() if self._encodes() else None
        yield Send(HEAD_CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") if zipped else HEAD_CHUNKED)
        for part in parts:
            if isinstance(part, bytes):
                yield Chunk(zipped.piece(part) if zipped else part)
            elif isinstance(part, Close):
                yield END_CHUNKS
                yield part
            else:
                yield part
        if zipped and (rest := zipped.rest()):
            yield Chunk(rest)
        yield END_CHUNKS

    def _events(self, steps: list[Any]) -> Iterator[Step | bytes]:
        for step in steps:
            words = {step: None} if isinstance(step, str) else step
            for word, argument in words.items():
                yield from self._event(word, argument)

    def _event(self, word: str, argument: Any) -> Iterator[Step | bytes]:
        if word == "repeat":
            for _ in range(argument["times"]):
                yield from self._events(argument["steps"])
        elif word == "usage":
            if not self.reply.get("usage_only_if_requested") or self._wants_usage():
                yield usage_event(**argument, model=self._model())
        else:
            yield SIMPLE_STEPS[word](argument, self._model())

    # --- the Anthropic form ---

    def _speaks_anthropic(self) -> bool:
        return self.responder.anthropic or "anthropic_ok" in self.reply

    def _anthropic(self, text: str) -> Iterator[Step]:
        said = {"input_tokens": 10, "output_tokens": 5} | dict(self.reply.get("anthropic_ok", {}))
        counts = {name: value for name, value in said.items() if name != "text"}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": self._model()}
        if self._field("stream"):
            yield from self._stream(list(_anthropic_events(message, text, counts)))
        else:
            content = [{"type": "text", "text": text}]
            whole = {**message, "content": content, "stop_reason": "end_turn", "stop_sequence": None, "usage": counts}
            yield from self._body(200, {}, json.dumps(whole, ensure_ascii=False).encode())


def _anthropic_events(message: dict[str, Any], text: str, counts: dict[str, Any]) -> Iterator[bytes]:
    start = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**counts, "output_tokens": 1},
    }
    delta = {"stop_reason": "end_turn", "stop_sequence": None}
    for kind, fields in (
        ("message_start", {"message": start}),
        ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
        ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": text}}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": delta, "usage": {"output_tokens": counts["output_tokens"]}}),
        ("message_stop", {}),
    ):
        yield f"event: {kind}\n".encode() + data({"type": kind, **fields})


def _tool(call: dict[str, Any], model: str) -> bytes:
    """One `tool_calls` entry; without an id and a name it continues the one with this index."""
    entry: dict[str, Any] = {"index": call["index"], "function": {"arguments": call["args"]}}
    if "id" in call:
        entry |= {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["args"]}}
    return event(tool_calls=[entry], model=model)


def _end(how: str, _model: str) -> Step:
    ends: dict[str, Step] = {"close": Close(), "reset": Reset(), "hang": Hang()}
    if how not in ends:
        raise UnknownWord(f"end: {how}")
    return ends[how]


SIMPLE_STEPS: dict[str, Callable[[Any, str], Step | bytes]] = {
    "role": lambda name, model: event(role=name, content="", model=model),
    "text": lambda text, model: event(text, model=model),
    "reasoning": lambda text, model: event(reasoning_content=text, model=model),
    "finish": lambda reason, model: finish(reason, model=model),
    "text_repeat": lambda what, model: event(what["unit"] * what["times"], model=model),
    "tool": _tool,
    "raw_choice": lambda choice, model: data(chunk_object([choice], model)),
    "done": lambda _none, _model: b"data: [DONE]\n\n",
    "raw": lambda text, _model: text.encode(),
    "hex": lambda digits, _model: bytes.fromhex(digits),
    "wait_ms": lambda ms, _model: Wait(ms / 1000),
    "end": _end,
}


class _Gzip:
    """A gzip stream that can be flushed after each piece."""

    def __init__(self) -> None:
        self._zip = zlib.compressobj(wbits=31)

    def piece(self, content: bytes) -> bytes:
        return self._zip.compress(content) + self._zip.flush(zlib.Z_SYNC_FLUSH)

    def rest(self) -> bytes:
        return self._zip.flush()

    def whole(self, content: bytes) -> bytes:
        return self._zip.compress(content) + self._zip.flush()
