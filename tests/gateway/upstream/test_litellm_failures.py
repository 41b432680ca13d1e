"""What LiteLLM raises means one of our errors: by the wire, and by every class that it has."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import orjson
import pytest

from gateway.errors import (
    AttemptError,
    Broken,
    GatewayError,
    Misconfigured,
    OutOfCredit,
    Overloaded,
    Refused,
    TimedOut,
    TooLong,
    Unreachable,
    Unsupported,
)
from gateway.upstream.litellm import LiteLLMUpstream
from gateway.upstream.litellm_failures import MEANINGS, failure, meaning_of
from tests.gateway.upstream.providers import CLAUDE, GEMINI, KEY, LITELLM_WARNINGS, Provider, claude_error
from tests.upstream import json_reply

pytestmark = LITELLM_WARNINGS


def not_connected() -> Exception:
    """What LiteLLM's HTTP client raises."""
    error = importlib.import_module("httpx").ConnectError("refused")
    assert isinstance(error, Exception)
    return error


def google_error(status: int, name: str, message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": name, **fields}}


ANSWERS: list[tuple[str, int, dict[str, Any], type[AttemptError]]] = [
    (CLAUDE, 529, claude_error("overloaded_error", "Overloaded"), Overloaded),
    (CLAUDE, 429, claude_error("rate_limit_error", "slow down"), Overloaded),
    (CLAUDE, 429, claude_error("rate_limit_error", "Overloaded"), Overloaded),  # LiteLLM: a 500
    (CLAUDE, 503, claude_error("api_error", "no"), Overloaded),
    (CLAUDE, 500, claude_error("api_error", "oops"), Broken),
    (CLAUDE, 502, claude_error("api_error", "oops"), Broken),
    (CLAUDE, 401, claude_error("authentication_error", "invalid x-api-key"), Misconfigured),
    (CLAUDE, 403, claude_error("permission_error", "no"), Misconfigured),
    (CLAUDE, 404, claude_error("not_found_error", "model: x"), Misconfigured),
    (CLAUDE, 402, claude_error("billing_error", "pay"), OutOfCredit),
    (CLAUDE, 400, claude_error("invalid_request_error", "Your credit balance is too low"), OutOfCredit),
    (CLAUDE, 400, claude_error("invalid_request_error", "prompt is too long: 2 tokens > 1 maximum"), TooLong),
    (CLAUDE, 400, claude_error("invalid_request_error", "messages.0: wrong"), Refused),
    (CLAUDE, 413, claude_error("request_too_large", "32 MB"), Refused),
    (CLAUDE, 422, claude_error("invalid_request_error", "no"), Refused),
    (CLAUDE, 418, claude_error("invalid_request_error", "tea"), Refused),
    (GEMINI, 400, google_error(400, "INVALID_ARGUMENT", "API key not valid. Please pass one."), Misconfigured),
    (GEMINI, 400, google_error(400, "INVALID_ARGUMENT",
                               "The input token count (9) exceeds the maximum number of tokens allowed (8)."), TooLong),
    (GEMINI, 400, google_error(400, "INVALID_ARGUMENT", "bad"), Refused),
    (GEMINI, 429, google_error(429, "RESOURCE_EXHAUSTED", "Resource exhausted"), Overloaded),
    (GEMINI, 503, google_error(503, "UNAVAILABLE", "The model is overloaded."), Overloaded),
    (GEMINI, 404, google_error(404, "NOT_FOUND", "models/x is not found"), Misconfigured),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("model", "status", "body", "expected"), ANSWERS)
async def test_answer_of_a_provider_means_one_error(
    provider: Provider, model: str, status: int, body: dict[str, Any], expected: type[AttemptError], stream: bool
) -> None:
    """Retry, fallback, alarm or refusal follow from the class, so a wrong class sends a call the wrong way."""
    provider.server.script(json_reply(status, body, {"retry-after": "7"}))

    with pytest.raises(AttemptError) as caught:
        await provider.of(model).open(stream=stream)

    assert expected is type(caught.value)
    assert status == caught.value.status
    if expected is Overloaded:
        assert 7.0 == caught.value.retry_after
    assert caught.value.__cause__ is not None
    assert 1 == len(provider.server.requests), "no retry of LiteLLM's own"


async def test_limit_per_minute_of_gemini_is_no_used_up_account(provider: Provider) -> None:
    """Google's words for both are the same; only a limit per minute comes with the time to wait, inside the body."""
    when = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "17s"}
    words = "You exceeded your current quota, check your plan and billing."
    body = google_error(429, "RESOURCE_EXHAUSTED", words, details=[when])
    provider.server.script(json_reply(429, body))

    with pytest.raises(Overloaded) as caught:
        await provider.of(GEMINI).open()

    assert 17.0 == caught.value.retry_after


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_refusal_is_passed_on_as_an_openai_error_without_secrets(provider: Provider, stream: bool) -> None:
    """Clients show the message and branch on type and code; a provider that echoes our key must not tell it to them."""
    echo = f"messages.0.content: 不可以, key {KEY} at http://127.0.0.1:{provider.server.port}"
    provider.server.script(json_reply(400, claude_error("invalid_request_error", echo)))

    with pytest.raises(Refused) as caught:
        await provider.open(stream=stream)

    error = orjson.loads(caught.value.body)["error"]
    assert {"message", "type", "param", "code"} == set(error)
    assert "messages.0.content: 不可以, key [...] at [...]" == error["message"]
    assert ("invalid_request_error", None) == (error["type"], error["param"])
    assert "不可以" not in str(caught.value)


