"""A caller's body → the arguments of LiteLLM's call, by lists of what may pass.

LiteLLM reads its own switches (`api_base`, `mock_response`, `fallbacks`, a cloud's credentials, ...) from the same
keyword arguments as the request's fields, so a caller's unknown field could send our key elsewhere. A field passes if
it is named here or by the policy; any other is refused by name. What a provider is known to lose without a word is
refused too. `drop_params: true` and `additional_drop_params: [...]` among a deployment's `params` keep LiteLLM's
meaning: leave out instead of refusing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from gateway.errors import Unsupported
from router.policy import Deployment
from router.types import Call

CHAT = frozenset((
    "messages", "stream", "stream_options", "functions", "function_call", "tools", "tool_choice",
    "parallel_tool_calls", "temperature", "top_p", "n", "stop", "max_tokens", "max_completion_tokens", "modalities",
    "prediction", "audio", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "seed",
    "response_format", "reasoning_effort", "verbosity", "service_tier", "store", "web_search_options", "thinking",
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
))  # fmt: skip
EMBEDDINGS = frozenset(("input", "dimensions", "user", "input_type", "task_type", "truncate"))

# They say who asks, or how a provider may keep or cache the request. Where a provider has no place for them they are
# left out: no answer depends on them, and clients that always send them would never get one.
LABELS = frozenset(("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"))

# Sampling settings of many servers that OpenAI's API lacks, and the own fields of a few providers.
_ANYWHERE = frozenset(("top_k",))
_OWN: Mapping[str, frozenset[str]] = MappingProxyType({
    "anthropic": frozenset(("cache_control", "context_management")),
    "bedrock": frozenset(("guardrailConfig", "performanceConfig", "requestMetadata")),
    "cohere": frozenset(("documents", "citation_options", "safety_mode")),
    "cohere_chat": frozenset(("documents", "citation_options", "safety_mode")),
    "gemini": frozenset(("safety_settings", "cached_content")),
    "vertex_ai": frozenset(("safety_settings", "cached_content")),
})  # fmt: skip

# What a field means by default: sent like this, it asks for nothing that its absence would not give.
_DEFAULTS: Mapping[str, Any] = MappingProxyType({
    "n": 1, "presence_penalty": 0, "frequency_penalty": 0, "logprobs": False, "logit_bias": {}, "store": False,
    "modalities": ["text"], "parallel_tool_calls": True, "response_format": {"type": "text"}, "service_tier": "auto",
    "tools": [], "functions": [], "stop": [], "metadata": {},
})  # fmt: skip


def _any(_: object) -> bool:
    return True


def _schemaless(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") == "json_object"


# LiteLLM 1.110.2 drops these without a word (seen on the wire; tests/gateway/upstream/test_litellm.py).
_LOST: Mapping[str, Mapping[str, Callable[[object], bool]]] = MappingProxyType({
    "anthropic": {"response_format": _schemaless},
    "bedrock": {"response_format": _schemaless, "parallel_tool_calls": _any},
    "cohere": {"tool_choice": lambda value: value != "auto"},
    "cohere_chat": {"tool_choice": lambda value: value != "auto"},
    "gemini": {"parallel_tool_calls": _any},
    "vertex_ai": {"parallel_tool_calls": _any},
})  # fmt: skip


def arguments(
    call: Call, deployment: Deployment, body: bytes, supported: Callable[[str], frozenset[str]]
) -> dict[str, Any]:
    """Keyword arguments for `acompletion` or `aembedding`, the deployment's address and key left to the caller of this.

    `supported` tells OpenAI's fields that a model's provider has a place for. Raises `Unsupported`, which names the
    field, for what cannot be carried over.
    """
    params = dict(deployment.params)  # the operator's word: everything may be in it
    given = {
        name: value
        for name, value in orjson.loads(body).items()
        if name != "model" and name not in params and value is not None and not _is_default(name, value)
    }
    if call.surface == "embeddings":
        given.pop("encoding_format", None)  # providers answer numbers; `encode_embeddings` makes base64 of them
    unplaced = _unplaced(call, deployment, given)
    labels = [
        name
        for name in LABELS
        if name in given and (call.surface == "embeddings" or not _carried(name, deployment, supported))
    ]
    droppable = _droppable(params, unplaced)
    for name in unplaced:
        if name not in labels and name not in droppable:
            raise _refusal(name, deployment)
    left_out = {*labels, *(name for name in droppable if name not in CHAT)}
    return {name: value for name, value in given.items() if name not in left_out} | params


def _is_default(name: str, value: object) -> bool:
    return name in _DEFAULTS and _DEFAULTS[name] == value


def _unplaced(call: Call, deployment: Deployment, given: Mapping[str, Any]) -> list[str]:
    """Fields that LiteLLM must not see, or would lose for this provider."""
    if call.surface == "embeddings":
        return [name for name in given if name not in EMBEDDINGS]
    named = deployment.params.get("allowed_openai_params") or ()
    allowed = CHAT | _ANYWHERE | _OWN.get(deployment.provider, frozenset()) | frozenset(named)
    lost = _LOST.get(deployment.provider, {})
    return [name for name, value in given.items() if name not in allowed or (name in lost and lost[name](value))]


def _carried(name: str, deployment: Deployment, supported: Callable[[str], frozenset[str]]) -> bool:
    # LiteLLM takes `metadata` for its own log.
    return name != "metadata" and name in supported(deployment.model)


def _droppable(params: Mapping[str, Any], unplaced: list[str]) -> frozenset[str]:
    if params.get("drop_params") is True:
        return frozenset(unplaced)
    return frozenset(params.get("additional_drop_params") or ())


def _refusal(name: str, deployment: Deployment) -> Unsupported:
    shown = name if len(name) <= 64 and name.isprintable() else "(a field with a strange name)"
    return Unsupported(
        f"the field {shown!r} cannot be passed on to a model of {deployment.provider!r} as it is in this request",
        param=shown,
    )
