"""Measure the gateway beside direct calls, nginx and LiteLLM, in one run; run.sh builds its tools and calls it.

python -m measure.proxy [--quick] [--targets direct,nginx,tiergate] [--json 1,64] [--stream 1,16,64]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from measure.proxy.conditions import conditions, now
from measure.proxy.launch import NotReady
from measure.proxy.report import report
from measure.proxy.results import Run
from measure.proxy.rounds import Plan, run
from measure.proxy.targets import Place, Target, targets, tools_folder

ALL = "direct,nginx,nginx-2w,litellm,tiergate,tiergate-hit,tiergate-2w"
QUICK = "direct,nginx,litellm,tiergate,tiergate-hit"


def numbers(text: str) -> tuple[int, ...]:
    """1,16,64 → (1, 16, 64); empty: none."""
    return tuple(int(part) for part in text.split(",") if part)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """What was asked for, with the defaults of a full or a quick run filled in."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--tools", type=Path, default=tools_folder(), help="folder with mock_upstream, loadgen and peers/"
    )
    parser.add_argument("--quick", action="store_true", help="one round of 2 s, fewer loads and targets")
    parser.add_argument("--targets", help=f"default: {ALL}; quick: {QUICK}")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int, help="of one cell")
    parser.add_argument("--json", type=numbers, metavar="N,N", help="connections of the closed-loop cells")
    parser.add_argument("--stream", type=numbers, metavar="N,N", help="streams at once")
    parser.add_argument("--rate", type=numbers, metavar="N,N", default=(), help="requests/s of the open-loop cells")
    parser.add_argument("--port", type=int, default=9001, help="of the upstream; targets take ports up to 140 above")
    parser.add_argument("--nice", type=int, default=0, help="scheduling weight of what is started, e.g. -15 as root")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder of the report and its figures")
    parser.add_argument("--peers", action="store_true", help="only print which peers the targets need")
    asked = parser.parse_args(words)
    usual = ((ALL, 2, 3, (1, 16, 64, 256), (1, 16, 64, 256)), (QUICK, 1, 2, (1, 64), (1, 16, 64)))[asked.quick]
    for name, default in zip(("targets", "rounds", "seconds", "json", "stream"), usual, strict=True):
        if getattr(asked, name) is None:
            setattr(asked, name, default)
    return asked


def main() -> int:
    asked = arguments()
    with tempfile.TemporaryDirectory(prefix="tiergate-bench-", ignore_cleanup_errors=True) as work:
        known = targets(Place(Path(work), asked.tools / "peers", asked.port))
        names = asked.targets.split(",")
        if unknown := [name for name in names if name not in known]:
            return _used_wrong(f"no such target: {', '.join(unknown)}; there are {', '.join(known)}")
        if asked.peers:
            print(" ".join(sorted({known[name].needs for name in names} - {""})))
            return 0
        if (os.cpu_count() or 1) < 2:
            return _used_wrong("the bench needs two cores: one for the target, one for the load")
        return _bench([known[name] for name in names], asked, Path(work))


def _bench(chosen: Sequence[Target], asked: argparse.Namespace, work: Path) -> int:
    plan = Plan(tuple(chosen), asked.rounds, asked.seconds, asked.json, asked.stream, asked.rate)
    try:
        found = run(plan, work, asked.tools.resolve(), asked.port, asked.nice)
    except NotReady as exc:
        return _used_wrong(f"the upstream does not start: {exc}")
    _keep(msgspec.structs.replace(found, about=conditions(plan, asked.tools, asked.nice)), asked.out)
    return 0


def _keep(found: Run, folder: Path) -> None:
    text = report(found)
    print(text)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / now().strftime("%Y%m%d-%H%M%S")
    stem.with_suffix(".md").write_text(text)
    stem.with_suffix(".json").write_bytes(msgspec.json.encode(found))
    print(f"kept in {stem}.md and {stem}.json", file=sys.stderr)


def _used_wrong(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
