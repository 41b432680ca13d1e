"""`router.training.evaluate`: the metrics, and the floor under the shipped classifier."""

from __future__ import annotations

import math

import numpy as np
import pytest

from router.difficulty import Classifier
from router.training.data import DEFAULT_DATA, Row
from router.training.evaluate import (
    apgr,
    auc,
    by_chance,
    by_classifier,
    by_length,
    calibration_error,
    compare,
    main,
    same_tier,
    split_rows,
    tiers_of,
)
from router.types import Call

GAIN = np.array([1.0, 0.0, 0.0, 1.0])


def test_apgr_of_a_constant_is_a_half_and_of_the_best_order_more() -> None:
    """Ties count as broken at random: a router that knows nothing must not look good by the order of the file."""
    assert 0.5 == pytest.approx(apgr(np.zeros(4), GAIN))
    assert 0.75 == pytest.approx(apgr(GAIN, GAIN))
    assert 0.25 == pytest.approx(apgr(-GAIN, GAIN))
    assert math.isnan(apgr(GAIN, np.zeros(4)))


def test_auc_counts_ties_half_and_needs_both_kinds() -> None:
    """The figure is quoted beside published ones, so it must be the usual one."""
    assert 1.0 == auc(np.array([0.1, 0.9]), np.array([False, True]))
    assert 0.5 == auc(np.array([0.5, 0.5]), np.array([False, True]))
    assert math.isnan(auc(np.array([0.5]), np.array([True])))


def test_calibration_error_is_the_distance_between_said_and_happened() -> None:
    """Thresholds are probabilities only as far as this is small; for scores that are none there is no such figure."""
    assert 0.0 == pytest.approx(calibration_error(np.full(10, 0.5), np.array([0.0, 1.0] * 5), bins=1))
    assert 0.4 == pytest.approx(calibration_error(np.full(10, 0.9), np.array([0.0, 1.0] * 5), bins=1))
    assert math.isnan(calibration_error(np.array([3.0, 400.0]), np.array([0.0, 1.0])))


def test_tiers_follow_the_default_thresholds() -> None:
    """A difficulty equal to a threshold belongs to the larger tier, as the decision has it."""
    assert ["small", "medium", "medium", "large"] == tiers_of(np.array([0.34, 0.35, 0.69, 0.70]))


def test_same_tier_looks_only_at_requests_in_two_languages() -> None:
    """A Chinese request must not cost more, or get a worse model, than the same one in English."""
    rows = [Row("a", "s", lang, Call("r", "chat", b"", "auto"), pair=pair) for lang, pair in
            (("en", "1"), ("zh", "1"), ("en", "2"), ("zh", "2"), ("en", "3"))]  # fmt: skip

    assert 0.5 == same_tier(rows, np.array([0.1, 0.2, 0.1, 0.9, 0.5]))


def test_the_shipped_classifier_beats_length_and_chance_on_the_dev_split() -> None:
    """The reason to have it. Floors lie under the measured figures of docs/routing.md, to notice a bad artifact."""
    scorers = {"ours": by_classifier(Classifier.load()), "length": by_length, "chance": by_chance}
    found = compare(*split_rows(DEFAULT_DATA, "dev"), scorers)
    ours, length, chance = (found[name]["outcomes"] for name in scorers)

    assert ours["apgr"] > max(0.62, length["apgr"] + 0.05, chance["apgr"] + 0.05)
    assert ours["apgr_mean_of_sources"] > length["apgr_mean_of_sources"]
    assert ours["auc_gain"] > max(0.6, length["auc_gain"])
    assert ours["calibration_error"] < 0.10
    for lang in ("en", "zh"):
        everyday = found["ours"]["everyday"][lang]
        assert everyday["auc"] > max(0.93, found["length"]["everyday"][lang]["auc"])
        assert everyday["exact"] > 0.6
        assert everyday["small_to_large"] < 0.05


def test_the_command_prints_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/routing.md tells to run it."""
    main(["--split", "dev"])
    printed = capsys.readouterr().out

    assert "APGR by source" in printed
    assert "routellm_mmlu" in printed
