"""Processes and what they use: CPU time and memory of a process with all its children, from /proc (Linux alone)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
STOP_S = 8.0


class Memory(msgspec.Struct, frozen=True):
    """MB (2**20 bytes) of all processes together. `pss` counts a page that two of them share once."""

    rss: float
    pss: float


def start(
    command: Sequence[str],
    output: IO[bytes] | int,
    nice: int = 0,
    *,
    cores: str = "",
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, on these cores ("0", "0,1"; empty: any), with this scheduling weight."""
    pinned = ["taskset", "-c", cores, *command] if cores else list(command)
    errors = output if output != subprocess.PIPE else subprocess.PIPE
    process = subprocess.Popen(
        pinned, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
        env={**os.environ, **(environ or {})}, start_new_session=True,
    )  # fmt: skip
    if nice:
        _weigh(process.pid, nice)
    return process


def _weigh(pid: int, nice: int) -> None:
    """With autogroups, the usual setting, a nice value counts within its session alone; sessions have a weight too."""
    with contextlib.suppress(OSError):  # no right to raise it, or it has ended: measured as it is
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it and all its children: SIGTERM, after `STOP_S` SIGKILL. Returns when it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in tree(process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
            return


def tree(pid: int) -> tuple[int, ...]:
    """This process and all its descendants; empty if it is gone."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))):
            children.setdefault(int(stat[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        if os.path.exists(f"/proc/{one}"):
            found.append(one)
            todo += children.get(one, [])
    return tuple(found)


def cpu_s(pids: Sequence[int]) -> float:
    """Seconds of user and system time so far, with all threads and the children that have ended."""
    return sum(sum(map(int, stat[11:15])) for pid in pids if (stat := _stat(pid))) / TICKS_PER_S


def memory(pids: Sequence[int]) -> Memory:
    """What these processes hold now."""
    sizes = {"Rss:": 0, "Pss:": 0}
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                words = line.split()
                if words[0] in sizes:
                    sizes[words[0]] += int(words[1])
    return Memory(round(sizes["Rss:"] / 1024, 1), round(sizes["Pss:"] / 1024, 1))


def machine_cpu_s() -> float:
    """Seconds that all cores together have been busy since the machine's start."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, low, system, _idle, _wait, irq, soft, _stolen = map(int, words)
    return (user + low + system + irq + soft) / TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat that follow the command's name; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
