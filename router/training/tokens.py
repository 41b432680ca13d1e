"""`python -m router.training.tokens [--gguf FILE] [--fit]`: the token estimate's error against real tokenizers.

The texts are the English and Chinese prompts of the dev split (none of them was used to fit), modules of Python's
standard library as code, and a few sentences in eleven more languages. The error is (estimate - real) / real.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from router.tokens import N_PAIRS, RULES, estimate_tokens, pair_counts, weights_of
from router.training.data import DEFAULT_DATA, read
from router.training.tokenizers import Counter, available

_SHORTEST = 40  # characters; the relative error of a two-token text says nothing
_MODULES = ("argparse", "asyncio/base_events", "collections/__init__", "csv", "dataclasses", "datetime", "http/client",
            "inspect", "json/decoder", "logging/__init__", "pathlib", "re/_parser", "sqlite3/dbapi2", "tarfile",
            "typing", "urllib/parse", "zipfile")  # fmt: skip
OTHER_LANGUAGES = {
    "es": "¿Podrías explicarme por qué los precios suben cuando escasea un producto y qué puede hacer el gobierno?",
    "fr": "Pourriez-vous m'expliquer pourquoi le train de ce matin a été supprimé, et comment être remboursé ?",
    "de": "Könnten Sie mir bitte erklären, warum die Rechnung höher ausgefallen ist und wann ich sie bezahlen muss?",
    "pt": "Você poderia resumir esta reunião em três pontos e dizer quem ficou responsável por cada tarefa?",
    "it": "Puoi scrivere una breve lettera al mio vicino per chiedergli di abbassare la musica dopo le dieci?",
    "ru": "Объясните, пожалуйста, почему зимой дни короче, чем летом, и что меняется ближе к экватору.",
    "uk": "Поясніть, будь ласка, чому взимку дні коротші, ніж улітку, і що змінюється ближче до екватора.",
    "ar": "من فضلك اشرح لي لماذا تكون الأيام في الشتاء أقصر منها في الصيف وماذا يتغير قرب خط الاستواء.",
    "hi": "कृपया समझाइए कि सर्दियों में दिन गर्मियों की तुलना में छोटे क्यों होते हैं और भूमध्य रेखा के पास क्या बदलता है।",
    "ja": "冬の昼が夏より短いのはなぜか、赤道に近づくと何が変わるのかを、小学生にも分かるように説明してください。",
    "ko": "겨울에는 왜 낮이 여름보다 짧은지, 그리고 적도에 가까워지면 무엇이 달라지는지 쉽게 설명해 주세요.",
}


def _code(pieces: int, generator: random.Random) -> list[str]:
    """Pieces of 200 to 2,000 characters of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = [(library / f"{module}.py").read_text() for module in _MODULES if (library / f"{module}.py").exists()]
    found: list[str] = []
    for _ in range(pieces):
        source = generator.choice(sources)
        start = generator.randrange(max(1, len(source) - 2000))
        found.append(source[start : start + generator.randint(200, 2000)])
    return found


def texts(folder: Path, split: str, seed: int) -> dict[str, list[str]]:
    """Kind of text → texts: `en`, `zh`, `code`."""
    rows = read(folder, (split, f"traffic_{split}"))
    found = {lang: [row.call.text for row in rows if row.lang == lang] for lang in ("en", "zh")}
    found["code"] = _code(600, random.Random(seed))
    return {kind: [text for text in many if len(text) >= _SHORTEST] for kind, many in found.items()}


def errors(many: Sequence[str], count: Counter) -> npt.NDArray[np.float64]:
    """Relative error of the estimate on each text: positive is too high."""
    real = np.array([count(text) for text in many], dtype=np.float64)
    return np.array([estimate_tokens(text) for text in many]) / real - 1


def report(kinds: Mapping[str, Sequence[str]], counters: Mapping[str, Counter]) -> str:
    lines = [
        "| text | tokenizer | texts | mean | p5 | p95 | worst low |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kind, many in kinds.items():
        for name, count in counters.items():
            error = 100 * errors(many, count)
            low, high = np.percentile(error, [5, 95])
            lines.append(f"| {kind} | {name} | {len(many)} | {error.mean():+.1f} % | {low:+.1f} % | {high:+.1f} % |"
                         f" {error.min():+.1f} % |")  # fmt: skip
    return "\n".join(lines) + "\n"


def report_languages(counters: Mapping[str, Counter]) -> str:
    """One line a language: the error against the tokenizer that makes fewest, all on average, and most tokens."""
    lines = ["| language | highest | mean | lowest |", "| --- | --- | --- | --- |"]
    for code, text in OTHER_LANGUAGES.items():
        error = [100 * float(errors([text], count)[0]) for count in counters.values()]
        lines.append(f"| {code} | {max(error):+.0f} % | {np.mean(error):+.0f} % | {min(error):+.0f} % |")
    return "\n".join(lines) + "\n"


def fit(kinds: Mapping[str, Sequence[str]], counters: Mapping[str, Counter]) -> dict[str, float]:
    """Weights of `RULES` by non-negative least squares of the relative error against the mean of the tokenizers."""
    columns = np.stack([weights_of([rule._replace(tokens=1.0)]) for rule in RULES], axis=1)
    assert columns.shape == (N_PAIRS, len(RULES))
    every = [text for many in kinds.values() for text in many]
    real = np.array([np.mean([count(text) for count in counters.values()]) for text in every])
    scale = 1 / np.maximum(real, 20)
    design = np.array([pair_counts(text) @ columns for text in every])
    solved, _ = nnls(design * scale[:, None], real * scale)
    return {rule.name: round(float(weight), 3) for rule, weight in zip(RULES, solved, strict=True)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m router.training.tokens", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--gguf", type=Path, help="also measure against this model file's tokenizer (SmolLM2)")
    parser.add_argument("--fit", action="store_true", help="print weights fitted to the train split instead")
    given = parser.parse_args(arguments)
    counters = available(given.gguf)
    if given.fit:
        for name, weight in fit(texts(given.data, "train", 1), counters).items():
            sys.stdout.write(f"{name:<28} {weight}\n")
        return
    sys.stdout.write(report(texts(given.data, "dev", 0), counters))
    sys.stdout.write("\n" + report_languages(counters))


if __name__ == "__main__":
    main()
