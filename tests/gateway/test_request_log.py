"""The request log: one JSON line for every call, no words of a caller unless the policy asks, never in the way."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.keys import hash_key
from gateway.telemetry import request_log
from gateway.telemetry.request_log import RequestLogWriter, line
from router.policy import RequestLog
from router.types import Call, Grant, Outcome
from tests.client import Client, Leave
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import HEAD, Hang, Send, Upstream, answer, error_reply, event, stream, usage

FIELDS = {
    "time", "request_id", "key", "surface", "model", "stream", "route", "tier", "deployment", "reason", "difficulty",
    "cache", "status", "outcome", "error", "attempts", "finish_reason", "prompt_tokens", "cached_tokens",
    "completion_tokens", "reasoning_tokens", "usage_estimated", "cost_usd", "baseline_usd", "saved_usd", "ttft_ms",
    "duration_ms", "overhead_ms",
}  # fmt: skip
CANARY = "金丝雀canary7391"


def outcome(**call: Any) -> Outcome:
    made = Outcome(Call("r-1", "chat", b'{"model":"m"}', "m", **call), Grant(None, 0.0))
    made.status, made.ended = 200, made.started + 1
    return made


def writer(path: Path | str, dropped: list[int] | None = None, prompts: bool = False) -> RequestLogWriter:
    return RequestLogWriter(
        RequestLog(path=str(path), prompts=prompts), (dropped if dropped is not None else []).append
    )


# --- what stands in it ---


async def test_line_tells_the_whole_story(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """Who, what, where, why, how long, how much: a line is all that an operator needs."""
    small.script(error_reply(500))
    medium.script(answer("你好", usage(100, 50, cached=60, reasoning=10)))

    reply = await gateway.chat("讲个故事", headers={"x-request-id": "req-42"})

    [found] = await gateway.settled(1)
    assert FIELDS == found.keys()
    assert {
        "request_id": "req-42", "key": "-", "surface": "chat", "model": "auto", "stream": False, "route": "auto",
        "tier": "medium", "deployment": "medium-1", "cache": "bypass", "status": 200, "outcome": "ok", "error": None,
        "finish_reason": "stop", "prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 50,
        "reasoning_tokens": 10, "usage_estimated": False,
    }.items() <= found.items()  # fmt: skip
    assert ["small-1", "medium-1"] == [attempt["deployment"] for attempt in found["attempts"]]
    assert [500, 200] == [attempt["status"] for attempt in found["attempts"]]
    assert reply.about("cost-usd") == f"{found['cost_usd']:.9g}"
    assert 0 < found["ttft_ms"] <= found["duration_ms"]
    assert 0 <= found["overhead_ms"] < found["duration_ms"]


async def test_every_end_has_one_line(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """Good, failed, refused, malformed, unknown, left: the number of lines is the number of calls."""
    for upstream in (small, medium):
        upstream.script(error_reply(503))
    small.script(error_reply(400, "no", type="invalid_request_error"))
    small.script(*stream("a", "b"))
    small.script(Send(HEAD), Send(event("half")))
    small.script(Send(HEAD), Hang())

    await gateway.chat("一")
    await gateway.chat("二")
    await gateway.chat("三", stream=True)
    await gateway.chat("四", stream=True)
    await gateway.chat("五", stream=True, leave=Leave(after_s=0.1))
    await gateway.chat("六", model="nobody")
    await gateway.post("/v1/chat/completions", b"{oops")

    lines = await gateway.settled(7)
    await asyncio.sleep(0.05)
    assert 7 == len(gateway.requests())
    told = [(found["outcome"], found["status"], found["error"]) for found in lines]
    assert [
        ("error", 503, "Exhausted"), ("client_error", 400, "Refused"), ("ok", 200, None), ("error", 200, "Broken"),
        ("client_closed", 499, None), ("client_error", 404, "UnknownModel"), ("client_error", 400, "BadRequest"),
    ] == told  # fmt: skip


# --- no prompt text ---


async def test_nothing_that_was_said_is_in_any_log(start: Start, small: Upstream, medium: Upstream) -> None:
    """A canary in every place where a caller or a model can put text, on every path: log, metrics, process log."""
    rules = [{"name": "any", "when": {"headers": {"x-team": {"matches": "."}}}, "tier": "small"}]
    gateway = await start({"tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium")},
                           "routes": {"auto": {}}, "rules": rules, "cache": {"exact": {"ttl": "1h"}}})  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "description": CANARY, "parameters": {}}}]
    messages = [{"role": "system", "content": CANARY}, {"role": "user", "content": [{"type": "text", "text": CANARY}]}]
    small.script(answer(CANARY))
    small.script(*stream(CANARY, CANARY))
    small.script(Send(HEAD), Send(event(CANARY)))
    for upstream in (small, medium):
        upstream.script(error_reply(500, f"cannot answer {CANARY}", code=CANARY))
        upstream.script(error_reply(429, f"cannot answer {CANARY}"))
    small.script(error_reply(400, f"refused: {CANARY}", type="invalid_request_error"))
    small.script(Send(HEAD), Send(event(CANARY)), Hang())
    headers = {"x-team": CANARY.encode().decode("latin-1")}

    await gateway.chat(messages, tools=tools, user=CANARY, metadata={"note": CANARY}, headers=headers)
    await gateway.chat(messages, tools=tools, user=CANARY, metadata={"note": CANARY}, headers=headers)  # from the cache
    await gateway.chat(messages, stream=True, headers=headers)
    await gateway.chat([*messages, *messages], stream=True, headers=headers)  # cut
    await gateway.chat(CANARY + "1", headers=headers)
    await gateway.chat(CANARY + "2", headers=headers)
    refused = await gateway.chat(CANARY + "3", headers=headers)
    await gateway.chat(CANARY + "4", stream=True, headers=headers, leave=Leave(after_events=1))
    await gateway.post("/v1/chat/completions", ('{"model":"auto","messages":"' + CANARY + '"}').encode())
    await gateway.post("/v1/chat/completions", ('{"model":"auto","messages":[' + CANARY).encode())
    await gateway.post("/v1/route", {"model": "auto", "messages": messages})

    lines = await gateway.settled(10)
    assert CANARY in refused.error["message"]  # type: ignore[index]
    seen = json.dumps([lines, gateway.log.lines], ensure_ascii=False, default=repr)
    metrics = (await gateway.get("/metrics")).body.decode()
    for part in ("金丝雀", "canary"):
        assert part not in seen
        assert part not in metrics


async def test_key_is_named_and_never_shown(start: Start, small: Upstream) -> None:
    """Neither the caller's nor the upstream's."""
    gateway = await start(
        {"tiers": {"small": tier(small, "small")}, "keys": [{"name": "a", "hash": hash_key(b"tg-s3cret")}]}
    )
    small.script(error_reply(401, "bad key up-key-small"))
    url = f"http://{gateway.host}:{gateway.port}"

    await Client(url, "tg-s3cret").chat(model="small")
    await Client(url, "tg-wr0ng").chat(model="small")

    lines = await gateway.settled(2)
    assert ["a", "-"] == [found["key"] for found in lines]
    seen = json.dumps([lines, gateway.log.lines], default=repr)
    assert not any(secret in seen for secret in ("s3cret", "wr0ng", "up-key"))


# --- prompts: true ---


async def prompting(start: Start, small: Upstream, tmp_path: Path) -> Gateway:
    log = {"path": str(tmp_path / "requests.jsonl"), "prompts": True}
    gateway: Gateway = await start({"tiers": {"small": tier(small, "small")}, "log": log})
    return gateway


async def test_prompts_stand_in_the_log_where_the_policy_asks(start: Start, small: Upstream, tmp_path: Path) -> None:
    """For evaluation and replay, as the caller sent them."""
    gateway = await prompting(start, small, tmp_path)
    small.script(answer("ok"))

    await gateway.chat(CANARY, model="small")

    [found] = await gateway.settled(1)
    assert CANARY == found["request"]["messages"][0]["content"]


async def test_body_with_line_ends_is_still_one_line(start: Start, small: Upstream, tmp_path: Path) -> None:
    """Pretty-printed JSON is valid JSON, and a log of lines must stay one."""
    gateway = await prompting(start, small, tmp_path)
    small.script(answer("ok"))
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": "漂亮"}]}, indent=2).encode()

    await gateway.post("/v1/chat/completions", body)
    await asyncio.sleep(0.05)
    gateway.rt.request_log.flush()

    assert 1 == len((tmp_path / "requests.jsonl").read_text().splitlines())


async def test_refused_call_has_a_readable_line_too(start: Start, small: Upstream, tmp_path: Path) -> None:
    """`{"request":}` breaks whoever reads the file."""
    gateway = await prompting(start, small, tmp_path)

    await gateway.post("/v1/chat/completions", b"{oops")

    [found] = await gateway.settled(1)
    assert "client_error" == found["outcome"]


# --- the writer ---


def test_lines_of_odd_callers_stay_lines() -> None:
    """A model name with a line end must not forge a line."""
    made = outcome()
    made.call = Call("r", "chat", b"{}", 'x"}\n{"forged": true}\u2028\u0000')

    data = line(made, prompts=False)

    assert 1 == data.count(b"\n")
    assert 'x"}\n{"forged": true}\u2028\u0000' == json.loads(data)["model"]


def test_lines_reach_the_file_at_a_flush_and_at_the_end(tmp_path: Path) -> None:
    """Buffered, since a write a request would cost more than the request."""
    path = tmp_path / "new" / "folder" / "log.jsonl"
    log = writer(path)

    log.write(outcome())
    assert b"" == path.read_bytes()
    log.flush()
    assert 1 == len(path.read_text().splitlines())
    log.write(outcome())
    log.close()

    assert 2 == len(path.read_text().splitlines())
    assert not log.on
    log.close()


def test_full_buffer_is_written_without_waiting(tmp_path: Path) -> None:
    """A busy second must not fill the memory."""
    log = writer(tmp_path / "log")

    while not (tmp_path / "log").stat().st_size:
        log.write(outcome())

    assert request_log.FLUSH_BYTES <= (tmp_path / "log").stat().st_size < 2 * request_log.FLUSH_BYTES
    log.close()


def test_log_that_is_off_writes_nothing_and_opens_nothing() -> None:
    """`log: {path: off}`."""
    log = writer("off")

    assert not log.on
    log.flush()
    log.close()


def test_two_writers_of_one_file_do_not_overwrite_each_other(tmp_path: Path) -> None:
    """Workers share a path, and so do the old and the new runtime around a reload."""
    one, two = writer(tmp_path / "log"), writer(tmp_path / "log")

    for _ in range(3):
        for log in (one, two):
            log.write(outcome())
            log.flush()
    one.close()
    two.close()

    assert 6 == len([json.loads(text) for text in (tmp_path / "log").read_text().splitlines()])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is Linux's")
def test_full_disk_loses_lines_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps them for a while, then lets them go; it never raises."""
    monkeypatch.setattr(request_log, "MAX_BUFFER_BYTES", 20_000)
    dropped: list[int] = []
    log = writer("/dev/full", dropped)

    for _ in range(100):
        log.write(outcome())
        log.flush()

    assert sum(dropped) > 0
    assert log._size < 20_000
    log.close()


