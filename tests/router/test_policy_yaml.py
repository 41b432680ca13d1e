"""Reading YAML: what is not a policy at all, keys twice, anchors, and variables of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.policy_file import PolicyError, UnreadablePolicy, read_policy
from router.policy_yaml import MAX_TEXT, dotted
from tests.router.policy_text import THREE, load, only, policy, refused

ENDPOINT = (
    "version: 1\ntiers:\n  small:\n    deployments:\n      - {name: a, model: openai/a, api_base: 'http://a/v1', %s}\n"
)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("", 1, "the file is empty", id="empty"),
        pytest.param("# nothing\n\n", 1, "the file is empty", id="comments alone"),
        pytest.param("- a\n- b\n", 1, "a policy is a mapping", id="a list"),
        pytest.param("hello", 1, "a policy is a mapping", id="a word"),
        pytest.param("version: 1\n\ttiers: {}\n", 2, "indent with spaces", id="tab"),
        pytest.param("version: 1\ntiers: {small: {\n", 3, "not valid YAML", id="cut in the middle"),
        pytest.param("version: 1\ntiers: *nowhere\n", 2, "undefined alias", id="unknown alias"),
        pytest.param("version: 1\n---\nversion: 1\n", 2, "one document", id="two documents"),
        pytest.param("version: 1\nx: a\x00b\n", 2, "does not allow", id="control character"),
        pytest.param("version: 1\nx: \ud800\n", 2, "surrogate", id="half a character"),
        pytest.param("version: 1\nkey: value: more\n", 2, "quote text that holds ': '", id="colon in a value"),
        pytest.param("[" * 5000, 1, "nesting depth", id="deep flow"),
        pytest.param("a:\n" + "".join(" " * depth + "a:\n" for depth in range(1, 100)), 25, "too deeply", id="deep"),
        pytest.param("version: 1\nx: &a [*a]\n", 2, "an anchor holds itself", id="recursive anchor"),
        pytest.param("version: 1\ny: &a\n  <<: *a\n", 2, "an anchor merges itself", id="recursive merge"),
        pytest.param("x" * (MAX_TEXT + 1), 1, "longer than", id="too long"),
    ],
)
def test_what_is_not_a_policy_is_refused_with_a_line(text: str, line: int, words: str) -> None:
    """Also what would crash, or run for ever, in a careless reader."""
    problem = only(refused(text))

    assert words in problem.message
    assert abs(line - problem.line) <= (1 if "anchor" in words or line == 25 else 0), problem


def test_a_bomb_of_aliases_does_not_go_off() -> None:
    """Ten lines of aliases of aliases would be thousands of millions of values."""
    lines = ["version: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]

    assert "when its aliases are expanded" in only(refused("\n".join(lines))).message


def test_a_syntax_error_does_not_show_the_line_it_is_in() -> None:
    """The line may hold a secret, and the message goes to the log."""
    problem = only(refused("version: 1\napi_key: sk-CANARY: x\n"))

    assert 2 == problem.line
    assert "CANARY" not in str(problem)


def test_a_key_that_is_written_twice_is_refused() -> None:
    """The usual loader keeps the last of the two, and half of a policy is gone without a word."""
    text = THREE.replace("small: {", "small: {timeouts: {idle: 5s},\n    timeouts: {idle: 9s}, ")

    problem = only(refused(text))

    assert (4, "tiers.small.timeouts") == (problem.line, problem.path)
    assert "duplicate key; first on line 3" == problem.message


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("on: 1\n", "on", "put it in quotes"),
        ("aliases: {4: small}\n", "aliases.4", "put it in quotes"),
        ("? [a, b]\n: 1\n", "", "not a list or mapping"),
        ("timeout: !!python/name:os.system x\n", "timeout", "!!python/name:os.system is not supported"),
        ("timeout: !ENV x\n", "timeout", "write ${NAME} for a variable"),
        ("aliases: !!omap [a: b]\n", "aliases", "!!omap is not supported"),
        ("aliases: {<<: 1}\n", "aliases.<<", "merges a mapping"),
    ],
)
def test_yaml_that_means_something_else_is_refused(text: str, path: str, words: str) -> None:
    """Keys that YAML reads as booleans or numbers, tags that would build objects, merges of nothing."""
    problem = only(refused(THREE + text))

    assert (6, path) == (problem.line, problem.path)
    assert words in problem.message


def test_merge_keys_and_anchors_work_and_what_is_written_wins() -> None:
    """Fleets repeat themselves; `x-` keys hold what is repeated, as in compose files."""
    loaded = policy(
        "version: 1\n"
        "x-a: &a {model: openai/m, api_base: 'http://h/v1', weight: 2}\n"
        "x-b: &b {weight: 3, context_window: 10}\n"
        "tiers:\n"
        "  small:\n"
        "    deployments:\n"
        "      - {<<: *a, name: one}\n"
        "      - {name: two, <<: [*b, *a], context_window: 20}\n"
    )

    one, two = loaded.tiers["small"].deployments
    assert ("openai/m", 2, None) == (one.model, one.weight, one.context_window)
    assert ("openai/m", 3, 20) == (two.model, two.weight, two.context_window), "the first of a list of merges wins"


def test_a_variable_of_the_environment_is_put_in() -> None:
    """Inside longer text, with a default, escaped, and in LiteLLM's form."""
    text = THREE.replace('"http://a/v1"', '"http://${HOST}:${PORT:-8000}/v1", api_key: os.environ/KEY') + (
        "rules: [{name: r, when: {last_user: {matches: '^\\$${2}'}}, tier: small}]\n"
    )

    loaded = policy(text, {"HOST": "vllm", "KEY": "sk-1\n"})

    small = loaded.tiers["small"].deployments[0]
    assert "http://vllm:8000/v1" == small.api_base
    assert small.api_key is not None
    assert "sk-1" == small.api_key.get_secret_value(), "a line break at its end is not part of a key"
    assert loaded.rules[0].when.last_user is not None
    assert r"^\${2}" == loaded.rules[0].when.last_user.matches


