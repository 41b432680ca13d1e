"""The commands in docs/performance.md."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from measure import startup
from measure.proxy import __main__ as bench
from measure.proxy import profile

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "performance.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
PARSERS = {"measure.proxy.profile": profile.arguments, "measure.startup": startup.arguments}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_is_understood(command):
    """A command that the program refuses is worse than none."""
    words = [word for word in shlex.split(command, comments=True) if not re.fullmatch(r"[A-Z_]+=\S+", word)]
    if words[:2] == ["make", "bench"]:
        given = next((word for word in words if word.startswith("ARGS=")), "ARGS=")
        words = ["measure/proxy/run.sh", *shlex.split(given.removeprefix("ARGS="))]
    if words[0].endswith("run.sh"):
        assert os.access(ROOT / words[0], os.X_OK)
        assert bench.arguments(words[1:])
    elif words[1:2] == ["-m"] and words[2] in PARSERS:
        assert PARSERS[words[2]](words[3:])
    else:
        assert words[0].endswith(("pip", "py-spy")), f"unknown command: {command}"


def test_page_has_commands():
    """The test above must not pass because it found nothing."""
    assert len(COMMANDS) >= 5
