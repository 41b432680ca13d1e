"""Whether a regular expression of a rule may run on what a stranger writes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

MAX_PATTERN = 2000
_MANY = 16  # a repeat that may go on for longer counts as unbounded


def regex_fault(pattern: str) -> str | None:
    """What is wrong with `pattern`, in one line; None where nothing is."""
    if len(pattern) > MAX_PATTERN:
        return f"is longer than {MAX_PATTERN} characters"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as exc:
        position = getattr(exc, "pos", None)
        where = f" at position {position}" if position is not None else ""
        return f"is not a regular expression: {getattr(exc, 'msg', None) or 'too complex'}{where}"
    if _nests(_parsed(pattern), inside=False):
        return (
            "repeats something that repeats, such as (x+)+, which can take exponential time; "
            "make the inner repeat possessive (x++) or bounded"
        )
    return None


def _parsed(pattern: str) -> Iterable[Any]:
    # the standard library has no public parser of patterns
    parser: Any = re._parser  # type: ignore[attr-defined]
    return parser.parse(pattern)  # type: ignore[no-any-return]


def _nests(items: Iterable[Any], inside: bool) -> bool:
    """Whether a repeat that can backtrack stands inside another. Possessive ones and atomic groups cannot."""
    for item in items:
        operator, argument = str(item[0]), item[1]
        if operator in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, body = argument
            many = high > _MANY and high > low
            if (many and inside) or _nests(body, inside or many):
                return True
        elif operator in ("ATOMIC_GROUP", "POSSESSIVE_REPEAT"):
            if _nests(argument if operator == "ATOMIC_GROUP" else argument[2], inside=False):
                return True
        elif any(_nests(part, inside) for part in _parts(argument)):
            return True
    return False


def _parts(argument: Any) -> list[Any]:
    """The sequences of items inside a group, an alternation, a look-around or a conditional."""
    if isinstance(argument, tuple | list):
        return [part for each in argument for part in ([each] if hasattr(each, "getwidth") else _parts(each))]
    return []
