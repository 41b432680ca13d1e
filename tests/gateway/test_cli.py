"""The `tiergate` command as a shell sees it: what it prints, where, and its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.admission.keys import hash_key

ROOT = Path(__file__).resolve().parents[2]
GOOD = """\
version: 1
tiers:
  small: {deployments: [{name: a, model: openai/a, api_base: "http://a/v1", price: {input: 0.1, output: 0.4}}]}
  large: {deployments: [{name: b, model: openai/b, api_base: "http://b/v1", api_key: "${B_KEY}", optional: true}]}
routes: {auto: {}, bot: {tier: small}}
rules: [{name: 问候, when: {last_user: {matches: "^(hi|你好)$"}}, tier: small}]
"""
BAD = GOOD.replace("routes: {auto: {}", "routes: {auto: {max_teir: small}")


def run(
    *arguments: str, env: dict[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIERGATE_")}
    environ = {**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1", **(env or {})}
    command = [sys.executable, "-m", "gateway.cli", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environ, cwd=ROOT, input=stdin, timeout=60,
        check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    return str(path)


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    return str(path)


# --- check ---


def test_check_of_a_good_policy_tells_what_is_on_and_off(good: str) -> None:
    """Exit code 0, so that a pipeline can rely on it."""
    done = run("check", good)

    assert (0, "") == (done.returncode, done.stderr)
    assert "openai/a" in done.stdout
    assert "B_KEY" in done.stdout, "why b is off"


def test_check_of_a_bad_policy_tells_line_and_nearest_key(bad: str) -> None:
    """Exit code 1, and enough to repair it without the manual."""
    done = run("check", bad)

    assert 1 == done.returncode
    assert "line 5" in done.stdout
    assert "max_teir" in done.stdout
    assert "max_tier" in done.stdout


def test_check_as_json_is_json_either_way(good: str, bad: str) -> None:
    """For machines: the same facts, the same exit code."""
    fine, wrong = run("check", good, "--json"), run("check", bad, "--json")

    assert (0, True) == (fine.returncode, json.loads(fine.stdout)["ok"])
    found = json.loads(wrong.stdout)
    assert (1, False, 5) == (wrong.returncode, found["ok"], found["problems"][0]["line"])


def test_check_of_no_file_is_used_wrong() -> None:
    """Not found is another mistake than not good."""
    assert 2 == run("check", "/no/such/policy.yaml").returncode


# --- explain ---


@pytest.mark.parametrize(
    ("prompt", "language"),
    [("Explain the second law of thermodynamics in one sentence.", "en"), ("用一句话解释热力学第二定律。", "zh")],
)
def test_explain_tells_the_decision(good: str, prompt: str, language: str) -> None:
    """In the order in which people ask: where, why, by how much, for how much."""
    done = run("explain", prompt, "--policy", good)

    assert 0 == done.returncode
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "auto" in lines["route"]
    assert re.search(r"0\.\d{3}", lines["difficulty"])
    assert "openai/a" in lines["attempt"]
    assert lines["language"].split()[-1] == language
    assert "USD" in done.stdout


def test_explain_names_the_rule(good: str) -> None:
    """Rules are where operators look first."""
    assert "问候" in run("explain", "你好", "--policy", good).stdout


def test_explain_as_json(good: str) -> None:
    """The same as `POST /v1/route` answers."""
    told: dict[str, Any] = json.loads(run("explain", "你好", "--policy", good, "--json").stdout)

    assert ("auto", "small", "rule", "问候") == tuple(told[name] for name in ("route", "tier", "by", "rule"))
    assert {"attempts", "thresholds", "features", "prompt_tokens", "estimated_cost_usd"} <= told.keys()


def test_explain_reads_standard_input(good: str) -> None:
    """For prompts with line ends and quotes."""
    told = json.loads(run("explain", "-", "--policy", good, "--json", stdin="第一行\n“第二行”\n" * 50).stdout)

    assert told["features"]["lines"] > 40


def test_explain_for_another_name(good: str) -> None:
    """Any name that a request may use."""
    assert "bot" in run("explain", "x", "--policy", good, "--model", "bot").stdout


def test_explain_of_an_unknown_name_is_used_wrong_and_names_the_nearest(good: str) -> None:
    """Exit code 2: the question was wrong, not the policy."""
    done = run("explain", "x", "--policy", good, "--model", "atuo")

    assert 2 == done.returncode
    assert "did you mean auto?" in done.stderr


def test_explain_with_a_bad_policy_says_why(bad: str) -> None:
    """The same words as `check`."""
    done = run("explain", "x", "--policy", bad)

    assert (1, "") == (done.returncode, done.stdout)
    assert "line 5" in done.stderr


def test_policy_may_come_from_the_environment(good: str) -> None:
    """Containers set variables, not arguments."""
    assert 0 == run("explain", "x", env={"TIERGATE_POLICY": good}).returncode


# --- keys ---


def test_new_key_is_printed_once_with_its_hash() -> None:
    """The two lines belong together: what the caller gets, and what the policy gets."""
    done = run("keys", "new", "app-a")

    [key] = re.findall(r"tg-\S+", done.stdout)
    listed = yaml.safe_load(done.stdout[done.stdout.index("keys:\n") :])["keys"]
    assert [{"name": "app-a", "hash": hash_key(key.encode())}] == listed
    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("name", ["团队", "app a", "a, admin: true", "team: a", "123", "null", '"', "#"])
def test_printed_yaml_means_the_name_that_was_given(name: str) -> None:
    """It is pasted into a policy; it must not say something else there."""
    done = run("keys", "new", name)

    assert name == yaml.safe_load(done.stdout[done.stdout.index("keys:\n") :])["keys"][0]["name"]


# --- used wrong ---


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",), ("check",), ("check", "a", "b"), ("explain",), ("keys",), ("keys", "new"),
        ("serve", "--port", "x"), ("serve", "--port", "70000"), ("serve", "--workers", "0"), ("serve", "--grace", "5"),
        ("serve", "--log-level", "loud"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_command_that_is_used_wrong_ends_with_two(good: str, arguments: tuple[str, ...]) -> None:
    """Exit code 2 and a line on stderr that says what would be right."""
    more = ("--policy", good) if arguments[0] == "serve" else ()

    done = run(*arguments, *more)

    assert 2 == done.returncode
    assert done.stderr.strip() or done.stdout.strip()


def test_help_lists_the_commands() -> None:
    """`--help` says all."""
    done = run("--help")

    assert 0 == done.returncode
    for command in ("serve", "check", "explain", "pull", "train", "keys"):
        assert re.search(rf"\b{command}\b", done.stdout)
