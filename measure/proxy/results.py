"""The figures of a run, and the two questions that tables ask of them: a median over rounds, and a ratio to a rival.

A ratio is taken round by round, for the same spot of the schedule, and then its median: rates of one target differ up
to twofold between runs on a shared machine, ratios within a round much less.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

import msgspec

from measure.proxy.cells import Cell, Kind, Spot
from measure.proxy.launch import Startup
from measure.proxy.targets import STREAM_FIRST_MS

Value = Callable[[Cell], float | None]


class Row(msgspec.Struct, frozen=True):
    """One spot in all rounds, in their order."""

    spot: Spot
    rounds: tuple[Cell, ...]


class Run(msgspec.Struct, frozen=True, dict=True):
    """All that a run found out. `dict=True` for the cached look-up alone."""

    about: Mapping[str, str]  # date, machine, conditions, versions
    workers: Mapping[str, int]  # by target, in the order of the tables
    startups: Mapping[str, Startup]
    rows: tuple[Row, ...]
    skipped: Mapping[str, str]  # target → why it was not measured

    @cached_property
    def _rounds(self) -> Mapping[Spot, tuple[Cell, ...]]:
        return {row.spot: row.rounds for row in self.rows}

    def measured(self, target: str, kind: Kind, load: int) -> bool:
        return Spot(target, kind, load) in self._rounds

    def loads(self, kind: Kind) -> list[int]:
        return sorted({row.spot.load for row in self.rows if row.spot.kind == kind})

    def median(self, spot: Spot, value: Value) -> float | None:
        """Over the rounds that brought figures; None where there are none."""
        return _median(value(cell) for cell in self._rounds.get(spot, ()) if not cell.failed)

    def ratio(self, spot: Spot, rival: str, value: Value) -> float | None:
        """This target over its rival, under the same load."""
        return _median(mine / theirs for mine, theirs in self._pairs(spot, rival, value) if theirs)

    def difference(self, spot: Spot, rival: str, value: Value) -> float | None:
        """This target less its rival, under the same load."""
        return _median(mine - theirs for mine, theirs in self._pairs(spot, rival, value))

    def rival(self, target: str, name: str) -> str:
        """The rival with as many workers, where it was measured."""
        several = f"{name}-2w"
        return several if self.workers.get(target, 1) > 1 and several in self.workers else name

    def _pairs(self, spot: Spot, rival: str, value: Value) -> Iterable[tuple[float, float]]:
        theirs = self._rounds.get(Spot(rival, spot.kind, spot.load), ())
        for one, other in zip(self._rounds.get(spot, ()), theirs, strict=False):
            mine, base = value(one), value(other)
            if not one.failed and not other.failed and mine is not None and base is not None:
                yield mine, base


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def rps(cell: Cell) -> float:
    return cell.rps


def p50(cell: Cell) -> float:
    return cell.p50


def cpu_ms(cell: Cell) -> float | None:
    """CPU time of the target for one request, in ms (which is seconds for a thousand)."""
    return 1000 * cell.cpu_s / cell.requests if cell.requests else None


def ttft_overhead(cell: Cell) -> float | None:
    """What was added to the upstream's time to its first event, p50, in ms."""
    return cell.events.ttft_p50 - STREAM_FIRST_MS if cell.events else None


def event_delay(cell: Cell) -> float | None:
    """From the upstream's write to the client's read, p50 over events, in ms."""
    return cell.events.delay_p50 if cell.events else None
