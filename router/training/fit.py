"""Fit the experts and the gate of `router.difficulty` with scikit-learn, and write the artifact.

How each head is fitted, and why, is in docs/routing.md. All of it is deterministic.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from router.difficulty import FORMAT, HEADS, SHAPE_NAMES, Classifier, shape
from router.features import Features, features
from router.training.data import JUDGED, LABELS, TRAINABLE, Row, fingerprint

Floats = npt.NDArray[np.float64]
FOLDS = 5


class Settings(msgspec.Struct, frozen=True):
    """What can be chosen; the defaults were chosen on the dev split."""

    min_count: int = 6  # prompts that a word must occur in
    exam_strength: float = 0.5  # inverse regularisation of each head
    everyday_strength: float = 0.3
    gate_strength: float = 1.0
    gate_exam: float = 0.15  # weight of a benchmark question in the gate (an ordinary prompt: 1)
    gate_everyday: float = 2.0
    gate_shape: float = 0.5  # how much the shape counts beside the words
    source_size: float = 2000.0  # a source n times this size weighs sqrt(n) times as much, not n times


DEFAULTS = Settings()


class Inputs(msgspec.Struct, frozen=True):
    """Rows as matrices: `shapes` (rows, shapes) dense, `grams` (rows, vocabulary) sparse and scaled as when serving."""

    rows: Sequence[Row]
    shapes: Floats
    grams: Any  # scipy.sparse.csr_matrix

    def __getitem__(self, chosen: npt.NDArray[np.bool_]) -> Inputs:
        rows = [row for row, take in zip(self.rows, chosen, strict=True) if take]
        return Inputs(rows, self.shapes[chosen], self.grams[chosen])


class Head(msgspec.Struct, frozen=True):
    """One linear model on raw shapes and scaled grams; logit = shapes @ shape + grams @ gram + bias."""

    shape: Floats
    gram: Floats
    bias: float

    def logits(self, inputs: Inputs) -> Floats:
        found: Floats = inputs.shapes @ self.shape + inputs.grams @ self.gram + self.bias
        return found

    def calibrated(self, slope: float, offset: float) -> Head:
        return Head(self.shape * slope, self.gram * slope, self.bias * slope + offset)


def vocabulary(found: Sequence[Features], min_count: int) -> dict[str, int]:
    """Grams of at least `min_count` of the prompts, the most frequent first."""
    counts = Counter(gram for one in found for gram in one.grams)
    kept = sorted(
        (gram for gram, count in counts.items() if count >= min_count), key=lambda gram: (-counts[gram], gram)
    )
    return {gram: column for column, gram in enumerate(kept)}


def inputs_of(rows: Sequence[Row], found: Sequence[Features], columns: Mapping[str, int]) -> Inputs:
    known = [[columns[gram] for gram in one.grams if gram in columns] for one in found]
    scale = np.repeat([1 / math.sqrt(len(one) + 1) for one in known], [len(one) for one in known])
    starts = np.cumsum([0, *(len(one) for one in known)])
    flat = np.array([column for one in known for column in one], dtype=np.int64)
    grams = sp.csr_matrix((scale, flat, starts), shape=(len(rows), len(columns)))
    return Inputs(rows, np.array([shape(one) for one in found], dtype=np.float64), grams)


def _logistic(x: Any, y: Floats, weight: Floats, strength: float) -> tuple[Floats, float]:
    """Logistic regression on probabilities as labels: each row counts once as true and once as false."""
    model = LogisticRegression(C=strength, max_iter=1000, tol=1e-5)
    twice = sp.vstack([x, x]).tocsr() if sp.issparse(x) else np.vstack([x, x])
    model.fit(twice, np.repeat([1, 0], len(y)), sample_weight=np.concatenate([y * weight, (1 - y) * weight]))
    return model.coef_[0], float(model.intercept_[0])


def fit_head(inputs: Inputs, y: Floats, weight: Floats, strength: float, shape_scale: float) -> Head:
    """`shape_scale` 0: words alone. Shapes are standardised for the fit and the scaling is folded into the weights."""
    mean, spread = inputs.shapes.mean(axis=0), inputs.shapes.std(axis=0)
    spread[spread < 1e-6] = np.inf  # a shape that never varies gets no weight
    scaled = sp.hstack([sp.csr_matrix((inputs.shapes - mean) / spread * shape_scale), inputs.grams]).tocsr()
    coefficients, bias = _logistic(scaled, y, weight, strength)
    raw = coefficients[: len(SHAPE_NAMES)] * shape_scale / spread
    return Head(raw, coefficients[len(SHAPE_NAMES) :], bias - float(raw @ mean))


def _platt(logits: Floats, y: Floats, weight: Floats) -> tuple[float, float]:
    slope, offset = _logistic(logits[:, None], y, weight, 1e4)
    return float(slope[0]), offset


def _folds(rows: Sequence[Row]) -> npt.NDArray[np.int64]:
    """A fold for each row; the two languages of a pair share theirs."""
    names = sorted({row.pair or row.id for row in rows})
    fold = {name: number % FOLDS for number, name in enumerate(names)}
    return np.array([fold[row.pair or row.id] for row in rows])


def held_out_logits(inputs: Inputs, y: Floats, weight: Floats, strength: float, shape_scale: float) -> Floats:
    """What heads fitted without a row's fold say of it."""
    folds, held_out = _folds(inputs.rows), np.zeros(len(inputs.rows))
    for fold in range(FOLDS):
        seen = folds != fold
        head = fit_head(inputs[seen], y[seen], weight[seen], strength, shape_scale)
        held_out[~seen] = head.logits(inputs[~seen])
    return held_out


