"""The report that `make bench` prints."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from measure.proxy.report import number, report
from measure.proxy.results import Run
from tests.measure.samples import good_run, row, whole


def cells(text: str, start: str) -> list[list[str]]:
    """The rows that begin with this target, cell by cell."""
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [cells for cells in rows if cells[0] == start]


def test_report_shows_figures_and_ratios_of_each_target():
    """A reader compares lines of one table; the ratios stand beside the figures they come from."""
    text = report(good_run())
    ours = cells(text, "tiergate")

    assert ["tiergate", "64", "3,000"] == ours[1][:3]
    assert "0.0600" in ours[1]
    assert "40.0" in ours[1]
    assert ["tiergate", "16", "44.0", "1.20"] == ours[3][:4]


def test_report_ends_with_the_targets_and_what_was_left_out():
    """Whether the gateway is fast enough must be answered, not left to the reader."""
    text = report(good_run())

    assert [["event delay p50, 64 streams", "at most 0.3 ms", "0.200", "met"]] == cells(
        text, "event delay p50, 64 streams"
    )
    assert "Not measured: portkey (not asked)" in text
    assert "not met" not in text


def test_report_of_a_run_without_rivals_or_streams_renders():
    """A quick look at the gateway alone is a usual run; what it did not measure is a dash."""
    alone = Run({}, {"tiergate": 1}, {}, (row("tiergate", "json", 64, whole(3000)),), {})
    text = report(alone)

    assert "-" in cells(text, "tiergate")[0]
    assert "Streams" not in text
    assert "not measured" in text


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    """A missing cell shifts every figure after it under the wrong title."""
    widths: set[int] = set()
    for line in report(good_run()).splitlines():
        if not line.startswith("|"):
            assert len(widths) <= 1
            widths = set()
        else:
            widths.add(line.count("|"))


def test_report_can_be_written_again_from_kept_figures(tmp_path):
    """The figures outlive the process that took them."""
    kept = tmp_path / "run.json"
    kept.write_bytes(msgspec.json.encode(good_run()))
    done = subprocess.run(
        [sys.executable, "-m", "measure.proxy.report", str(kept)], capture_output=True, text=True, check=True
    )

    assert report(good_run()) == done.stdout.removesuffix("\n")


def test_numbers_are_written_for_people():
    """Thousands are separated, and what is unknown is not a zero."""
    assert ("52,301", "0.045", "-") == (number(52_301.4, 1), number(0.0449, 3), number(None, 3))
