"""What Anthropic's and Gemini's servers say on the wire, and a caller of the LiteLLM adapter."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.upstream.litellm import LiteLLMUpstream
from router.policy import Deployment, Tier
from router.types import Attempt, Call
from tests.upstream import END_CHUNKS, HEAD_CHUNKED, Chunk, Send, Step, Upstream, data

# LiteLLM's own classes bring these up on first use. It silences them once, at its import; pytest undoes that.
LITELLM_WARNINGS = [
    pytest.mark.filterwarnings("ignore:.*`ReadOnly` qualifier.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the .* attribute on the instance is deprecated:DeprecationWarning"),
]

KEY = "sk-very-secret"
CLAUDE, GEMINI = "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"
COUNTS = {"input_tokens": 12, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 100, "output_tokens": 33}


def claude_message(*content: dict[str, Any], stop: str = "end_turn") -> dict[str, Any]:
    """A whole answer of Anthropic's."""
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    return {**head, "content": list(content), "stop_reason": stop, "stop_sequence": None, "usage": COUNTS}


def claude_event(kind: str, **fields: Any) -> bytes:
    body = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {body}\n\n".encode()


def claude_start() -> bytes:
    message = {**claude_message(), "stop_reason": None, "usage": {**COUNTS, "output_tokens": 1}}
    return claude_event("message_start", message=message)


def claude_block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    return [
        claude_event("content_block_start", index=index, content_block=block),
        *(claude_event("content_block_delta", index=index, delta=delta) for delta in deltas),
        claude_event("content_block_stop", index=index),
    ]


def claude_text(*pieces: str, index: int = 0) -> list[bytes]:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return claude_block(index, {"type": "text", "text": ""}, *deltas)


def claude_end(stop: str = "end_turn") -> list[bytes]:
    delta = {"stop_reason": stop, "stop_sequence": None}
    return [claude_event("message_delta", delta=delta, usage={"output_tokens": 33}), claude_event("message_stop")]


def claude_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def gemini_piece(*parts: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One event of Gemini's, or a whole answer."""
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    counts = {"promptTokenCount": 5, "totalTokenCount": 5}
    if finish:
        candidate["finishReason"] = finish
        counts = {"promptTokenCount": 5, "candidatesTokenCount": 3, "thoughtsTokenCount": 7,
                  "cachedContentTokenCount": 2, "totalTokenCount": 15}  # fmt: skip
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": "gemini-2.5-flash"}


def gemini_event(*parts: dict[str, Any], finish: str | None = None) -> bytes:
    return data(gemini_piece(*parts, finish=finish))


def events(*pieces: bytes, ends: bool = True) -> tuple[Step, ...]:
    """A stream of these events; without its end where `ends` is false."""
    return (Send(HEAD_CHUNKED), *(Chunk(piece) for piece in pieces), *((END_CHUNKS,) if ends else ()))


def request(stream: bool = False, **fields: Any) -> bytes:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return orjson.dumps({"messages": [{"role": "user", "content": "hello 你好"}], "model": "x", **options, **fields})


def attempt(model: str, api_base: str | None, **fields: Any) -> Attempt:
    deployment = Deployment(name="cloud", model=model, api_base=api_base, **{"api_key": KEY, **fields})
    return Attempt(Tier(name="large", deployments=(deployment,)), deployment)


class Provider:
    """A scripted server, called through the adapter as deployment of `model`."""

    def __init__(self, adapter: LiteLLMUpstream, server: Upstream, model: str = CLAUDE) -> None:
        self.adapter, self.server, self.model = adapter, server, model

    def of(self, model: str) -> Provider:
        return Provider(self.adapter, self.server, model)

    async def open(self, *, stream: bool = False, deployment: dict[str, Any] | None = None, **fields: Any) -> Any:
        body = request(stream, **fields)
        call = Call("r1", "chat", body, "large", stream=stream, wants_usage=stream)
        address = f"http://127.0.0.1:{self.server.port}"
        return await self.adapter.open(call, attempt(self.model, address, **(deployment or {})), body)

    async def whole(self, **fields: Any) -> Any:
        reply = await self.open(**fields)
        try:
            return orjson.loads(await reply.read())
        finally:
            await reply.aclose()

    async def streamed(self, **fields: Any) -> list[dict[str, Any]]:
        """All events of the stream, which has to end with the end marker."""
        reply = await self.open(stream=True, **fields)
        try:
            pieces = [piece async for piece in reply.chunks()]
        finally:
            await reply.aclose()
        assert pieces[-1] == b"data: [DONE]\n\n"
        assert all(piece.startswith(b"data: {") and piece.endswith(b"}\n\n") for piece in pieces[:-1])
        return [orjson.loads(piece[6:]) for piece in pieces[:-1]]


def text_of(chunks: list[dict[str, Any]], field: str = "content") -> str:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get(field) or "" for delta in deltas)
