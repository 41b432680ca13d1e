"""What makes two calls the same, and which calls the cache leaves alone."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
import orjson

from router.policy import ExactCache, Policy
from router.types import Call

Bypass = Literal["off", "route", "no-store", "n", "temperature", "tool-results"]

NOT_IN_KEY = frozenset(
    {
        # The form of the answer only: one stored answer is given out either way.
        "stream", "stream_options",
        # Names of people and requests, for the provider's own records and abuse control.
        "user", "safety_identifier", "metadata",
        # Whether the provider keeps the exchange. A hit is not kept there again: nothing was generated.
        "store",
        # Where the provider computes, how fast, and at which price. A hit is faster than any of them.
        "service_tier", "prompt_cache_key", "prompt_cache_retention",
    }
)  # fmt: skip
"""Body fields which do not change what is answered. A field that nobody here has heard of may, so it counts."""

_read = msgspec.json.Decoder().decode


def cache_key(call: Call, tenant: str, policy: Policy) -> bytes:
    """The digest (32 bytes) of all that changes the answer to `call`, and of nothing else.

    Spacing, escapes and the order of keys do not matter, at any depth; the order of lists does. `tenant` is the API
    key's name and counts unless the policy shares the cache; the policy's fingerprint always does, so an entry never
    outlives the rules that chose its tier. Never raises: a body that has no canonical form is taken byte by byte.
    """
    scope = (call.surface, call.model, _tenant(tenant, policy), policy.fingerprint, sorted(call.headers.items()))
    try:
        parts = orjson.dumps((scope, _fields(call)), option=orjson.OPT_SORT_KEYS)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        # Numbers beyond 64 bits, lone surrogates, bottomless nesting. Equal bytes still mean an equal answer, and the
        # "!" cannot open a JSON list, so the two kinds of key do not meet.
        parts = b"!" + repr(scope).encode() + b"\0" + call.body
    return hashlib.sha256(parts).digest()


def _fields(call: Call) -> dict[str, Any]:
    # msgspec reads, orjson writes. orjson would read 2**70 and 2**70 + 1 as the same float; msgspec keeps them apart,
    # and orjson then refuses to write them. Of a key given twice the last counts, as for most servers.
    fields = _read(call.body)
    if not isinstance(fields, dict):
        raise TypeError("not a JSON object")
    for name in NOT_IN_KEY:
        if name in fields:
            del fields[name]
    if call.temperature is not None:
        fields["temperature"] = float(call.temperature)  # some client libraries write 0, others 0.0
    return fields


def _tenant(tenant: str, policy: Policy) -> str:
    """The tenant as far as it counts: where the cache is shared, only if a rule could send this key elsewhere."""
    exact = policy.cache.exact
    if exact is None or not exact.shared:
        return tenant
    return tenant if any(tenant in (rule.when.key or ()) for rule in policy.rules) else ""


def bypass_reason(call: Call, exact: ExactCache | None, route_cache: bool) -> Bypass | None:
    """Why `call` is neither looked up nor stored, or None.

    `no-cache` is no such reason: its answer is stored. An omitted temperature is not zero: providers take it as one.
    """
    if exact is None:
        return "off"
    if not route_cache:
        return "route"
    if call.cache_control.no_store:
        return "no-store"
    if call.n > 1 and not exact.allow_n:
        return "n"
    if exact.only_deterministic and call.surface == "chat" and call.temperature != 0:
        return "temperature"
    if call.has_tool_results and not exact.tool_results:
        return "tool-results"
    return None
