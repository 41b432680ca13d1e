"""Who calls: API keys of the gateway, known by their hash alone."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from gateway.errors import Unauthorized
from router.policy import Key, Policy

PREFIX = "tg-"


class Keyring:
    """The policy's keys, by hash. A key's hash tells nothing of the key, so looking it up gives no time signal."""

    def __init__(self, policy: Policy) -> None:
        self._keys = {key.hash: key for key in policy.keys}

    def check(self, authorization: bytes | None, api_key: bytes | None) -> Key | None:
        """The caller's key; None where the policy has none. Raises `Unauthorized`.

        `authorization` is the header's value (`Bearer ...`), `api_key` that of `x-api-key` or `api-key`.
        """
        if not self._keys:
            return None
        scheme, _, token = (authorization or b"").partition(b" ")
        presented = token.strip() if scheme.lower() == b"bearer" else api_key or b""
        if not presented:
            raise Unauthorized("no API key was given; send it as 'Authorization: Bearer KEY'")
        digest = hash_key(presented)
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.hash, digest):
            raise Unauthorized("the API key is not known to this gateway")
        return key


def hash_key(key: bytes) -> str:
    """The form in which a policy holds a key."""
    return "sha256:" + hashlib.sha256(key).hexdigest()


def new_key() -> tuple[str, str]:
    """A new random key, and the hash of it for the policy."""
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key.encode())
