"""Where the gateway's time goes under load: samples of one worker, by function and by layer. Needs py-spy.

    python -m measure.proxy.profile --load json:64      whole answers, 64 connections
    python -m measure.proxy.profile --load hit:1        answers from the exact cache
    python -m measure.proxy.profile --load stream:64    streams

The tools are those that run.sh has built. Self time is time in the function itself; all time, with what it called.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from measure.proxy.cells import Bench, Cell, Kind, Spot, measure
from measure.proxy.launch import Crew
from measure.proxy.report import table
from measure.proxy.rounds import upstream
from measure.proxy.targets import Place, Target, targets, tools_folder

RATE = 400  # samples a second
LONGER_S = 2  # that the load lasts beyond the sampling
FRAME = re.compile(r"^(?P<name>.+?) \((?P<file>[^()]*?)(?::\d+)?\)$")
INSTALLED = "site-packages/"
OURS = ("gateway/", "router/", "cache/")

Stack = tuple[str, ...]


class Profile(msgspec.Struct, frozen=True):
    """Samples by their stack, outermost frame first; a frame is `function (file)`."""

    samples: Counter[Stack]

    @property
    def total(self) -> int:
        return self.samples.total()

    def self_time(self) -> Counter[str]:
        """Samples by innermost frame."""
        return self._count(lambda stack: stack[-1:])

    def all_time(self) -> Counter[str]:
        """Samples by every frame on the stack, once for each stack."""
        return self._count(set)

    def layers(self) -> Counter[str]:
        """Samples by the package of the innermost frame."""
        return self._count(lambda stack: (layer(stack[-1]),))

    def _count(self, frames: Callable[[Stack], Iterable[str]]) -> Counter[str]:
        counted: Counter[str] = Counter()
        for stack, count in self.samples.items():
            for frame in frames(stack):
                counted[frame] += count
        return counted


def read_profile(text: str) -> Profile:
    """py-spy's raw format: frames with semicolons between them, a blank, a count."""
    samples: Counter[Stack] = Counter()
    for line in text.splitlines():
        frames, _, count = line.rpartition(" ")
        stack = tuple(
            _named(frame) for frame in frames.split(";") if frame.strip() and not frame.startswith("process ")
        )
        if stack:
            samples[stack] += int(count)
    return Profile(samples)


def _named(frame: str) -> str:
    found = FRAME.match(frame)
    if not found:
        return frame
    file = found["file"].rpartition(INSTALLED)[2]
    for ours in OURS:
        if (place := file.find(f"/{ours}")) >= 0:
            file = file[place + 1 :]
    return f"{found['name']} ({file})"


def layer(frame: str) -> str:
    """The package of a frame: `gateway`, `aiohttp`, `uvicorn`; `asyncio` and the like for the standard library."""
    found = FRAME.match(frame)
    file = found["file"] if found else frame
    parts = [part for part in re.sub(r".*/lib/python[\d.]+/", "", file).split("/") if part]
    return parts[0].removesuffix(".py") if parts else "?"


def record(target: Target, spot: Spot, bench: Bench, worker: int) -> tuple[Profile, Cell]:
    """Put the load on, and sample the worker meanwhile."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as raw:
        command = [
            _py_spy(), "record", "--duration", str(bench.seconds), "--rate", str(RATE), "--function",
            "--format", "raw", "--output", raw.name, "--pid", str(worker),
        ]  # fmt: skip
        spy = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        cell = measure(target, spot, msgspec.structs.replace(bench, seconds=bench.seconds + LONGER_S), (worker,))
        _, errors = spy.communicate()
        if spy.returncode:
            raise SystemExit(f"py-spy: {errors.decode(errors='replace').strip()}")
        return read_profile(Path(raw.name).read_text()), cell


def _py_spy() -> str:
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise SystemExit("py-spy is missing: pip install py-spy")
    return found


def show(profile: Profile, top: int) -> str:
    """The three tables."""
    parts = []
    for title, counted, most in (
        ("layer, self time", profile.layers(), 12),
        ("function, self time", profile.self_time(), top),
        ("function, all time", profile.all_time(), top),
    ):
        told = [
            (name, count) for name, count in counted.most_common() if count < profile.total
        ]  # not what is above all
        rows = [[name, f"{100 * count / profile.total:.1f} %"] for name, count in told[:most]]
        parts.append(table([title, "share"], rows))
    return "\n\n".join(parts)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", default="json:64", help="json:N, hit:N or stream:N")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--top", type=int, default=30, help="functions to show")
    parser.add_argument("--tools", type=Path, default=tools_folder())
    parser.add_argument("--port", type=int, default=9001, help="of the upstream; the gateway is 130 above")
    parser.add_argument("--nice", type=int, default=0)
    return parser.parse_args(words)


def main() -> None:
    asked = arguments()
    what, _, load = asked.load.partition(":")
    name = "tiergate-hit" if what == "hit" else "tiergate"
    kind: Kind = "stream" if what == "stream" else "json"
    with tempfile.TemporaryDirectory(prefix="tiergate-profile-") as work, Crew(Path(work), asked.nice) as crew:
        target = targets(Place(Path(work), asked.tools / "peers", asked.port))[name]
        crew.start(upstream(asked.tools, asked.port))
        crew.start(target)
        bench = Bench(asked.tools, crew.pids("upstream")[0], asked.seconds, nice=asked.nice)
        profile, cell = record(target, Spot(name, kind, int(load)), bench, crew.pids(name)[0])
    print(
        f"{asked.load}: {cell.rps:,.0f} a second while sampled, {profile.total} samples\n\n{show(profile, asked.top)}"
    )


if __name__ == "__main__":
    main()
