"""A call as numbers: what the policy's rules and the difficulty classifier look at, Chinese and English alike.

Bounded for any length: of the last user message the first 2,000 and the last 1,000 characters are read, everything
else is only counted. System prompts count as context, never as the question, since a long one says nothing about how
hard the request is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from functools import lru_cache
from operator import add

import msgspec
import numpy as np
import numpy.typing as npt

from router import tokens
from router.concepts import CONCEPT_NAMES, CONCEPTS
from router.types import Call, ResponseFormat

KEPT_CHARS = 20_000  # a longer system prompt is counted anew each time, to bound what is kept
HEAD, TAIL = 2000, 1000  # characters of the last user message that are read
_GRAM = re.compile(r"[a-z]+(?:['-][a-z]+)*|[\u3400-\u9fff]+")
_CHOICE = re.compile(r"^\s*[(（]?[A-J][.)）．、:：]", re.MULTILINE)
_SECOND_CHOICE = ("\nB.", "\nB)", "\nB．", "\nB、", "\nB:", "\nB：", "\n(B)", "\n（B")
_MATHS = re.compile(r"[\\$^=≤≥≠∈∑∫√≈×÷∀∃→∞π²³]")
_N_CLASSES = 1 << 5
_DIGIT_AFTER_DIGIT = tokens.DIGIT * _N_CLASSES + tokens.DIGIT
_CONCEPT_WORDS = frozenset(CONCEPTS)

_COMMONEST = {
    "es": "el los las una que por para con como está es del se qué y en",
    "fr": "le les des une est que pour dans avec sur vous je ce et du au pas",
    "de": "der die das und ist nicht ein eine mit für auf ich den zu wie von",
    "pt": "os uma não que com para do da em por você é são como mais no",
    "it": "il gli che per una con non è di sono come del della nel più",
    "nl": "de het een en van niet dat ik voor met zijn op te hoe wat",
    "en": "the a an is are of to in and for what how i you my it on with this that me can do",
}
_LATIN_STOPWORDS = {code: frozenset(words.split()) for code, words in _COMMONEST.items()}
_LATIN_WORD = re.compile(r"[a-zà-öø-ÿ]+")


class Features(msgspec.Struct, frozen=True):
    """Named numbers of one call. Counts are capped by the window; shares are of the characters read, in [0, 1]."""

    language: str  # of the last user message: en, zh, ja, ...; und: nothing to tell it by
    prompt_tokens: int  # estimate, all messages
    ask_tokens: int  # estimate, the last user message
    chars: int  # of the last user message
    turns: int
    has_tools: bool
    has_tool_results: bool
    has_images: bool
    response_format: ResponseFormat
    lines: int
    first_line: int  # characters of the first line of the last user message ...
    last_line: int  # ... and of its last line, where it has several
    words: int  # words and, in Chinese, pairs of characters
    word_chars: float  # mean length of a word, 0 without words
    question_marks: int
    choices: int  # options of a multiple-choice question
    separators: int  # commas, semicolons, colons
    numbers: int  # runs of digits
    digit_share: float
    upper_share: float
    mark_share: float  # punctuation and symbols that prose has little of
    han_share: float
    fences: int  # ``` marks
    maths: int  # mathematical signs
    quotes: int
    concepts: tuple[int, ...]  # how many words of each of `CONCEPT_NAMES` occur
    grams: tuple[str, ...]  # what the classifier looks up, each once, in order; never shown

    def as_mapping(self) -> dict[str, float | int | str | bool]:
        """For people and JSON: every number by its name, and no word of the prompt."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("concepts", "grams")}
        for name in ("word_chars", "digit_share", "upper_share", "mark_share", "han_share"):
            shown[name] = round(shown[name], 3)
        return shown | dict(zip(CONCEPT_NAMES, self.concepts, strict=True))

    def __repr__(self) -> str:
        return f"Features({self.as_mapping()})"


