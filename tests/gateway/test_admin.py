"""Everything beside the data path: models, the decision on paper, health."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from gateway.api.admin import _is_loaded
from tests.client import request_bytes
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import Send, Upstream, answer, http

TEXTS = {"en": "Prove that the square root of two is irrational.", "zh": "请证明根号二是无理数。"}


class Judge:
    """A classifier that says 0.8 of everything."""

    def difficulty(self, features: Any, /) -> float:
        return 0.8


@pytest.fixture
async def full(start: Start, small: Upstream, medium: Upstream) -> Gateway:
    """Two tiers, a route that chooses, one that does not, aliases with slash and in Chinese, one rule."""
    gateway: Gateway = await start({
        "tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium")},
        "routes": {"auto": {"thresholds": {"medium": 0.5}}, "bot": {"tier": "small"}},
        "aliases": {"deepseek/deepseek-chat": "small", "便宜": "medium"},
        "rules": [{"name": "问候", "when": {"last_user": {"matches": "^(hi|你好)$"}}, "tier": "small"}],
    }, Judge())  # fmt: skip
    return gateway


# --- /v1/models ---


async def test_models_are_all_names_that_a_request_may_use(full: Gateway) -> None:
    """Tools fill their menus from it."""
    reply = await full.get("/v1/models")

    assert "list" == reply.json["object"]
    ids = [model["id"] for model in reply.json["data"]]
    assert sorted(ids) == sorted({
        "auto", "bot", "deepseek/deepseek-chat", "便宜", "small", "medium", "small-1", "medium-1",
    })  # fmt: skip
    for model in reply.json["data"]:
        assert {"object": "model", "owned_by": "tiergate"}.items() <= model.items()
        assert isinstance(model["created"], int)


@pytest.mark.parametrize("name", ["auto", "deepseek/deepseek-chat", "deepseek%2Fdeepseek-chat", "%E4%BE%BF%E5%AE%9C"])
async def test_one_model_is_found_by_its_id(full: Gateway, name: str) -> None:
    """Also with a slash, plain or escaped, and in any language."""
    reply = await full.get(f"/v1/models/{name}")

    assert (200, "model") == (reply.status, reply.json["object"])
    assert reply.json["id"] in ("auto", "deepseek/deepseek-chat", "便宜")


async def test_unknown_model_is_an_openai_error(full: Gateway) -> None:
    """The SDK turns it into NotFoundError."""
    reply = await full.get("/v1/models/nobody")

    assert (404, "model_not_found", "model") == (reply.status, reply.error["code"], reply.error["param"])  # type: ignore[index]


# --- /v1/route ---


@pytest.mark.parametrize("language", TEXTS)
async def test_decision_is_told_and_no_model_is_called(
    full: Gateway, small: Upstream, medium: Upstream, language: str
) -> None:
    """The same code as for a request, without its cost."""
    reply = await full.post("/v1/route", {"model": "auto", "messages": [{"role": "user", "content": TEXTS[language]}]})

    told = reply.json
    assert (200, "auto", "medium", "difficulty", 0.8) == (
        reply.status, told["route"], told["tier"], told["by"], told["difficulty"],
    )  # fmt: skip
    assert language == told["features"]["language"]
    assert {"medium": 0.5} == told["thresholds"]
    assert ["medium-1", "small-1"] == [attempt["deployment"] for attempt in told["attempts"]]
    assert told["estimated_cost_usd"] > 0
    assert not small.requests
    assert not medium.requests
    assert 0 == full.metric("tiergate_requests_total")


async def test_decision_has_the_request_id_of_its_headers(full: Gateway) -> None:
    """One request, one id."""
    reply = await full.post("/v1/route", {"model": "auto", "messages": [{"role": "user", "content": "x"}]})

    assert reply.request_id == reply.json["request_id"]


@pytest.mark.parametrize("greeting", ["hi", "你好"])
async def test_rule_is_told_by_its_name(full: Gateway, greeting: str) -> None:
    """In any language, in JSON as in the header."""
    reply = await full.post("/v1/route", {"model": "auto", "messages": [{"role": "user", "content": greeting}]})

    assert ("问候", "rule", "small") == (reply.json["rule"], reply.json["by"], reply.json["tier"])


async def test_decision_on_paper_is_the_decision_of_the_request(full: Gateway, medium: Upstream) -> None:
    """Otherwise it explains something that does not happen."""
    medium.script(answer("ok"))
    messages = [{"role": "user", "content": TEXTS["zh"]}]

    paper = (await full.post("/v1/route", {"model": "auto", "messages": messages})).json
    real = await full.chat(messages)

    assert (paper["tier"], paper["reason"], f"{paper['difficulty']:.3f}") == (real.tier, real.reason, real.difficulty)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        ({"model": "auto"}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, 400, "model"),
        ({"model": "nobody", "messages": [{"role": "user", "content": "x"}]}, 404, "model"),
    ],
)
async def test_bad_question_is_told_as_for_a_request(full: Gateway, body: Any, status: int, param: str | None) -> None:
    """The same parser, the same messages."""
    reply = await full.post("/v1/route", body)

    assert (status, param) == (reply.status, reply.error["param"])  # type: ignore[index]


async def test_call_that_nobody_can_serve_is_explained(start: Start, small: Upstream) -> None:
    """An empty plan with its reasons, rather than an error: that is what the question was about."""
    gateway = await start({"tiers": {"small": tier(small, "small", deployment={"context_window": 64})}})

    reply = await gateway.post("/v1/route", {"model": "small", "messages": [{"role": "user", "content": "长" * 900}]})

    assert (200, [], "small-1") == (reply.status, reply.json["attempts"], reply.json["skipped"][0]["deployment"])


# --- health ---


async def test_live_and_ready(full: Gateway) -> None:
    """What probes ask for, without a key."""
    live, ready = await full.get("/health/live"), await full.get("/health/ready")

    assert (200, 200) == (live.status, ready.status)
    assert full.rt.policy.fingerprint == ready.json["policy"]


async def test_embedded_model_is_loaded_when_its_own_health_page_says_so(small: Upstream) -> None:
    """A load balancer must not send anybody before; an open port means nothing yet."""
    small.script(Send(http(503, {}, b"{}")))
    small.script(Send(http(200, {}, b"{}")))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))

        found = [await _is_loaded(port) for port in (held.getsockname()[1], small.port, small.port)]

    assert [False, False, True] == found
    assert {"/health"} == {request.path for request in small.requests}


# --- form ---


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/nobody", "/health/live", "/health/ready", "/nowhere"])
async def test_every_answer_carries_the_request_id(full: Gateway, path: str) -> None:
    """The one that was sent, where it is harmless."""
    reply = await full.get(path, {"x-request-id": "abc-1"})

    assert ("abc-1", "abc-1") == (reply.header("x-request-id"), reply.request_id)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/", 404),
    ],
)
async def test_wrong_path_or_method_is_an_error_object(full: Gateway, method: str, path: str, status: int) -> None:
    """Not a page, and not a framework's own form."""
    reply = await full.send(request_bytes(method, path, body=b"" if method != "GET" else None))

    assert status == reply.status
    assert "unknown_url" == reply.json["error"]["code"]
    assert path in reply.json["error"]["message"]
