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
    tool_calls: list[msgspec.Raw] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Format(msgspec.Struct):
    type: str | None = None
    json_schema: msgspec.Raw = msgspec.Raw()


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
JSON_CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 800  # a picture of a million pixels costs most models 300 to 1,600
_SYSTEM = ("system", "developer")
_TOOL_RESULTS = ("tool", "function")


def read_chat(body: bytes, request_id: str, headers: Mapping[str, str], cache_control: CacheControl) -> Call:
    """Raises `BadRequest` with the place (`param`) of the mistake."""
    data = decode(_decode, body)
    if not data.messages:
        raise BadRequest("messages is empty; send at least one message", param="messages")
    if not data.model:
        raise no_model()
    if data.n is not None and data.n < 1:
        raise BadRequest("n: must be at least 1", param="n")
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
        extra_tokens=_extra_tokens(data),
        turns=len(users),
        messages=len(texts),
        has_tools=bool(data.tools or data.functions),
        has_tool_results=any(message.role in _TOOL_RESULTS for message in data.messages),
        has_images=any(_has_image(message.content) for message in data.messages),
        response_format=_FORMATS.get((data.response_format and data.response_format.type) or "", "text"),
        max_output_tokens=data.max_completion_tokens or data.max_tokens,
        n=1 if data.n is None else data.n,
        temperature=data.temperature,
        headers=headers,
        cache_control=cache_control,
    )


def _extra_tokens(data: Body) -> int:
    """What a prompt holds besides its text. JSON has about four characters to a token."""
    size = sum(map(_size, data.tools or ())) + sum(map(_size, data.functions or ()))
    size += _size(data.response_format.json_schema) if data.response_format else 0
    size += sum(_size(call) for message in data.messages for call in message.tool_calls or ())
    images = sum(
        _is_image(part) for message in data.messages if isinstance(message.content, list) for part in message.content
    )
    return size // JSON_CHARS_PER_TOKEN + images * IMAGE_TOKENS


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


def _is_image(part: Part) -> bool:
    return part.type in ("image_url", "input_image", "image")


def _text(content: str | list[Part] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content or () if part.text)


def _has_image(content: str | list[Part] | None) -> bool:
    return isinstance(content, list) and any(map(_is_image, content))
