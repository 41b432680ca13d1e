"""The tests that CONTRIBUTING.md and STYLE.md show as models are themselves run."""

from __future__ import annotations

import ast
from typing import Any

import pytest

import tests.upstream as upstream
from tests.docs.markdown import ROOT, Block, blocks
from tests.gateway.conftest import Gateway, gateway, medium, small, start
from tests.upstream import Upstream

__all__ = ["gateway", "medium", "small", "start"]

EXAMPLES = [block for name in ("CONTRIBUTING.md", "STYLE.md") for block in blocks(ROOT / name, "python")]


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: block.id)
async def test_example_of_a_test_passes(block: Block, gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """An example that does not pass teaches the wrong thing."""
    [function] = ast.parse(block.text).body
    assert isinstance(function, ast.AsyncFunctionDef)
    names: dict[str, Any] = {**vars(upstream), "Gateway": Gateway, "Upstream": Upstream}
    exec(compile(block.text, block.id, "exec"), names)

    await names[function.name](gateway=gateway, small=small, medium=medium)


def test_there_are_examples() -> None:
    """Otherwise nothing above ran."""
    assert {"CONTRIBUTING.md", "STYLE.md"} == {block.page.name for block in EXAMPLES}
