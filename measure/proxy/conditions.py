"""Under what conditions a run was made: machine, versions, settings."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from measure.proxy.rounds import Plan

OURS = ("uvicorn", "uvloop", "httptools", "msgspec", "orjson")


def now() -> datetime:
    return datetime.now(UTC)


def conditions(plan: Plan, tools: Path, nice: int) -> dict[str, str]:
    """For the head of a report."""
    return {
        "date": now().strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "rounds": f"{plan.rounds} of {plan.seconds} s a cell, interleaved; medians of rounds; nice {nice}",
        "load at the end": f"{os.getloadavg()[0]:.1f} (1 minute)",
        "versions": ", ".join(_versions(tools)),
    }


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _versions(tools: Path) -> list[str]:
    ours = [f"{name} {_installed(name)}" for name in OURS]
    folders = tools.glob("peers/litellm/lib/python*/site-packages/litellm-*.dist-info")
    peers = [folder.name.removesuffix(".dist-info").replace("-", " ") for folder in folders]
    return [f"Python {sys.version.split()[0]}", *ours, *peers, *_nginx()]


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "-"


def _nginx() -> list[str]:
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not os.path.exists(program):
        return []
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr
    return [said.strip().rpartition(": ")[2].replace("/", " ")]
