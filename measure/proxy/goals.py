"""What the gateway has to reach, as ratios within one run where it can be, so that the goals hold on other machines."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from measure.proxy.cells import Spot
from measure.proxy.results import Run, event_delay, p50, rps, ttft_overhead

OURS, HITS = "tiergate", "tiergate-hit"


class Goal(msgspec.Struct, frozen=True):
    """One line of the table. `measured` is None where the run has no figures for it."""

    what: str
    limit: float
    at_least: bool
    measured: float | None
    unit: str = ""

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit


def goals(run: Run) -> list[Goal]:
    """All goals, with what this run measured."""
    return [*_rates(run), *_delays(run), *_process(run)]


def _rates(run: Run) -> Iterable[Goal]:
    full = Spot(OURS, "json", 64)
    yield Goal("rate over nginx, 64 connections", 0.045, True, run.ratio(full, "nginx", rps))
    yield Goal("rate over LiteLLM, 64 connections", 35, True, run.ratio(full, "litellm", rps))
    yield Goal("exact hit: rate over nginx, 1 connection", 0.8, True, run.ratio(Spot(HITS, "json", 1), "nginx", rps))


def _delays(run: Run) -> Iterable[Goal]:
    added = run.difference(Spot(OURS, "json", 1), "direct", p50)
    yield Goal("added p50, 1 connection", 0.5, False, added, "ms")
    for load in (1, 16):
        overhead = run.median(Spot(OURS, "stream", load), ttft_overhead)
        yield Goal(f"TTFT overhead p50, {load} stream{'s' if load > 1 else ''}", 2.0, False, overhead, "ms")
    delay = run.median(Spot(OURS, "stream", 64), event_delay)
    yield Goal("event delay p50, 64 streams", 0.3, False, delay, "ms")


def _process(run: Run) -> Iterable[Goal]:
    startup = run.startups.get(OURS)
    yield Goal("start to first answer", 2.0, False, startup.seconds if startup else None, "s")
    yield Goal("idle memory of a worker (RSS)", 150, False, startup.idle.rss if startup else None, "MB")
