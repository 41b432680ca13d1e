"""`python -m router.training`: train the difficulty classifier and write its artifact."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from router import artifacts
from router.difficulty import PACKAGED, Classifier
from router.training.data import DEFAULT_DATA, EVERYDAY, Row, read_training
from router.training.evaluate import (
    by_chance,
    by_classifier,
    by_length,
    compare,
    everyday,
    same_tier,
    split_rows,
    table,
)
from router.training.fit import DEFAULTS, Trained, train

DEFAULT_OUT = Path(artifacts.__path__[0]) / PACKAGED


def _everyday_held_out(trained: Trained, rows: Sequence[Row]) -> dict[str, Any]:
    """On the judged pairs, each scored by experts that had not seen it."""
    judged = [row for row in rows if row.source == EVERYDAY]
    scores = np.array([trained.held_out[row.id] for row in judged])
    return {**everyday(judged, scores), "same_tier": same_tier(judged, scores)}


def run(data: Path, out: Path, say: Callable[[str], object]) -> dict[str, Any]:
    """Train on the train split in `data`, measure on its dev split, write `out`; returns the metrics it holds."""
    rows = read_training(data)
    say(f"training on {len(rows)} rows of {data}\n")
    trained = train(rows, DEFAULTS)
    compared = compare(
        *split_rows(data, "dev"),
        {"classifier": by_classifier(trained.classifier()), "length": by_length, "random": by_chance},
    )
    held_out = _everyday_held_out(trained, rows)
    metrics = {"dev": compared["classifier"], "everyday_held_out": held_out}
    out.parent.mkdir(parents=True, exist_ok=True)
    trained.save(out, metrics)
    Classifier.load(out)  # what was written can be read
    say(table(compared))
    for lang in ("en", "zh"):
        say(f"everyday pairs, held out, {lang}: " + ", ".join(f"{k} {v:.3g}" for k, v in held_out[lang].items()) + "\n")
    say(f"same tier in both languages: {held_out['same_tier']:.3f}\n")
    say(f"wrote {out}: {len(trained.columns)} words, {out.stat().st_size / 1000:.0f} kB\n")
    return metrics


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m router.training", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder with the outcome files")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="default: the packaged artifact")
    given = parser.parse_args(arguments)
    run(given.data, given.out, sys.stdout.write)


if __name__ == "__main__":
    main()
