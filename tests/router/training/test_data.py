"""`router.training.data` and `compact`: what is learned from, and that it may be."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

from router.training.compact import compact, slim
from router.training.data import DEFAULT_DATA, JUDGED, LABELS, TRAINABLE, fingerprint, read, read_training

MAY_NOT_SHIP = ("alpaca_eval2", "llmeval2", "bfcl", "routerdc_", "routerbench_")


def test_only_sources_whose_licence_allows_it_are_shipped_and_trained_on() -> None:
    """Weights learned from non-commercial data could not be given away under Apache-2.0."""
    rows = [*read_training(DEFAULT_DATA), *read(DEFAULT_DATA, ("dev", "traffic_dev"))]

    assert not [row.source for row in rows if row.source.startswith(MAY_NOT_SHIP)]
    assert not [name for name in TRAINABLE if name.startswith(MAY_NOT_SHIP)]


def test_train_and_dev_share_no_prompt() -> None:
    """A dev figure over prompts that were trained on would be worth nothing."""
    trained = {row.call.last_user for row in read_training(DEFAULT_DATA) if row.source not in JUDGED}
    held_out = {row.call.last_user for row in read(DEFAULT_DATA, ("dev",))}

    assert not trained & held_out


def test_judged_requests_stand_there_in_both_languages() -> None:
    """The everyday expert must not learn a tier from the language."""
    judged = [row for row in read_training(DEFAULT_DATA) if row.source in JUDGED]
    english, chinese = (sorted(row.expected_tier for row in judged if row.lang == lang) for lang in ("en", "zh"))

    assert english == chinese
    assert set(english) == set(LABELS)


def test_a_conversation_becomes_a_call_with_its_last_question(tmp_path: Path) -> None:
    """Follow-ups and system prompts must reach training as they reach the gateway."""
    messages = [
        {"role": "system", "content": "简短回答"},
        {"role": "user", "content": "哪些树常绿?"},
        {"role": "assistant", "content": "松树、柏树。"},
        {"role": "user", "content": "哪种最高?"},
    ]
    record = {"id": "a", "lang": "zh", "messages": messages, "meta": {"tools": [1]}, "expected_tier": "small"}
    (tmp_path / "pairs.json").write_text("{}")
    (tmp_path / "one.jsonl.gz").write_bytes(gzip.compress(json.dumps(record).encode()))

    row = read(tmp_path, ("one",))[0]

    assert ("简短回答", "哪种最高?", 2, 4, True) == (
        row.call.system, row.call.last_user, row.call.turns, row.call.messages, row.call.has_tools,
    )  # fmt: skip
    assert math.isnan(row.gain)


def test_the_fingerprint_changes_with_any_label() -> None:
    """It stands in the artifact and says which data made it."""
    rows = read(DEFAULT_DATA, ("traffic_dev",))[:3]

    assert fingerprint(rows) == fingerprint(list(rows))
    assert fingerprint(rows) != fingerprint(rows[:2])


def test_compacting_keeps_what_training_reads_and_drops_the_rest(tmp_path: Path) -> None:
    """The shipped data must give the same rows as the full tables, at a fraction of the size."""
    pair = {"weak": "w", "strong": "s"}
    record = {
        "id": "a", "source": "mmlu_pro", "lang": "en", "prompt": "p", "scores": {"w": 0, "s": 1, "other": 0.5},
        "tier_scores": {"small": 0.2}, "cost_usd": {"w": 1}, "meta": {"subject": "law"},
    }  # fmt: skip
    assert {"w": 0, "s": 1} == slim(record, {"mmlu_pro": pair})["scores"]
    assert not {"cost_usd", "meta"} & set(slim(record, {"mmlu_pro": pair}))

    compact(DEFAULT_DATA, tmp_path)

    assert (tmp_path / "dev.jsonl.gz").read_bytes() == (DEFAULT_DATA / "dev.jsonl.gz").read_bytes()
