"""What the bench starts, and that its policy makes the gateway do all of its work."""

from __future__ import annotations

import pytest

from measure.proxy.__main__ import arguments
from measure.proxy.cells import Bench, Spot, load_command
from measure.proxy.targets import HERE, Place, targets
from router.decide import Decider
from router.difficulty import Classifier
from router.policy_file import read_policy
from router.types import Call


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path, tmp_path / "peers")


@pytest.fixture
def policy():
    return read_policy(HERE / "bench.yaml", {}).policy


def test_every_target_has_a_port_and_files_of_its_own(place):
    """Two targets on one port would measure one of them twice, under two names."""
    known = targets(place)

    assert len({target.port for target in known.values()}) == len(known)
    assert {
        "direct",
        "nginx",
        "nginx-2w",
        "litellm",
        "portkey",
        "tiergate",
        "tiergate-2w",
        "tiergate-hit",
    } <= known.keys()
    for file in place.work.iterdir():
        assert "$" not in file.read_text(), file


def test_bench_policy_has_everything_on(policy):
    """The speed that counts is that of a gateway at work: cache, prices, log and rules included."""
    assert policy.cache.exact is not None
    assert policy.rules
    assert all(one.price is not None for tier in policy.tiers.values() for one in tier.deployments)
    assert {"difficulty"} == {route.strategy for route in policy.routes.values()}


@pytest.mark.parametrize(
    ("name", "model"), [("bench-json", "openai/mock"), ("bench-stream", "openai/mock-t50-n32-i10")]
)
def test_bench_prompts_reach_the_classifier_and_the_right_upstream(policy, name, model):
    """A rule that matched would leave the classifier out; in a wrong tier, streams would come without delays."""
    text = "1234-0-1 " + "Explain how a cache in front of a model saves money. " * 8
    failures: list[BaseException] = []
    decider = Decider(policy, Classifier.load(), failures.append)
    decision = decider.decide(Call("r", "chat", b"{}", name, text=text, last_user=text, turns=1), "")

    assert "difficulty" == decision.by
    assert decision.rule is None
    assert not failures
    ladder = (decision.tier, *policy.fallback[decision.tier])
    assert {model} == {one.model for tier in ladder for one in policy.tiers[tier].deployments}


def test_hits_are_asked_for_with_one_prompt_and_the_rest_with_many(place):
    """A cache must not answer the bench by accident, and must when it is measured."""
    known, bench = targets(place), Bench(place.work, 1, 2)
    varied = load_command(known["tiergate"], Spot("tiergate", "json", 8), bench)
    same = load_command(known["tiergate-hit"], Spot("tiergate-hit", "json", 8), bench)

    assert "vary" in varied
    assert "same" in same
    assert "--same" not in load_command(known["tiergate"], Spot("tiergate", "stream", 8), bench)


def test_a_rate_is_offered_without_streaming(place):
    """Open-loop cells measure whole answers at a fixed rate."""
    command = load_command(targets(place)["litellm"], Spot("litellm", "rate", 30), Bench(place.work, 1, 2))

    assert "--stream" not in command
    assert "30" == command[command.index("--rate") + 1]
    assert any("Bearer" in word for word in command)


def test_quick_run_is_shorter_and_keeps_what_was_asked_for():
    """QUICK changes defaults, never a choice that somebody made."""
    quick, full = arguments(["--quick", "--stream", "4,8"]), arguments([])

    assert (4, 8) == quick.stream
    assert quick.rounds < full.rounds
    assert "tiergate-2w" in full.targets
