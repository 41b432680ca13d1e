"""Cells and runs made up for the tests of the report."""

from __future__ import annotations

from measure.proxy.cells import Cell, Events, Kind, Spot
from measure.proxy.launch import Startup
from measure.proxy.processes import Memory
from measure.proxy.results import Row, Run


def row(target: str, kind: Kind, load: int, *rounds: Cell) -> Row:
    return Row(Spot(target, kind, load), rounds)


def whole(rps: float, p50: float = 1.0, cpu_s: float = 1.0) -> Cell:
    return Cell(requests=1000, rps=rps, p50=p50, p95=2 * p50, p99=3 * p50, cpu_s=cpu_s, rss_mb=90.0)


def streamed(ttft: float, delay: float) -> Cell:
    events = Events(ttft, ttft + 5, delay, 2 * delay, 3 * delay, 32.0)
    return Cell(requests=100, rps=44.0, p50=361.0, p95=362.0, p99=363.0, events=events, cpu_s=0.2, rss_mb=95.0)


def good_run() -> Run:
    """Meets every goal: 3,000 requests/s beside nginx's 50,000 and LiteLLM's 75."""
    rows = (
        row("direct", "json", 1, whole(30_000, 0.02)),
        row("nginx", "json", 1, whole(15_000, 0.05)),
        row("tiergate", "json", 1, whole(2_000, 0.42)),
        row("tiergate-hit", "json", 1, whole(14_000, 0.06)),
        row("nginx", "json", 64, whole(50_000)),
        row("litellm", "json", 64, whole(75)),
        row("tiergate", "json", 64, whole(3_000)),
        *(row("tiergate", "stream", load, streamed(51.2, 0.2)) for load in (1, 16, 64)),
    )
    targets = ("direct", "nginx", "litellm", "tiergate", "tiergate-hit")
    startup = Startup(0.7, 0.6, 1, Memory(82.0, 61.0))
    return Run({"date": "2026-12-01"}, dict.fromkeys(targets, 1), {"tiergate": startup}, rows, {"portkey": "not asked"})
