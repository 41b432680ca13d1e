"""The schedule of a run: every round visits all targets under one load before the next load, odd rounds backwards."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from measure.proxy.cells import Bench, Cell, Kind, Spot, measure
from measure.proxy.launch import Crew, NotReady, Startup
from measure.proxy.results import Row, Run
from measure.proxy.targets import Target

WARM_UP = Spot("", "json", 16)
WARM_UP_S = 1


class Plan(msgspec.Struct, frozen=True):
    """What is to be measured, and for how long."""

    targets: tuple[Target, ...]
    rounds: int
    seconds: int  # of one cell
    json: tuple[int, ...] = ()  # connections
    stream: tuple[int, ...] = ()  # streams at once
    rate: tuple[int, ...] = ()  # requests a second

    @property
    def loads(self) -> list[tuple[Kind, int]]:
        kinds: tuple[tuple[Kind, tuple[int, ...]], ...] = (
            ("json", self.json),
            ("stream", self.stream),
            ("rate", self.rate),
        )
        return [(kind, load) for kind, loads in kinds for load in loads]


def run(plan: Plan, work: Path, tools: Path, port: int, nice: int) -> Run:
    """Start everything, measure, stop everything. A target that does not start is left out, with the reason.

    Raises `NotReady` if the upstream itself does not start.
    """
    with Crew(work, nice) as crew:
        crew.start(upstream(tools, port))
        bench = Bench(tools, crew.pids("upstream")[0], plan.seconds, nice=nice)
        startups, skipped = _start(plan, crew)
        up = tuple(target for target in plan.targets if target.name not in skipped)
        for target in up:
            measure(target, WARM_UP, msgspec.structs.replace(bench, seconds=WARM_UP_S), ())
        rows = _measure(msgspec.structs.replace(plan, targets=up), bench, crew)
    return Run({}, {target.name: target.workers for target in up}, startups, rows, skipped)


def upstream(tools: Path, port: int) -> Target:
    """The fake model server."""
    return Target("upstream", port, (str(tools / "mock_upstream"), str(port)), workers=2)


def _start(plan: Plan, crew: Crew) -> tuple[dict[str, Startup], dict[str, str]]:
    startups, skipped = {}, {}
    for target in plan.targets:
        if not target.command:
            continue
        try:
            if target.needs and not _is_installed(target):
                raise NotReady(f"{target.needs} is not installed")
            startups[target.name] = crew.start(target)
        except NotReady as exc:
            skipped[target.name] = str(exc)
            _tell(f"left out: {target.name}: {exc}")
        else:
            _tell(f"up: {target.name}, {startups[target.name]}")
    return startups, skipped


def _is_installed(target: Target) -> bool:
    """Whether the files of its command are there."""
    return all(os.path.exists(word) for word in target.command[:2] if word.startswith(os.sep))


def _measure(plan: Plan, bench: Bench, crew: Crew) -> tuple[Row, ...]:
    found: dict[Spot, list[Cell]] = {}
    for number in range(plan.rounds):
        for target, spot in _schedule(plan, backwards=number % 2 == 1):
            pids = crew.pids(target.name) if target.command else (bench.upstream,)
            cell = measure(target, spot, bench, pids)
            found.setdefault(spot, []).append(cell)
            _tell(f"{number + 1} {spot.kind} {spot.load} {spot.target}: {cell}")
    return tuple(Row(spot, tuple(cells)) for spot, cells in found.items())


def _schedule(plan: Plan, backwards: bool) -> Iterator[tuple[Target, Spot]]:
    order = plan.targets[::-1] if backwards else plan.targets
    for kind, load in plan.loads:
        for target in order:
            if kind != "stream" or target.streams:
                yield target, Spot(target.name, kind, load)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
