"""Durations and sizes as people write them in a policy: `200ms`, `5s`, `1h30m`, `64MiB`."""

from __future__ import annotations

import re
from decimal import Decimal

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"  # bounded, so that no number of digits overflows a float

DURATION_PATTERN = rf"^\s*(?:{_NUMBER}(?:ms|s|m|h|d))+\s*$"
SIZE_PATTERN = rf"^\s*{_NUMBER}\s*(?:B|kB|MB|GB|KiB|MiB|GiB)\s*$"

_DURATION = re.compile(DURATION_PATTERN)
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|d)")
_SIZE = re.compile(rf"\s*({_NUMBER})\s*(B|kB|MB|GB|KiB|MiB|GiB)\s*")


def parse_duration(value: object) -> float:
    """`"1h30m"` → seconds. A number without a unit is refused: nobody can tell what it meant."""
    if not isinstance(value, str) or not _DURATION.match(value):
        raise ValueError("is not a duration; write it with a unit, such as 200ms, 5s, 1m or 1h30m")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(value))


def parse_size(value: object) -> int:
    """`"64MiB"` → bytes."""
    if not isinstance(value, str) or not (match := _SIZE.fullmatch(value)):
        raise ValueError("is not a size; write it with a unit, such as 500kB, 64MiB or 1GiB")
    return int(Decimal(match[1]) * _BYTES[match[2]])


def format_size(size_bytes: int) -> str:
    """Bytes → the shortest form that `parse_size` reads back: 67108864 → `64MiB`."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "kB"):
        if size_bytes % _BYTES[unit] == 0 and size_bytes:
            return f"{size_bytes // _BYTES[unit]}{unit}"
    return f"{size_bytes}B"


def format_duration(seconds: float) -> str:
    """Seconds → the shortest form that `parse_duration` reads back: 0.2 → `200ms`, 5400 → `90m`."""
    if seconds < 1:
        return f"{_plain(seconds * 1000)}ms"
    for unit in ("d", "h", "m"):
        if seconds % _SECONDS[unit] == 0:
            return f"{_plain(seconds / _SECONDS[unit])}{unit}"
    return f"{_plain(seconds)}s"


def _plain(number: float) -> str:
    """Digits only: `g` would write 1e+06, which no duration may contain."""
    text = format(Decimal(repr(round(number, 9))), "f")
    return text.removesuffix(".0")
