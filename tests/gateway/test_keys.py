"""API keys: known by their hash alone, presented in any of the usual headers, compared in constant time."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.keys import Keyring, hash_key, new_key
from gateway.errors import Unauthorized
from router.policy import Policy
from tests.client import Client
from tests.gateway.conftest import Start, tier
from tests.router.policy_text import THREE, policy
from tests.upstream import Upstream, answer, stream


def keyed(**keys: bytes) -> Policy:
    listed = [{"name": name, "hash": hash_key(key)} for name, key in keys.items()]
    return policy(THREE + f"keys: {json.dumps(listed)}\n")


RING = Keyring(keyed(alice=b"tg-alice", bob="钥匙".encode()))


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        (b"Bearer tg-alice", None),
        (b"bearer tg-alice", None),
        (b"BEARER   tg-alice ", None),
        (None, b"tg-alice"),
        (b"Basic dXNlcjpwYXNz", b"tg-alice"),
    ],
)
def test_key_is_found_in_any_usual_header(authorization: bytes | None, api_key: bytes | None) -> None:
    """OpenAI's SDKs send Authorization, Anthropic's x-api-key, Azure's api-key; proxies add Basic of their own."""
    found = RING.check(authorization, api_key)

    assert found is not None
    assert "alice" == found.name


def test_key_may_hold_any_bytes() -> None:
    """A header is bytes; so is what is hashed."""
    found = RING.check("Bearer 钥匙".encode(), None)

    assert found is not None
    assert "bob" == found.name


@pytest.mark.parametrize(
    "given", [b"", b"Bearer", b"Bearer ", b"tg-alice", b"Bearer tg-alicf", b"Bearer tg-alice2", b"Basic tg-alice", None]
)
def test_anything_else_is_refused(given: bytes | None) -> None:
    """Including a key without its scheme: half a header is no header."""
    with pytest.raises(Unauthorized) as caught:
        RING.check(given, None)

    assert "tg-alic" not in str(caught.value)


def test_hash_is_no_key() -> None:
    """Who has read the policy file cannot call with what stands there."""
    with pytest.raises(Unauthorized):
        RING.check(b"Bearer " + hash_key(b"tg-alice").encode(), None)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=40))
def test_no_header_is_able_to_raise_anything_else(authorization: bytes, api_key: bytes | None) -> None:
    """Strangers choose these bytes."""
    try:
        found = RING.check(authorization, api_key)
    except Unauthorized:
        return
    assert found is not None


def test_without_keys_nobody_is_asked() -> None:
    """On loopback, for a first try; `serve` refuses to listen elsewhere."""
    assert Keyring(policy(THREE)).check(None, None) is None


def test_new_key_is_long_random_and_matches_its_hash() -> None:
    """The printed hash is what the policy needs, and the key what the caller needs."""
    made = [new_key() for _ in range(50)]

    assert 50 == len({key for key, _ in made})
    for key, digest in made:
        assert key.startswith("tg-")
        assert len(key) >= 40
        assert key.isascii()
        assert "sha256:" + hashlib.sha256(key.encode()).hexdigest() == digest
        found = Keyring(policy(THREE + f"keys: [{{name: n, hash: '{digest}'}}]\n")).check(
            f"Bearer {key}".encode(), None
        )
        assert found is not None


# --- on the path ---


async def test_each_key_is_accounted_for_by_its_name(start: Start, small: Upstream) -> None:
    """The log names the key and never shows it."""
    keys = [{"name": name, "hash": hash_key(f"tg-{name}".encode())} for name in ("alice", "团队")]
    gateway = await start({"tiers": {"small": tier(small, "small")}, "keys": keys})
    small.default(answer("ok"))
    url = f"http://{gateway.host}:{gateway.port}"

    await Client(url, "tg-alice").chat(model="small")
    await gateway.post(
        "/v1/chat/completions", {"model": "small", "messages": [{"role": "user", "content": "你好"}]},
        headers={"api-key": "tg-团队".encode().decode("latin-1")},
    )  # fmt: skip

    lines = await gateway.settled(2)
    assert ["alice", "-"] == [line["key"] for line in lines] or ["alice", "团队"] == [line["key"] for line in lines]
    assert "tg-" not in json.dumps(lines, ensure_ascii=False)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/small"])
async def test_lists_need_a_key_too(start: Start, small: Upstream, path: str) -> None:
    """The names of an operator's models are the operator's."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "keys": [{"name": "a", "hash": hash_key(b"k")}]})
    url = f"http://{gateway.host}:{gateway.port}"

    refused, allowed = await gateway.get(path), await Client(url, "k").get(path)

    assert (401, 200) == (refused.status, allowed.status)


async def test_refusal_says_how_to_authenticate_beside_the_data_path_too(start: Start, small: Upstream) -> None:
    """HTTP wants the header with every 401, and clients that ask for credentials look for it."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "keys": [{"name": "a", "hash": hash_key(b"k")}]})

    assert "Bearer" == (await gateway.get("/v1/models")).header("www-authenticate")


async def test_route_needs_a_key_and_its_permission(start: Start, small: Upstream) -> None:
    """The decision tells about the policy, so it is asked for as a call is."""
    keys = [{"name": "a", "hash": hash_key(b"k"), "routes": ["auto"]}]
    gateway = await start({"tiers": {"small": tier(small, "small")}, "routes": {"auto": {}}, "keys": keys})
    client = Client(f"http://{gateway.host}:{gateway.port}", "k")

    def body(model: str) -> dict[str, Any]:
        return {"model": model, "messages": [{"role": "user", "content": "hi"}]}

    stranger = await gateway.post("/v1/route", body("auto"))
    allowed, forbidden = await client.post("/v1/route", body("auto")), await client.post("/v1/route", body("small"))

    assert (401, 200, 403) == (stranger.status, allowed.status, forbidden.status)


async def test_key_that_was_taken_away_is_refused_after_the_reload(start: Start, small: Upstream) -> None:
    """A leaked key is closed without a restart, while its running answer is finished."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "keys": [{"name": "a", "hash": hash_key(b"old")}]})
    small.script(*stream("last"))
    url = f"http://{gateway.host}:{gateway.port}"
    assert 200 == (await Client(url, "old").chat(model="small", stream=True)).status

    text = json.loads(gateway.policy_file.read_text())
    text["keys"] = [{"name": "a", "hash": hash_key(b"new")}]
    gateway.policy_file.write_text(json.dumps(text))
    assert () == gateway.app.reloader.reload()

    assert 401 == (await Client(url, "old").get("/v1/models")).status
    assert 200 == (await Client(url, "new").get("/v1/models")).status
