"""The embedded model: real children with the real SmolLM2, asked over HTTP as the gateway asks them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.pull import ModelNotFound, pull
from gateway.upstream.local import LocalModels, LocalSpec, ModelFailed, local_specs
from gateway.upstream.local_server import MAX_THREADS, default_threads, usable_cores
from router.policy import Policy

MODEL = "local/smollm2-135m-instruct"
ROOT = Path(__file__).resolve().parents[3]

local_model = pytest.mark.local_model


@pytest.fixture(scope="session")
def weights() -> Path:
    return pull("smollm2", progress=False)


class Events:
    """What the supervisor reports, and a way to wait for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.times: list[float] = []
        self._came = asyncio.Event()

    def __call__(self, event: str, /, **fields: str | int | float) -> None:
        self.seen.append((event, dict(fields)))
        self.times.append(time.monotonic())
        self._came.set()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    async def count(self, event: str, times: int) -> dict[str, Any]:
        """The fields of this event when it comes for the n-th time."""
        async with asyncio.timeout(60):
            while self.names.count(event) < times:
                self._came.clear()
                await self._came.wait()
        return [fields for name, fields in self.seen if name == event][times - 1]


@asynccontextmanager
async def running(weights: Path, **options: Any) -> AsyncIterator[tuple[LocalModels, Events]]:
    """The model, warm; afterwards nothing of it is left, which is checked each time."""
    events = Events()
    models = LocalModels([LocalSpec(MODEL, weights, **options)], events)
    await models.start()
    pids, ports = dict(models.pids), dict(models.ports)
    try:
        yield models, events
    finally:
        pids |= models.pids
        await models.aclose()
    _assert_gone(pids[MODEL], ports[MODEL])


def _assert_gone(pid: int, port: int) -> None:
    assert not _runs(pid)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def _runs(pid: int) -> bool:
    """Whether the process does anything still; a zombie that its new parent has not reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return True


async def _until_gone(pid: int) -> None:
    async with asyncio.timeout(10):
        while _runs(pid):  # no event tells of the end of somebody else's child
            await asyncio.sleep(0.02)


def _body(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": prompt}], "max_tokens": 16, **fields}


async def ask(models: LocalModels, body: dict[str, Any] | bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of one chat completion."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession() as session, session.post(_url(models), data=data, headers=headers) as answer:
        return answer.status, await answer.json()


def _url(models: LocalModels) -> str:
    return f"http://127.0.0.1:{models.ports[MODEL]}/v1/chat/completions"


async def stream(models: LocalModels, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The events of a streamed chat completion; the end marker must come."""
    async with aiohttp.ClientSession() as session, session.post(_url(models), json={**body, "stream": True}) as answer:
        assert "text/event-stream" == answer.content_type
        done = False
        async for line in answer.content:
            done = done or line.strip() == b"data: [DONE]"
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
        assert done


@local_model
@pytest.mark.parametrize("prompt", ["What is the capital of France?", "法国的首都是哪里？请用一句话回答。"])
async def test_prompt_is_answered_with_usage(weights: Path, prompt: str) -> None:
    """The promise of the embedded tier: an answer without account, key or network, in either language."""
    async with running(weights) as (models, _):
        status, answer = await ask(models, _body(prompt))

    assert 200 == status
    assert answer["choices"][0]["message"]["content"].strip()
    assert "smollm2-135m-instruct" == answer["model"]
    assert 0 < answer["usage"]["completion_tokens"] <= 16
    assert answer["usage"]["prompt_tokens"] > 20


@local_model
async def test_stream_brings_tokens_one_by_one_and_usage_at_the_end(weights: Path) -> None:
    """The gateway counts cost from that last event, and the first token is what a caller waits for."""
    body = _body("讲一个关于猫的短故事。", stream_options={"include_usage": True}, ignore_eos=True)
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
            async for event in stream(models, _body(f"Name {number + 2} animals.")):
                if event["choices"][0]["delta"].get("content"):
                    waits.append(time.monotonic() - started)
                    break

    assert min(waits) < 0.7


@local_model
async def test_prompt_beyond_the_window_is_refused_recognisably(weights: Path) -> None:
    """The gateway sends it on to a larger model; a prompt robbed of its beginning would be answered wrongly."""
    async with running(weights) as (models, _):
        plain = await ask(models, _body("the quick brown fox " * 2000))
        streamed = await ask(models, _body("敏捷的棕色狐狸 " * 1000, stream=True))

    for status, answer in (plain, streamed):
        assert 400 == status
        assert "exceed_context_size_error" == answer["error"]["type"]
        assert 2048 == answer["error"]["n_ctx"] < answer["error"]["n_prompt_tokens"]


