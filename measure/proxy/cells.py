"""One cell of the bench: one target under one load for some seconds, and what came of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from measure.proxy.processes import cpu_s, machine_cpu_s, memory, start
from measure.proxy.targets import PATH, Target

HERE = Path(__file__).resolve().parent
OVERTIME_S = 60.0
OPEN_LOOP_CONNECTIONS = 256

Kind = Literal["json", "stream", "rate"]
"""json: whole answers, closed loop, `load` connections. stream: SSE, `load` streams. rate: `load` requests a second."""


class Spot(msgspec.Struct, frozen=True):
    """Which cell it is."""

    target: str
    kind: Kind
    load: int


class Events(msgspec.Struct, frozen=True):
    """Times of streams, in ms. `delay`: of one event, from the upstream's write to the client's read."""

    ttft_p50: float
    ttft_p99: float
    delay_p50: float
    delay_p95: float
    delay_p99: float
    per_stream: float  # events that a stream had


class Cell(msgspec.Struct, frozen=True):
    """What came of one load. Latencies in ms, of whole requests."""

    requests: int = 0  # that were answered well
    rps: float = 0.0
    errors: int = 0  # other statuses, broken connections, streams without [DONE]
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    events: Events | None = None
    cpu_s: float = 0.0  # of the target
    rss_mb: float = 0.0
    foreign_cpu: float = 0.0  # cores that neither target, upstream nor load used: other work on this machine
    failed: str = ""  # why there are no figures


class Bench(msgspec.Struct, frozen=True):
    """What all cells of a run share."""

    tools: Path  # the folder of loadgen
    upstream: int  # process id
    seconds: int
    prompt_bytes: int = 400
    nice: int = 0


class Wrk(msgspec.Struct, frozen=True):
    """What chat_post.lua prints."""

    requests: int
    rps: float
    errors: int
    status_errors: int
    p50: float
    p95: float
    p99: float


class Spread(msgspec.Struct, frozen=True):
    n: int
    p50: float
    p95: float
    p99: float


class Loadgen(msgspec.Struct, frozen=True):
    """What loadgen prints."""

    ok: int
    errors: int
    rps: float
    events_per_req: float
    ttft: Spread
    total: Spread
    event_delay: Spread = Spread(0, 0.0, 0.0, 0.0)


def measure(target: Target, spot: Spot, bench: Bench, pids: Sequence[int]) -> Cell:
    """Put the load on; `pids` are the target's processes.

    Load and upstream have core 1; both cores where the target has both.
    """
    cores = {0, 1} if target.workers > 1 else {1}
    os.sched_setaffinity(bench.upstream, cores)
    # the upstream alone: the load takes the core that the target leaves free
    load_cores = "0" if not target.command else ",".join(map(str, sorted(cores)))
    used, busy, children, began = cpu_s(pids), machine_cpu_s(), _children_s(), time.monotonic()
    upstream = cpu_s([bench.upstream])
    output = _run(load_command(target, spot, bench), load_cores, bench)
    wall = time.monotonic() - began
    used = cpu_s(pids) - used
    known = cpu_s([bench.upstream]) - upstream + _children_s() - children + (used if target.command else 0.0)
    foreign = max(0.0, machine_cpu_s() - busy - known) / wall
    cell = read_output(spot.kind, output)
    return msgspec.structs.replace(cell, cpu_s=round(used, 3), rss_mb=memory(pids).rss, foreign_cpu=round(foreign, 2))


def load_command(target: Target, spot: Spot, bench: Bench) -> list[str]:
    """wrk for whole answers; our own client where the time of events, or a fixed rate, matters."""
    url = f"http://127.0.0.1:{target.port}{PATH}"
    same = "same" if target.same_prompt else "vary"
    if spot.kind == "json":
        return [shutil.which("wrk") or "wrk", "-t1", f"-c{spot.load}", f"-d{bench.seconds}s", "--timeout", "30s",
                "-s", str(HERE / "chat_post.lua"), url, "--",
                target.model, str(bench.prompt_bytes), same, "0", *target.headers]  # fmt: skip
    command = [str(bench.tools / "loadgen"), "--port", str(target.port), "--path", PATH,
               "--seconds", str(bench.seconds), "--prompt-bytes", str(bench.prompt_bytes)]  # fmt: skip
    for header in target.headers:
        command += ["--header", header]
    if target.same_prompt:
        command.append("--same")
    if spot.kind == "stream":
        return [*command, "--model", target.stream_model, "--stream", "--conc", str(spot.load)]
    return [*command, "--model", target.model, "--conc", str(OPEN_LOOP_CONNECTIONS), "--rate", str(spot.load)]


def read_output(kind: Kind, output: str) -> Cell:
    """The figures from the last line that the load generator printed."""
    last = output.strip().rpartition("\n")[2]
    try:
        if kind == "json":
            return _from_wrk(msgspec.json.decode(last, type=Wrk))
        return _from_loadgen(msgspec.json.decode(last, type=Loadgen), kind)
    except msgspec.DecodeError:
        return Cell(failed=output[-300:] or "the load generator said nothing")


def _from_wrk(said: Wrk) -> Cell:
    good = said.requests - said.status_errors
    rps = said.rps * good / max(1, said.requests)
    return Cell(good, round(rps, 1), said.errors + said.status_errors, said.p50, said.p95, said.p99)


def _from_loadgen(said: Loadgen, kind: Kind) -> Cell:
    delay, total = said.event_delay, said.total
    events = None
    if kind == "stream":
        events = Events(said.ttft.p50, said.ttft.p99, delay.p50, delay.p95, delay.p99, said.events_per_req)
    return Cell(said.ok, said.rps, said.errors, total.p50, total.p95, total.p99, events)


def _run(command: list[str], cores: str, bench: Bench) -> str:
    process = start(command, subprocess.PIPE, bench.nice, cores=cores)
    try:
        output, errors = process.communicate(timeout=bench.seconds + OVERTIME_S)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return output.decode(errors="replace") or errors.decode(errors="replace")


def _children_s() -> float:
    """CPU seconds of the children of this process that have ended: the load generators."""
    times = os.times()
    return times.children_user + times.children_system
