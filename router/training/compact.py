"""Make data/routing from a folder with the full outcome tables: `python -m router.training.compact FROM [TO]`.

Keeps the sources whose licence lets them be shipped, and of each record what training and its evaluation read.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from router.training.data import DEFAULT_DATA, EVERYDAY, TRAINABLE, Pairs, load_pairs, records

FILES = ("train", "dev", "traffic_train", "traffic_dev", EVERYDAY)
_SHIPPED = {*TRAINABLE, "everyday_authored", EVERYDAY}
_KEPT = ("id", "source", "lang", "task", "prompt", "messages", "pair", "expected_tier", "same_request")


def slim(record: Mapping[str, Any], pairs: Pairs) -> dict[str, Any]:
    """The record with only the scores of its source's pair and of the tiers, and without its prompt told twice."""
    kept = {name: record[name] for name in _KEPT if record.get(name) is not None}
    if "messages" in kept:
        kept.pop("prompt", None)
    pair = pairs.get(record.get("source", ""), {})
    if scores := {model: score for model, score in record.get("scores", {}).items() if model in pair.values()}:
        kept["scores"] = scores
    if record.get("tier_scores"):
        kept["tier_scores"] = record["tier_scores"]
    if (record.get("meta") or {}).get("tools"):
        kept["meta"] = {"tools": True}
    return kept


def compact(source: Path, target: Path) -> dict[str, int]:
    """Write `FILES` and pairs.json into `target`; returns how many records each file has. The bytes are repeatable."""
    target.mkdir(parents=True, exist_ok=True)
    pairs = load_pairs(source)
    counts: dict[str, int] = {}
    for name in FILES:
        kept = [
            slim(record, pairs)
            for record in records(source / f"{name}.jsonl.gz")
            if record.get("source", EVERYDAY) in _SHIPPED
        ]
        counts[name] = len(kept)
        lines = "".join(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in kept)
        (target / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    shipped = {name: pair for name, pair in pairs.items() if name in _SHIPPED}
    (target / "pairs.json").write_text(json.dumps(shipped, indent=1) + "\n")
    return counts


if __name__ == "__main__":
    arguments = [Path(argument) for argument in sys.argv[1:]]
    sys.stdout.write(f"{compact(arguments[0], arguments[1] if arguments[1:] else DEFAULT_DATA)}\n")
