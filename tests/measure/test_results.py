"""Medians and ratios, on which every judgement of speed rests."""

from __future__ import annotations

import pytest

from measure.proxy.cells import Cell, Spot
from measure.proxy.goals import goals
from measure.proxy.results import Run, cpu_ms, event_delay, p50, rps, ttft_overhead
from tests.measure.samples import good_run, row, streamed, whole

OURS = Spot("ours", "json", 64)


def run(*rows, workers=None) -> Run:
    return Run({}, workers or {"ours": 1, "nginx": 1}, {}, rows, {})


def test_ratio_is_taken_round_by_round_before_the_median():
    """The machine may be half as fast in one round; both targets suffer then, and their ratio does not."""
    found = run(
        row("ours", "json", 64, whole(1000), whole(400), whole(1200)),
        row("nginx", "json", 64, whole(10_000), whole(4_000), whole(10_000)),
    )

    assert 0.1 == pytest.approx(found.ratio(OURS, "nginx", rps))
    assert 1000 == found.median(OURS, rps)


def test_failed_round_is_left_out_of_both_sides():
    """A load generator that broke must not count as a rate of zero."""
    broken = Cell(failed="wrk: connection refused")
    found = run(row("ours", "json", 64, whole(1000), broken), row("nginx", "json", 64, whole(10_000), whole(20_000)))

    assert 1000 == found.median(OURS, rps)
    assert 0.1 == pytest.approx(found.ratio(OURS, "nginx", rps))


def test_rival_that_was_not_measured_gives_no_ratio():
    """Without LiteLLM in the run there is nothing to say about it, and nothing must be said."""
    found = run(row("ours", "json", 64, whole(1000)))

    assert found.ratio(OURS, "litellm", rps) is None
    assert found.difference(OURS, "direct", p50) is None


def test_target_of_two_workers_is_compared_with_a_rival_of_two():
    """Two workers on two cores against one on one core would flatter us."""
    found = run(workers={"ours": 1, "ours-2w": 2, "nginx": 1, "nginx-2w": 2, "litellm": 1})

    assert "nginx-2w" == found.rival("ours-2w", "nginx")
    assert "nginx" == found.rival("ours", "nginx")
    assert "litellm" == found.rival("ours-2w", "litellm")


def test_overhead_counts_from_the_upstreams_own_times():
    """The upstream's first event comes after 50 ms; only what is beyond that was added."""
    assert 1.5 == pytest.approx(ttft_overhead(streamed(51.5, 0.2)))
    assert 0.2 == event_delay(streamed(51.5, 0.2))
    assert event_delay(whole(1000)) is None


def test_cpu_time_is_per_answered_request():
    """Two seconds for a thousand answers are two milliseconds each; without answers there is no such figure."""
    assert 2.0 == cpu_ms(whole(500, cpu_s=2.0))
    assert cpu_ms(Cell(requests=0, cpu_s=2.0)) is None


def test_goals_are_judged_by_what_was_measured():
    """The table decides whether a release is fast enough: each bound must be on its right side."""
    judged = {goal.what: goal for goal in goals(good_run())}

    assert all(goal.met for goal in judged.values())
    assert 0.06 == pytest.approx(judged["rate over nginx, 64 connections"].measured)
    assert 40 == pytest.approx(judged["rate over LiteLLM, 64 connections"].measured)
    assert 0.4 == pytest.approx(judged["added p50, 1 connection"].measured)
    assert 1.2 == pytest.approx(judged["TTFT overhead p50, 16 streams"].measured)


def test_goal_that_is_missed_or_not_measured_is_not_met():
    """No figures are not good figures."""
    slow = run(row("tiergate", "json", 64, whole(1000)), row("nginx", "json", 64, whole(50_000)))
    judged = {goal.what: goal.met for goal in goals(slow)}

    assert judged["rate over nginx, 64 connections"] is False
    assert judged["start to first answer"] is None