def fit_exam(inputs: Inputs, chosen: Settings) -> Head:
    """Ranks by how much better the strong model is; calibrated to how often the small one fails."""
    seen = inputs[np.array([not math.isnan(row.gain) for row in inputs.rows])]
    sizes = Counter(row.source for row in seen.rows)
    weight = np.array([math.sqrt(chosen.source_size / sizes[row.source]) for row in seen.rows])
    gain, fails = (np.array([getattr(row, name) for row in seen.rows]) for name in ("gain", "fails"))
    held_out = held_out_logits(seen, gain, weight, chosen.exam_strength, 0.0)
    head = fit_head(seen, gain, weight, chosen.exam_strength, 0.0)
    return head.calibrated(*_platt(held_out, fails, weight))


def fit_everyday(judged: Inputs, chosen: Settings) -> tuple[Head, Floats]:
    """From judged tiers; also the calibrated logits of the same requests by heads that had not seen them."""
    label = np.array([LABELS[row.expected_tier] for row in judged.rows])
    weight = np.ones(len(label))
    held_out = held_out_logits(judged, label, weight, chosen.everyday_strength, 1.0)
    slope, offset = _platt(held_out, label, weight)
    head = fit_head(judged, label, weight, chosen.everyday_strength, 1.0)
    return head.calibrated(slope, offset), held_out * slope + offset


def fit_gate(inputs: Inputs, chosen: Settings) -> tuple[Head, Floats]:
    """Benchmark questions against everyday requests and ordinary traffic; and its held-out logits."""
    exam = np.array([not math.isnan(row.strong) or row.source == "gaokao_bench" for row in inputs.rows])
    weight = np.where(exam, chosen.gate_exam, np.where(_judged(inputs.rows), chosen.gate_everyday, 1.0))
    fitted = (exam.astype(np.float64), weight, chosen.gate_strength, chosen.gate_shape)
    return fit_head(inputs, *fitted), held_out_logits(inputs, *fitted)


def _judged(rows: Sequence[Row]) -> npt.NDArray[np.bool_]:
    return np.array([row.source in JUDGED for row in rows])


class Trained(msgspec.Struct, frozen=True):
    columns: Mapping[str, int]
    heads: tuple[Head, ...]  # in the order of HEADS
    held_out: Mapping[str, float]  # id of an everyday request → its difficulty by experts that had not seen it
    meta: Mapping[str, Any]

    def classifier(self) -> Classifier:
        return Classifier(self.columns, *self._arrays(), self.meta)

    def _arrays(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        gram = np.stack([head.gram for head in self.heads], axis=1).astype(np.float16).astype(np.float32)
        shapes = np.stack([head.shape for head in self.heads], axis=1).astype(np.float32)
        return gram, shapes, np.array([head.bias for head in self.heads], dtype=np.float32)

    def save(self, path: Path, metrics: Mapping[str, Any]) -> None:
        """Write the artifact, with `metrics` in its metadata."""
        gram, shapes, bias = self._arrays()
        meta = json.dumps({**self.meta, "metrics": metrics}, sort_keys=True).encode()
        held = io.BytesIO()
        np.savez_compressed(
            held,
            vocabulary=np.frombuffer("\n".join(self.columns).encode(), dtype=np.uint8),
            gram_weights=gram.astype(np.float16),
            shape_weights=shapes,
            bias=bias,
            meta=np.frombuffer(meta, dtype=np.uint8),
        )
        path.write_bytes(held.getvalue())


def _meta(rows: Sequence[Row], chosen: Settings) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "shapes": SHAPE_NAMES,
        "heads": HEADS,
        "settings": msgspec.to_builtins(chosen),
        "data_sha256": fingerprint(rows),
        "rows": dict(sorted(Counter(row.source for row in rows).items())),
        "licence": "Apache-2.0; learned from the sources under `rows`, credited in data/routing/README.md",
    }


def train(rows: Sequence[Row], chosen: Settings = DEFAULTS) -> Trained:
    """Fit everything on the rows whose source may be trained on; the others are ignored.

    On one thread: sums are then taken in the same order on any number of cores, and small problems are faster so.
    """
    with import_module("threadpoolctl").threadpool_limits(1):
        return _train(rows, chosen)


def _train(rows: Sequence[Row], chosen: Settings) -> Trained:
    allowed = [row for row in rows if row.source in TRAINABLE or row.source in JUDGED]
    found = [features(row.call) for row in allowed]
    columns = vocabulary(found, chosen.min_count)
    inputs = inputs_of(allowed, found, columns)
    judged = _judged(allowed)
    exam = fit_exam(inputs, chosen)
    everyday, everyday_logits = fit_everyday(inputs[judged], chosen)
    gate, gate_logits = fit_gate(inputs, chosen)
    share = _probability(gate_logits[judged])
    held_out = share * _probability(exam.logits(inputs[judged])) + (1 - share) * _probability(everyday_logits)
    return Trained(
        columns=columns,
        heads=(exam, everyday, gate),
        held_out=dict(zip([row.id for row in inputs[judged].rows], held_out.tolist(), strict=True)),
        meta=_meta(allowed, chosen),
    )


def _probability(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))
