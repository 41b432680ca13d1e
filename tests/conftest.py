"""Options of the whole suite; fixtures live beside the tests that use them."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("behaviour cases")
    group.addoption("--cases", metavar="DIR", help="run the case files of this folder instead of tests/cases/data")
    group.addoption(
        "--areas", metavar="A,B", help="run these areas in full, or `all` (default: see tests/cases/not_yet.py)"
    )