@local_model
async def test_answer_that_fills_the_window_ends_with_length(weights: Path) -> None:
    """A full context must end the answer honestly instead of shifting the prompt out of sight."""
    async with running(weights, ctx=256) as (models, _):
        status, answer = await ask(models, _body("tell me more " * 50, max_tokens=500, ignore_eos=True))

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
        status, answer = await ask(models, _body("A number, please.", response_format=form, max_tokens=60))

    assert 200 == status
    assert 1 <= json.loads(answer["choices"][0]["message"]["content"])["n"] <= 99


@local_model
async def test_unknown_fields_are_ignored_and_bad_json_is_a_client_error(weights: Path) -> None:
    """Apps send fields of other servers; they must not cost an answer. Nonsense must not look like a broken server."""
    async with running(weights) as (models, _):
        odd, _ = await ask(models, _body("Hi", frobnicate=1, store=True, metadata={"a": "b"}))
        status, bad = await ask(models, b'{"messages": [')

    assert 200 == odd
    assert (400, "invalid_request_error") == (status, bad["error"]["type"])


@local_model
async def test_several_answers_run_at_the_same_time(weights: Path) -> None:
    """One long answer must not keep the others waiting for its end."""
    async with running(weights, parallel=2) as (models, _):
        slow = stream(models, _body("Tell me a long story.", max_tokens=1500, ignore_eos=True))
        async for event in slow:
            if event["choices"][0]["delta"].get("content"):
                break
        async with asyncio.timeout(30):
            status, _ = await ask(models, _body("Hello", max_tokens=4))
        still_running = await anext(slow, None)
        await slow.aclose()  # type: ignore[attr-defined]

    assert 200 == status
    assert still_running is not None


@local_model
async def test_killed_child_comes_back_on_the_same_port(weights: Path) -> None:
    """Out-of-memory killers exist; the workers were told a port once and keep using it."""
    async with running(weights) as (models, events):
        pid, port = models.pids[MODEL], models.ports[MODEL]
        os.kill(pid, signal.SIGKILL)
        died = await events.count("local_model_died", 1)
        again = await events.count("local_model_ready", 2)
        await models.ready(MODEL)
        status, _ = await ask(models, _body("你好"))

    assert (pid, -signal.SIGKILL, 0) == (died["pid"], died["exit_code"], died["restarts"])
    assert (port, 1) == (again["port"], again["restarts"])
    assert pid != again["pid"]
    assert 200 == status


@local_model
async def test_caller_who_leaves_frees_the_model(weights: Path) -> None:
    """A long prompt of somebody who left must not keep the only core busy to its end."""
    text = "is the meaning of " * 250
    async with running(weights) as (models, _):
        idle = _cpu_seconds(models)
        await ask(models, _body(f"what {text}", max_tokens=1))
        busy = _cpu_seconds(models)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await ask(models, _body(f"why {text}", max_tokens=1))
        await ask(models, _body("Hello", max_tokens=1))
        used = _cpu_seconds(models) - busy

    assert used < 0.7 * (busy - idle)


def _cpu_seconds(models: LocalModels) -> float:
    fields = Path(f"/proc/{models.pids[MODEL]}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    _assert_gone(events.seen[0][1]["pid"], ports[MODEL])


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
            _assert_gone(pid, ports[model])


@local_model
async def test_stop_does_not_wait_for_answers_and_kills_what_does_not_listen(weights: Path) -> None:
    """The gateway has let its own callers finish by then; a stopped or hung child must not hold it up."""
    async with running(weights) as (models, _):
        answers = stream(models, _body("Tell me a long story.", max_tokens=1500, ignore_eos=True))
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
        assert _runs(pid)
        parent.kill()
        await _until_gone(pid)
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)
        await parent.wait()
    async with asyncio.timeout(5):
        while _listens(port):  # its threads close the socket a moment after its main thread is gone
            await asyncio.sleep(0.02)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


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
    good = json.dumps(_body("SECRET-7 " * 900)).encode()
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


def test_policy_with_a_missing_model_file_is_refused(tmp_path: Path) -> None:
    """At the start, with the path, and not at the first request."""
    with pytest.raises(ModelNotFound, match=r"gone\.gguf"):
        local_specs(_policy(tmp_path / "gone.gguf", {}))


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
