"""`POST /v1/embeddings`: the caller's bytes → `Call`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.api.read import decode, no_model
from gateway.errors import BadRequest
from router.types import CacheControl, Call


class Body(msgspec.Struct):
    input: str | list[str | int | list[int]]
    model: str | None = None


_decode = msgspec.json.Decoder(Body).decode


def read_embeddings(body: bytes, request_id: str, headers: Mapping[str, str], cache_control: CacheControl) -> Call:
    """`input` is a text, texts, tokens, or lists of tokens. Raises `BadRequest`."""
    data = decode(_decode, body)
    if not data.input:
        raise BadRequest("input is empty", param="input")
    if not data.model:
        raise no_model()
    texts = [data.input] if isinstance(data.input, str) else [item for item in data.input if isinstance(item, str)]
    return Call(
        request_id=request_id,
        surface="embeddings",
        body=body,
        model=data.model,
        text="\n".join(texts),
        messages=len(texts) or 1,
        headers=headers,
        cache_control=cache_control,
    )
