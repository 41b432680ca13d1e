"""Every link between the documents leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, anchors, links, pages

MACHINE = re.compile(r"(?<![\w.])/(?:home|root|work|Users)/")  # folders of somebody's own


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """A page that has moved helps nobody."""
    broken = []
    for link in links(page):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not (target.exists() and target.is_relative_to(ROOT)) or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert [] == broken


def test_index_names_every_page() -> None:
    """A page that is not in the index is not found."""
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}

    assert [] == [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page != index and page not in linked]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_speaks_of_the_product_alone(page: Path) -> None:
    """Paths of somebody's machine mean nothing to a reader."""
    assert MACHINE.search(page.read_text(encoding="utf-8")) is None
