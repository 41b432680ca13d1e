"""The caller's body with a few top-level fields set, every other byte of every value as it was."""

from __future__ import annotations

import msgspec
import orjson

from router.policy import Deployment
from router.types import Call

_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_WITH_USAGE = b'{"include_usage":true}'


def replace_fields(body: bytes, fields: dict[str, bytes]) -> bytes:
    """`body`, a JSON object, with these top-level fields set to raw JSON values.

    A key that stands twice in `body` stands once in the result, with its last value: the one that we decided on.
    """
    values: dict[str, msgspec.Raw | bytes] = dict(_read_object(body))
    values.update(fields)
    return b"{" + b",".join([orjson.dumps(name) + b":" + bytes(value) for name, value in values.items()]) + b"}"


def with_cost(chunk: bytes, cost_usd: float | None, saved_usd: float | None) -> bytes:
    """A chunk that holds usage, with what the answer cost inside it."""
    usage = bytes(_read_object(chunk)["usage"])
    told = {"cost_usd": orjson.dumps(cost_usd), "saved_usd": orjson.dumps(saved_usd)}
    return replace_fields(chunk, {"usage": replace_fields(usage, told)})


def rewrite(call: Call, deployment: Deployment) -> bytes:
    """What a deployment is sent: its own model name, the policy's overrides, and a wish for usage in streams."""
    fields = {"model": orjson.dumps(deployment.model_id)}
    for name, value in deployment.params.items():
        fields[name] = orjson.dumps(value)
    if call.stream and not call.wants_usage and deployment.stream_usage:
        fields["stream_options"] = _with_usage(call.body)
    return replace_fields(call.body, fields)


def _with_usage(body: bytes) -> bytes:
    options = _read_object(body).get("stream_options") if b'"stream_options"' in body else None
    if options is None or bytes(options) == b"null":
        return _WITH_USAGE
    return replace_fields(bytes(options), {"include_usage": b"true"})
