"""How good a difficulty score is as a router: on measured outcomes, and on judged everyday requests.

APGR is the area under PGR(c), the share of the gap between always-weak and always-strong that is won when the
fraction c of the prompts, the hardest first, goes to the strong model; random routing has 0.5. Equal scores count as
broken at random. AUC is the chance that of two prompts the right one scores higher, ties counting half.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from router.difficulty import Classifier
from router.features import features
from router.training.data import DEFAULT_DATA, Row, read

Floats = npt.NDArray[np.float64]
THRESHOLDS = (0.35, 0.70)  # the policy's defaults: from here medium, from here large
TIERS = ("small", "medium", "large")


def apgr(scores: Floats, gain: Floats) -> float:
    """`gain`: strong minus weak, for each prompt; NaN where the strong model gains nothing at all."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) + 1
    share = np.concatenate([[0.0], ends / len(scores)])
    won = np.concatenate([[0.0], np.cumsum(gain[order])[ends - 1]])
    if won[-1] <= 0:
        return math.nan
    return float(np.sum(np.diff(share) * (won[1:] + won[:-1]) / 2) / won[-1])


def auc(scores: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """NaN where all prompts are of one kind."""
    high, low = scores[positive], np.sort(scores[~positive])
    if not len(high) or not len(low):
        return math.nan
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / 2 / len(low))


def calibration_error(probability: Floats, outcome: Floats, bins: int = 10) -> float:
    """Mean distance of what was said from what happened, over equally filled bins; NaN for scores outside [0, 1]."""
    if probability.max() > 1 or probability.min() < 0:
        return math.nan
    order = np.argsort(probability, kind="stable")
    parts = zip(np.array_split(probability[order], bins), np.array_split(outcome[order], bins), strict=True)
    return float(sum(len(said) * abs(said.mean() - was.mean()) for said, was in parts) / len(order))


def tiers_of(difficulty: Floats) -> list[str]:
    return [TIERS[int(np.searchsorted(THRESHOLDS, value, "right"))] for value in difficulty]


def outcomes(rows: Sequence[Row], scores: Floats) -> dict[str, Any]:
    """Rows with a weak and a strong score → APGR (pooled, by source, by language), AUC, calibration error."""
    paired = np.array([not math.isnan(row.gain) for row in rows])
    gap = np.array([row.strong - row.weak for row in rows])
    fails = np.array([row.fails for row in rows])
    source, lang = np.array([row.source for row in rows]), np.array([row.lang for row in rows])

    def of(which: npt.NDArray[np.bool_]) -> float:
        return apgr(scores[paired & which], gap[paired & which])

    by_source = {str(name): of(source == name) for name in sorted(set(source[paired].tolist()))}
    known = [value for value in by_source.values() if not math.isnan(value)]
    return {
        "prompts": int(paired.sum()),
        "apgr": apgr(scores[paired], gap[paired]),
        "apgr_mean_of_sources": float(np.mean(known)),
        "apgr_by_lang": {code: of(lang == code) for code in ("en", "zh") if (paired & (lang == code)).any()},
        "apgr_by_source": by_source,
        "auc_gain": auc(scores[paired], gap[paired] > 0),
        "auc_fails": auc(scores[paired], fails[paired] > 0.5),
        "calibration_error": calibration_error(scores[paired], fails[paired]),
    }


def everyday(rows: Sequence[Row], scores: Floats) -> dict[str, Any]:
    """Rows with an expected tier → by language: AUC of large against small, share of exact tiers, grave errors."""
    found: dict[str, Any] = {}
    tiers = np.array(tiers_of(scores))
    expected, lang = np.array([row.expected_tier for row in rows]), np.array([row.lang for row in rows])
    for code in ("en", "zh"):
        mine = lang == code
        clear = mine & (expected != "medium")
        found[code] = {
            "prompts": int(mine.sum()),
            "auc": auc(scores[clear], expected[clear] == "large"),
            "exact": float((tiers[mine] == expected[mine]).mean()),
            "large_to_small": float((tiers[mine & (expected == "large")] == "small").mean()),
            "small_to_large": float((tiers[mine & (expected == "small")] == "large").mean()),
        }
    return found


