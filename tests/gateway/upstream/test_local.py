"""Supervision of the embedded model: started, warmed, started again, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.pull import ModelNotFound
from gateway.upstream.local import LocalModels, LocalSpec, ModelFailed, local_specs
from router.policy import Policy
from tests.gateway.upstream.local_models import (
    MODEL,
    ROOT,
    Events,
    ask,
    assert_gone,
    chat,
    running,
    runs,
    stream,
    until_gone,
    weights_file,
)

local_model = pytest.mark.local_model


@pytest.fixture(scope="session")
def weights() -> Path:
    return weights_file()


@local_model
async def test_killed_child_comes_back_on_the_same_port(weights: Path) -> None:
    """Out-of-memory killers exist; the workers were told a port once and keep using it."""
    async with running(weights) as (models, events):
        pid, port = models.pids[MODEL], models.ports[MODEL]
        os.kill(pid, signal.SIGKILL)
        died = await events.count("local_model_died", 1)
        again = await events.count("local_model_ready", 2)
        await models.ready(MODEL)
        status, _ = await ask(models, chat("你好"))

    assert (pid, -signal.SIGKILL, 0) == (died["pid"], died["exit_code"], died["restarts"])
    assert (port, 1) == (again["port"], again["restarts"])
    assert pid != again["pid"]
    assert 200 == status


@local_model
async def test_ports_are_known_before_the_model_is_ready(weights: Path) -> None:
    """Workers start beside the model, not after it."""
    events = Events()
    models = LocalModels([LocalSpec(MODEL, weights)], events)
    try:
        ports = await models.start_children()
        assert [] == events.names
        task = asyncio.create_task(models.supervise())
        await models.ready(MODEL)
        assert ["local_model_ready"] == events.names
        assert ports == models.ports
    finally:
        await models.aclose()
    assert task.done()
    assert_gone(events.seen[0][1]["pid"], ports[MODEL])


@local_model
async def test_closing_at_any_moment_of_the_start_leaves_nothing(weights: Path) -> None:
    """Ctrl-C comes when it comes: while spawning, while loading, while warming."""
    for delay in (0.0, 0.001, 0.01, 0.1, 0.3):
        models = LocalModels([LocalSpec(MODEL, weights)], Events())
        start = asyncio.create_task(models.start())
        await asyncio.sleep(delay)
        pids, ports = dict(models.pids), dict(models.ports)
        start.cancel()
        await asyncio.wait([start])
        assert {} == models.pids
        for model, pid in pids.items():
            assert_gone(pid, ports[model])


@local_model
async def test_stop_does_not_wait_for_answers_and_kills_what_does_not_listen(weights: Path) -> None:
    """The gateway has let its own callers finish by then; a stopped or hung child must not hold it up."""
    async with running(weights) as (models, _):
        answers = stream(models, chat("Tell me a long story.", max_tokens=1500, ignore_eos=True))
        await anext(answers)
        os.kill(models.pids[MODEL], signal.SIGSTOP)
        started = time.monotonic()
        await models.aclose()
        with suppress(aiohttp.ClientError):
            await answers.aclose()  # type: ignore[attr-defined]

    assert time.monotonic() - started < 5


PARENT = """
import asyncio, os, sys, time
import uvloop
from pathlib import Path
from gateway.upstream.local import LocalModels, LocalSpec

async def main():
    models = LocalModels([LocalSpec("local/m", Path(sys.argv[1]))], lambda event, **fields: None)
    await models.start()
    forked = os.fork() if sys.argv[2] == "forked" else 0
    if sys.argv[2] == "forked" and forked == 0:
        time.sleep(60)  # holds copies of all pipes
        os._exit(0)
    print(models.pids["local/m"], models.ports["local/m"], forked, flush=True)
    await asyncio.sleep(60)

uvloop.run(main())
"""


@local_model
@pytest.mark.parametrize("fork", ["alone", "forked"])
async def test_child_ends_with_a_gateway_that_is_killed(weights: Path, fork: str) -> None:
    """SIGKILL leaves no time to tidy up; not even a forked process that still holds the pipe may keep the model."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(weights), fork, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    pid, port, forked = map(int, (await parent.stdout.readline()).split())
    try:
        assert runs(pid)
        parent.kill()
        await until_gone(pid)
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)
        await parent.wait()
        await parent.stdout.read()  # to its end, so that the event loop closes the pipe
    async with asyncio.timeout(5):
        while _listens(port):  # its threads close the socket a moment after its main thread is gone
            await asyncio.sleep(0.02)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@local_model
