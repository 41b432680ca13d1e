"""The JSON Schema for editors is in step with the policy, and the policies that ship are good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from router.decide import Decider
from router.features import Features
from router.policy_file import Loaded, PolicyError, load_policy
from router.policy_schema import TARGET, schema_text
from router.types import Call

POLICIES = sorted(TARGET.parent.glob("*.yaml"))
VARIABLES = (
    "ANTHROPIC_API_KEY",
    "CEREBRAS_API_KEY",
    "DASHSCOPE_API_KEY",
    "DEEPSEEK_API_KEY",
    "GROQ_API_KEY",
    "MOONSHOT_API_KEY",
    "OPENAI_API_KEY",
    "TIERGATE_MEDIUM_GGUF",
    "VLLM_API_KEY",
    "ZHIPU_API_KEY",
)
NEED_A_KEY = {"chinese-providers.yaml": "DASHSCOPE_API_KEY", "latency-first.yaml": "GROQ_API_KEY"}
EXPECTED = {
    "chinese-providers.yaml",
    "cost-first.yaml",
    "default.yaml",
    "latency-first.yaml",
    "local-only.yaml",
    "ollama-cloud.yaml",
    "vllm-fleet.yaml",
}

each_policy = pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)


def load(path: Path, *names: str, packages: bool = True) -> Loaded:
    environ = dict.fromkeys(names, "sk-test")
    return load_policy(path.read_text(encoding="utf-8"), environ, path.name, installed=lambda module: packages)


def complaints(value: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(json.loads(TARGET.read_text(encoding="utf-8")))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def minimal(**more: Any) -> dict[str, Any]:
    return {"version": 1, "tiers": {"small": {"deployments": [{"name": "a", "model": "local/a"}], **more}}}


def test_the_schema_is_in_step_with_the_policy() -> None:
    """Renew it with `python -m router.policy_schema --write`."""
    assert schema_text() == TARGET.read_text(encoding="utf-8")


def test_the_schema_is_one() -> None:
    """Editors ignore a broken schema without a word."""
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text()))


def test_the_expected_policies_ship() -> None:
    """The table in the folder's README names them."""
    readme = (TARGET.parent / "README.md").read_text(encoding="utf-8")

    assert {path.name for path in POLICIES} == EXPECTED
    assert all(f"({name})" in readme for name in EXPECTED)


@each_policy
def test_a_shipped_policy_fits_the_schema_and_names_it(path: Path) -> None:
    """The first line is what makes an editor help; it must not help with wrong advice."""
    text = path.read_text(encoding="utf-8")

    assert text.startswith("# yaml-language-server: $schema=policy.schema.json\n")
    assert [] == complaints(yaml.safe_load(text))


@each_policy
def test_a_shipped_policy_loads_with_all_keys(path: Path) -> None:
    """Nothing is off, nothing is odd, and every cost is known."""
    loaded = load(path, *VARIABLES)

    assert ((), ()) == (loaded.off, loaded.notes)
    assert all(each.price for tier in loaded.policy.tiers.values() for each in tier.deployments)
    assert loaded.policy.baseline_price is not None
    assert "auto" in loaded.policy.routes


@each_policy
def test_a_shipped_policy_loads_without_any_key_or_says_which_it_needs(path: Path) -> None:
    """The first thing that a newcomer does is to start it as it is."""
    if path.name in NEED_A_KEY:
        with pytest.raises(PolicyError, match=f"{NEED_A_KEY[path.name]} is not set"):
            load(path)
        assert load(path, NEED_A_KEY[path.name]).policy.tiers
    else:
        assert load(path).policy.tiers


@each_policy
def test_rules_that_ask_for_a_larger_tier_come_first(path: Path) -> None:
    """The first match counts: a laxer rule before a stricter one would take its requests away."""
    policy = load(path, *VARIABLES).policy

    floors = [policy.tier_names.index(rule.tier or rule.min_tier or "") for rule in policy.rules]

    assert sorted(floors, reverse=True) == floors


