"""The data path as callers meet it: bodies, headers, names, keys, limits."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from gateway.admission.keys import hash_key
from tests.client import Client
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import Upstream, answer, completion, event, finish, json_reply, stream

ANSWER = answer("ok")


async def test_body_reaches_the_upstream_byte_for_byte_but_for_the_model(gateway: Gateway, small: Upstream) -> None:
    """Fields that we have never heard of, odd spacing and escapes are the caller's business."""
    small.script(ANSWER)
    body = (
        b'{ "model" : "auto","messages":[{"role":"user","content":"caf\\u00e9  \\u4f60", "x_new": 1.50}],"seed": 1e2 }'
    )

    await gateway.post("/v1/chat/completions", body)

    sent = small.requests[0].body
    assert b'"messages":[{"role":"user","content":"caf\\u00e9  \\u4f60", "x_new": 1.50}]' in sent
    assert b'"seed":1e2' in sent
    assert "small-model" == small.requests[0].json["model"]


async def test_gateway_key_never_goes_upstream(start: Start, small: Upstream) -> None:
    """The upstream sees its own key and nothing of the caller's."""
    key = {"name": "alice", "hash": hash_key(b"key-alice")}
    gateway = await start({"tiers": {"small": tier(small, "small")}, "keys": [key]})
    small.script(ANSWER)

    client = Client(f"http://{gateway.host}:{gateway.port}", "key-alice")
    reply = await client.chat(model="small", headers={"x-api-key": "key-alice"})

    assert 200 == reply.status
    assert b"key-alice" not in small.requests[0].raw_head + small.requests[0].body
    assert "Bearer up-key-small" == small.requests[0].header("authorization")


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic a2V5"}, {"authorization": b"Bearer \xff\xfe"}],
)
async def test_unknown_key_is_refused_before_the_body_is_read(start: Start, small: Upstream, headers: Any) -> None:
    """Strangers cost nothing."""
    gateway = await start(
        {"tiers": {"small": tier(small, "small")}, "keys": [{"name": "a", "hash": hash_key(b"right")}]}
    )

    reply = await gateway.post("/v1/chat/completions", b"{not json", headers=headers)

    assert (401, "invalid_api_key") == (reply.status, reply.error["code"])  # type: ignore[index]
    assert "Bearer" == reply.header("www-authenticate")


async def test_key_may_name_only_its_routes(start: Start, small: Upstream) -> None:
    """A key limited to one route does not even see the others."""
    key = {"name": "a", "hash": hash_key(b"k"), "routes": ["auto"]}
    gateway = await start(
        {"tiers": {"small": tier(small, "small")}, "routes": {"auto": {"tier": "small"}}, "keys": [key]}
    )
    small.script(ANSWER)
    client = Client(f"http://{gateway.host}:{gateway.port}", "k")

    allowed, refused, listed = await client.chat(), await client.chat(model="small"), await client.get("/v1/models")

    assert (200, 403) == (allowed.status, refused.status)
    assert ["auto"] == [model["id"] for model in listed.json["data"]]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[1]", None),
        (b'{"model":"auto","messages":[{"role":"user","content":"hi"},]}', None),
        (b'{"model":"auto"}', "messages"),
        (b'{"model":"auto","messages":[]}', "messages"),
        (b'{"messages":[{"role":"user","content":"hi"}]}', "model"),
        (b'{"model":"auto","messages":[{"content":"hi"}]}', "messages[0].role"),
        (b'{"model":"auto","messages":[{"role":"user","content":7}]}', "messages[0].content"),
        (b'{"model":"auto","messages":[{"role":"user","content":"a"}],"n":"two"}', "n"),
        (b'{"model":"auto","messages":[{"role":"user","content":"a \\ud83c b"}]}', None),
        (b'{"model":"auto","messages":[{"role":"user","content":"\xff"}]}', None),
        (b"[" * 100_000, None),
    ],
)
async def test_bad_body_is_a_400_with_the_place(gateway: Gateway, body: bytes, param: str | None) -> None:
    """Clients retry a 500 and mend a 400; the place tells them what to mend."""
    reply = await gateway.post("/v1/chat/completions", body)

    assert (400, "invalid_request_error", param) == (reply.status, reply.error["type"], reply.error["param"])  # type: ignore[index]
    [line] = await gateway.settled(1)
    assert "client_error" == line["outcome"]


async def test_unknown_model_names_the_nearest(gateway: Gateway) -> None:
    """A typing error is told as one."""
    reply = await gateway.chat(model="smal")

    assert (404, "model_not_found") == (reply.status, reply.error["code"])  # type: ignore[index]
    assert "'small'" in reply.error["message"]  # type: ignore[index]


async def test_body_over_the_limit_is_refused_by_its_declared_size(start: Start, small: Upstream) -> None:
    """Nor is it read to its end to find out."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "max_body": "10kB"})

    reply = await gateway.chat("x" * 20_000, model="small")

    assert (413, "request_too_large") == (reply.status, reply.error["code"])  # type: ignore[index]


async def test_compressed_body_is_read_and_a_bomb_is_not(start: Start, small: Upstream) -> None:
    """Clients that compress large prompts are welcome, within the same limit."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "max_body": "100kB"})
    small.script(ANSWER)
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": "压缩"}]}).encode()

    good = await gateway.post("/v1/chat/completions", gzip.compress(body), headers={"content-encoding": "gzip"})
    bomb = await gateway.post("/v1/chat/completions", gzip.compress(b" " * 10**6), headers={"content-encoding": "gzip"})
    other = await gateway.post("/v1/chat/completions", body, headers={"content-encoding": "br"})

    assert [200, 413, 415] == [good.status, bomb.status, other.status]
    assert small.requests[0].header("content-encoding") is None


