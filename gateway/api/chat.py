"""`POST /v1/chat/completions`: the caller's bytes → `Call`. What we do not decide on is not looked at."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.api.read import decode, no_model
from gateway.errors import BadRequest
from router.types import CacheControl, Call, ResponseFormat


class Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Format(msgspec.Struct):
    type: str | None = None


class Body(msgspec.Struct):
    messages: list[Message]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[msgspec.Raw] | None = None
    functions: list[msgspec.Raw] | None = None
    response_format: Format | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None


_decode = msgspec.json.Decoder(Body).decode
_FORMATS: Mapping[str, ResponseFormat] = {"json_object": "json_object", "json_schema": "json_schema"}
_SYSTEM = ("system", "developer")
_TOOL_RESULTS = ("tool", "function")


def read_chat(body: bytes, request_id: str, headers: Mapping[str, str], cache_control: CacheControl) -> Call:
    """Raises `BadRequest` with the place (`param`) of the mistake."""
    data = decode(_decode, body)
    if not data.messages:
        raise BadRequest("messages is empty; send at least one message", param="messages")
    if not data.model:
        raise no_model()
    texts = [_text(message.content) for message in data.messages]
    system = [text for message, text in zip(data.messages, texts, strict=True) if message.role in _SYSTEM]
    users = [text for message, text in zip(data.messages, texts, strict=True) if message.role == "user"]
    return Call(
        request_id=request_id,
        surface="chat",
        body=body,
        model=data.model,
        stream=bool(data.stream),
        wants_usage=bool(data.stream_options and data.stream_options.include_usage),
        system="\n".join(system),
        last_user=users[-1] if users else "",
        text=texts[0] if len(texts) == 1 else "\n".join(texts),
        turns=len(users),
        messages=len(texts),
        has_tools=bool(data.tools or data.functions),
        has_tool_results=any(message.role in _TOOL_RESULTS for message in data.messages),
        has_images=any(_has_image(message.content) for message in data.messages),
        response_format=_FORMATS.get((data.response_format and data.response_format.type) or "", "text"),
        max_output_tokens=data.max_completion_tokens or data.max_tokens,
        n=data.n or 1,
        temperature=data.temperature,
        headers=headers,
        cache_control=cache_control,
    )


def _text(content: str | list[Part] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content or () if part.text)


def _has_image(content: str | list[Part] | None) -> bool:
    return isinstance(content, list) and any(part.type in ("image_url", "input_image", "image") for part in content)
