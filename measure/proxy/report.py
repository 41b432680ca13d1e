"""A run as Markdown tables. `python -m measure.proxy.report RUN.json` writes those of a run that was kept."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from measure.proxy.cells import Kind, Spot
from measure.proxy.goals import Goal, goals
from measure.proxy.results import Run, Value, cpu_ms, event_delay, p50, rps, ttft_overhead
from measure.proxy.targets import STREAM_FIRST_MS, STREAM_TOTAL_MS

TITLES: dict[Kind, str] = {
    "json": "Whole answers, closed loop",
    "stream": "Streams: 32 events, 10 ms apart, the first after 50 ms",
    "rate": "Whole answers, open loop: a fixed number of requests a second",
}
LOADS: dict[Kind, str] = {"json": "conn.", "stream": "streams", "rate": "offered/s"}

Column = tuple[str, Value, int]  # title, value of a cell, digits
Ratio = tuple[str, str, Value, int]  # title, rival, value of a cell, digits


def report(run: Run) -> str:
    """All tables of a run, ending with the goals."""
    parts = [about(run), *(part for kind in TITLES if (part := _kind(run, kind))), _startups(run), _goals(goals(run))]
    if run.skipped:
        parts.append("Not measured: " + "; ".join(f"{name} ({why})" for name, why in run.skipped.items()))
    return "\n\n".join(parts) + "\n"


def about(run: Run) -> str:
    """When, where and how it was measured."""
    return "\n".join(f"- {name}: {text}" for name, text in run.about.items())


WHOLE: tuple[Column, ...] = (
    ("RPS", rps, 1),
    ("p50 ms", p50, 3),
    ("p95 ms", lambda cell: cell.p95, 3),
    ("p99 ms", lambda cell: cell.p99, 3),
    ("errors", lambda cell: cell.errors, 0),
    ("CPU s/1000", cpu_ms, 3),
    ("RSS MB", lambda cell: cell.rss_mb, 0),
)
STREAM: tuple[Column, ...] = (
    ("streams/s", rps, 1),
    ("TTFT overhead p50 ms", ttft_overhead, 2),
    ("p99", lambda cell: cell.events.ttft_p99 - STREAM_FIRST_MS if cell.events else None, 2),
    ("event delay p50 ms", event_delay, 3),
    ("p95", lambda cell: cell.events.delay_p95 if cell.events else None, 3),
    ("p99", lambda cell: cell.events.delay_p99 if cell.events else None, 3),
    ("total over ideal p50 ms", lambda cell: cell.p50 - STREAM_TOTAL_MS, 2),
    ("errors", lambda cell: cell.errors, 0),
    ("CPU s/1000", cpu_ms, 2),
    ("RSS MB", lambda cell: cell.rss_mb, 0),
)
RATIOS: tuple[Ratio, ...] = (
    ("RPS / direct", "direct", rps, 4),
    ("RPS / nginx", "nginx", rps, 4),
    ("RPS / litellm", "litellm", rps, 1),
    ("CPU / nginx", "nginx", cpu_ms, 1),
)


def _kind(run: Run, kind: Kind) -> str:
    spots = [
        Spot(target, kind, load)
        for load in run.loads(kind)
        for target in run.workers
        if run.measured(target, kind, load)
    ]
    if not spots:
        return ""
    columns = STREAM if kind == "stream" else WHOLE
    ratios = () if kind == "stream" else RATIOS
    titles = [
        "target",
        LOADS[kind],
        *(title for title, *_ in columns),
        *(title for title, *_ in ratios),
        "foreign cores",
    ]
    return f"### {TITLES[kind]}\n\n{table(titles, [_row(run, spot, columns, ratios) for spot in spots])}"


def _row(run: Run, spot: Spot, columns: Iterable[Column], ratios: Iterable[Ratio]) -> list[str]:
    return [
        spot.target,
        str(spot.load),
        *(number(run.median(spot, value), digits) for _, value, digits in columns),
        *(number(run.ratio(spot, run.rival(spot.target, rival), value), digits) for _, rival, value, digits in ratios),
        number(run.median(spot, lambda cell: cell.foreign_cpu), 2),
    ]


def _startups(run: Run) -> str:
    rows = [
        [
            name,
            number(one.seconds, 2),
            number(one.cpu_s, 2),
            str(one.processes),
            number(one.idle.rss, 0),
            number(one.idle.pss, 0),
        ]
        for name, one in run.startups.items()
    ]
    columns = ["target", "start to first answer s", "CPU s", "processes", "idle RSS MB", "idle PSS MB"]
    return f"### Start and idle memory\n\n{table(columns, rows)}"


def _goals(found: Sequence[Goal]) -> str:
    words = {True: "met", False: "not met", None: "not measured"}
    rows = [
        [goal.what, f"{'at least' if goal.at_least else 'at most'} {goal.limit:g} {goal.unit}".strip(),
         number(goal.measured, 3), words[goal.met]]
        for goal in found
    ]  # fmt: skip
    return f"### Targets\n\n{table(['measure', 'target', 'measured', ''], rows)}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int) -> str:
    """A figure as a person reads it; - where there is none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}f}"


def main() -> None:
    print(report(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Run)))


if __name__ == "__main__":
    main()
