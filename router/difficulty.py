"""Features → difficulty: the calibrated probability, in [0, 1], that the small tier's answer is not good enough.

Two experts and a gate, all of them linear. The *exam* expert learned from measured outcomes of benchmark questions,
the *everyday* expert from judged everyday requests, and the gate says how much a request looks like an exam question;
the difficulty is their mean, weighted by the gate. Each sees the words of the request (each word, or pair of Chinese
characters, once) and the shape of it (`SHAPE_NAMES`). `router.training` makes the weights and docs/routing.md says
how well they do; nothing here needs scikit-learn.

The artifact is a NumPy archive that is read without pickle: `vocabulary` (UTF-8 bytes, one entry a line),
`gram_weights` (entries, 3), `shape_weights` (shapes, 3), `bias` (3,), columns in the order of `HEADS`, and `meta`
(JSON: format, shape names, where the training data came from, its hash, licences, metrics).
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from router.concepts import ANALYSE, CHAT, CONCEPT_NAMES, DESIGN, LIMIT, PROVE
from router.features import Features

FORMAT = 1
HEADS = ("exam", "everyday", "gate")
PACKAGED = "difficulty.npz"
_LOG_CAP = 8.0  # about 3,000 tokens: longer says no more

_HARD = (PROVE, DESIGN, ANALYSE)
SHAPE_NAMES = (
    "length", "length squared", "length if options", "zh", "zh length", "has options", "options", "shortness",
    "length over 150", "lines", "instruction", "pasted", "word length", "word length if options", "question marks",
    "is question", "separators", "separator density", "numbers", "numbers if options", "digits", "digits if options",
    "capitals", "marks", "fences", "maths", "maths if options", "quotes", "tools", "tools length", "follow-up",
    "conversation", *(f"{name} {kind}" for name in CONCEPT_NAMES for kind in ("words", "named")),
    "hard words", "hard words zh", "limits by length", "proof without options", "chat density",
)  # fmt: skip


def _concept_shape(concepts: tuple[int, ...]) -> list[float]:
    return [value for count in concepts for value in (min(count, 6) / 2, float(count > 0))]


def shape(found: Features) -> list[float]:
    """What the experts see besides the words, in the order of `SHAPE_NAMES`; every value is bounded."""
    log = math.log1p
    length = min(log(found.ask_tokens), _LOG_CAP)
    zh = float(found.language == "zh")
    options = float(found.choices >= 2)
    several = found.lines > 1
    instruction = min(found.first_line, found.last_line) if several else found.chars
    hard = log(sum(found.concepts[concept] for concept in _HARD))
    numbers, maths = log(found.numbers), log(found.maths)
    follow_up = float(found.turns > 1)
    return [
        length, length * length / 5, length * options, zh, zh * length, options, log(found.choices) * options,
        max(0.0, 1 - found.ask_tokens / 24),
        max(0.0, length - 5), min(log(found.lines), 5.0), min(log(instruction * (3 if zh else 1)), _LOG_CAP),
        length if several and 3 * instruction < found.chars else 0.0, min(found.word_chars, 12.0),
        min(found.word_chars, 12.0) * options, min(log(found.question_marks), 3.0),
        float(found.question_marks > 0), log(found.separators), found.separators / (5 + found.ask_tokens), numbers,
        numbers * options, found.digit_share, found.digit_share * options,
        found.upper_share, found.mark_share, log(found.fences), maths, maths * options, log(found.quotes),
        float(found.has_tools), found.has_tools * length, follow_up,
        min(log(max(0, found.prompt_tokens - found.ask_tokens)), _LOG_CAP) * follow_up,
        *_concept_shape(found.concepts),
        hard, hard * zh, log(found.concepts[LIMIT]) * length / 4, log(found.concepts[PROVE]) * (1 - options),
        found.concepts[CHAT] / (1 + found.words),
    ]  # fmt: skip


# What NumPy, zipfile and json raise on a file that is cut, of another kind, or holds pickled objects.
_UNREADABLE = (ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile, zlib.error)


class ArtifactError(ValueError):
    """The file is no classifier that this version can use."""


class Classifier:
    """Loaded weights; immutable, shared by all requests of a process."""

    __slots__ = ("_bias", "_gram_weights", "_index", "_shape_weights", "meta")

    def __init__(
        self,
        index: Mapping[str, int],
        gram_weights: npt.NDArray[np.float32],
        shape_weights: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32],
        meta: Mapping[str, Any],
    ) -> None:
        expected = {"gram_weights": (len(index), len(HEADS)), "shape_weights": (len(SHAPE_NAMES), len(HEADS))}
        actual = {"gram_weights": gram_weights.shape, "shape_weights": shape_weights.shape}
        if actual != expected or bias.shape != (len(HEADS),):
            raise ArtifactError(f"its arrays have the shapes {actual}, and not {expected}")
        self._index = index
        self._gram_weights = gram_weights
        self._shape_weights = shape_weights
        self._bias = bias
        self.meta = meta

    @classmethod
    def load(cls, path: str | Path | None = None) -> Classifier:
        """Read an artifact; None: the packaged one. Raises ArtifactError, or OSError where there is no file."""
        if path is not None:
            with Path(path).open("rb") as file:
                return cls._read(file)
        with (files("router") / "artifacts" / PACKAGED).open("rb") as file:
            return cls._read(file)

    @classmethod
    def _read(cls, file: IO[bytes]) -> Classifier:
        try:
            with np.load(file, allow_pickle=False) as held:
                meta = json.loads(held["meta"].tobytes())
                grams = held["vocabulary"].tobytes().decode().split("\n")
                weights = [held[name].astype(np.float32) for name in ("gram_weights", "shape_weights", "bias")]
        except _UNREADABLE as exc:
            raise ArtifactError("is not a difficulty classifier") from exc
        if meta.get("format") != FORMAT or tuple(meta.get("shapes", ())) != SHAPE_NAMES:
            raise ArtifactError(f"was made for another version; train again (format {meta.get('format')})")
        return cls({gram: row for row, gram in enumerate(grams)}, weights[0], weights[1], weights[2], meta)

    def heads(self, found: Features) -> tuple[float, float, float]:
        """Probabilities by exam expert, everyday expert and gate, each in [0, 1]."""
        logits = np.array(shape(found), dtype=np.float32) @ self._shape_weights + self._bias
        known = [row for row in map(self._index.get, found.grams) if row is not None]
        if known:
            logits += self._gram_weights[known].sum(axis=0) / math.sqrt(len(known) + 1)
        exam, everyday, gate = map(_probability, logits.tolist())
        return exam, everyday, gate

    def difficulty(self, found: Features) -> float:
        """Calibrated probability that the small tier's answer is not good enough, in [0, 1]."""
        exam, everyday, gate = self.heads(found)
        return gate * exam + (1 - gate) * everyday


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))