def window(text: str) -> str:
    """The part of `text` that is read: all of it, or its head and tail."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n{text[-TAIL:]}"


def _by_class(pairs: npt.NDArray[np.intp]) -> list[int]:
    """`tokens.pair_counts` → characters of each class."""
    counts: list[int] = pairs.reshape(_N_CLASSES, _N_CLASSES).sum(axis=0).tolist()
    return counts


def grams_of(lower: str, has_han: bool) -> list[str]:
    """Words, and overlapping pairs of Chinese characters, of lower-case text."""
    found = _GRAM.findall(lower)
    if not has_han:
        return found
    grams: list[str] = []
    for gram in found:
        if gram[0] < "\u3400" or len(gram) == 1:
            grams.append(gram)
        else:
            grams.extend(map(add, gram, gram[1:]))
    return grams


def _latin_language(words: Set[str]) -> str:
    """The language most of whose commonest words occur; English where none does."""
    return max(_LATIN_STOPWORDS, key=lambda code: (len(words & _LATIN_STOPWORDS[code]), code == "en"))


def _language(lower: str, kinds: Sequence[int], words: Set[str]) -> str:
    """`kinds`: characters of each class; `words`: what `grams_of` found."""
    latin = kinds[tokens.LOWER] + kinds[tokens.UPPER] + kinds[tokens.LATIN]
    units = latin + kinds[tokens.SPACE] + kinds[tokens.NEWLINE] + kinds[tokens.PROSE]
    if latin and not kinds[tokens.LATIN] and units + kinds[tokens.CODE] + kinds[tokens.DIGIT] == len(lower):
        return _latin_language(words)  # plain ASCII, by far the most frequent case
    han, kana = kinds[tokens.HAN], kinds[tokens.KANA]
    scripts = {
        "ja": 3 * (kana + han) if 4 * kana > han else 0,  # a Chinese character says as much as three letters
        "zh": 3 * han,
        "ko": 2 * kinds[tokens.HANGUL],
        "ru": kinds[tokens.CYRILLIC],
        "ar": kinds[tokens.ARABIC],
        "hi": kinds[tokens.INDIC],
    }
    code = max(scripts, key=scripts.__getitem__)
    if scripts[code] >= latin:
        return _refined(code, lower) if scripts[code] else "und"
    return _latin_language(set(_LATIN_WORD.findall(lower[:1000])))


def _refined(code: str, lower: str) -> str:
    """Scripts that several languages share, told apart by a letter that only one of them has."""
    if code == "ru":
        return "el" if re.search("[α-ω]", lower) else "uk" if re.search("[іїєґ]", lower) else "ru"
    if code == "ar":
        return "he" if re.search("[\u05d0-\u05ea]", lower) else "fa" if re.search("[پچژگ]", lower) else "ar"
    if code == "hi":
        return "th" if re.search("[\u0e01-\u0e5b]", lower) else "hi"
    return code


def language(text: str) -> str:
    """Short code of the language that most of `text` is in; `und` where it has no letter at all."""
    read = window(text)
    lower = read.lower()
    kinds = _by_class(tokens.pair_counts(read))
    return _language(lower, kinds, set(grams_of(lower, kinds[tokens.HAN] > 0)))


def _choices(read: str) -> int:
    return len(_CHOICE.findall(read)) if any(mark in read for mark in _SECOND_CHOICE) else 0


def _concept_counts(words: Set[str]) -> tuple[int, ...]:
    counts = [0] * len(CONCEPT_NAMES)
    for word in words & _CONCEPT_WORDS:
        counts[CONCEPTS[word]] += 1
    return tuple(counts)


@lru_cache(maxsize=64)
def _instruction_tokens(system: str) -> int:
    return tokens.estimate_tokens(system)


def _prompt_tokens(call: Call, ask_tokens: int) -> int:
    """Of all messages. An app's system prompt is the same in every request, so its count is kept."""
    text, ask, system = call.text, call.last_user, call.system
    if len(text) == len(ask):
        return ask_tokens
    if call.messages == 2 and len(system) < KEPT_CHARS and len(text) == len(system) + len(ask) + 1:
        return ask_tokens + _instruction_tokens(system)
    return tokens.estimate_tokens(text)


def features(call: Call) -> Features:
    """What there is to know about `call` before any model is asked."""
    ask = call.last_user
    read = window(ask)
    lower = read.lower()
    ask_pairs = tokens.pair_counts(ask)
    pairs = ask_pairs if read is ask else tokens.pair_counts(read)
    kinds = _by_class(pairs)
    size = max(1, len(read))
    grams = grams_of(lower, kinds[tokens.HAN] > 0)
    distinct = set(grams)
    ask_tokens = tokens.tokens_of(ask_pairs)
    lines = kinds[tokens.NEWLINE] + 1
    return Features(
        language=_language(lower, kinds, distinct),
        prompt_tokens=_prompt_tokens(call, ask_tokens) + call.extra_tokens,
        ask_tokens=ask_tokens,
        chars=len(ask),
        turns=call.turns,
        has_tools=call.has_tools,
        has_tool_results=call.has_tool_results,
        has_images=call.has_images,
        response_format=call.response_format,
        lines=lines,
        first_line=len(read) if lines == 1 else read.find("\n"),
        last_line=0 if lines == 1 else len(read) - read.rfind("\n") - 1,
        words=len(grams),
        word_chars=(kinds[tokens.LOWER] + kinds[tokens.UPPER]) / max(1, len(grams)),
        question_marks=read.count("?") + read.count("？"),
        choices=_choices(read),
        separators=sum(map(read.count, ",;:，；：、")),
        numbers=kinds[tokens.DIGIT] - int(pairs[_DIGIT_AFTER_DIGIT]),
        digit_share=kinds[tokens.DIGIT] / size,
        upper_share=kinds[tokens.UPPER] / size,
        mark_share=(kinds[tokens.CODE] + kinds[tokens.MARK]) / size,
        han_share=kinds[tokens.HAN] / size,
        fences=read.count("```"),
        maths=len(_MATHS.findall(read)),
        quotes=read.count('"') + read.count("“"),
        concepts=_concept_counts(distinct),
        grams=tuple(dict.fromkeys(grams)),
    )
