"""The HTTP client under the OpenAI upstream: framing, reuse of connections, TLS, and servers that misbehave."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.upstream import http1
from gateway.upstream.http1 import Connection, Destination, Dropped, Pool, TooMuch, destination
from tests.needs import need
from tests.upstream import Close, Hang, Reset, Send, Upstream, Wait, http

OK = http(200, {}, b"{}")


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


def to(server: Upstream) -> Destination:
    return destination(f"{server.url}/chat/completions", {"Content-Type": "application/json"})


async def asked(pool: Pool, server: Upstream, body: bytes = b"{}") -> Connection:
    where = to(server)
    connection = pool.take(where.origin) or await pool.connect(where.origin)
    await connection.post(where.head, body)
    return connection


async def test_request_is_what_servers_expect(pool: Pool, small: Upstream) -> None:
    """Host, length and the caller's bytes; nothing that nobody asked for."""
    small.script(Send(OK))

    connection = await asked(pool, small, '{"问":1}'.encode())

    assert (200, b"{}") == (connection.status, await connection.read(100))
    [request] = small.requests
    assert {"Host", "Content-Type", "Content-Length"} == {name for name, _ in request.headers}
    assert ("POST", "/v1/chat/completions", {"问": 1}) == (request.method, request.path, request.json)
    pool.give(connection)


async def test_connection_serves_again_after_its_answer_was_read(pool: Pool, small: Upstream) -> None:
    """A handshake for each request would cost more than the gateway itself."""
    small.default(Send(http(200, {}, b"{}", chunked=True)))

    for _ in range(3):
        connection = await asked(pool, small)
        assert b"{}" == await connection.read(100)
        pool.give(connection)

    assert 1 == small.connections_made


@pytest.mark.parametrize("end", ["unread", "close", "surplus", "1.0"])
async def test_connection_that_may_hold_anothers_bytes_is_not_used_again(pool: Pool, small: Upstream, end: str) -> None:
    """What is left of one answer must never be the beginning of another caller's."""
    surplus = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret"
    replies = {
        "unread": http(200, {}, b"x" * 10),
        "close": http(200, {"connection": "close"}, b"{}"),
        "surplus": OK + surplus,
        "1.0": OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
    }
    small.script(Send(replies[end]))
    small.script(Send(http(200, {}, b"mine")))

    first = await asked(pool, small)
    if end != "unread":
        assert b"{}" == await first.read(100)
    await asyncio.sleep(0.02)
    pool.give(first)
    second = await asked(pool, small)

    assert b"mine" == await second.read(100)
    assert first is not second
    pool.give(second)


async def test_server_that_says_continue_first_is_waited_for(pool: Pool, small: Upstream) -> None:
    """100 is no answer."""
    small.script(Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Wait(0.02), Send(http(200, {}, b"real")))

    connection = await asked(pool, small)

    assert (200, b"real") == (connection.status, await connection.read(100))
    pool.give(connection)


async def test_body_that_ends_with_its_connection_is_whole_only_if_it_closes_well(pool: Pool, small: Upstream) -> None:
    """HTTP/1.0 servers end so; a reset is no end."""
    small.script(Send(b"HTTP/1.1 200 OK\r\n\r\nall of it"), Close())
    small.script(Send(b"HTTP/1.1 200 OK\r\n\r\nhalf"), Reset())
    small.script(Send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"), Close())

    assert b"all of it" == await (await asked(pool, small)).read(100)
    for _ in range(2):
        with pytest.raises(Dropped):
            await (await asked(pool, small)).read(100)


async def test_limits_hold(pool: Pool, small: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an endless head nor an endless body may fill the memory."""
    monkeypatch.setattr(http1, "MAX_HEAD_BYTES", 1000)
    small.script(Send(b"HTTP/1.1 200 OK\r\na: " + b"x" * 2000), Hang())
    small.script(Send(http(200, {}, b"x" * 101)))

    with pytest.raises(Dropped):
        await asked(pool, small)
    connection = await asked(pool, small)
    with pytest.raises(TooMuch):
        await connection.read(100)
    pool.give(connection)


async def test_fast_server_waits_for_a_slow_reader(pool: Pool, small: Upstream) -> None:
    """A stream that nobody reads must not be collected in memory."""
    small.script(Send(http(200, {}, b"x" * 8_000_000)))

    connection = await asked(pool, small)
    await asyncio.sleep(0.1)
    held = connection._size
    assert held < 3_000_000
    assert 8_000_000 == len(await connection.read(10**7))
    pool.give(connection)


async def test_idle_connection_that_its_server_closed_is_forgotten(pool: Pool, small: Upstream) -> None:
    """No dead connection is taken, and none is kept for ever."""
    small.script(Send(OK))
    connection = await asked(pool, small)
    await connection.read(100)
    pool.give(connection)

    for held in tuple(small._connections):
        held.transport.close()
    await small.wait_for(lambda: not small.open_connections)
    while pool._idle.get(connection.origin):
        await asyncio.sleep(0.001)

    assert pool.take(connection.origin) is None


async def test_connection_that_rested_too_long_is_not_used(
    pool: Pool, small: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may be closing it at this very moment."""
    monkeypatch.setattr(http1, "IDLE_S", 0.01)
    small.default(Send(OK))
    first = await asked(pool, small)
    await first.read(100)
    pool.give(first)
    await asyncio.sleep(0.03)

    second = await asked(pool, small)
    await second.read(100)
    pool.give(second)

    assert 2 == small.connections_made


async def test_cancelled_wait_aborts_the_connection(pool: Pool, small: Upstream) -> None:
    """The server hears at once that nobody listens."""
    small.script(Hang())
    where = to(small)
    connection = await pool.connect(where.origin)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await connection.post(where.head, b"{}")
    pool.give(connection)

    await small.wait_for_disconnect(1.0)


def test_header_cannot_smuggle_another() -> None:
    """A line end in a configured value would end the head."""
    with pytest.raises(ValueError, match="line end"):
        destination("http://h/v1", {"Authorization": "Bearer a\r\nX-Evil: 1"})


def own_certificate(cert: Path) -> ssl.SSLContext:
    """A server's context with a new certificate for localhost, which is also written to `cert`."""
    need("openssl", "openssl")
    key = cert.with_name("key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


async def test_tls_is_verified_and_spoken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that nobody vouches for is no server of ours; one that is known is."""
    cert = tmp_path / "cert.pem"
    context = own_certificate(cert)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(OK)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    where = destination(f"https://localhost:{server.sockets[0].getsockname()[1]}/v1", {})
    async with server:
        with pytest.raises(ssl.SSLCertVerificationError):
            await Pool().connect(where.origin)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        connection = await Pool().connect(where.origin)
        await connection.post(where.head, b"{}")
        assert b"{}" == await connection.read(100)
        connection.transport.abort()
