"""A caller who leaves, at every wait of the path: no slot, no task, no connection is left, and one line tells of it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.client import Client, Leave, request_bytes
from tests.gateway.conftest import TIMEOUTS, Gateway, Start, tier
from tests.upstream import (
    END_CHUNKS,
    HEAD,
    HEAD_CHUNKED,
    Chunk,
    Hang,
    Send,
    Upstream,
    Wait,
    answer,
    error_reply,
    event,
    http,
    role,
    stream,
)

PATIENT = {**TIMEOUTS, "connect": "5s", "first_token": "5s", "first_byte": "5s", "idle": "5s"}
GONE = [Leave(after_s=0.15), Leave(after_s=0.15, reset=True)]
HOW = pytest.mark.parametrize("leave", GONE, ids=["close", "reset"])
BOTH = pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])


async def until(condition: Callable[[], object], timeout: float = 3.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def patient(start: Start, small: Upstream, medium: Upstream) -> Gateway:
    """Limits so long that only leaving can end a wait."""
    tiers = {name: tier(up, name, timeouts=PATIENT) for name, up in (("small", small), ("medium", medium))}
    gateway: Gateway = await start({"tiers": tiers, "routes": {"auto": {"tier": "small"}}})
    return gateway


@asynccontextmanager
async def nothing_is_left(gateway: Gateway, *upstreams: Upstream, lines: int = 1) -> AsyncIterator[None]:
    """After the block: no task, no slot, no connection to an upstream, and `lines` lines in the log."""
    before = asyncio.all_tasks()
    yield
    found = await gateway.settled(lines)
    assert "client_closed" == found[0]["outcome"]
    assert 499 == found[0]["status"]
    await until(lambda: not (asyncio.all_tasks() - before))
    await until(lambda: not any(slot.open or slot._waiting for slot in gateway.rt.executor._slots.values()))
    for upstream in upstreams:
        await until(lambda upstream=upstream: not upstream.open_connections)  # type: ignore[misc]
    assert 0 == gateway.metric("tiergate_in_flight") == gateway.metric("tiergate_queue_depth")
    assert 0 == gateway.rt._calls
    assert lines == len(gateway.requests())
    assert 1 == gateway.metric("tiergate_requests_total", outcome="client_closed")


@HOW
async def test_while_the_request_is_still_being_sent(patient: Gateway, small: Upstream, leave: Leave) -> None:
    """Half a body: there is nothing to do and nobody to tell, but it was a call."""
    whole = request_bytes(
        "POST", "/v1/chat/completions", [("content-type", "application/json")], b'{"model": "auto"' * 50
    )

    async with nothing_is_left(patient, small):
        await patient.send(whole[:-20], leave=leave)

    assert not small.requests


@HOW
@BOTH
async def test_before_the_headers_of_the_answer(
    patient: Gateway, small: Upstream, medium: Upstream, leave: Leave, streamed: bool
) -> None:
    """The model need not think for nobody; and no other model is asked instead."""
    small.script(Hang())

    async with nothing_is_left(patient, small, medium):
        await patient.chat("有人吗", stream=streamed, leave=leave)
        await small.wait_for_disconnect(1.5)

    assert not medium.requests
    [line] = patient.requests()
    assert ["cancelled"] == [attempt["outcome"] for attempt in line["attempts"]]


async def test_while_connecting(start: Start) -> None:
    """A machine that is gone answers nothing at all: the longest wait of them all."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        queue = [socket.socket() for _ in range(4)]
        for waiting in queue:  # more than the backlog: the next SYN is dropped
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        gateway = await start({"tiers": {"small": tier(url, "small", timeouts=PATIENT)}})

        async with nothing_is_left(gateway):
            await gateway.chat(model="small", leave=Leave(after_s=0.2))

        for waiting in queue:
            waiting.close()


@HOW
async def test_between_the_headers_and_the_first_token(patient: Gateway, small: Upstream, leave: Leave) -> None:
    """A role is no token: nothing has gone out yet."""
    small.script(Send(HEAD), Send(role()), Hang())

    async with nothing_is_left(patient, small):
        await patient.chat(stream=True, leave=leave)


@HOW
async def test_in_the_middle_of_a_whole_body(patient: Gateway, small: Upstream, leave: Leave) -> None:
    """Half of the JSON has come."""
    whole = http(200, {}, json.dumps({"choices": [{"message": {"content": "好" * 1000}}]}).encode())
    small.script(Send(whole[:-500]), Hang())

    async with nothing_is_left(patient, small):
        await patient.chat(leave=leave)


@pytest.mark.parametrize("reset", [False, True])
async def test_in_mid_stream(patient: Gateway, small: Upstream, reset: bool) -> None:
    """While it is written to, and while nothing comes."""
    small.script(Send(HEAD_CHUNKED), Chunk(event("一")), Chunk(event("二")), Hang())

    async with nothing_is_left(patient, small):
        await patient.chat("数数", stream=True, leave=Leave(after_events=2, reset=reset))

    [line] = patient.requests()
    assert (2, True) == (line["completion_tokens"], line["usage_estimated"])


