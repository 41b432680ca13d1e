"""`router.training.fit`: what is fitted is what is served."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from router.difficulty import Classifier
from router.features import features
from router.training.__main__ import run
from router.training.data import DEFAULT_DATA, JUDGED, Row, fingerprint, read_training, records
from router.training.fit import Trained, inputs_of, train


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """A slice of every source, so that training takes a moment only."""
    every = read_training(DEFAULT_DATA)
    return [row for number, row in enumerate(every) if row.source in JUDGED or number % 12 == 0]


@pytest.fixture(scope="module")
def trained(rows: list[Row]) -> Trained:
    return train(rows)


def test_serving_computes_what_training_fitted(trained: Trained, rows: list[Row]) -> None:
    """Two implementations of one arithmetic drift apart unless they are held together."""
    some = rows[:: len(rows) // 50]
    found = [features(row.call) for row in some]
    inputs = inputs_of(some, found, trained.columns)
    fitted = np.stack([1 / (1 + np.exp(-head.logits(inputs))) for head in trained.heads], axis=1)
    served = np.array([trained.classifier().heads(one) for one in found])

    np.testing.assert_allclose(served, fitted, atol=0.005)


def test_training_twice_gives_the_same_bytes(trained: Trained, rows: list[Row], tmp_path: Path) -> None:
    """An artifact that can be made again can be checked by anybody."""
    first, second = tmp_path / "first.npz", tmp_path / "second.npz"
    trained.save(first, {"apgr": 0.5})
    train(rows).save(second, {"apgr": 0.5})

    assert first.read_bytes() == second.read_bytes()


def test_the_artifact_survives_saving(trained: Trained, rows: list[Row], tmp_path: Path) -> None:
    """What was measured must be what is shipped."""
    path = tmp_path / "saved.npz"
    trained.save(path, {"dev": 1})
    loaded, memory = Classifier.load(path), trained.classifier()

    assert {"dev": 1} == loaded.meta["metrics"]
    assert fingerprint(list(rows)) == loaded.meta["data_sha256"]
    for row in rows[:: len(rows) // 20]:
        found = features(row.call)
        assert loaded.difficulty(found) == pytest.approx(memory.difficulty(found), abs=1e-6)


def test_judged_requests_are_scored_by_experts_that_had_not_seen_them(trained: Trained, rows: list[Row]) -> None:
    """The held-out figures are the ones that docs quote."""
    judged = [row for row in rows if row.source in JUDGED]
    seen = [abs(trained.held_out[row.id] - trained.classifier().difficulty(features(row.call))) for row in judged]

    assert {row.id for row in judged} == set(trained.held_out)
    assert np.mean(seen) > 0.005
    assert not any(math.isnan(value) for value in trained.held_out.values())


def test_a_source_that_may_not_be_shipped_changes_nothing(trained: Trained, rows: list[Row]) -> None:
    """The folder of full outcome tables also holds data for measuring only."""
    foreign = [Row("x", "alpaca_eval2", "en", rows[0].call, weak=0.0, strong=1.0)] * 50

    assert trained.meta == train([*foreign, *rows]).meta


def test_the_command_trains_measures_and_writes(tmp_path: Path) -> None:
    """`python -m router.training --data FOLDER --out FILE` is what docs/routing.md tells to run."""
    for name in ("train", "dev", "traffic_train", "traffic_dev", "everyday_pairs"):
        thinned = list(records(DEFAULT_DATA / f"{name}.jsonl.gz"))[:: 1 if "every" in name or "dev" in name else 10]
        lines = "".join(json.dumps(record) + "\n" for record in thinned)
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 1))
    (tmp_path / "pairs.json").write_text((DEFAULT_DATA / "pairs.json").read_text())
    said: list[str] = []

    metrics = run(tmp_path, tmp_path / "made" / "difficulty.npz", said.append)

    assert metrics["dev"]["outcomes"]["apgr"] > 0.57
    assert metrics["everyday_held_out"]["en"]["auc"] > 0.94
    assert metrics["everyday_held_out"]["zh"]["auc"] > 0.94
    assert Classifier.load(tmp_path / "made" / "difficulty.npz").meta["metrics"]
    assert "wrote" in said[-1]
