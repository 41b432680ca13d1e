"""What a scripted upstream plays: steps, and the bytes of usual replies."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

# --- steps of a script ---


@dataclass(frozen=True)
class Send:
    """Exactly these bytes, flushed by themselves."""

    data: bytes


@dataclass(frozen=True)
class Chunk:
    """One piece of a body sent in chunks (after HEAD_CHUNKED)."""

    data: bytes


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Until:
    """Wait for the test."""

    event: asyncio.Event


@dataclass(frozen=True)
class Hang:
    """Nothing more, until the other side leaves."""


@dataclass(frozen=True)
class Reset:
    """A TCP reset. What was sent before gets a moment to be read: a reset may overtake bytes in a reader's buffer."""

    after: float = 0.05


@dataclass(frozen=True)
class Close:
    """A tidy TCP close, wherever the reply stands."""


Step = Send | Chunk | Wait | Until | Hang | Reset | Close

# --- bytes of replies ---

# The body of the first ends with the connection, that of the second with END_CHUNKS.
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
HEAD_CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END_CHUNKS = Send(b"0\r\n\r\n")
DONE = b"data: [DONE]\n\n"


def data(value: object) -> bytes:
    """One server-sent event that holds `value` as JSON."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk_object(choices: list[dict[str, Any]], model: str = "m", **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": model, "choices": choices, **fields}


def event(text: str = "", *, model: str = "m", index: int = 0, **delta: Any) -> bytes:
    """A chunk with this content; more fields of the delta by name: `event(reasoning_content="hm")`."""
    delta = {"content": text, **delta} if text or not delta else delta
    return data(chunk_object([{"index": index, "delta": delta, "finish_reason": None}], model))


def role(model: str = "m") -> bytes:
    """The chunk that most servers send first: a role and no content."""
    return event("", model=model, role="assistant", content="")


def finish(reason: str = "stop", *, model: str = "m") -> bytes:
    return data(chunk_object([{"index": 0, "delta": {}, "finish_reason": reason}], model))


def usage(prompt: int, completion: int, cached: int = 0, reasoning: int = 0) -> dict[str, Any]:
    block: dict[str, Any] = {
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
    }  # fmt: skip
    if cached:
        block["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning:
        block["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return block


def usage_event(prompt: int, completion: int, cached: int = 0, reasoning: int = 0, *, model: str = "m") -> bytes:
    return data(chunk_object([], model, usage=usage(prompt, completion, cached, reasoning)))


def http(status: int, headers: Mapping[str, str], body: bytes, *, chunked: bool = False) -> bytes:
    """A whole HTTP reply. `chunked`: the body in two chunks instead of with a length."""
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Status"
    names = {name.lower() for name in headers}
    framing = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(body))}
    head = {**({} if "content-type" in names else {"content-type": "application/json"}), **headers, **framing}
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    if chunked:
        half = len(body) // 2
        body = framed(body[:half]) + framed(body[half:]) + END_CHUNKS.data
    return "\r\n".join(lines).encode("latin-1") + body


def framed(piece: bytes) -> bytes:
    """One chunk of a chunked body; nothing for an empty piece, which would end the body."""
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if piece else b""


def json_reply(
    status: int, obj: object, headers: Mapping[str, str] | None = None, *, encode: str | None = None
) -> Send:
    """A whole JSON reply. `encode="gzip"` compresses the body and says so."""
    body, extra = json.dumps(obj, ensure_ascii=False).encode(), dict(headers or {})
    if encode == "gzip":
        body, extra["content-encoding"] = gzip.compress(body), "gzip"
    return Send(http(status, extra, body))


def completion(
    text: str | None, *, model: str = "m", reason: str = "stop", counts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A chat.completion object."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": model}
    return {**head, "choices": [choice], "usage": dict(counts if counts is not None else usage(10, 5))}


def answer(text: str, usage: Mapping[str, Any] | None = None, *, model: str = "m", reason: str = "stop") -> Send:
    """A whole good answer, 10 prompt and 5 completion tokens unless `usage` says otherwise."""
    return json_reply(200, completion(text, model=model, reason=reason, counts=usage))


def error_reply(
    status: int, message: str = "busy", *, type: str = "server_error", code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Send:  # fmt: skip
    return json_reply(status, {"error": {"message": message, "type": type, "param": None, "code": code}}, headers)


def stream(*texts: str, reason: str = "stop", counts: tuple[int, int] | None = None) -> tuple[Step, ...]:
    """A whole good stream in chunks; the connection stays open for the next request."""
    events = [role(), *(event(text) for text in texts), finish(reason)]
    events += [usage_event(*counts)] if counts else []
    return (Send(HEAD_CHUNKED), *(Chunk(piece) for piece in [*events, DONE]), END_CHUNKS)
