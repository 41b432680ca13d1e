"""Reading what the load generators print."""

from __future__ import annotations

import pytest

from measure.proxy.cells import read_output

WRK = """Running 2s test @ http://127.0.0.1:9131/v1/chat/completions
Requests/sec:   2000.10
{"requests":4000,"seconds":2.000,"rps":2000.00,"errors":1,"status_errors":400,"mean":0.5,"p50":0.4,"p95":0.9,"p99":2.0,"max":9.1}
"""
LOADGEN = (
    '{"ok":6,"errors":2,"net_errors":0,"truncated":2,"seconds":2.2,"rps":2.77,"conc":1,"rate":0.0,"events_per_req":32.0,'
    '"bytes":1,"client_cpu_s":0.01,"status":{"200":6},"ttft":{"n":6,"mean":51,"p50":51.2,"p95":52,"p99":53,"max":53},'
    '"total":{"n":6,"mean":361,"p50":361.0,"p95":362,"p99":363,"max":363},'
    '"event_delay":{"n":192,"mean":0.2,"p50":0.15,"p95":0.3,"p99":1.5,"max":4.0}}\n'
)


def test_answers_with_other_statuses_are_errors_and_no_requests():
    """A proxy that refuses quickly must not look fast."""
    cell = read_output("json", WRK)

    assert 3600 == cell.requests
    assert 401 == cell.errors
    assert 1800 == pytest.approx(cell.rps)
    assert (0.4, 0.9, 2.0) == (cell.p50, cell.p95, cell.p99)


def test_streams_bring_the_times_of_their_events():
    """TTFT and the delay of each event are what a person at the other end feels."""
    cell = read_output("stream", LOADGEN)

    assert cell.events is not None
    assert (51.2, 0.15, 32.0) == (cell.events.ttft_p50, cell.events.delay_p50, cell.events.per_stream)
    assert 2 == cell.errors
    assert read_output("rate", LOADGEN).events is None


@pytest.mark.parametrize("output", ["", "unable to connect to 127.0.0.1:9131 Connection refused\n", '{"requests":1}\n'])
def test_load_generator_that_breaks_leaves_its_words_and_no_figures(output):
    """A zero in a table would be read as a measurement."""
    cell = read_output("json", output)

    assert cell.failed
    assert 0 == cell.requests
