"""The documents as tests see them: fenced blocks, tables, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ("README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "DESIGN.md", "STYLE.md")
FOLDERS = ("docs", "policies", "gateway", "router", "cache", "measure", "deploy", "helm")

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block. `shown` is the text of the `text` block right behind it: what it prints."""

    page: Path
    line: int
    language: str
    text: str
    shown: str | None = None

    @property
    def id(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every document of the project."""
    found = [ROOT / name for name in PAGES]
    for folder in FOLDERS:
        found += sorted((ROOT / folder).rglob("*.md"))
    return [page for page in found if page.exists()]


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The page's blocks in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    matches = list(_FENCE.finditer(text))
    for match, following in zip(matches, [*matches[1:], None], strict=False):
        if match[2] not in languages:
            continue
        shown = None
        if following and following[2] == "text" and not text[match.end() : following.start()].strip():
            shown = _dedented(following)
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[2], _dedented(match), shown)


def _dedented(match: re.Match[str]) -> str:
    return re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)


def prose(page: Path) -> str:
    """The page without its blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(page))
    }  # fmt: skip


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table in `text`, heads and rulers left out."""
    found: list[list[str]] = []
    table: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            table.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif table:
            found += table[2:]
            table = []
    return found


def section(page: Path, heading: str) -> str:
    """The text from this heading to the next one of any level."""
    parts = re.split(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def code(cell: str) -> str | None:
    """The text of a cell that is one piece of code; None for words."""
    match = re.fullmatch(r"`([^`]+)`", cell)
    return match[1] if match else None
