"""LiteLLM's answers → OpenAI's JSON: whole answers, stream events and embeddings.

LiteLLM's values are OpenAI's with additions. Kept: `reasoning_content`, `thinking_blocks` with their signatures,
`provider_specific_fields`, token details. Left out: nulls, empty lists of single providers, and `usage.cost`, which is
LiteLLM's own idea of a price (ours comes from the policy).
"""

from __future__ import annotations

import base64
from array import array
from typing import Any

import orjson

DONE = b"data: [DONE]\n\n"


def encode_answer(answer: dict[str, Any]) -> bytes:
    """A `chat.completion`. `answer`: LiteLLM's `ModelResponse`, dumped without nulls."""
    for choice in answer.get("choices", ()):
        message = choice.get("message")
        if message is not None:
            _drop_empty(message)
            message.setdefault("content", None)  # null beside tool calls, as OpenAI has it
    return orjson.dumps(_without_noise(answer))


def encode_event(chunk: dict[str, Any]) -> bytes:
    """One server-sent event. `chunk`: LiteLLM's `ModelResponseStream`, dumped without nulls."""
    for choice in chunk.get("choices", ()):
        choice.setdefault("finish_reason", None)  # typed clients insist on it
        if (delta := choice.get("delta")) is not None:
            _drop_empty(delta)
    return b"data: " + orjson.dumps(_without_noise(chunk)) + b"\n\n"


def encode_embeddings(answer: dict[str, Any], *, as_base64: bool) -> bytes:
    """A list of embeddings, as numbers or (what OpenAI's own client asks for) as little-endian float32 in base64."""
    for entry in answer.get("data", ()):
        entry.setdefault("object", "embedding")
        vector = entry.get("embedding")
        if as_base64 and isinstance(vector, list):
            entry["embedding"] = base64.b64encode(_float32(vector)).decode()
    return orjson.dumps(_without_noise(answer))


def _float32(vector: list[float]) -> bytes:
    return array("f", vector).tobytes()


def _without_noise(value: dict[str, Any]) -> dict[str, Any]:
    if (usage := value.get("usage")) is not None:
        usage.pop("cost", None)
    return {key: item for key, item in value.items() if item or key in ("choices", "data", "created")}


def _drop_empty(fields: dict[str, Any]) -> None:
    """`images: []`, `thinking_blocks: []` and the like: there are none. An empty `content` is a value."""
    for name in [name for name, value in fields.items() if value == [] or value == {}]:
        del fields[name]
