"""The start-up figures."""

from __future__ import annotations

from measure.proxy.launch import Startup
from measure.proxy.processes import Memory
from measure.startup import Import, Module, imported, read_importtime, report

IMPORTTIME = """import time: self [us] | cumulative | imported package
import time:       120 |        120 |   _io
import time:      4000 |      90500 | gateway.app
"""


def test_import_times_are_read_with_their_units():
    """Python tells microseconds; the table has milliseconds."""
    assert [Module("_io", 0.12, 0.12), Module("gateway.app", 4.0, 90.5)] == read_importtime(IMPORTTIME)


def test_import_is_measured_in_a_process_of_its_own():
    """What this process has imported already would cost nothing."""
    found = imported("json", "json", 1)

    assert found is not None
    assert 0 < found.seconds < 5
    assert 5 < found.rss_mb < 100
    assert imported("nothing", "no_such_module_here", 1) is None


def test_report_gives_medians_of_the_starts():
    """One slow start on a busy machine is not the gateway's."""
    starts = [Startup(seconds, 0.5, 1, Memory(80.0, 60.0)) for seconds in (0.6, 9.0, 0.7)]
    text = report(starts, [Import("gateway.app", 0.4, 72)], [Module("fastapi", 20.0, 30.0)])

    assert "| tiergate serve | 0.70 |" in text
    assert "| gateway.app | 0.400 | 72 |" in text
    assert "| fastapi | 20.0 | 30.0 |" in text
