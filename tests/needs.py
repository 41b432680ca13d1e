"""Programs that a test starts and `pip` does not bring: without them it is skipped, but never where CI is set."""

from __future__ import annotations

import os
import shutil

import pytest


def need(program: str, package: str) -> str:
    """The program's path. Without it the test is skipped, or fails in CI, naming the Debian package that has it."""
    return shutil.which(program) or lacking(f"{program} is not installed; install the Debian package `{package}`")


def lacking(reason: str) -> str:
    """Skip for this reason. In CI fail: a suite that tests less than it says must not look green."""
    if os.environ.get("CI", "") not in ("", "0", "false"):
        pytest.fail(f"{reason} (CI is set, so nothing is skipped)")
    pytest.skip(reason)
