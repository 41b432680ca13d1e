"""`router.training.tokens`: the error of the estimate, against tokenizers that packages carry."""

from __future__ import annotations

import struct
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from router.difficulty import Classifier
from router.training.data import DEFAULT_DATA
from router.training.speed import measure
from router.training.tokenizers import available, gguf_metadata
from router.training.tokens import errors, report, report_languages, texts

if find_spec("litellm") is None:  # carries the tokenizers; importing it takes seconds
    pytest.skip("needs the extra `providers`", allow_module_level=True)


def test_the_error_stays_small_and_rather_high_against_a_current_tokenizer() -> None:
    """The bound that docs/routing.md states, for each kind of text."""
    counters = {name: count for name, count in available().items() if name == "o200k"}
    kinds = {kind: many[::5] for kind, many in texts(DEFAULT_DATA, "dev", 0).items()}

    for kind, (most, worst_low) in {"en": (0.15, -0.12), "zh": (0.25, -0.10), "code": (0.15, -0.10)}.items():
        error = errors(kinds[kind], counters["o200k"])
        assert 0 <= error.mean() < most, kind
        assert np.percentile(error, 5) > worst_low, kind
    assert "| zh | o200k |" in report(kinds, counters)
    assert "| ja |" in report_languages(counters)


def test_gguf_metadata_is_read_and_other_files_refused(tmp_path: Path) -> None:
    """The small tier's own tokenizer can be measured from its model file."""

    def string(text: str) -> bytes:
        return struct.pack("<Q", len(text)) + text.encode()

    path = tmp_path / "model.gguf"
    path.write_bytes(
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 2)
        + string("name") + struct.pack("<I", 8) + string("tiny")
        + string("sizes") + struct.pack("<IIQII", 9, 4, 2, 7, 9)
    )  # fmt: skip
    (tmp_path / "other").write_bytes(b"0123456789" * 5)

    assert {"name": "tiny", "sizes": [7, 9]} == gguf_metadata(path)
    with pytest.raises(ValueError, match="not a GGUF"):
        gguf_metadata(tmp_path / "other")


def test_the_speed_ruler_measures() -> None:
    """It guards the 0.1 ms budget of a decision; the figures themselves depend on the machine."""
    assert all(figure > 0 for figure in measure("证明 1 + 1 = 2", Classifier.load()))