async def test_answer_explains_itself(gateway: Gateway, small: Upstream) -> None:
    """Whoever wonders why and what it cost finds it in the headers."""
    small.script(answer("ok", {"prompt_tokens": 1000, "completion_tokens": 500}))

    reply = await gateway.chat()

    told = {
        name: reply.about(name)
        for name in ("route", "tier", "deployment", "model", "attempts", "cache", "cost-usd", "saved-usd")
    }
    assert {"route": "auto", "tier": "small", "deployment": "small-1", "model": "small-model", "attempts": "1",
            "cache": "bypass", "cost-usd": "0.002", "saved-usd": "0"} == told  # fmt: skip
    assert reply.reason


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-123_DEF", True), ("A" * 6000, False), ("a\tlevel=error", False), ("", False)]
)
async def test_request_id_is_taken_over_only_if_it_is_harmless(
    gateway: Gateway, small: Upstream, given: str, kept: bool
) -> None:
    """An identifier goes into logs and headers: no forged lines, nothing oversized."""
    small.script(ANSWER)

    reply = await gateway.chat(headers={"x-request-id": given})

    assert kept == (reply.header("x-request-id") == given)
    assert len(reply.header("x-request-id") or "") in range(1, 129)


async def test_alias_keeps_the_name_that_was_asked_for(start: Start, small: Upstream) -> None:
    """Apps compare the model of the answer with the one they named; Chinese names are names too."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "aliases": {"中文模型": "small"}})
    small.script(json_reply(200, completion("好", model="real")))
    small.script(*stream("好"))

    whole, streamed = await gateway.chat(model="中文模型"), await gateway.chat(model="中文模型", stream=True)

    assert "中文模型" == whole.json["model"]
    assert {"中文模型"} == {chunk["model"] for chunk in streamed.sse.chunks}
    assert all(value.isascii() for _, value in whole.headers + streamed.headers)


async def test_route_that_chooses_tells_the_model_that_answered(start: Start, small: Upstream) -> None:
    """The caller named no model, so the one that answered is told."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "routes": {"auto": {}}})
    small.script(json_reply(200, completion("ok", model="real")))

    assert "real" == (await gateway.chat()).json["model"]


async def test_images_and_tools_pass_and_steer(start: Start, small: Upstream, medium: Upstream) -> None:
    """What a message holds besides text arrives intact, and rules can look at it."""
    rules = [{"name": "pictures", "when": {"has_images": True}, "tier": "medium"},
             {"name": "tools", "when": {"has_tools": True}, "min_tier": "medium"}]  # fmt: skip
    gateway = await start({"tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium")},
                           "routes": {"auto": {"thresholds": {"medium": 1.0}}}, "rules": rules})  # fmt: skip
    medium.default(ANSWER)
    parts = [
        {"type": "text", "text": "这是什么？"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

    pictures = await gateway.chat([{"role": "user", "content": parts}])
    called = await gateway.chat("天气?", tools=tools)

    assert "rule: pictures" == pictures.reason
    assert parts == medium.requests[0].json["messages"][0]["content"]
    assert "medium" == called.tier
    assert tools == medium.requests[1].json["tools"]


async def test_embeddings_go_to_a_deployment_that_makes_them(start: Start, small: Upstream, medium: Upstream) -> None:
    """The same path, without difficulty: the first tier that has an embedding model."""
    embedder = tier(medium, "medium", deployment={"mode": "embedding"})
    gateway = await start({"tiers": {"small": tier(small, "small"), "medium": embedder}, "routes": {"auto": {}}})
    vectors = {
        "object": "list",
        "data": [{"index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    medium.script(json_reply(200, vectors))

    reply = await gateway.post("/v1/embeddings", {"model": "auto", "input": ["向量", "vector"]})

    assert [0.5] == reply.json["data"][0]["embedding"]
    assert ("medium", "3e-06") == (reply.tier, reply.about("cost-usd"))
    assert "/v1/embeddings" == medium.requests[0].path


async def test_chat_is_not_sent_to_an_embedding_model(start: Start, small: Upstream) -> None:
    """A clear refusal instead of a strange failure."""
    gateway = await start({"tiers": {"small": tier(small, "small", deployment={"mode": "embedding"})}})

    reply = await gateway.chat(model="small")

    assert (400, "model") == (reply.status, reply.error["param"])  # type: ignore[index]


async def test_error_in_a_200_is_an_error(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """Half the world's servers do it."""
    small.script(json_reply(200, {"error": {"message": "overloaded", "type": "overloaded_error"}}))
    medium.script(answer("saved"))

    reply = await gateway.chat()

    assert ("saved", "medium") == (reply.text, reply.tier)


async def test_paths_that_do_not_exist_answer_with_an_error_object(gateway: Gateway) -> None:
    """Not with a page, and not with a framework's own form."""
    missing, method = await gateway.get("/v1/nothing"), await gateway.get("/v1/chat/completions")

    assert (404, "unknown_url") == (missing.status, missing.error["code"])  # type: ignore[index]
    assert method.status in (404, 405)


async def test_events_keep_their_bytes(start: Start, small: Upstream) -> None:
    """What the upstream wrote is what the caller reads, unknown fields and spacing included."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "routes": {"auto": {}}})
    small.script(*stream("你", "好"))

    reply = await gateway.chat(stream=True)

    assert event("你") + event("好") + finish() in reply.body


async def test_bad_timeout_header_is_told(gateway: Gateway) -> None:
    """A limit that cannot be read is not silently another one."""
    reply = await gateway.chat(headers={"x-tiergate-timeout": "soon"})

    assert (400, "x-tiergate-timeout") == (reply.status, reply.error["param"])  # type: ignore[index]
