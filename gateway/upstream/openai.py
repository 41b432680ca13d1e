"""Upstreams that speak OpenAI's protocol: bytes out, bytes back, over one pool of connections for the process."""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from gateway.deadline import within
from gateway.errors import AttemptError, Broken, Unreachable
from gateway.upstream.failures import classify
from gateway.upstream.http1 import Connection, Dropped, Pool, TooMuch, destination
from router.policy import Deployment, Policy
from router.types import Attempt, Call

MAX_ANSWER_BYTES = 256 * 2**20
MAX_ERROR_BYTES = 2**20
OPENAI_CLOUD = "https://api.openai.com/v1"

_PATHS = {"chat": "chat/completions", "embeddings": "embeddings"}


class Endpoint:
    """Where a deployment is, and what every request to it carries; computed once."""

    __slots__ = ("connect_s", "to")

    def __init__(self, deployment: Deployment, connect_s: float, local_ports: Mapping[str, int]) -> None:
        base = deployment.api_base or OPENAI_CLOUD
        if deployment.provider == "local":
            base = f"http://127.0.0.1:{local_ports[deployment.model]}/v1"
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if deployment.api_key is not None:
            headers["Authorization"] = f"Bearer {deployment.api_key.get_secret_value()}"
        headers |= {name: value.get_secret_value() for name, value in deployment.headers.items()}
        self.to = {surface: destination(f"{base.rstrip('/')}/{path}", headers) for surface, path in _PATHS.items()}
        self.connect_s = connect_s


class OpenAIUpstream:
    """All deployments of a policy that speak OpenAI's protocol, the embedded models among them."""

    def __init__(self, policy: Policy, local_ports: Mapping[str, int]) -> None:
        self._endpoints = {
            deployment.name: Endpoint(deployment, tier.timeouts.connect, local_ports)
            for tier in policy.tiers.values()
            for deployment in tier.deployments
            if deployment.provider in ("openai", "local")
        }
        self._pool: Pool | None = None

    @property
    def pool(self) -> Pool:
        if self._pool is None:  # made inside the loop that uses it
            self._pool = Pool()
        return self._pool

    async def open(self, call: Call, attempt: Attempt, body: bytes) -> OpenAIReply:
        endpoint = self._endpoints[attempt.deployment.name]
        to = endpoint.to[call.surface]
        connection = self.pool.take(to.origin) or await self._connect(endpoint, call)
        try:
            await _post(connection, to.head, body)
        except Dropped as exc:
            if not exc.untouched:
                raise Broken("the connection to the model's server broke") from exc
            connection = await self._again(endpoint, call, body)
        reply = OpenAIReply(self.pool, connection)
        if connection.status == 200:
            return reply
        raise await _failure(reply, connection)

    async def _again(self, endpoint: Endpoint, call: Call, body: bytes) -> Connection:
        """Its server closed an idle connection just as our request went out: once more, on a new one."""
        connection = await self._connect(endpoint, call)
        try:
            await _post(connection, endpoint.to[call.surface].head, body)
        except Dropped as exc:
            raise Broken("the connection to the model's server broke") from exc
        return connection

    async def _connect(self, endpoint: Endpoint, call: Call) -> Connection:
        try:
            async with within(time.monotonic() + endpoint.connect_s, "connect"):
                return await self.pool.connect(endpoint.to[call.surface].origin)
        except (OSError, UnicodeError) as exc:  # a name that cannot be looked up may be a UnicodeError
            raise Unreachable("the model's server cannot be reached") from exc

    async def prepare(self) -> None:
        """Nothing takes long here."""

    async def aclose(self) -> None:
        if self._pool is not None:
            self._pool.close()


async def _post(connection: Connection, head: bytes, body: bytes) -> None:
    try:
        await connection.post(head, body)
    except BaseException:
        connection.transport.abort()
        raise


async def _failure(reply: OpenAIReply, connection: Connection) -> AttemptError:
    status, headers = connection.status, connection.headers
    try:
        body = await reply.read(MAX_ERROR_BYTES)
    except AttemptError:
        body = b""
    finally:
        await reply.aclose()
    return classify(status, headers, body)


class OpenAIReply:
    """An open response. `aclose` gives its connection back to the pool, or aborts it if bytes are still to come."""

    __slots__ = ("_connection", "_encoding", "_pool")

    def __init__(self, pool: Pool, connection: Connection) -> None:
        self._pool = pool
        self._connection: Connection | None = connection
        self._encoding = connection.headers.get("content-encoding", "").strip().lower() or "identity"

    async def read(self, max_bytes: int = MAX_ANSWER_BYTES) -> bytes:
        if self._encoding == "identity" and self._connection is not None:
            try:
                return await self._connection.read(max_bytes)
            except Dropped as exc:
                raise Broken("the answer was cut short") from exc
            except TooMuch as exc:
                raise Broken("the answer is larger than the gateway accepts") from exc
        pieces, size = [], 0
        async for piece in self.chunks():
            size += len(piece)
            if size > max_bytes:
                raise Broken("the answer is larger than the gateway accepts")
            pieces.append(piece)
        return b"".join(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        unzip = _decompressor(self._encoding)
        try:
            while (connection := self._connection) is not None and (data := await connection.readany()):
                if unzip is None:
                    yield data
                elif plain := unzip.decompress(data):
                    yield plain
        except (Dropped, zlib.error) as exc:
            raise Broken("the answer was cut short") from exc
        if unzip is not None and not unzip.eof:
            raise Broken("the answer was cut short")

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give(connection)


def _decompressor(encoding: str) -> Any:
    """We ask for identity; some servers compress all the same."""
    if encoding == "identity":
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # finds out which of the two it is
    raise Broken("the answer came in an encoding that was not asked for")