def same_tier(rows: Sequence[Row], scores: Floats) -> float:
    """Of the requests that stand there in two languages, the share that gets one tier in both."""
    by_pair: dict[str, list[str]] = {}
    for row, tier in zip(rows, tiers_of(scores), strict=True):
        by_pair.setdefault(row.pair, []).append(tier)
    both = [tiers for tiers in by_pair.values() if len(tiers) == 2]
    return sum(one == other for one, other in both) / len(both)


Scorer = Callable[[Sequence[Row]], Floats]


def by_length(rows: Sequence[Row]) -> Floats:
    """The baseline to beat: characters of the last user message."""
    return np.array([len(row.call.last_user) for row in rows], dtype=np.float64)


def by_chance(rows: Sequence[Row]) -> Floats:
    return np.random.default_rng(0).random(len(rows))


def compare(rows: Sequence[Row], judged: Sequence[Row], scorers: Mapping[str, Scorer]) -> dict[str, Any]:
    """Every scorer on the same rows: `rows` with outcomes, `judged` with expected tiers."""
    return {
        name: {"outcomes": outcomes(rows, score(rows)), "everyday": everyday(judged, score(judged))}
        for name, score in scorers.items()
    }


def by_classifier(classifier: Classifier) -> Scorer:
    def score(rows: Sequence[Row]) -> Floats:
        return np.array([classifier.difficulty(features(row.call)) for row in rows])

    return score


def split_rows(folder: Path, split: str) -> tuple[list[Row], list[Row]]:
    """Rows with outcomes, and everyday requests with an expected tier, of one split; neither is trained on."""
    judged = [row for row in read(folder, (f"traffic_{split}",)) if row.expected_tier]
    return read(folder, (split,)), judged


def table(compared: Mapping[str, Any]) -> str:
    """`compare`'s result for people: a line a scorer, then APGR by source."""
    lines = [
        "scorer        APGR  mean of sources  AUC gain  AUC fails  cal. error  everyday AUC en / zh  exact en / zh"
    ]
    for name, found in compared.items():
        measured, judged = found["outcomes"], found["everyday"]
        lines.append(
            f"{name:<12} {measured['apgr']:.3f} {measured['apgr_mean_of_sources']:16.3f} {measured['auc_gain']:9.3f}"
            f" {measured['auc_fails']:10.3f} {measured['calibration_error']:11.3f}"
            f" {judged['en']['auc']:13.3f} / {judged['zh']['auc']:.3f}"
            f" {judged['en']['exact']:8.2f} / {judged['zh']['exact']:.2f}"
        )
    lines.append(f"\n{'APGR by source':<26}" + "".join(f" {name:>11}" for name in compared))
    first = next(iter(compared.values()))["outcomes"]["apgr_by_source"]
    for source in first:
        each = "".join(f" {found['outcomes']['apgr_by_source'][source]:11.3f}" for found in compared.values())
        lines.append(f"{source:<26}{each}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m router.training.evaluate`: an artifact beside prompt length and chance, on one split."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder with SPLIT and traffic_SPLIT .jsonl.gz")
    parser.add_argument("--split", default="dev", choices=("dev", "test"))
    parser.add_argument("--artifact", type=Path, help="default: the packaged one")
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    given = parser.parse_args(arguments)
    scorers = {
        "classifier": by_classifier(Classifier.load(given.artifact)),
        "length": by_length,
        "random": by_chance,
    }
    compared = compare(*split_rows(given.data, given.split), scorers)
    sys.stdout.write(json.dumps(compared, indent=1) + "\n" if given.json else table(compared))


if __name__ == "__main__":
    main()