@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "no such file"), (b"not a model" * 99, "invalid magic"), (40 * 2**20, "corrupted or incomplete")],
)
async def test_file_that_is_no_model_fails_the_start_and_says_why(
    weights: Path, tmp_path: Path, content: bytes | int | None, why: str
) -> None:
    """The operator sees which file and what about it, instead of a model that never gets ready."""
    path = tmp_path / "wrong.gguf"
    if content is not None:
        _write(path, content if isinstance(content, bytes) else weights, content)
    models = LocalModels([LocalSpec("local/wrong.gguf", path)], events := Events())

    with pytest.raises(ModelFailed, match=f"wrong.gguf.*{why}"):
        await models.start()

    assert {} == models.pids
    assert 1 == events.seen[0][1]["exit_code"]
    assert why in events.seen[0][1]["why"]


def _write(path: Path, content: bytes | Path, length: object) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content.read_bytes()[: int(str(length))])


@local_model
async def test_child_that_cannot_start_is_tried_again_at_growing_intervals(weights: Path, tmp_path: Path) -> None:
    """The file may come later (a volume, a download); until then the machine must not be kept busy."""
    path = tmp_path / "later.gguf"
    models = LocalModels([LocalSpec("local/later.gguf", path)], events := Events())
    try:
        await models.start_children()
        task = asyncio.create_task(models.supervise())
        await events.count("local_model_failed", 3)
        first, second = (later - earlier for earlier, later in zip(events.times, events.times[1:], strict=False))
        with pytest.raises(ModelFailed):
            await models.ready("local/later.gguf")
        path.symlink_to(weights)
        await events.count("local_model_ready", 1)
        await models.ready("local/later.gguf")
    finally:
        await models.aclose()

    assert 0.2 <= first
    assert 0.4 <= second
    assert task.cancelled()


def _policy(path: Path, *tiers: dict[str, Any]) -> Policy:
    made = {}
    for number, tier in enumerate(tiers):
        deployment = {"name": f"m{number}", "model": f"local/{path}", **tier.pop("deployment", {})}
        made[f"tier{number}"] = {"deployments": [deployment], **tier}
    return Policy.model_validate({"version": 1, "tiers": made})


def test_policy_tells_how_many_and_how_long(tmp_path: Path) -> None:
    """Slots and context cost memory: as many as the tier lets through, as long as its window says."""
    (path := tmp_path / "m.gguf").write_bytes(b"GGUF")

    plain = local_specs(_policy(path, {}))
    sized = local_specs(_policy(path, {"concurrency": {"max": 2}, "deployment": {"context_window": 4096}}))
    wide = local_specs(_policy(path, {"concurrency": {"max": 100}, "deployment": {"context_window": 512}}))
    shared = local_specs(_policy(path, {"concurrency": {"max": 1}}, {"concurrency": {"max": 3}}))

    assert (LocalSpec(f"local/{path}", path, 4, 2048),) == plain
    assert (2, 4096) == (sized[0].parallel, sized[0].ctx)
    assert (8, 2048) == (wide[0].parallel, wide[0].ctx)
    assert [3] == [spec.parallel for spec in shared]


@local_model
async def test_packaged_model_samples_as_its_makers_say(weights: Path) -> None:
    """Most callers send no temperature, and at llama.cpp's 0.8 so small a model rambles."""
    policy = {"tiers": {"small": {"deployments": [{"name": "smollm2", "model": MODEL}]}}, "version": 1}
    spec = local_specs(Policy.model_validate(policy))[0]
    models = LocalModels([spec], Events())
    await models.start()
    try:
        url = f"http://127.0.0.1:{models.ports[MODEL]}/props"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            params = (await answer.json())["default_generation_settings"]["params"]
    finally:
        await models.aclose()

    assert (weights, 0.2, 0.9) == (spec.path, spec.temperature, spec.top_p)
    assert pytest.approx(0.2) == params["temperature"]
    assert pytest.approx(0.9) == params["top_p"]


def test_policy_with_a_missing_model_file_is_refused(tmp_path: Path) -> None:
    """At the start, with the path, and not at the first request."""
    with pytest.raises(ModelNotFound, match=r"gone\.gguf"):
        local_specs(_policy(tmp_path / "gone.gguf", {}))
