"""What a whole (not streamed) answer says of itself: usage, finish reason, and whether it is an answer at all."""

from __future__ import annotations

import msgspec

from gateway.errors import Broken
from gateway.upstream.failures import classify_event
from gateway.upstream.sse import NO_ERROR, WireUsage
from router.types import Call, Usage


class _Message(msgspec.Struct):
    content: object = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw()


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: _Message | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    data: msgspec.Raw = msgspec.Raw()
    usage: WireUsage | None = None
    error: msgspec.Raw = msgspec.Raw()
    model: str | None = None


class Answer(msgspec.Struct, frozen=True):
    usage: Usage | None
    finish_reason: str | None
    model: str | None


_decode = msgspec.json.Decoder(_Body).decode


def read_answer(body: bytes, call: Call) -> Answer:
    """Raises `AttemptError` for an error object sent with status 200, and for anything that is no answer."""
    try:
        data = _decode(body)
    except msgspec.MsgspecError as exc:
        raise Broken("the model's server sent an answer that cannot be read") from exc
    if (error := bytes(data.error)) not in NO_ERROR:
        raise classify_event(error)
    if not (bytes(data.data) if call.surface == "embeddings" else data.choices):
        raise Broken("the model's server sent an answer without content")
    reason = data.choices[0].finish_reason if data.choices else None
    return Answer(data.usage.buckets() if data.usage else None, reason, data.model)


def said(body: bytes) -> str:
    """The text that a model wrote for this answer: content, reasoning and tool calls of all choices."""
    parts: list[str] = []
    for choice in _decode(body).choices or ():
        if (message := choice.message) is not None:
            parts += [message.reasoning_content or "", bytes(message.tool_calls).decode("utf-8", "replace")]
            parts.append(message.content if isinstance(message.content, str) else "")
    return "\n".join(part for part in parts if part)