def test_numbers_and_switches_may_come_from_the_environment() -> None:
    """Sizing differs between machines; the policy need not."""
    text = "context_window: '${WINDOW:-2048}', optional: '${MAYBE:-true}', weight: '${W}'"

    (deployment,) = policy(ENDPOINT % text, {"W": "2.5"}).tiers["small"].deployments

    assert (2048, True, 2.5) == (deployment.context_window, deployment.optional, deployment.weight)


def test_an_empty_default_leaves_the_key_out() -> None:
    """For a server that has a key on some machines and none on others."""
    text = ENDPOINT % "api_key: '${KEY:-}'"

    assert policy(text).tiers["small"].deployments[0].api_key is None
    assert policy(text, {"KEY": "k"}).tiers["small"].deployments[0].api_key is not None


@pytest.mark.parametrize("environ", [{}, {"SMALL_KEY": ""}, {"SMALL_KEY": " \n"}])
@pytest.mark.parametrize("reference", ["'${SMALL_KEY}'", "os.environ/SMALL_KEY", "'Bearer ${SMALL_KEY}'"])
def test_a_variable_that_is_not_set_is_an_error_that_names_it(environ: dict[str, str], reference: str) -> None:
    """Otherwise the literal text goes to the provider as a key, and the fault shows as a refused login."""
    problem = only(refused(ENDPOINT % f"api_key: {reference}", environ))

    assert (5, "tiers.small.deployments[0].api_key") == (problem.line, problem.path)
    assert "SMALL_KEY is not set" in problem.message
    assert "${SMALL_KEY:-default}" in problem.message
    assert "optional: true" in problem.message


def test_a_variable_that_is_not_set_brings_no_second_error_about_its_stand_in() -> None:
    """An address that is not there is not also a malformed address."""
    text = (
        "version: 1\ntiers: {small: {deployments: [{name: a, model: openai/a, api_base: '${BASE}'}]}}\ntimeout: ${T}\n"
    )

    assert ["tiers.small.deployments[0].api_base", "timeout"] == [each.path for each in refused(text)]


@pytest.mark.parametrize("broken", ["${", "${1X}", "${A", "${A:default}", "${}"])
def test_a_broken_reference_is_refused(broken: str) -> None:
    """It would go out as literal text."""
    problem = only(refused(ENDPOINT % f"api_key: '{broken}'", {"A": "x"}))

    assert "is not a reference: write ${NAME}" in problem.message


def test_the_value_of_a_variable_is_not_read_again() -> None:
    """A key may hold `${`; what the environment says is never a template."""
    (deployment,) = policy(ENDPOINT % "api_key: '${KEY}'", {"KEY": "a${B}"}).tiers["small"].deployments

    assert deployment.api_key is not None
    assert "a${B}" == deployment.api_key.get_secret_value()


def test_a_log_path_of_bare_off_turns_the_log_off() -> None:
    """YAML reads a bare off as false; here it can only have meant one thing."""
    assert "off" == policy(THREE + "log: {path: off}\n").log.path


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """A wrong path on the command line must not look like a fault of the policy."""
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("version: 1\n# größer\n".encode("latin-1"))

    for path, words in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "directory"),
        (latin, "line 2: is not UTF-8"),
    ):
        with pytest.raises(UnreadablePolicy, match=words):
            read_policy(path, {})


def test_a_file_is_read_with_its_name_in_the_errors(tmp_path: Path) -> None:
    """And with the byte order mark that some editors write."""
    path = tmp_path / "mine.yaml"
    path.write_text(THREE, encoding="utf-8-sig")
    assert ("small", "medium", "large") == read_policy(path, {}).policy.tier_names

    path.write_text(THREE + "zzz: 1\n", encoding="utf-8")
    with pytest.raises(PolicyError, match=r"mine\.yaml line 6: zzz: unknown key"):
        read_policy(path, {})


def test_a_path_can_be_found_again_in_the_file() -> None:
    """Keys with dots or spaces would be ambiguous without quotes."""
    assert 'aliases["gpt-4.1"].x[0]["a b"]' == dotted(("aliases", "gpt-4.1", "x", 0, "a b"))


def test_a_key_written_in_the_file_is_noted_without_its_value() -> None:
    """A policy is committed and mailed; a secret in it should be somewhere else."""
    (note,) = load(ENDPOINT % "api_key: sk-CANARY").notes

    assert note.startswith("tiers.small.deployments[0].api_key is written in the file")
    assert "CANARY" not in note
