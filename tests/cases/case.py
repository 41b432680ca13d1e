"""Case files → cases, with every word checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


class UnknownWord(Exception):
    """A case uses a word that the runner has no meaning for: an error, never a pass."""


@dataclass(frozen=True)
class Case:
    id: str
    area: str
    title: str
    level: str
    setup: dict[str, Any]
    upstream: dict[str, list[dict[str, Any]]]
    request: list[dict[str, Any]]
    expect: list[dict[str, Any]]
    what_happened: str = ""
    source: list[Any] = field(default_factory=list)
    tried: str = ""

    def __post_init__(self) -> None:
        if self.level not in ("must", "should"):
            raise UnknownWord(f"{self.id}: level {self.level!r}")


def load_cases(folder: Path) -> list[Case]:
    """All cases of a folder's YAML files, in the order of file names."""
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise FileNotFoundError(f"no case files (*.yaml) in {folder}")
    return [Case(**record) for file in files for record in yaml.safe_load(file.read_text("utf-8"))]


def known(words: Any, allowed: set[str] | frozenset[str], where: str) -> None:
    """`UnknownWord` for every key of `words` that is not allowed."""
    if unknown := sorted(str(word) for word in words if word not in allowed):
        raise UnknownWord(f"{where}: {', '.join(unknown)}")


def checks_of(expect: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Every check word with its argument, nested ones included."""
    for check in expect:
        for word, argument in check.items():
            if word in ("any_of", "all_of", "none_of"):
                yield from checks_of(argument)
            elif word not in SCOPE:
                yield word, argument


SCOPE = frozenset({"req_no", "variant"})
