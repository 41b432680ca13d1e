"""Upstreams that speak OpenAI's protocol: bytes out, bytes back, over one aiohttp session for the process."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from gateway.errors import AttemptError, Broken, TimedOut, Unreachable
from gateway.upstream.failures import classify
from router.policy import Deployment, Policy
from router.types import Attempt, Call

MAX_ANSWER_BYTES = 256 * 2**20
MAX_ERROR_BYTES = 2**20
OPENAI_CLOUD = "https://api.openai.com/v1"

_PATHS = {"chat": "chat/completions", "embeddings": "embeddings"}

# True when the call at hand went out on a pooled connection, which its server may have closed at that very moment.
_reused: ContextVar[bool] = ContextVar("reused", default=False)


class _Connector(aiohttp.TCPConnector):
    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        connection = await super().connect(*args, **kwargs)
        protocol: Any = connection.protocol
        _reused.set(getattr(protocol, "has_served", False))
        protocol.has_served = True
        return connection


class Endpoint:
    """Where a deployment is, and what every request to it carries; computed once."""

    __slots__ = ("connect_s", "headers", "timeout", "urls")

    def __init__(self, deployment: Deployment, connect_s: float, local_ports: Mapping[str, int]) -> None:
        base = deployment.api_base or OPENAI_CLOUD
        if deployment.provider == "local":
            base = f"http://127.0.0.1:{local_ports[deployment.model]}/v1"
        self.urls = {surface: URL(f"{base.rstrip('/')}/{path}") for surface, path in _PATHS.items()}
        self.headers = CIMultiDict({"Content-Type": "application/json", "Accept-Encoding": "identity"})
        if deployment.api_key is not None:
            self.headers["Authorization"] = f"Bearer {deployment.api_key.get_secret_value()}"
        for name, value in deployment.headers.items():
            self.headers[name] = value.get_secret_value()
        self.timeout = aiohttp.ClientTimeout(total=None, connect=connect_s)


class OpenAIUpstream:
    """All deployments of a policy that speak OpenAI's protocol, the embedded models among them."""

    def __init__(self, policy: Policy, local_ports: Mapping[str, int]) -> None:
        self._endpoints = {
            deployment.name: Endpoint(deployment, tier.timeouts.connect, local_ports)
            for tier in policy.tiers.values()
            for deployment in tier.deployments
            if deployment.provider in ("openai", "local")
        }
        self._session: aiohttp.ClientSession | None = None

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:  # made inside the loop that uses it
            self._session = aiohttp.ClientSession(
                connector=_Connector(limit=0, ttl_dns_cache=60),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept"),
                raise_for_status=False,
            )
        return self._session

    async def open(self, call: Call, attempt: Attempt, body: bytes) -> OpenAIReply:
        endpoint = self._endpoints[attempt.deployment.name]
        try:
            response = await self._post(endpoint, endpoint.urls[call.surface], body)
        except aiohttp.ConnectionTimeoutError as exc:
            raise TimedOut("connect") from exc
        except aiohttp.ClientConnectorError as exc:
            raise Unreachable("the model's server cannot be reached") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise Broken("the connection to the model's server broke") from exc
        if response.status == 200:
            return OpenAIReply(response)
        raise await _failure(response)

    async def _post(self, endpoint: Endpoint, url: URL, body: bytes) -> aiohttp.ClientResponse:
        post = self._client().post
        _reused.set(False)
        try:
            return await post(url, data=body, headers=endpoint.headers, timeout=endpoint.timeout, allow_redirects=False)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if not _reused.get():
                raise
        # It hung up on a pooled connection before a byte came back: an idle close that crossed our request.
        return await post(url, data=body, headers=endpoint.headers, timeout=endpoint.timeout, allow_redirects=False)

    async def prepare(self) -> None:
        """Nothing takes long here."""

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _failure(response: aiohttp.ClientResponse) -> AttemptError:
    reply = OpenAIReply(response, max_bytes=MAX_ERROR_BYTES)
    try:
        body = await reply.read()
    except AttemptError:
        body = b""
    finally:
        await reply.aclose()
    return classify(response.status, response.headers, body)


class OpenAIReply:
    """An open response. `aclose` gives its connection back to the pool, or closes it if bytes are still to come."""

    __slots__ = ("_encoding", "_max_bytes", "_response")

    def __init__(self, response: aiohttp.ClientResponse, max_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._response = response
        self._max_bytes = max_bytes
        self._encoding = response.headers.get("Content-Encoding", "").strip().lower() or "identity"

    async def read(self) -> bytes:
        response = self._response
        length = response.content_length
        if self._encoding == "identity" and length is not None and length <= self._max_bytes:
            try:
                return await response.read()
            except (aiohttp.ClientError, OSError) as exc:
                raise Broken("the answer was cut short") from exc
        pieces, size = [], 0
        async for piece in self.chunks():
            size += len(piece)
            if size > self._max_bytes:
                raise Broken("the answer is larger than the gateway accepts")
            pieces.append(piece)
        return b"".join(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        readany, unzip = self._response.content.readany, _decompressor(self._encoding)
        try:
            while data := await readany():
                if unzip is None:
                    yield data
                elif plain := unzip.decompress(data):
                    yield plain
        except (aiohttp.ClientError, OSError, zlib.error) as exc:
            raise Broken("the answer was cut short") from exc
        if unzip is not None and not unzip.eof:
            raise Broken("the answer was cut short")

    async def aclose(self) -> None:
        if self._response.content.at_eof():
            self._response.release()  # its connection can be used again
        else:
            self._response.close()


def _decompressor(encoding: str) -> Any:
    """We ask for identity; some servers compress all the same."""
    if encoding == "identity":
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # finds out which of the two it is
    raise Broken("the answer came in an encoding that was not asked for")
