"""How many tokens a text will be, estimated offline and without a tokenizer.

Every tokenizer in use splits text much the same way: a frequent word is one token, a rare one a few, up to three
digits one, a Chinese character a bit less than one, a run of spaces one. So each character gets a class by its
script, and the estimate is linear in how often each class occurs and in how often one class follows another (which
says where words, numbers and runs of punctuation begin). The weights were fitted to real tokenizers by
`python -m router.training.tokens`, which also measures the error; both are in docs/routing.md. They lean high, since
the estimate guards context windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CLASSES = (
    "lower", "upper", "digit", "space", "newline", "prose", "code", "han", "kana", "cjk_mark", "mark", "latin",
    "cyrillic", "arabic", "indic", "hangul", "emoji", "low_surrogate", "other",
)  # fmt: skip
LOWER, UPPER, DIGIT, SPACE, NEWLINE, PROSE, CODE, HAN, KANA, CJK_MARK, MARK, LATIN = range(12)
CYRILLIC, ARABIC, INDIC, HANGUL, EMOJI, LOW_SURROGATE, OTHER = range(12, 19)
_BITS = 5  # two classes make one pair code: previous << _BITS | this
N_PAIRS = 1 << (2 * _BITS)

_RANGES: tuple[tuple[int, int, int], ...] = (
    (0x00, 0x1F, OTHER), (0x20, 0x20, SPACE), (0x21, 0x7E, CODE), (0x30, 0x39, DIGIT), (0x41, 0x5A, UPPER),
    (0x61, 0x7A, LOWER), (0x09, 0x09, SPACE), (0x0A, 0x0A, NEWLINE), (0x0D, 0x0D, NEWLINE), (0xA1, 0xBF, MARK),
    (0xA0, 0xA0, MARK), (0xC0, 0x24F, LATIN), (0x1E00, 0x1EFF, LATIN), (0x300, 0x36F, MARK), (0x370, 0x52F, CYRILLIC),
    (0x530, 0x58F, CYRILLIC), (0x10A0, 0x10FF, CYRILLIC), (0x590, 0x8FF, ARABIC), (0x900, 0x109F, INDIC),
    (0x1780, 0x17FF, INDIC), (0x1100, 0x11FF, HANGUL), (0x2000, 0x2BFF, MARK), (0x3000, 0x303F, CJK_MARK),
    (0x3040, 0x30FF, KANA), (0x3100, 0x312F, KANA), (0x3130, 0x318F, HANGUL), (0x3400, 0x9FFF, HAN),
    (0xF900, 0xFAFF, HAN), (0xAC00, 0xD7AF, HANGUL), (0xD800, 0xDBFF, EMOJI), (0xDC00, 0xDFFF, LOW_SURROGATE),
    (0xFF00, 0xFFEF, CJK_MARK),
)  # fmt: skip
_PROSE_MARKS = ".,'\"!?;:-()"


def _class_table() -> npt.NDArray[np.uint16]:
    """UTF-16 unit → class, shape (65536,)."""
    table = np.full(1 << 16, OTHER, dtype=np.uint16)
    for first, last, kind in _RANGES:
        table[first : last + 1] = kind
    table[[ord(mark) for mark in _PROSE_MARKS]] = PROSE
    return table


_TABLE = _class_table()
SAMPLE_OVER = 1 << 17  # UTF-16 units; a longer text is read in evenly spread windows
_WINDOW = 1 << 11


def pair_counts(text: str) -> npt.NDArray[np.intp]:
    """How often each class follows each other class, shape (N_PAIRS,); the text is taken to follow a newline.

    The sum is the text's length in UTF-16 units. Bounded for any length: of a text over `SAMPLE_OVER` units an eighth
    or less is read (64 windows of 2,048 units, evenly spread) and the counts are scaled up.
    """
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype="<u2")
    total = units.size
    if total > SAMPLE_OVER:
        starts = np.linspace(0, total - _WINDOW, SAMPLE_OVER // _WINDOW).astype(np.intp)
        units = units[(starts[:, None] + np.arange(_WINDOW)).ravel()]
    kinds = _TABLE.take(units)
    pairs = kinds.copy()
    pairs[1:] += kinds[:-1] << _BITS
    if total:
        pairs[0] += NEWLINE << _BITS
    counts = np.bincount(pairs, minlength=N_PAIRS)
    return counts if total == units.size else (counts * (total / units.size)).astype(np.intp)


class Rule(NamedTuple):
    """So many tokens for each place where a character of `this` follows one of `previous`."""

    name: str
    previous: frozenset[int]
    this: frozenset[int]
    tokens: float


_ANY = frozenset(range(len(CLASSES)))
_LETTER, _POINT = frozenset({LOWER, UPPER}), frozenset({PROSE, CODE})
_SPACED = frozenset({CYRILLIC, ARABIC, INDIC, HANGUL, LATIN})


def _each(kind: int, tokens: float) -> Rule:
    return Rule(CLASSES[kind], _ANY, frozenset({kind}), tokens)


# The first group is fitted to English, Chinese and code; the second set from short texts in eleven more languages.
RULES = (
    _each(LOWER, 0.040),
    _each(UPPER, 0.200),
    Rule("word begins", _ANY - _LETTER, _LETTER, 0.224),
    Rule("word begins without a space", _ANY - _LETTER - {SPACE, LATIN}, _LETTER, 0.488),
    Rule("camelCase", frozenset({LOWER}), frozenset({UPPER}), 0.590),
    _each(DIGIT, 0.440),
    Rule("number begins", _ANY - {DIGIT}, frozenset({DIGIT}), 0.850),
    Rule("spaces begin", _ANY - {SPACE}, frozenset({SPACE}), 0.691),
    Rule("lines end", _ANY - {NEWLINE}, frozenset({NEWLINE}), 1.390),
    Rule("prose mark", _ANY - _POINT, frozenset({PROSE}), 0.846),
    Rule("code mark", _ANY - _POINT, frozenset({CODE}), 0.730),
    Rule("mark after mark", _POINT, _POINT, 0.114),
    _each(HAN, 0.788),
    Rule("Chinese begins", _ANY - {HAN}, frozenset({HAN}), 1.024),
    _each(CJK_MARK, 0.950),
    _each(MARK, 0.890),
    # ---
    _each(KANA, 0.80),
    _each(LATIN, 0.80),
    _each(CYRILLIC, 0.33),
    _each(ARABIC, 0.34),
    _each(INDIC, 0.48),
    _each(HANGUL, 0.75),
    _each(EMOJI, 3.0),
    _each(OTHER, 1.5),
)


def weights_of(rules: Iterable[Rule]) -> npt.NDArray[np.float64]:
    """Tokens per pair of classes, shape (N_PAIRS,)."""
    weights = np.zeros(N_PAIRS)
    for rule in rules:
        for before in rule.previous:
            weights[[before << _BITS | this for this in rule.this]] += rule.tokens
    return weights


_WEIGHTS = weights_of(RULES)


def tokens_of(counts: npt.NDArray[np.intp]) -> int:
    """`pair_counts` → tokens, rounded up."""
    return math.ceil(float(counts @ _WEIGHTS))


def estimate_tokens(text: str) -> int:
    """Tokens that `text` will be for a current model, rather a little too high; 0 for nothing. Never raises."""
    return max(1, tokens_of(pair_counts(text))) if text else 0
