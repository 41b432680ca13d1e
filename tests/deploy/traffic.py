"""A short load that touches every metric: answers, hits, fallbacks, retries, refusals, cuts, callers who leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.client import Client, Leave
from tests.upstream import (
    DONE,
    END_CHUNKS,
    HEAD_CHUNKED,
    Chunk,
    Received,
    Reset,
    Send,
    Step,
    Wait,
    answer,
    error_reply,
    event,
    finish,
    role,
    usage,
    usage_event,
)

# One upstream plays all models; what it does depends on the model's name. `auto` chooses between small and large.
POLICY = """
version: 1
tiers:
  small:
    deployments: [{{name: s, model: openai/good, api_base: {url}, api_key: k, price: {{input: 0.1, output: 0.4}}}}]
  large:
    deployments: [{{name: l, model: openai/good, api_base: {url}, api_key: k, price: {{input: 2, output: 10}}}}]
  busy:
    deployments: [{{name: b, model: openai/busy, api_base: {url}, api_key: k, price: {{input: 1, output: 1}}}}]
    retry: {{attempts: 1, backoff: {{initial: 1ms, max: 2ms}}}}
    cooldown: null
  wrong:
    deployments: [{{name: w, model: openai/wrong, api_base: {url}, api_key: k, price: {{input: 1, output: 1}}}}]
    cooldown: null
  broken:
    deployments: [{{name: x, model: openai/broken, api_base: {url}, api_key: k, price: {{input: 1, output: 1}}}}]
    cooldown: {{allowed_fails: 1, cooldown_time: 100ms}}
  cut:
    deployments: [{{name: c, model: openai/cut, api_base: {url}, api_key: k, price: {{input: 1, output: 1}}}}]
    cooldown: null
  narrow:
    deployments: [{{name: n, model: openai/slow, api_base: {url}, api_key: k, price: {{input: 1, output: 1}}}}]
    concurrency: {{max: 1, queue: 1, queue_timeout: 50ms}}
  unpriced:
    deployments: [{{name: u, model: openai/forgetful, api_base: {url}, api_key: k}}]
fallback:
  {{small: [], large: [], busy: [large], wrong: [large], broken: [], cut: [], narrow: [small], unpriced: []}}
baseline: large
routes:
  auto: {{strategy: difficulty, max_tier: large}}
cache:
  exact: {{ttl: 1h}}
log: {{path: "off"}}
"""

PROMPTS = ("Say hello.", "请用三句话证明根号二是无理数。", "Write a proof that there are infinitely many primes.")
LONG = "The quick brown fox jumps over the lazy dog. 敏捷的棕色狐狸跳过懒狗。" * 150


def play(request: Received) -> Sequence[Step]:
    """What the scripted upstream answers."""
    body = request.json
    model, streamed = body["model"], body.get("stream", False)
    if model == "busy":
        return (error_reply(503),)
    if model == "wrong":
        return (error_reply(401, "no such key", type="authentication_error"),)
    if model == "broken":
        return (error_reply(500),)
    if model == "cut":
        return (Send(HEAD_CHUNKED), Chunk(role()), Chunk(event("half")), Chunk(event(" of")), Reset())
    if model == "forgetful":
        return (answer("I see little.", usage(3, 4)),)
    if model == "slow":
        return (Wait(0.3), answer("At last."))
    return _stream() if streamed else (answer("Good.", usage(200, 20, cached=50, reasoning=5)),)


def _stream() -> Sequence[Step]:
    words: list[Step] = []
    for word in ("A", " good", " answer", "，", "慢慢", "来"):
        words += [Chunk(event(word)), Wait(0.02)]
    end: list[Step] = [Chunk(finish()), Chunk(usage_event(120, 6)), Chunk(DONE), END_CHUNKS]
    return (Send(HEAD_CHUNKED), Chunk(role()), *words, *end)


async def one_round(client: Client, number: int) -> int:
    """Some of everything, with prompts of its own. How many requests were sent."""
    sent = 0

    async def chat(prompt: str, model: str = "auto", *, stream: bool = False, leave: Leave | None = None) -> int:
        nonlocal sent
        sent += 1
        return (await client.chat(f"{prompt} ({number})", model=model, stream=stream, leave=leave)).status

    for prompt in PROMPTS:
        assert [await chat(prompt), await chat(prompt), await chat(prompt, stream=True)] == [200, 200, 200]
        assert await chat(f"Stream: {prompt}", stream=True) == 200
    assert [await chat("Hi", "busy"), await chat("Hi", "wrong")] == [200, 200]
    assert await chat("Hi", "broken") >= 500
    assert await chat("Hi", "cut", stream=True) == 200
    assert await chat(LONG, "unpriced") == 200
    assert await asyncio.gather(*(chat(f"{i}", "narrow") for i in range(3))) == [200, 200, 200]
    await chat("Bye", "small", stream=True, leave=Leave(after_events=2))
    assert (await client.post("/v1/chat/completions", b'{"model": "auto"}')).status == 400
    return sent + 1
