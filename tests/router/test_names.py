"""One namespace for routes, aliases, tiers and deployments, and what a key may name of it."""

from __future__ import annotations

import tracemalloc

import pytest

from router.names import Target, allowed, nearest, targets
from router.policy import Key
from tests.router.policy_text import THREE, policy

TEXT = (
    THREE
    + "routes: {auto: {}, bot: {tier: medium}}\naliases: {gpt-4o-mini: small, 便宜: c, deepseek/deepseek-chat: a}\n"
)
KNOWN = targets(policy(TEXT))


def _key(*routes: str) -> Key:
    return Key(name="k", hash="sha256:" + "0" * 64, routes=routes or None)


def test_every_name_of_the_policy_is_a_target() -> None:
    """What `GET /v1/models` lists and what a request may name are the same set."""
    expected = {
        "auto",
        "bot",
        "gpt-4o-mini",
        "便宜",
        "deepseek/deepseek-chat",
        "small",
        "medium",
        "large",
        "a",
        "b",
        "c",
    }

    assert expected == set(KNOWN)


@pytest.mark.parametrize(
    ("name", "kind", "label", "tier", "deployment"),
    [
        ("auto", "route", "auto", "", None),
        ("bot", "route", "bot", "medium", None),
        ("gpt-4o-mini", "alias", "alias:gpt-4o-mini", "small", None),
        ("便宜", "alias", "alias:便宜", "large", "c"),
        ("deepseek/deepseek-chat", "alias", "alias:deepseek/deepseek-chat", "small", "a"),
        ("large", "tier", "tier:large", "large", None),
        ("b", "deployment", "deployment:b", "medium", "b"),
    ],
)
def test_target_says_what_a_name_stands_for(
    name: str, kind: str, label: str, tier: str, deployment: str | None
) -> None:
    """Labels tell the kinds apart, so that a dashboard never mixes a route with a tier of the same spelling."""
    target = KNOWN[name]

    assert (kind, label, tier, deployment) == (target.kind, target.label, target.tier, target.deployment)
    assert (kind == "route") == (target.route is not None)


def test_key_without_routes_may_name_everything() -> None:
    """Limits are opt-in; and without keys nobody is limited."""
    assert all(allowed(_key(), name) and allowed(None, name) for name in KNOWN)


def test_key_with_routes_may_name_only_those() -> None:
    """Aliases and deployments too are closed unless they are listed."""
    assert {"auto", "便宜"} == {name for name in KNOWN if allowed(_key("auto", "便宜"), name)}


@pytest.mark.parametrize(("typed", "meant"), [("auot", "auto"), ("gpt-4o-min", "gpt-4o-mini"), ("Medium", "medium")])
def test_nearest_finds_the_name_that_was_meant(typed: str, meant: str) -> None:
    """Most unknown models are typing errors."""
    assert meant == nearest(typed, KNOWN, None)


def test_nearest_tells_nothing_that_the_key_may_not_use() -> None:
    """A hint must not list another team's routes."""
    assert nearest("gpt-4o-min", KNOWN, _key("auto")) is None


def test_nearest_knows_when_nothing_is_near() -> None:
    """A wrong hint is worse than none."""
    assert nearest("claude-sonnet-5", KNOWN, None) is None


def test_nearest_does_not_study_a_name_of_megabytes() -> None:
    """`model` is whatever a caller sends, up to `max_body`, and this runs on the event loop: 0.07 s a megabyte."""
    name = "x" * 2_000_000
    tracemalloc.start()
    try:
        nearest(name, {"auto": Target("route", "auto")}, None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000
