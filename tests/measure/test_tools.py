"""The upstream and the load generator that `make bench` builds, and one small run of all of it."""

from __future__ import annotations

import json
import subprocess
import urllib.error

import msgspec
import pytest

from measure.proxy.cells import Bench, Spot, measure
from measure.proxy.launch import Crew, NotReady, ask, free_port
from measure.proxy.rounds import Plan, run, upstream
from measure.proxy.targets import HERE, Place, Target, targets
from tests.needs import need

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def tools(tmp_path_factory):
    """The folder of the compiled tools; a warning of the compiler is an error."""
    compiler = need("cc", "gcc")
    need("taskset", "util-linux")
    folder = tmp_path_factory.mktemp("tools")
    for tool in ("mock_upstream", "loadgen"):
        command = [compiler, "-O1", "-Werror", "-o", str(folder / tool), str(HERE / f"{tool}.c"), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


@pytest.fixture
def mock(tools, tmp_path):
    """The upstream at work."""
    port = free_port()
    with Crew(tmp_path) as crew:
        crew.start(upstream(tools, port))
        yield Target("direct", port), crew.pids("upstream")[0]


def test_mock_answers_as_its_model_name_says(mock):
    """One upstream plays every scenario, and a proxy needs to forward nothing but the model."""
    target, _ = mock
    answer = json.loads(ask(target))

    assert "chat.completion" == answer["object"]
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["total_tokens"] > 0
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(msgspec.structs.replace(target, model="mock-e503"))
    assert 503 == refused.value.code
    refused.value.close()


def test_streams_keep_to_the_delays_that_were_asked_for(mock, tools):
    """The delay of events is measured against the upstream's own clock: 10 ms apart, the first after 50 ms."""
    target, pid = mock
    cell = measure(target, Spot("direct", "stream", 2), Bench(tools, pid, 1), (pid,))

    assert "" == cell.failed
    assert 0 == cell.errors
    assert cell.events is not None
    assert 32 == cell.events.per_stream
    assert 50 <= cell.events.ttft_p50 < 150
    assert cell.p50 >= 360


def test_broken_streams_are_counted_as_errors(mock, tools):
    """A stream without its end marker must not pass for an answer."""
    target, pid = mock
    cut = msgspec.structs.replace(target, stream_model="mock-n8-i1-c3")
    cell = measure(cut, Spot("direct", "stream", 1), Bench(tools, pid, 1), (pid,))

    assert 0 == cell.requests
    assert cell.errors > 0


def test_target_on_a_taken_port_is_refused(mock, tools, tmp_path):
    """Whoever listens there would answer in its place, and be measured."""
    target, _ = mock
    with Crew(tmp_path) as crew, pytest.raises(NotReady, match="taken"):
        crew.start(upstream(tools, target.port))


def test_target_that_does_not_start_is_left_out_with_its_words(tools, tmp_path):
    """One peer that cannot start must not cost the whole run."""
    broken = Target("broken", free_port(), ("sh", "-c", "echo no licence; exit 3"))
    found = run(Plan((broken,), 1, 1), tmp_path, tools, free_port(), 0)

    assert "ended with code 3" in found.skipped["broken"]
    assert "no licence" in found.skipped["broken"]


def test_small_run_measures_the_gateway_beside_direct_calls(tools, tmp_path):
    """The bench itself, end to end: the gateway is started, answers without errors, and is gone afterwards."""
    port = free_port()
    known = targets(Place(tmp_path, tmp_path, port))
    ours = msgspec.structs.replace(known["tiergate"], port=free_port())
    words = list(ours.command)
    words[words.index("--port") + 1] = str(ours.port)
    ours = msgspec.structs.replace(ours, command=tuple(words))
    found = run(Plan((known["direct"], ours), 1, 1, stream=(2,), rate=(50,)), tmp_path, tools, port, 0)

    assert {} == found.skipped
    assert 4 == len(found.rows)
    for row in found.rows:
        assert ("", 0) == (row.rounds[0].failed, row.rounds[0].errors), row
    overhead = found.difference(Spot("tiergate", "rate", 50), "direct", lambda cell: cell.p50)
    assert overhead is not None
    assert overhead > 0
    with pytest.raises(OSError, match="refused"):
        ask(ours)
    log = (tmp_path / "tiergate-requests.jsonl").read_bytes().splitlines()
    assert all(json.loads(line)["difficulty"] is not None for line in log[1:])
