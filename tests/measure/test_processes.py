"""Counting the CPU time and memory of a target with all its children."""

from __future__ import annotations

import subprocess
import sys

import pytest

from measure.proxy.processes import cpu_s, memory, start, stop, tree

CHILD = "import time; sum(i * i for i in range(10**6)); print('up', flush=True); time.sleep(60)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def family():
    """A process with a child that has worked."""
    process = start([sys.executable, "-c", PARENT], subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    assert b"up" in process.stdout.readline()
    yield process
    stop(process)
    process.stdout.close()
    process.stderr.close()


def test_children_count_with_their_parent(family):
    """A gateway of several workers uses what all of them use."""
    pids = tree(family.pid)
    held = memory(pids)

    assert 2 == len(pids)
    assert 0.0 < cpu_s(pids[1:]) <= cpu_s(pids)
    assert 5 < held.pss < held.rss < 200


def test_stopped_target_leaves_no_child_behind(family):
    """What stays would take CPU from the next cell, and its port."""
    pids = tree(family.pid)
    stop(family)

    assert not [pid for pid in pids if tree(pid) and cpu_s([pid]) and _alive(pid)]


def test_process_that_is_gone_counts_nothing():
    """Processes end while they are counted; that is no error."""
    assert () == tree(2**22 + 1)
    assert 0.0 == cpu_s([2**22 + 1])


def _alive(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"
