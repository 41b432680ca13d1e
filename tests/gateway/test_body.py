"""The caller's body on its way to an upstream: a few top-level fields set, every other byte as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.body import replace_fields, rewrite
from router.policy import Deployment
from router.types import Call

SENT = (
    b'{ "model" : "auto","messages":[{"role":"user","content":"caf\\u00e9 \\u4f60","x":1.50}],\n'
    b'"seed": 1e2, "model2":[ 1 ]}'
)


def deployment(**fields: Any) -> Deployment:
    return Deployment(**{"name": "d", "model": "openai/Qwen/Qwen3-32B", "api_base": "http://d/v1", **fields})


def call(body: bytes = SENT, **fields: Any) -> Call:
    return Call("r", "chat", body, "auto", **fields)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(
    st.dictionaries(st.text(max_size=10), VALUES, max_size=6), st.dictionaries(st.text(max_size=10), VALUES, max_size=3)
)
def test_replacing_is_what_a_dictionary_would_do(body: dict[str, Any], fields: dict[str, Any]) -> None:
    """For every object, in any language, with keys that need escapes."""
    raw = {name: json.dumps(value).encode() for name, value in fields.items()}

    assert {**body, **fields} == json.loads(replace_fields(json.dumps(body).encode(), raw))


def test_values_keep_their_bytes() -> None:
    """1.50 is not 1.5 and \\u4f60 not 你: a signature or a cache upstream may depend on it."""
    out = replace_fields(SENT, {"model": b'"m"'})

    assert b'"messages":[{"role":"user","content":"caf\\u00e9 \\u4f60","x":1.50}]' in out
    assert b'"seed":1e2' in out
    assert b'"model2":[ 1 ]' in out
    assert "m" == json.loads(out)["model"]


def test_doubled_key_stands_once_with_the_value_that_was_decided_on() -> None:
    """Two servers may read the same body differently; after us there is only one way."""
    out = replace_fields(b'{"model":"a","n":1,"model":"b","n":2}', {"model": b'"m"'})

    assert (1, 1) == (out.count(b'"model"'), out.count(b'"n"'))
    assert {"model": "m", "n": 2} == json.loads(out)


@pytest.mark.parametrize("depth", [10, 300])
def test_deep_values_pass(depth: int) -> None:
    """They are not looked into."""
    deep = b"[" * depth + b"]" * depth

    assert deep in replace_fields(b'{"x":' + deep + b"}", {"model": b'"m"'})


# --- rewrite ---


def test_deployments_own_name_is_sent() -> None:
    """What stands behind the provider's prefix, slashes included."""
    assert "Qwen/Qwen3-32B" == json.loads(rewrite(call(), deployment()))["model"]


def test_overrides_of_the_policy_win() -> None:
    """`params` is for servers that need something that no client knows of."""
    sent = json.loads(rewrite(call(), deployment(params={"seed": 7, "chat_template_kwargs": {"thinking": False}})))

    assert (7, {"thinking": False}) == (sent["seed"], sent["chat_template_kwargs"])


def test_whole_answers_are_not_asked_for_stream_options() -> None:
    """OpenAI refuses the field without stream."""
    assert "stream_options" not in json.loads(rewrite(call(), deployment()))


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (b"", {"include_usage": True}),
        (b',"stream_options":null', {"include_usage": True}),
        (b',"stream_options":{}', {"include_usage": True}),
        (b',"stream_options":{"include_usage":false,"x":1}', {"include_usage": True, "x": 1}),
    ],
)
def test_streams_are_asked_for_usage(given: bytes, sent: dict[str, Any]) -> None:
    """Costs need tokens, whether or not the caller wants to see them; other options of the caller stay."""
    body = b'{"model":"auto","stream":true' + given + b"}"

    assert sent == json.loads(rewrite(call(body, stream=True), deployment()))["stream_options"]


def test_server_that_refuses_stream_options_is_spared_them() -> None:
    """`stream_usage: false`."""
    body = b'{"model":"auto","stream":true}'

    assert "stream_options" not in json.loads(rewrite(call(body, stream=True), deployment(stream_usage=False)))


def test_caller_who_asks_for_usage_has_its_own_bytes_sent() -> None:
    """Nothing to add, so nothing is touched."""
    body = b'{"model":"auto","stream":true,"stream_options":{ "include_usage" : true }}'

    assert b'"stream_options":{ "include_usage" : true }' in rewrite(
        call(body, stream=True, wants_usage=True), deployment()
    )
