"""`router.difficulty`: the packaged classifier as it serves."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from router.difficulty import HEADS, SHAPE_NAMES, ArtifactError, Classifier, shape
from router.features import features
from router.types import Call

GREETINGS = ("hi", "good morning!", "thanks a lot", "你好", "谢谢", "早上好呀")
SIMPLE = (
    "What is the capital of Peru?",
    "Translate 'good luck' into French",
    "秘鲁的首都是哪里?",
    "把“加油”翻译成英文",
)
HARD = (
    "Prove that every finite group of order p^2 is abelian, then classify all such groups up to isomorphism.",
    "Design a multi-region payment ledger with exactly-once posting; discuss consistency, failover and migration.",
    "证明每个 p² 阶有限群都是交换群,并在同构意义下给出全部分类,说明每一步的依据。",
    "设计一个多地域的支付账本,要求恰好一次入账;讨论一致性模型、故障切换与数据迁移的取舍。",
)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return Classifier.load()


def difficulty(classifier: Classifier, ask: str) -> float:
    return classifier.difficulty(features(Call("r", "chat", b"", "auto", last_user=ask, text=ask)))


def test_greetings_are_easier_than_questions_and_these_than_proofs(classifier: Classifier) -> None:
    """The order that everybody expects, in both languages, with no overlap."""
    greetings, simple, hard = (
        [difficulty(classifier, ask) for ask in group] for group in (GREETINGS, SIMPLE, HARD)
    )  # fmt: skip

    assert max(greetings) < min(hard)
    assert max(simple) < min(hard)
    assert np.mean(greetings) < np.mean(simple)


@pytest.mark.parametrize("ask", [*GREETINGS, *SIMPLE])
def test_plain_requests_stay_below_the_first_threshold(classifier: Classifier, ask: str) -> None:
    """At the policy's default thresholds the small tier answers them: that is where the savings are."""
    assert difficulty(classifier, ask) < 0.35


@pytest.mark.parametrize("ask", HARD)
def test_hard_requests_leave_the_small_tier(classifier: Classifier, ask: str) -> None:
    """A wrong answer from the small tier costs more than a large model does."""
    assert difficulty(classifier, ask) > 0.6


@pytest.mark.parametrize("ask", ["", "\n", "x", "\ud83d", "word " * 100_000, "设计" * 100_000, "A.\nB.\nC.\n" * 5000])
def test_every_difficulty_is_a_probability(classifier: Classifier, ask: str) -> None:
    """Thresholds are compared with it, whatever was asked."""
    assert 0.0 <= difficulty(classifier, ask) <= 1.0


def test_the_same_request_always_has_the_same_difficulty(classifier: Classifier) -> None:
    """Two workers, and the same worker tomorrow, must decide alike: also under another hash seed."""
    program = (
        "from router.difficulty import Classifier; from router.features import features\n"
        "from router.types import Call\n"
        "asks = ('Prove that 2 + 2 = 4 by induction.', '设计一个缓存,讨论取舍')\n"
        "load = Classifier.load()\n"
        "print([load.difficulty(features(Call('r', 'chat', b'', 'auto', last_user=a, text=a))) for a in asks])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, cwd=Path(__file__).parents[2],
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip

    assert 1 == len(seen)


def test_serving_imports_neither_scikit_learn_nor_scipy() -> None:
    """They would add a second to the start and 80 MB to every worker."""
    program = (
        "import sys; from router.difficulty import Classifier; import router.features; Classifier.load()\n"
        "sys.exit(any(name.split('.')[0] in ('sklearn', 'scipy', 'pickle5') for name in sys.modules))"
    )

    assert 0 == subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=False).returncode


def test_the_artifact_is_small_and_says_where_it_comes_from(classifier: Classifier) -> None:
    """Who ships weights must be able to say from what data, under which licence, and how good they are."""
    path = Path(__file__).parents[2] / "router" / "artifacts" / "difficulty.npz"

    assert path.stat().st_size < 2_000_000
    assert 64 == len(classifier.meta["data_sha256"])
    assert "Apache-2.0" in classifier.meta["licence"]
    assert not {"alpaca_eval2", "routerdc_cmmlu", "llmeval2", "bfcl"} & set(classifier.meta["rows"])
    assert classifier.meta["metrics"]["dev"]["outcomes"]["apgr"] > 0.6


def test_shape_has_a_value_for_each_name() -> None:
    """Weights are matched to shapes by position."""
    assert len(SHAPE_NAMES) == len(shape(features(Call("r", "chat", b"", "auto"))))
    assert len(SHAPE_NAMES) == len(set(SHAPE_NAMES))


class Marker:
    """Unpickling it would be noticed: `Marker.opened` grows."""

    opened: list[str] = []  # noqa: RUF012

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Marker.opened.append, ("ran",))


def test_a_file_with_pickled_objects_is_refused_and_not_run(tmp_path: Path) -> None:
    """A classifier may come from elsewhere; loading it must never run code from it."""
    path = tmp_path / "evil.npz"
    np.savez(path, meta=np.array([Marker()], dtype=object), allow_pickle=True)
    Marker.opened.clear()

    with pytest.raises(ArtifactError):
        Classifier.load(path)
    assert [] == Marker.opened


def _archive(**arrays: object) -> bytes:
    held = io.BytesIO()
    np.savez(held, **arrays)  # type: ignore[arg-type]
    return held.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an archive",
        b"PK\x03\x04 cut short",
        _archive(meta=np.frombuffer(b"{}", dtype=np.uint8)),
        _archive(
            meta=np.frombuffer(b'{"format": 99}', dtype=np.uint8),
            vocabulary=np.frombuffer(b"a", dtype=np.uint8),
            gram_weights=np.zeros((1, len(HEADS))),
            shape_weights=np.zeros((len(SHAPE_NAMES), len(HEADS))),
            bias=np.zeros(len(HEADS)),
        ),
    ],
    ids=["empty", "text", "cut archive", "arrays missing", "newer format"],
)
def test_a_file_that_is_no_classifier_is_refused(tmp_path: Path, content: bytes) -> None:
    """The operator gets one clear error at start, and not nonsense decisions later."""
    path = tmp_path / "broken.npz"
    path.write_bytes(content)

    with pytest.raises(ArtifactError):
        Classifier.load(path)


def test_weights_of_the_wrong_size_are_refused() -> None:
    """A cut or mixed-up file must not be read past its end."""
    weights = np.zeros((len(SHAPE_NAMES), len(HEADS)), dtype=np.float32)
    with pytest.raises(ArtifactError, match="shapes"):
        Classifier({"a": 0}, weights, weights, np.zeros(len(HEADS), dtype=np.float32), {})
