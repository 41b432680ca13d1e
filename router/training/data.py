"""Prompts with outcomes, as read from a folder of gzipped JSON lines (data/routing/README.md says what is in them)."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from router.types import Call

DEFAULT_DATA = Path(__file__).parents[2] / "data" / "routing"
Pairs = Mapping[str, Mapping[str, str]]  # source → {"weak": model, "strong": model}

# Sources whose licence lets us ship what was learned from them; everything else is for measuring only.
TRAINABLE = (
    "routellm_mmlu", "mmlu_pro", "zeroeval_math_l5", "llmrouter_mix", "gaokao_bench", "zh_alpaca_examples",
    "belle_eval", "self_instruct_user", "sql_eval", "role_prompts_zh",
)  # fmt: skip
EVERYDAY = "everyday_pairs"
SEED = "everyday_seed"
JUDGED = (EVERYDAY, SEED)  # ours: a tier by judgement in place of outcomes
LABELS = {"small": 0.05, "medium": 0.52, "large": 0.95}
"""What a judged tier says about difficulty: the probability that the small tier's answer is not good enough."""


class Row(msgspec.Struct, frozen=True):
    """One prompt and what is known about it; NaN: not known."""

    id: str
    source: str
    lang: str
    call: Call
    weak: float = math.nan  # score of the weak and ...
    strong: float = math.nan  # ... of the strong model of the source's pair, in [0, 1]
    small: float = math.nan  # mean score of the small models, in [0, 1]
    expected_tier: str = ""  # small, medium, large: judged, not measured
    pair: str = ""  # the same request in another language has the same pair

    @property
    def fails(self) -> float:
        """How surely a small model's answer is not good enough; NaN where no model answered."""
        return 1 - (self.weak if math.isnan(self.small) else self.small)

    @property
    def gain(self) -> float:
        """How much better the strong model's answer is, at least 0."""
        return max(0.0, self.strong - self.weak) if not math.isnan(self.weak) else math.nan


def _call(record: Mapping[str, Any]) -> Call:
    messages = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
    asked = [message["content"] for message in messages if message["role"] == "user"]
    return Call(
        request_id=record["id"],
        surface="chat",
        body=b"",
        model="auto",
        system="\n".join(message["content"] for message in messages if message["role"] in ("system", "developer")),
        last_user=asked[-1],
        text="\n".join(message["content"] for message in messages),
        turns=len(asked),
        messages=len(messages),
        has_tools=bool((record.get("meta") or {}).get("tools")),
    )


def _row(record: Mapping[str, Any], pairs: Pairs) -> Row:
    source = record.get("source", EVERYDAY)
    scores, tiers = record.get("scores") or {}, record.get("tier_scores") or {}
    pair = pairs.get(source, {})
    paired = bool(pair) and pair["weak"] in scores and pair["strong"] in scores
    return Row(
        id=record["id"],
        source=source,
        lang=record["lang"],
        call=_call(record),
        weak=scores[pair["weak"]] if paired else math.nan,
        strong=scores[pair["strong"]] if paired else math.nan,
        small=tiers.get("small", math.nan),
        expected_tier=record.get("expected_tier") or "",
        pair=record.get("pair", ""),
    )


def records(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects of a gzipped file of lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def load_pairs(folder: Path) -> Pairs:
    pairs: Pairs = json.loads((folder / "pairs.json").read_text())
    return pairs


def read(folder: Path, names: Iterable[str]) -> list[Row]:
    """All rows of the files `NAME.jsonl.gz`, in their order; FileNotFoundError where one is missing."""
    pairs = load_pairs(folder)
    return [_row(record, pairs) for name in names for record in records(folder / f"{name}.jsonl.gz")]


def fingerprint(rows: Iterable[Row]) -> str:
    """SHA-256 over what training sees of the rows."""
    digest = hashlib.sha256()
    for row in rows:
        told = (row.id, row.call.text, row.weak, row.strong, row.small, row.expected_tier)
        digest.update(repr(told).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def read_seed(folder: Path) -> list[Row]:
    """Requests of our own: each line of everyday_seed.tsv is a tier and one request in English and in Chinese."""
    rows: list[Row] = []
    for number, line in enumerate((folder / f"{SEED}.tsv").read_text(encoding="utf-8").splitlines()):
        tier, *prompts = line.split("\t")
        for lang, prompt in zip(("en", "zh"), prompts, strict=True):
            record = {"id": f"{SEED}:{number}:{lang}", "source": SEED, "lang": lang, "prompt": prompt}
            rows.append(_row(record | {"expected_tier": tier, "pair": f"{SEED}:{number}"}, {}))
    return rows


def read_training(folder: Path) -> list[Row]:
    """Everything to train on in a folder; without a seed file of its own, ours is used."""
    seed = folder if (folder / f"{SEED}.tsv").exists() else DEFAULT_DATA
    return [*read(folder, ("train", "traffic_train", EVERYDAY)), *read_seed(seed)]
