"""Run what the documents tell people to run, against a gateway on a port of its own."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.markdown import ROOT, Block

DOCUMENTED = "127.0.0.1:4000"
TIME_S = 90.0
# Everything that a newcomer's shell has in its path after `make setup`, and a curl that fails where a server says no.
PRELUDE = """
set -euo pipefail
curl() { command curl --fail-with-body --silent --show-error "$@"; }
"""
# Commands that are not run here: they set things up, start a gateway of their own, or need what is not there.
NOT_RUN = re.compile(
    r"^(make|git|pip|docker|helm|kubectl|ollama|source|pytest|kill|\S*python -m|sed|"
    r"\S*tiergate (serve --policy|pull|train(?! --help)))\b",
    re.MULTILINE,
)


def is_run(block: Block) -> bool:
    """Whether a shell block is run as it stands."""
    return NOT_RUN.search(block.text) is None and not set(block.text.split("\n")) <= {"", *exports(block)}


def exports(block: Block) -> list[str]:
    return [line for line in block.text.splitlines() if line.startswith("export ")]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """No keys of whoever runs the tests."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**kept, "PATH": path, "COLUMNS": "120", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), **(extra or {})}


async def run_shell(text: str, address: str) -> str:
    """What it printed. AssertionError if it fails."""
    return await _run(["bash", "-c", PRELUDE + text.replace(DOCUMENTED, address).replace(".venv/bin/", "")])


async def run_python(text: str, address: str) -> str:
    return await _run([sys.executable, "-W", "error", "-c", text.replace(DOCUMENTED, address)])


async def _run(command: list[str]) -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, stdin=asyncio.subprocess.DEVNULL, cwd=ROOT, env=environment()
    )
    try:
        async with asyncio.timeout(TIME_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    told = out.decode(errors="replace")
    assert process.returncode == 0, f"exit code {process.returncode}\n{told}\n{err.decode(errors='replace')}"
    return told


def matches(shown: str, printed: str) -> bool:
    """Whether the output is as shown; `…` stands for anything, spaces at the ends of lines do not count."""
    lines = [line.rstrip() for line in shown.strip().splitlines()]
    pattern = r"\s*\n".join(".*?".join(map(re.escape, line.split("…"))) for line in lines)
    return re.fullmatch(rf"\s*{pattern}\s*", printed, flags=re.DOTALL) is not None