async def test_unknown_provider_is_a_misconfiguration(provider: Provider) -> None:
    """A typing error in the policy is the operator's to mend, and the next tier's to answer for now."""
    with pytest.raises(Misconfigured):
        await provider.of("antropic/claude").open()


async def test_every_class_of_litellm_has_a_meaning(adapter: LiteLLMUpstream) -> None:
    """A new version may bring new errors: a class that reaches no row would be taken for a broken server, silently."""
    litellm = await adapter.load()
    found = {
        cls
        for module in (litellm, litellm.exceptions)
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Exception) and cls.__module__ == "litellm.exceptions"
    }
    assert 25 < len(found)
    for cls in found:
        names = [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]
        assert any(name in MEANINGS for name in names), cls
    stale = {name for name in MEANINGS if name.startswith("litellm.")} - {
        f"{cls.__module__}.{cls.__qualname__}" for cls in found
    }
    assert not stale


async def test_every_class_of_litellm_becomes_an_error_of_ours(adapter: LiteLLMUpstream) -> None:
    """Whatever it raises, and however little it knows of the cause, the caller gets a `GatewayError`."""
    litellm = await adapter.load()
    expected = {
        "unsupported": Unsupported, "too_long": TooLong, "filtered": Refused, "no_credit": OutOfCredit,
        "misconfigured": Misconfigured, "timed_out": TimedOut, "overloaded": Broken, "refused": Refused,
        "broken": Broken,
    }  # fmt: skip
    for _, cls in inspect.getmembers(litellm.exceptions, inspect.isclass):
        if not issubclass(cls, Exception) or cls.__module__ != "litellm.exceptions":
            continue
        exc = cls.__new__(cls)
        exc.message, exc.status_code = f"litellm.{cls.__name__}: AnthropicException - secret-key and words", None
        error = failure(exc, ("secret-key",))
        assert isinstance(error, GatewayError)
        assert "words" not in str(error)
        if cls.__name__ != "MidStreamFallbackError":
            assert expected[meaning_of(exc)] is type(error), cls
        if isinstance(error, Refused):
            assert "[...] and words" == orjson.loads(error.body)["error"]["message"]


def test_cause_tells_more_than_the_class() -> None:
    """LiteLLM wraps a connection that failed as an error of the server; only the first may be repeated."""
    outer = RuntimeError("litellm.InternalServerError")
    outer.__cause__ = not_connected()
    assert isinstance(failure(outer), Unreachable)


def test_failure_of_an_earlier_attempt_is_not_read() -> None:
    """Python chains errors raised while another is handled: the attempt before must not decide about this one."""
    earlier = Unreachable("the model's server cannot be reached")
    earlier.__cause__ = not_connected()
    now = RuntimeError("nonsense")
    now.__context__ = earlier
    assert isinstance(failure(now), Broken)


def test_words_of_an_answer_do_not_classify_a_broken_stream() -> None:
    """A parser's complaint quotes the answer, which may speak of anything: also of context windows and billing."""
    error = failure(RuntimeError("Error parsing chunk: the context window, overloaded, payment required"))
    assert type(error) is Broken