class Easy:
    """A classifier to which everything is easy, so that rules alone lift a request."""

    def difficulty(self, features: Features, /) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("asked", "fields", "tier"),
    [
        ("你好！", {}, "small"),
        ("Thank you!", {}, "small"),
        ("Tell me a joke.", {}, "small"),
        ("Prove that there are infinitely many primes.", {}, "large"),
        ("Prove the lemma. " + "It follows from what was said before. " * 300, {}, "large"),
        ("请证明这个引理。" + "由前面的结论可以得到。" * 300, {"has_tools": True}, "large"),
        ("Summarize this. " + "It was a long day. " * 500, {}, "medium"),
        ("Hello", {"has_tools": True}, "medium"),
        ("谢谢", {"has_images": True}, "large"),
    ],
)
def test_rules_of_the_default_policy_lift_what_the_small_tier_cannot_do(
    asked: str, fields: dict[str, Any], tier: str
) -> None:
    """A long proof is a proof, and a greeting with tools or an image is more than a greeting."""
    policy = load(TARGET.parent / "default.yaml", *VARIABLES).policy
    call = Call(request_id="r", surface="chat", body=b"{}", model="auto", last_user=asked, text=asked, **fields)

    decision = Decider(policy, Easy(), lambda exc: None).decide(call, "-")

    assert tier == decision.tier, decision.reason


def test_a_silent_server_does_not_hold_a_whole_answer_for_the_full_time() -> None:
    """`first_byte` is `total` where nobody sets it: ten minutes before the next tier is asked."""
    tiers = load(TARGET.parent / "default.yaml", *VARIABLES).policy.tiers

    assert {"small": 60.0, "medium": 120.0, "large": 300.0} == {
        name: tier.timeouts.first_byte for name, tier in tiers.items()
    }


def test_the_default_policy_answers_without_keys_from_the_local_model_alone() -> None:
    """`make run` on a fresh machine; savings are counted against the cloud model all the same."""
    loaded = load(TARGET.parent / "default.yaml")

    assert ("small",) == loaded.policy.tier_names
    assert ["smollm2"] == [each.name for each in loaded.policy.tiers["small"].deployments]
    assert loaded.policy.baseline_price is not None
    assert loaded.policy.baseline_price.output > 0
    assert {"deepseek-flash", "gpt-oss-120b", "claude-sonnet", "gpt-sol", "text-embedding-3-small"} == {
        each.deployment for each in loaded.off
    }


def test_the_default_policy_starts_without_any_extra_as_soon_as_there_is_a_key() -> None:
    """Neither llama.cpp nor LiteLLM is needed for an OpenAI-compatible cloud."""
    loaded = load(TARGET.parent / "default.yaml", "OPENAI_API_KEY", packages=False)

    assert ("large",) == loaded.policy.tier_names
    assert any("tiergate[local]" in each.reason for each in loaded.off)


@pytest.mark.parametrize(
    "value",
    [
        {**minimal(), "timeout": 5},
        {**minimal(), "max_body": "5 parsecs"},
        {**minimal(), "routs": {}},
        {"version": 1},
        minimal(timeouts={"idle": "five"}),
        minimal(concurrency={"max": "many"}),
        minimal(name="small"),
        {**minimal(), "log": {"path": True}},
    ],
)
def test_the_schema_complains_where_the_loader_would(value: object) -> None:
    """A schema that accepts everything would pass every other test here."""
    assert complaints(value)


@pytest.mark.parametrize(
    "value",
    [
        minimal(concurrency={"max": "${MAX:-4}", "queue_timeout": "${WAIT}"}),
        minimal(cooldown=None, timeouts={"idle": "1m30s"}),
        {**minimal(), "max_body": "os.environ/BODY", "x-anything": [1, {"a": 2}]},
        {**minimal(), "log": {"path": False}},
        {**minimal(), "rules": [{"name": "r", "when": {"language": "zh", "key": ["a", "b"]}, "tier": "small"}]},
    ],
)
def test_the_schema_allows_variables_and_short_forms(value: object) -> None:
    """What the loader takes, an editor must not underline."""
    assert [] == complaints(value)
