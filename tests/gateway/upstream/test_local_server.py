"""What the embedded model answers: real children with the real SmolLM2, asked over HTTP as the gateway asks them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from gateway.upstream.local import LocalModels
from gateway.upstream.local_server import MAX_THREADS, default_threads, usable_cores
from tests.gateway.upstream.local_models import MODEL, ROOT, ask, chat, running, stream, weights_file

local_model = pytest.mark.local_model


@pytest.fixture(scope="session")
def weights() -> Path:
    return weights_file()


@local_model
@pytest.mark.parametrize("prompt", ["What is the capital of France?", "法国的首都是哪里？请用一句话回答。"])
async def test_prompt_is_answered_with_usage(weights: Path, prompt: str) -> None:
    """The promise of the embedded tier: an answer without account, key or network, in either language."""
    async with running(weights) as (models, _):
        status, answer = await ask(models, chat(prompt))

    assert 200 == status
    assert answer["choices"][0]["message"]["content"].strip()
    assert "smollm2-135m-instruct" == answer["model"]
    assert 0 < answer["usage"]["completion_tokens"] <= 16
    assert answer["usage"]["prompt_tokens"] > 20


@local_model
async def test_stream_brings_tokens_one_by_one_and_usage_at_the_end(weights: Path) -> None:
    """The gateway counts cost from that last event, and the first token is what a caller waits for."""
    body = chat("讲一个关于猫的短故事。", stream_options={"include_usage": True}, ignore_eos=True)
    async with running(weights) as (models, _):
        events = [event async for event in stream(models, body)]

    texts = [event["choices"][0]["delta"].get("content") for event in events if event["choices"]]
    assert len([text for text in texts if text]) > 4
    assert [] == events[-1]["choices"]
    assert 16 == events[-1]["usage"]["completion_tokens"]


@local_model
async def test_first_token_of_a_short_prompt_comes_well_under_a_second(weights: Path) -> None:
    """The small tier is only worth having if it is quick; best of five, as the machine has other work too."""
    waits = []
    async with running(weights) as (models, _):
        for number in range(5):
            started = time.monotonic()
            async for event in stream(models, chat(f"Name {number + 2} animals.")):
                if event["choices"][0]["delta"].get("content"):
                    waits.append(time.monotonic() - started)
                    break

    assert min(waits) < 0.7


@local_model
async def test_prompt_beyond_the_window_is_refused_recognisably(weights: Path) -> None:
    """The gateway sends it on to a larger model; a prompt robbed of its beginning would be answered wrongly."""
    async with running(weights) as (models, _):
        plain = await ask(models, chat("the quick brown fox " * 2000))
        streamed = await ask(models, chat("敏捷的棕色狐狸 " * 1000, stream=True))

    for status, answer in (plain, streamed):
        assert 400 == status
        assert "exceed_context_size_error" == answer["error"]["type"]
        assert 2048 == answer["error"]["n_ctx"] < answer["error"]["n_prompt_tokens"]


@local_model
async def test_answer_that_fills_the_window_ends_with_length(weights: Path) -> None:
    """A full context must end the answer honestly instead of shifting the prompt out of sight."""
    async with running(weights, ctx=256) as (models, _):
        status, answer = await ask(models, chat("tell me more " * 50, max_tokens=500, ignore_eos=True))

    assert 200 == status
    assert "length" == answer["choices"][0]["finish_reason"]
    assert 150 < answer["usage"]["prompt_tokens"]
    assert 256 == answer["usage"]["total_tokens"]


@local_model
async def test_structured_output_follows_the_schema(weights: Path) -> None:
    """Even the smallest model gives valid JSON when a grammar leads it."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 1}},
        "required": ["n"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    async with running(weights) as (models, _):
        status, answer = await ask(models, chat("A number, please.", response_format=form, max_tokens=60))

    assert 200 == status
    assert 1 <= json.loads(answer["choices"][0]["message"]["content"])["n"] <= 99


@local_model
async def test_unknown_fields_are_ignored_and_bad_json_is_a_client_error(weights: Path) -> None:
    """Apps send fields of other servers; they must not cost an answer. Nonsense must not look like a broken server."""
    async with running(weights) as (models, _):
        odd, _ = await ask(models, chat("Hi", frobnicate=1, store=True, metadata={"a": "b"}))
        status, bad = await ask(models, b'{"messages": [')

    assert 200 == odd
    assert (400, "invalid_request_error") == (status, bad["error"]["type"])


@local_model
async def test_several_answers_run_at_the_same_time(weights: Path) -> None:
    """One long answer must not keep the others waiting for its end."""
    async with running(weights, parallel=2) as (models, _):
        slow = stream(models, chat("Tell me a long story.", max_tokens=1500, ignore_eos=True))
        async for event in slow:
            if event["choices"][0]["delta"].get("content"):
                break
        async with asyncio.timeout(30):
            status, _ = await ask(models, chat("Hello", max_tokens=4))
        still_running = await anext(slow, None)
        await slow.aclose()  # type: ignore[attr-defined]

    assert 200 == status
    assert still_running is not None


@local_model
async def test_caller_who_leaves_frees_the_model(weights: Path) -> None:
    """A long prompt of somebody who left must not keep the only core busy to its end."""
    text = "is the meaning of " * 250
    async with running(weights) as (models, _):
        idle = _cpu_seconds(models)
        await ask(models, chat(f"what {text}", max_tokens=1))
        busy = _cpu_seconds(models)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ask(models, chat(f"why {text}", max_tokens=1))
        await ask(models, chat("Hello", max_tokens=1))
        used = _cpu_seconds(models) - busy

    assert used < 0.7 * (busy - idle)


def _cpu_seconds(models: LocalModels) -> float:
    fields = Path(f"/proc/{models.pids[MODEL]}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@local_model
async def test_prompts_stay_out_of_the_childs_output(weights: Path) -> None:
    """llama.cpp would log the text around a JSON error, which is a piece of somebody's prompt."""
    port = _free_port()
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway.upstream.local_server", "--model", str(weights), "--port", str(port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert child.stdout is not None
    assert b"ready\n" == await child.stdout.readline()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    bad = b'{"messages": [{"role": "user", "content": "SECRET-7 \\ud800 \xff"}]}'
    good = json.dumps(chat("SECRET-7 " * 900)).encode()
    async with aiohttp.ClientSession() as session:
        for data in (bad, good, b"SECRET-7"):
            async with session.post(url, data=data, headers={"Content-Type": "application/json"}) as answer:
                assert 400 == answer.status

    out, err = await child.communicate(b"")  # closes stdin

    assert b"SECRET" not in out + err
    assert -signal.SIGTERM == child.returncode


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_one_core_is_left_to_the_gateway() -> None:
    """Threads that fight with the event loop for a core slow down every tier."""
    assert 1 <= default_threads() <= MAX_THREADS
    assert default_threads() == max(1, min(MAX_THREADS, usable_cores() - 1))


def test_cores_are_counted_within_the_containers_quota(tmp_path: Path) -> None:
    """A container with two CPUs of a machine with sixty-four must not start four threads."""
    cpus, cgroup = tmp_path / "cpu", tmp_path / "cgroup"
    cgroup.mkdir()
    alone = usable_cores(cpus, cgroup)
    (cgroup / "cpu.max").write_text("max 100000\n")
    unlimited = usable_cores(cpus, cgroup)
    (cgroup / "cpu.max").write_text("150000 100000\n")
    limited = usable_cores(cpus, cgroup)
    (cgroup / "cpu.max").write_text("50000 100000\n")

    assert alone == unlimited == len(os.sched_getaffinity(0))
    assert 1 == limited
    assert 1 == usable_cores(cpus, cgroup)


def test_hyperthreads_count_as_one_core(tmp_path: Path) -> None:
    """Two threads on one core are slower than one."""
    for cpu in os.sched_getaffinity(0):
        (folder := tmp_path / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0-63\n")

    assert 1 == usable_cores(tmp_path, tmp_path)