def test_file_that_was_closed_under_it_does_not_raise(tmp_path: Path) -> None:
    """Whatever happens to the file, the answer is out already."""
    log = writer(tmp_path / "log")
    assert log._file is not None
    log._file.close()

    log.write(outcome())
    log.flush()
    log.close()


RECOVERY = """
import resource, signal, sys
from tests.gateway.test_request_log import outcome, writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = writer(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for number in range(12):
    full = 3 <= number < 8
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000 if full else hard, hard))
    log.write(outcome())
    log.flush()
log.close()
"""


def test_disk_that_was_full_for_a_while_gets_every_line_once(tmp_path: Path) -> None:
    """Kept for the next time means once: doubled lines are doubled costs in every report."""
    root = Path(__file__).resolve().parents[2]

    subprocess.run([sys.executable, "-c", RECOVERY, str(tmp_path / "log")], cwd=root, check=True, timeout=60)

    lines = (tmp_path / "log").read_text().splitlines()
    assert 12 == len([json.loads(text) for text in lines])


STALLED = """
import os, sys
from tests.gateway.test_request_log import outcome, writer
os.set_blocking(1, False)
log = writer("stdout")
for _ in range(400):
    log.write(outcome())
log.flush()
print("went on", file=sys.stderr, flush=True)
os._exit(0)
"""


def test_reader_of_standard_output_that_stalls_does_not_stop_the_gateway() -> None:
    """A pipe may be non-blocking (a supervisor's choice) and full: a short write is no reason to try for ever."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", STALLED]

    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            process.wait(8)
        finally:
            process.kill()
        assert "went on" in process.stderr.read()


async def test_request_is_answered_while_the_log_cannot_be_written(start: Start, small: Upstream) -> None:
    """Nothing optional can break an answer."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "log": {"path": "/dev/full"}})
    small.default(answer("没问题"))

    replies = [await gateway.chat(model="small") for _ in range(5)]
    gateway.rt.request_log.flush()

    assert {"没问题"} == {reply.text for reply in replies}


async def test_lines_reach_the_file_without_another_request(gateway: Gateway, small: Upstream, tmp_path: Path) -> None:
    """Who tails the file sees a call within a moment of its end, on a quiet night too."""
    small.script(answer("ok"))

    await gateway.chat("安静")

    async with asyncio.timeout(5):
        while not (tmp_path / "requests.jsonl").read_text():
            await asyncio.sleep(0.02)
