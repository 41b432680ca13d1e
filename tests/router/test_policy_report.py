"""`tiergate check`: what it says to people and to machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.policy_report import CheckReport, check_policy
from tests.router.policy_text import OPTIONAL, THREE


def check(tmp_path: Path, text: str, **environ: str) -> CheckReport:
    path = tmp_path / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return check_policy(path, environ, installed=lambda module: True)


def test_a_good_policy_is_shown_as_it_will_run(tmp_path: Path) -> None:
    """Tiers, deployments, prices, what is off and why, what was adapted: before anything is started."""
    report = check(tmp_path, OPTIONAL + "aliases: {x: large}\n", A="sk-CANARY", B="sk-CANARY")

    text = report.text()
    assert (0, True) == (report.exit_code, report.ok)
    assert text.startswith(
        f"{tmp_path / 'policy.yaml'}: good\n  small (falls back to medium)\n    a: openai/a, price unknown"
    )
    assert "\n  off: large/c: C is not set\n" in text
    assert "\n  note: aliases.x: large is off, so it is medium" in text
    assert "CANARY" not in text + report.json()


def test_a_bad_policy_is_shown_with_all_its_problems(tmp_path: Path) -> None:
    """One line each, and the exit code that scripts look at."""
    report = check(tmp_path, THREE + "timeout: five\nbaseline: smal\n")

    first, second, last = report.text().splitlines()
    assert (1, False) == (report.exit_code, report.ok)
    assert first.startswith(f"{tmp_path / 'policy.yaml'} line 6: timeout: is not a duration")
    assert second.endswith("did you mean small?")
    assert "2 problems; the policy cannot be used" == last


def test_a_file_that_is_not_there_is_a_fault_of_use(tmp_path: Path) -> None:
    """Exit code 2, as for a wrong option."""
    report = check_policy(tmp_path / "none.yaml", {})

    assert (2, False) == (report.exit_code, report.ok)
    assert "no such file" in report.text()


@pytest.mark.parametrize(("text", "ok"), [(THREE, True), (THREE + "zzz: 1\n", False)])
def test_a_machine_can_read_the_report(tmp_path: Path, text: str, ok: bool) -> None:
    """For CI, and for the editor that marks the line."""
    report = json.loads(check(tmp_path, text).json())

    assert ok == report["ok"]
    if ok:
        assert ["small", "medium", "large"] == [tier["name"] for tier in report["tiers"]]
        assert {"name": "a", "model": "openai/a", "mode": "chat", "input_usd": None, "output_usd": None} == report[
            "tiers"
        ][0]["deployments"][0]
    else:
        (problem,) = report["problems"]
        assert (6, 1, "zzz") == (problem["line"], problem["column"], problem["path"])
