"""Which fields of a caller's request reach a foreign provider."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.errors import Unsupported
from gateway.upstream.litellm_request import arguments
from router.policy import Deployment
from router.types import Call
from tests.gateway.upstream.providers import (
    CLAUDE,
    GEMINI,
    KEY,
    LITELLM_WARNINGS,
    Provider,
    claude_message,
    gemini_piece,
    request,
)
from tests.upstream import json_reply

pytestmark = LITELLM_WARNINGS

OK = claude_message({"type": "text", "text": "ok"})
SCHEMA = {
    "type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False
}  # fmt: skip
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}


def passed(model: str = CLAUDE, params: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    body = request(**fields)
    deployment = Deployment(name="cloud", model=model, params=params or {})
    return arguments(Call("r1", "chat", body, "large"), deployment, body, lambda _: frozenset(("user", "seed")))


@pytest.mark.parametrize(
    "field",
    [
        "api_base", "base_url", "api_key", "api_version", "model_list", "fallbacks", "mock_response", "extra_headers",
        "headers", "custom_llm_provider", "num_retries", "callbacks", "aws_bedrock_runtime_endpoint",
        "vertex_credentials", "extra_body", "client", "cache_control_injection_points", "drop_params", "foo",
    ],
)  # fmt: skip
def test_switches_of_litellm_are_not_the_callers(field: str) -> None:
    """`{"api_base": "http://evil"}` in a request would send our key there: what is not listed is refused by name."""
    with pytest.raises(Unsupported, match=field) as caught:
        passed(**{field: "x"})
    assert (field, "unsupported_parameter") == (caught.value.param, caught.value.code)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (CLAUDE, {"response_format": {"type": "json_object"}}),
        (GEMINI, {"parallel_tool_calls": False}),
        ("bedrock/converse/x", {"response_format": {"type": "json_object"}}),
        ("bedrock/converse/x", {"parallel_tool_calls": False}),
        ("cohere/command-a", {"tool_choice": "required"}),
    ],
)
def test_what_litellm_would_lose_is_refused(model: str, fields: dict[str, Any]) -> None:
    """LiteLLM drops these without a word; the caller would rely on a promise that nobody made."""
    with pytest.raises(Unsupported, match=next(iter(fields))):
        passed(model, **fields)
    assert passed(model, {"drop_params": True}, **fields)["drop_params"] is True


async def test_litellm_still_loses_what_we_refuse_for_it(provider: Provider) -> None:
    """When a version of LiteLLM carries one of these over, its row can go."""
    dropping = {"params": {"drop_params": True}}
    provider.server.script(json_reply(200, OK))
    provider.server.script(json_reply(200, gemini_piece({"text": "ok"}, finish="STOP")))
    await provider.open(deployment=dropping, response_format={"type": "json_object"})
    await provider.of(GEMINI).open(deployment=dropping, parallel_tool_calls=False)

    for sent in provider.server.requests:
        assert b"json" not in sent.body.lower()
        assert b"parallel" not in sent.body.lower()


async def test_fields_arrive_under_the_providers_names(provider: Provider) -> None:
    """Structured output and sampling settings decide the answer; losing one would be silent."""
    provider.server.script(json_reply(200, OK))
    await provider.open(
        response_format=JSON_SCHEMA, stop=["结束"], top_k=5, user="u1", reasoning_effort=None,
        deployment={"headers": {"x-team": "a"}, "params": {"top_p": 0.5}}, top_p=0.9,
    )  # fmt: skip

    (sent,) = provider.server.requests
    assert SCHEMA == sent.json["output_format"]["schema"]
    assert (["结束"], 5, 0.5) == (sent.json["stop_sequences"], sent.json["top_k"], sent.json["top_p"])
    assert "u1" == sent.json["metadata"]["user_id"]
    assert ("a", KEY) == (sent.header("x-team"), sent.header("x-api-key"))


@pytest.mark.parametrize("field", ["seed", "logprobs", "n", "logit_bias"])
async def test_field_that_a_provider_lacks_is_named(provider: Provider, field: str) -> None:
    """Better a clear refusal than an answer that is not what was asked for."""
    values = {"seed": 7, "logprobs": True, "n": 2, "logit_bias": {"1": 5}}
    with pytest.raises(Unsupported, match=field) as caught:
        await provider.open(**{field: values[field]})
    assert field == caught.value.param
    assert not provider.server.requests


async def test_defaults_and_labels_do_not_stand_in_the_way(provider: Provider) -> None:
    """SDKs and frameworks send `n: 1`, nulls and labels with every request; none of them changes the answer."""
    provider.server.script(json_reply(200, OK))
    await provider.open(
        n=1, presence_penalty=0, frequency_penalty=0.0, logprobs=False, seed=None, store=False, metadata={"run": "1"},
        safety_identifier="s", prompt_cache_key="k", prompt_cache_retention="24h", response_format={"type": "text"},
        parallel_tool_calls=True, tools=[], unknown=None,
    )  # fmt: skip
    assert {"model", "messages", "max_tokens"} == set(provider.server.requests[0].json)


def test_operator_may_add_fields_and_drop_fields() -> None:
    """LiteLLM's names for both keep their meaning: `allowed_openai_params`, `additional_drop_params`, `drop_params`."""
    assert 1 == passed(params={"allowed_openai_params": ["foo"]}, foo=1)["foo"]
    assert "foo" not in passed(params={"additional_drop_params": ["foo"]}, foo=1)
    assert "foo" not in passed(params={"drop_params": True}, foo=1)
    with pytest.raises(Unsupported):
        passed(params={"additional_drop_params": ["foo"]}, bar=1)


def test_operators_value_wins_over_the_callers() -> None:
    """A `params` of the policy is an override, and may hold LiteLLM's own switches."""
    found = passed(params={"temperature": 0.1, "aws_region_name": "eu-west-1"}, temperature=1.0, aws_region_name="x")
    assert (0.1, "eu-west-1") == (found["temperature"], found["aws_region_name"])


def test_model_of_the_body_is_not_passed() -> None:
    """The deployment's model is; a second name would reach LiteLLM as a second argument."""
    assert "model" not in passed()


def test_strange_field_name_is_not_echoed_whole() -> None:
    """Error messages are logged: a name of any length and content is not."""
    with pytest.raises(Unsupported) as caught:
        passed(**{"x\n" * 100: 1})
    assert "x\n" not in str(caught.value)


def test_embedding_request_keeps_its_input() -> None:
    """Numbers are asked for whatever encoding the caller wants: base64 is made from them afterwards."""
    body = orjson.dumps(
        {"input": ["你好", "hi"], "model": "x", "encoding_format": "base64", "dimensions": 2, "user": "u"}
    )
    call, deployment = Call("r1", "embeddings", body, "embed"), Deployment(name="e", model="gemini/e", mode="embedding")
    assert {"input": ["你好", "hi"], "dimensions": 2} == arguments(call, deployment, body, lambda _: frozenset())
