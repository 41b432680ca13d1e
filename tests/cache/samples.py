"""Calls, policies and answers that the tests of the cache share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from cache.answer import StoredAnswer
from router.policy import Caches, Deployment, ExactCache, Policy, Rule, Tier
from router.types import CacheControl, Call, Usage

ENGLISH = "What is the capital of France?"
CHINESE = "法国的首都是哪里？"
ABOUT = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "a"}


def policy(exact: ExactCache | None = None, rules: tuple[Rule, ...] = (), **fields: Any) -> Policy:
    tiers = {"small": Tier(name="small", deployments=(Deployment(name="a", model="openai/a"),))}
    return Policy(version=1, tiers=tiers, rules=rules, cache=Caches(exact=exact or ExactCache()), **fields)


def body(text: str = ENGLISH, **fields: Any) -> dict[str, Any]:
    return {"model": "auto", "messages": [{"role": "user", "content": text}], **fields}


def call(
    text: str = ENGLISH, *, raw: bytes | None = None, control: CacheControl | None = None,
    headers: Mapping[str, str] | None = None, **fields: Any,
) -> Call:  # fmt: skip
    """A chat call, or with `raw` one with exactly that body. `fields` go into the body."""
    return Call(
        request_id="r", surface="chat", body=orjson.dumps(body(text, **fields)) if raw is None else raw, model="auto",
        n=fields.get("n", 1), temperature=fields.get("temperature"), headers=headers or {},
        cache_control=control or CacheControl(),
    )  # fmt: skip


def whole(text: str | None = "Paris", finish: str = "stop", **message: Any) -> bytes:
    """A `chat.completion`."""
    said = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "message": said, "logprobs": None, "finish_reason": finish}
    return orjson.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "a", "choices": [choice]}
    )


def chunk(choices: list[dict[str, Any]], **fields: Any) -> bytes:
    """The payload of one event of a stream."""
    return orjson.dumps({**ABOUT, "choices": choices, **fields})


def said(delta: dict[str, Any] | None = None, index: int = 0, finish: str | None = None, **fields: Any) -> bytes:
    """The same, with one choice."""
    return chunk([{"index": index, "delta": delta or {}, "finish_reason": finish, **fields}])


def stored(text: str = "Paris", at: float = 0.0, answer: bytes | None = None) -> StoredAnswer:
    usage = Usage(input=5, output=1)
    return StoredAnswer(whole(text) if answer is None else answer, usage, "small", "a", "a", "auto", at, 0.001)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.broken = False

    def __call__(self) -> float:
        if self.broken:
            raise OSError("no clock")
        return self.now