async def test_in_a_stream_that_runs_at_full_speed(patient: Gateway, small: Upstream) -> None:
    """The wait is then for the caller to read, not for the model to write."""
    small.script(Send(HEAD_CHUNKED), *(Chunk(event("快" * 3000)) for _ in range(2000)), END_CHUNKS)

    async with nothing_is_left(patient, small):
        await patient.chat(stream=True, leave=Leave(after_events=3, reset=True))


@HOW
async def test_in_the_queue_for_a_slot(start: Start, small: Upstream, leave: Leave) -> None:
    """Its place in line goes to the next one, who is answered."""
    gateway = await start(
        {"tiers": {"small": tier(small, "small", timeouts=PATIENT, concurrency={"max": 1, "queue": 5})}}
    )
    small.script(Wait(0.6), answer("first"))
    small.script(answer("third"))
    first = asyncio.create_task(gateway.chat("一", model="small"))
    await small.wait_for_requests(1)

    second = asyncio.create_task(gateway.chat("二", model="small", leave=leave))
    await until(lambda: gateway.metric("tiergate_queue_depth") == 1)
    third = asyncio.create_task(gateway.chat("三", model="small"))
    await second
    await until(lambda: gateway.metric("tiergate_queue_depth") == 1)

    assert ("first", "third") == ((await first).text, (await third).text)
    assert {"client_closed", "ok"} == {line["outcome"] for line in await gateway.settled(3)}
    assert 2 == len(small.requests)


@HOW
async def test_in_the_pause_before_a_retry(start: Start, small: Upstream, leave: Leave) -> None:
    """The retry is not made."""
    retry = {"attempts": 3, "backoff": {"initial": "10ms", "max": "5s"}}
    gateway = await start({"tiers": {"small": tier(small, "small", retry=retry)}})
    small.script(error_reply(429, headers={"retry-after": "4"}))

    async with nothing_is_left(gateway, small):
        await gateway.chat(model="small", leave=leave)
        await until(lambda: gateway.requests())
        for connection in tuple(small._connections):  # a good connection, kept for the next call
            connection.transport.close()

    assert 1 == len(small.requests)


@HOW
async def test_while_waiting_for_somebody_elses_answer(start: Start, small: Upstream, leave: Leave) -> None:
    """The leader of identical calls goes on; its answer is stored, and who left is not waited for."""
    gateway = await start(
        {"tiers": {"small": tier(small, "small", timeouts=PATIENT)}, "cache": {"exact": {"ttl": "1h"}}}
    )
    small.script(Wait(0.5), answer("for all"))
    leader = asyncio.create_task(gateway.chat("同样的", model="small"))
    await small.wait_for_requests(1)

    await gateway.chat("同样的", model="small", leave=leave)
    reply = await leader
    again = await gateway.chat("同样的", model="small")

    assert ("for all", "hit-exact") == (reply.text, again.cache)
    lines = await gateway.settled(3)
    assert ["client_closed", "ok", "ok"] == [line["outcome"] for line in lines]
    assert 1 == len(small.requests)
    assert 0 == gateway.rt.cache.in_flight


async def test_after_a_failed_attempt_the_next_one_is_not_started(
    patient: Gateway, small: Upstream, medium: Upstream
) -> None:
    """Left during the first, failed or not: the plan ends there."""
    small.script(Wait(0.3), error_reply(500))

    async with nothing_is_left(patient, small, medium):
        await patient.chat(leave=Leave(after_s=0.1))
        await asyncio.sleep(0.4)

    assert not medium.requests


async def test_a_hundred_at_once_in_every_state(start: Start, small: Upstream) -> None:
    """Leaving in all orders: the cap is whole afterwards, and the next caller is answered."""
    gateway = await start(
        {"tiers": {"small": tier(small, "small", timeouts=PATIENT, concurrency={"max": 5, "queue": 200})}}
    )
    small.respond(lambda request: (
        Send(HEAD), Wait(0.01), Send(event("x")), Wait(0.02), Send(event("y")), Hang(),
    ))  # fmt: skip
    before = asyncio.all_tasks()

    leaves = [Leave(after_s=0.002 * number, reset=number % 2 == 0) for number in range(100)]
    await asyncio.gather(
        *(gateway.chat(str(n), model="small", stream=True, leave=leave) for n, leave in enumerate(leaves))
    )

    bad = [line for line in await gateway.settled(100) if line["outcome"] != "client_closed"]
    assert [] == bad, gateway.log.lines
    await until(lambda: not (asyncio.all_tasks() - before))
    await until(lambda: gateway.rt.executor._slots["small-1"].open == 0)
    await until(lambda: not small.open_connections)
    small.respond(lambda request: stream("still here"))
    assert "still here" == (await gateway.chat(model="small", stream=True)).text


async def test_leaving_after_the_last_byte_is_no_cancellation(patient: Gateway, small: Upstream) -> None:
    """Everybody leaves in the end."""
    small.script(*stream("完"))
    client = Client(f"http://{patient.host}:{patient.port}")

    reply: Any = await client.chat(stream=True)

    assert reply.sse.done
    [line] = await patient.settled(1)
    assert "ok" == line["outcome"]
