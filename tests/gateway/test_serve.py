"""The gateway as a process: starting, stopping, workers that share a port, signals, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.admission.keys import hash_key
from tests.client import Client
from tests.process import Process
from tests.upstream import DONE, HEAD, Send, Upstream, Wait, answer, event, finish

SECRET = "sk-very-secret"


@pytest.fixture
async def model() -> AsyncIterator[Upstream]:
    async with Upstream() as upstream:
        upstream.default(answer("好"))
        yield upstream


def policy(folder: Path, model: Upstream, **more: Any) -> Path:
    deployment = {"name": "a", "model": "openai/a", "api_base": model.url, "api_key": SECRET}
    path = folder / "policy.yaml"
    tiers, log = {"small": {"deployments": [deployment]}}, {"path": str(folder / "log.jsonl")}
    path.write_text(json.dumps({"version": 1, "tiers": tiers, "routes": {"auto": {}}, "log": log, **more}))
    return path


async def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.02)


async def total(client: Client, name: str, **labels: str) -> float:
    page = (await client.get("/metrics")).body.decode()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def events(process: Process, name: str) -> list[dict[str, Any]]:
    return [line for line in process.log if line["event"] == name]


def listeners(port: int) -> int:
    """Sockets that listen on the port: one for each worker that is up (Linux)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


# --- one worker ---


async def test_it_says_what_is_on_serves_and_drains_a_running_stream(tmp_path: Path, model: Upstream) -> None:
    """The life of a gateway. At SIGTERM nobody new is let in, and the answer under way is finished."""
    pieces = [step for number in range(15) for step in (Send(event(f"{number} ")), Wait(0.1))]
    async with Process(policy(tmp_path, model)) as gateway:
        await gateway.ready()
        client = Client(gateway.url)
        assert "好" == (await client.chat("你好")).text
        model.script(Send(HEAD), *pieces, Send(finish()), Send(DONE))
        running = asyncio.create_task(client.chat("慢慢数", stream=True))
        await until(lambda: len(model.requests) == 2)
        await asyncio.sleep(0.3)

        gateway.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset
            await client.chat("太晚了")
        reply = await running

        assert "".join(f"{number} " for number in range(15)) == reply.text
        assert reply.sse.done
        assert 0 == await gateway.exit(10)

    assert f"Tiergate on http://127.0.0.1:{gateway.port}/v1" in gateway.stderr
    assert "curl " in gateway.stderr
    assert SECRET not in gateway.stderr + gateway.stdout
    assert "Traceback" not in gateway.stderr
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert ["ok", "ok"] == [line["outcome"] for line in lines]


async def test_grace_has_an_end(tmp_path: Path, model: Upstream) -> None:
    """A stream without end does not keep the process alive; its upstream is freed and its line written."""
    model.script(Send(HEAD), *(step for _ in range(300) for step in (Send(event("x")), Wait(0.1))))
    async with Process(policy(tmp_path, model), grace="1s") as gateway:
        await gateway.ready()
        running = asyncio.create_task(Client(gateway.url).chat(stream=True))
        await until(lambda: model.requests)
        await asyncio.sleep(0.2)

        gateway.send_signal(signal.SIGTERM)

        assert 0 == await gateway.exit(6)
        assert not (await running).sse.done
    await model.wait_for_disconnect()
    assert 1 == len((tmp_path / "log.jsonl").read_text().splitlines())


async def test_interrupt_ends_well_and_hangup_reloads(tmp_path: Path, model: Upstream) -> None:
    """Ctrl-C is how most gateways end: exit code 0, no traceback on the screen."""
    async with Process(policy(tmp_path, model)) as gateway:
        await gateway.ready()
        gateway.send_signal(signal.SIGHUP)
        await until(lambda: events(gateway, "policy_reloaded"))

        gateway.send_signal(signal.SIGINT)

        assert 0 == await gateway.exit(6)
    assert "Traceback" not in gateway.stderr


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("after_s", [0.0, 0.6])
async def test_stop_while_it_starts_is_obeyed(tmp_path: Path, model: Upstream, workers: int, after_s: float) -> None:
    """A deployment that is taken back at once must not leave a process that nobody stops any more."""
    async with Process(policy(tmp_path, model), workers=workers) as gateway:
        await until(lambda: "Tiergate on" in gateway.stderr)
        await asyncio.sleep(after_s)  # a worker is then importing, or between its imports and its server

        gateway.send_signal(signal.SIGTERM)

        assert 0 == await gateway.exit(8)


# --- what cannot start ---


async def ended(process: Process) -> tuple[int, str]:
    async with process:
        code = await process.exit(20)
    assert "Traceback" not in process.stderr
    return code, process.stderr


async def test_port_that_is_taken_is_told(tmp_path: Path, model: Upstream) -> None:
    """The most frequent failure of a second try."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]

        code, said = await ended(Process(policy(tmp_path, model), port=port))

    assert 1 == code
    assert f"cannot listen on 127.0.0.1 port {port}" in said


async def test_other_machines_are_not_let_in_without_keys(tmp_path: Path, model: Upstream) -> None:
    """An open gateway spends its owner's money."""
    process = Process(policy(tmp_path, model))
    process.arguments[process.arguments.index("127.0.0.1")] = "0.0.0.0"

    code, said = await ended(process)

    assert 1 == code
    assert "keys new" in said


