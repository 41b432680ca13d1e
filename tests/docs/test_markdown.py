"""The reader of documents itself: a reader that finds nothing would make every other test here pass."""

from __future__ import annotations

from pathlib import Path

from tests.docs.markdown import ROOT, anchors, blocks, links, pages, rows, section

PAGE = """# One page

Text with a [link](other.md#part), an ![image](x.png).

```sh
echo one
```

```text
one
```

## A `coded` heading, 中文

```yaml
[not](a-link.md)
```

| a | b |
| --- | --- |
| `x` | one \\| two |
"""


def test_blocks_tables_links_and_anchors_are_found(tmp_path: Path) -> None:
    """Each in the form in which the documents use it."""
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")

    [shell] = blocks(page, "sh")

    assert ("echo one\n", "one\n", 5) == (shell.text, shell.shown, shell.line)
    assert [None] == [block.shown for block in blocks(page, "yaml")]
    assert ["other.md#part"] == links(page)
    assert {"one-page", "a-coded-heading-中文"} == anchors(page)
    assert [["`x`", "one | two"]] == rows(PAGE)
    assert "[not]" in section(page, "A `coded` heading, 中文")


def test_the_documents_are_found() -> None:
    """A renamed folder must not take its documents out of the tests."""
    found = {str(page.relative_to(ROOT)) for page in pages()}

    assert {"README.md", "docs/policy.md", "policies/README.md", "gateway/NOTES.md", "router/NOTES.md"} <= found