async def test_bad_policy_is_told_with_its_line(tmp_path: Path, model: Upstream) -> None:
    """One line a problem, and no traceback."""
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\ntiers:\n  small: {deploymants: []}\n")

    code, said = await ended(Process(path))

    assert 1 == code
    assert "line 3" in said


async def test_log_that_cannot_be_opened_is_told(tmp_path: Path, model: Upstream) -> None:
    """A missing right on /var/log is the operator's to read about, not a Python programmer's."""
    code, said = await ended(Process(policy(tmp_path, model, log={"path": "/proc/no/such/log.jsonl"})))

    assert 1 == code
    assert "/proc/no/such" in said


# --- several workers ---


async def test_workers_are_one_gateway(tmp_path: Path, model: Upstream) -> None:
    """One port, one set of metrics whoever is asked, one reload for all; and together they stop."""
    async with Process(policy(tmp_path, model, keys=[{"name": "a", "hash": hash_key(b"k")}]), workers=2) as gateway:
        await gateway.ready()
        client = Client(gateway.url, "k")
        await until(lambda: listeners(gateway.port) == 2)

        for number in range(40):
            assert 200 == (await client.chat(f"问题{number}")).status
        sums = {await total(client, "tiergate_requests_total", outcome="ok") for _ in range(10)}
        gateway.send_signal(signal.SIGHUP)
        await until(lambda: len(events(gateway, "policy_reloaded")) == 2)
        gateway.send_signal(signal.SIGTERM)

        assert {40.0} == sums
        assert 0 == await gateway.exit(10)
    assert "Traceback" not in gateway.stderr
    assert 40 == len((tmp_path / "log.jsonl").read_text().splitlines())


async def test_policy_in_use_is_one_after_a_reload_of_all_workers(tmp_path: Path, model: Upstream) -> None:
    """An alert on two policies at once would never end."""
    async with Process(policy(tmp_path, model), workers=2) as gateway:
        await gateway.ready()
        await until(lambda: listeners(gateway.port) == 2)
        policy(tmp_path, model, routes={"auto": {}, "新": {}})
        gateway.send_signal(signal.SIGHUP)
        await until(lambda: len(events(gateway, "policy_reloaded")) >= 2)

        assert 1 == await total(Client(gateway.url), "tiergate_policy_info")
    assert "UserWarning" not in gateway.stderr


async def test_worker_that_dies_comes_back_and_its_numbers_stay(tmp_path: Path, model: Upstream) -> None:
    """A crash costs the requests of one worker, once; totals never fall."""
    async with Process(policy(tmp_path, model), workers=2) as gateway:
        await gateway.ready()
        client = Client(gateway.url)
        await until(lambda: listeners(gateway.port) == 2)
        for number in range(10):
            await client.chat(str(number))
        while await total(client, "tiergate_requests_total", outcome="ok") < 10:  # counted right after its answer
            await asyncio.sleep(0.01)
        before = set(gateway.children())

        killed = gateway.kill_worker()
        await until(lambda: events(gateway, "worker_died"))
        await until(lambda: listeners(gateway.port) == 2)

        assert killed not in gateway.children()
        assert 1 == len(set(gateway.children()) - before)
        assert 10 <= await total(client, "tiergate_requests_total", outcome="ok")
        assert 0 == await total(client, "tiergate_in_flight")
        assert "好" == (await client.chat("还在吗")).text
        gateway.send_signal(signal.SIGTERM)
        assert 0 == await gateway.exit(10)


async def test_worker_comes_back_while_the_file_is_bad(tmp_path: Path, model: Upstream) -> None:
    """A bad file changes nothing, also for the worker that happens to be started next."""
    path = policy(tmp_path, model)
    async with Process(path, workers=2) as gateway:
        await gateway.ready()
        await until(lambda: listeners(gateway.port) == 2)
        path.write_text("version: 1\ntiers: {oops\n")

        gateway.kill_worker()
        await until(lambda: events(gateway, "worker_died"))
        await asyncio.sleep(2.5)

        assert 1 == len(events(gateway, "worker_died"))


async def test_second_gateway_on_the_same_port_is_refused_with_workers_too(tmp_path: Path, model: Upstream) -> None:
    """Half of the requests would go to yesterday's policy."""
    async with Process(policy(tmp_path, model), workers=2) as gateway:
        await gateway.ready()
        second = Process(policy(tmp_path, model), workers=2, port=gateway.port)
        async with second:
            code = await second.exit(4)

    assert 1 == code


async def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path, model: Upstream) -> None:
    """Nothing is left that answers on a port which nobody supervises."""
    async with Process(policy(tmp_path, model), workers=2) as gateway:
        await gateway.ready()
        await until(lambda: listeners(gateway.port) == 2)
        workers = gateway.children()

        gateway.send_signal(signal.SIGKILL)

        await until(lambda: not any(_runs(pid) for pid in workers), 10)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
