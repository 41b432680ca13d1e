"""What the loader fills in where a policy says nothing, and how it adapts a policy to what is off on this machine."""

from __future__ import annotations

import pytest

from router.policy import Policy, Price
from router.policy_file import Loaded, Off
from router.policy_fill import default_thresholds
from tests.router.policy_text import OPTIONAL, THREE, load, only, policy, refused

HASH = "sha256:" + "0" * 64
KEYS = {"A": "a", "B": "b", "C": "c"}
ORDER = ("small", "medium", "large")
LIMITS = [(None, None), *((low, None) for low in ORDER), *((None, high) for high in ORDER)] + [
    (low, high) for index, low in enumerate(ORDER) for high in ORDER[index:]
]


def without(*names: str, text: str = "") -> Loaded:
    """`OPTIONAL` and `text`, with the keys of these tiers (a: small, b: medium, c: large) not set."""
    return load(OPTIONAL + text, {key: value for key, value in KEYS.items() if value not in names})


def test_fallback_goes_upwards_then_down_where_nothing_is_said() -> None:
    """A larger tier can answer whatever a smaller one could; a smaller one is better than nothing."""
    loaded = policy(THREE + "fallback: {large: []}\n")

    assert {"small": ("medium", "large"), "medium": ("large", "small"), "large": ()} == dict(loaded.fallback)


def test_a_policy_without_routes_gets_auto_over_all_tiers() -> None:
    """The smallest useful policy is a list of tiers."""
    loaded = policy(THREE)

    assert ["auto"] == list(loaded.routes)
    assert ("difficulty", {"medium": 0.35, "large": 0.7}, "medium", "answered") == (
        loaded.routes["auto"].strategy,
        dict(loaded.routes["auto"].thresholds),
        loaded.routes["auto"].default_tier,
        loaded.routes["auto"].response_model,
    )
    assert "large" == loaded.baseline


@pytest.mark.parametrize("text", ["aliases: {auto: small}\n", "routes: {r: {tier: small}}\n"])
def test_no_auto_is_added_where_the_operator_chose_names(text: str) -> None:
    """A route that nobody wrote must not take a name, or appear beside those that somebody did."""
    assert "auto" not in policy(THREE + text).routes


@pytest.mark.parametrize(
    ("tiers", "thresholds"),
    [
        (["a"], {}),
        (["a", "b"], {"b": 0.5}),
        (["a", "b", "c"], {"b": 0.35, "c": 0.7}),
        (["a", "b", "c", "d"], {"b": 0.25, "c": 0.5, "d": 0.75}),
    ],
)
def test_thresholds_are_evenly_spaced(tiers: list[str], thresholds: dict[str, float]) -> None:
    """A route without thresholds uses each of its tiers."""
    assert thresholds == default_thresholds(tiers)


def test_routes_are_completed_within_their_limits() -> None:
    """Thresholds, default tier and whose name the answer bears follow from what the route may use."""
    routes = policy(
        THREE
        + "routes:\n"
        + "  fast: {max_tier: medium}\n"
        + "  good: {min_tier: medium, thresholds: {medium: 0, large: 0.6}}\n"
        + "  one: {tier: small}\n"
        + "  named: {tier: small, response_model: answered}\n"
    ).routes

    assert ({"medium": 0.5}, "medium") == (dict(routes["fast"].thresholds), routes["fast"].default_tier)
    assert ({"large": 0.6}, "large") == (dict(routes["good"].thresholds), routes["good"].default_tier)
    assert ("fixed", {}, "requested") == (
        routes["one"].strategy,
        dict(routes["one"].thresholds),
        routes["one"].response_model,
    )
    assert "answered" == routes["named"].response_model


def test_a_tier_that_no_threshold_reaches_is_noted() -> None:
    """It may be meant, and it may be a forgotten line."""
    (note,) = load(THREE + "routes: {r: {thresholds: {large: 0.5}}}\n").notes

    assert "routes.r: medium has no threshold, so difficulty never chooses it" == note


def test_addresses_and_header_names_are_put_in_one_form() -> None:
    """`http://h/v1/` and `http://h/v1` are one address; header names have no case."""
    loaded = policy(
        "version: 1\n"
        "tiers:\n"
        "  small:\n"
        "    deployments:\n"
        "      - {name: a, model: openai/a, api_base: 'http://a/v1/'}\n"
        "      - {name: b, model: openai/b, api_key: k}\n"
        "rules: [{name: r, when: {headers: {X-Team: {matches: 研发}}}, tier: small}]\n"
    )

    assert ["http://a/v1", "https://api.openai.com/v1"] == [each.api_base for each in loaded.tiers["small"].deployments]
    assert ["x-team"] == list(loaded.rules[0].when.headers)


def test_prices_come_from_the_policy_then_from_the_map_else_stay_unknown() -> None:
    """An unknown cost is not zero, and a server of one's own does not cost what OpenAI asks for the same name."""
    loaded = policy(
        "version: 1\n"
        "tiers:\n"
        "  small:\n"
        "    deployments:\n"
        "      - {name: local, model: local/x}\n"
        "      - {name: own, model: openai/gpt-6-sol, api_base: 'http://vllm/v1'}\n"
        "      - {name: cloud, model: openai/gpt-6-sol, api_key: k}\n"
        "      - {name: said, model: openai/gpt-6-sol, api_key: k, price: {input: 1, output: 2}}\n"
        "      - {name: litellm, model: anthropic/claude-sonnet-5-5, context_window: 500}\n"
    )

    local, own, cloud, said, litellm = loaded.tiers["small"].deployments
    assert (Price(input=0, output=0), None) == (local.price, own.price)
    assert cloud.price is not None
    assert cloud.price.input > 0
    assert cloud.context_window is not None
    assert cloud.context_window > 100_000
    assert (Price(input=1, output=2), None) == (said.price, said.context_window)
    assert litellm.price is not None
    assert 500 == litellm.context_window, "what the policy says wins"


def test_everything_on_means_nothing_to_note() -> None:
    """Notes must be read, so there are none without a cause."""
    loaded = without(text="aliases: {x: large}\nrules: [{name: r, when: {has_tools: true}, min_tier: medium}]\n")

    assert ((), ()) == (loaded.off, loaded.notes)


def test_an_optional_deployment_without_its_key_disappears_with_a_reason() -> None:
    """The default policy must start on a machine without any account."""
    loaded = without("b", "c")

    assert (Off("medium", "b", "B is not set"), Off("large", "c", "C is not set")) == loaded.off
    assert ("small",) == loaded.policy.tier_names
    assert {"small": ()} == dict(loaded.policy.fallback)
    assert "tier medium is off: none of its deployments can be used here" in loaded.notes


def test_an_optional_deployment_without_its_package_disappears_with_the_remedy() -> None:
    """The remedy comes first that works in a checkout: the name might be somebody else's on a package index."""
    text = THREE.replace("deployments: [", "deployments: [{name: z, model: local/z, optional: true}, ", 1)

    loaded = load(text, packages=False)

    remedy = "needs xllamacpp: run `make setup` (or install the extra: tiergate[local])"
    assert (Off("small", "z", remedy),) == loaded.off
    assert ["a"] == [each.name for each in loaded.policy.tiers["small"].deployments]
    assert () == loaded.notes, "the tier is still there, so nothing had to change"


def test_what_is_off_is_still_checked() -> None:
    """Otherwise the mistake shows on the day when the key arrives."""
    text = OPTIONAL.replace("name: c,", "name: c, wieght: 2,")

    assert "tiers.large.deployments[0].wieght" == only(refused(text, {"A": "a", "B": "b"})).path


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        (("b",), {"route": "large", "alias": "large", "rule": "large", "max": "small", "fallback": ("large",)}),
        (("c",), {"route": "medium", "alias": "medium", "rule": "medium", "max": "medium", "fallback": ("medium",)}),
        (("b", "c"), {"route": "small", "alias": "small", "rule": "small", "max": "small", "fallback": ()}),
        (("a", "b"), {"route": "large", "alias": "large", "rule": "large", "max": "large", "fallback": None}),
    ],
)
def test_references_to_a_tier_that_is_off_move_to_the_nearest(
    off: tuple[str, ...], expected: dict[str, object]
) -> None:
    """Larger first, as that answers well; a limit upwards stays a limit; each change is noted."""
    wanted = "large" if off == ("c",) else "medium"
    text = (
        "fallback: {small: [medium, large]}\n"
        f"routes: {{fixed: {{tier: {wanted}}}, auto: {{}}, limit: {{max_tier: medium}}}}\n"
        f"aliases: {{x: {wanted}}}\n"
        f"rules: [{{name: 工具, when: {{has_tools: true}}, min_tier: {wanted}}}]\n"
    )

    loaded = without(*off, text=text)

    found = loaded.policy
    assert expected == {
        "route": found.routes["fixed"].tier,
        "alias": found.aliases["x"],
        "rule": found.rules[0].min_tier,
        "max": found.routes["limit"].max_tier,
        "fallback": found.fallback.get("small"),
    }
    for place in ("routes.fixed.tier", "aliases.x", "rules '工具'.min_tier"):
        assert any(note.startswith(f"{place}: {wanted} is off, so it is ") for note in loaded.notes), loaded.notes
    assert_consistent(found)


def test_thresholds_of_a_tier_that_is_off_are_dropped() -> None:
    """The others keep what the operator measured for them."""
    loaded = without("b", text="routes: {r: {thresholds: {medium: 0.4, large: 0.8}, default_tier: medium}}\n")

    assert {"large": 0.8} == dict(loaded.policy.routes["r"].thresholds)
    assert "large" == loaded.policy.routes["r"].default_tier
    assert "routes.r: the threshold of medium is dropped, as that tier is off" in loaded.notes


def test_limits_never_cross_when_the_tiers_between_them_are_off() -> None:
    """A route for medium alone, without medium."""
    loaded = without("b", text="routes: {r: {min_tier: medium, max_tier: medium}}\n")

    assert ("large", "large", {}) == (
        loaded.policy.routes["r"].min_tier,
        loaded.policy.routes["r"].max_tier,
        dict(loaded.policy.routes["r"].thresholds),
    )
    assert any("no tier from min_tier to max_tier is left" in note for note in loaded.notes)


def test_an_alias_of_a_deployment_that_is_off_goes_to_its_tier() -> None:
    """The tier has others that can stand in."""
    text = OPTIONAL.replace("[{name: b", "[{name: b2, model: openai/b2, api_base: 'http://b2/v1'}, {name: b")

    loaded = load(text + "aliases: {x: b}\n", {"A": "a", "C": "c"})

    assert "medium" == loaded.policy.aliases["x"]
    assert ("aliases.x: b is off, so it is medium",) == loaded.notes


def test_a_key_that_could_name_only_what_is_off_can_name_nothing() -> None:
    """`null` means everything: an emptied list must never become that."""
    loaded = without("c", text=f"keys: [{{name: k, hash: '{HASH}', routes: [large, c]}}]\n")

    assert () == loaded.policy.keys[0].routes
    assert "keys 'k': large, c is off, so the key cannot name it" in loaded.notes


def test_savings_are_counted_against_the_configured_baseline_even_while_it_is_off() -> None:
    """How much a cloud model would have cost is of interest before one has an account there."""
    text = OPTIONAL.replace("name: c,", "name: c, price: {input: 3, output: 15},")

    loaded = load(text, {"A": "a"})

    assert ("small", Price(input=3, output=15)) == (loaded.policy.baseline, loaded.policy.baseline_price)
    assert "baseline: large is off, so it is small; savings are still counted against large's price" in loaded.notes


def test_the_baseline_price_is_that_of_the_first_priced_deployment_unless_it_is_said() -> None:
    """An embedding model in the tier is no baseline for chats; an unknown price is passed over."""
    text = (
        "version: 1\ntiers:\n  large:\n    deployments:\n"
        "      - {name: e, model: openai/e, api_key: k, mode: embedding, price: {input: 9, output: 0}}\n"
        "      - {name: u, model: openai/u, api_base: 'http://u/v1'}\n"
        "      - {name: p, model: openai/p, api_base: 'http://p/v1', price: {input: 1, output: 4}}\n"
    )

    assert Price(input=1, output=4) == policy(text).baseline_price
    assert Price(input=7, output=8) == policy(text + "baseline_price: {input: 7, output: 8}\n").baseline_price
    assert policy(THREE).baseline_price is None, "nothing is known of these servers"


def test_a_tier_that_can_only_embed_is_no_step_of_the_ladder() -> None:
    """A chat that falls back must not meet a tier that cannot chat."""
    text = THREE + "  embed: {deployments: [{name: e, model: openai/e, api_base: 'http://e/v1', mode: embedding}]}\n"

    loaded = policy(text)

    assert "large" == loaded.baseline
    assert {"medium": 0.35, "large": 0.7} == dict(loaded.routes["auto"].thresholds)
    assert ("medium", "large") == loaded.fallback["small"]
    assert () == loaded.fallback["embed"]


def test_an_embedding_model_stays_on_when_the_chats_of_its_tier_are_off() -> None:
    """The embeddings surface needs it, while no chat is sent to that tier."""
    text = OPTIONAL.replace(
        "[{name: c", "[{name: e, model: openai/e, api_base: 'http://e/v1', mode: embedding}, {name: c"
    )

    loaded = load(text + "aliases: {x: large}\n", {"A": "a", "B": "b"})

    assert ["e"] == [each.name for each in loaded.policy.tiers["large"].deployments]
    assert "medium" == loaded.policy.aliases["x"]
    assert ("medium",) == loaded.policy.fallback["small"]


def assert_consistent(found: Policy) -> None:
    """Every name that a loaded policy holds exists in it."""
    tiers = set(found.tiers)
    names = [found.baseline, *found.fallback, *(each for targets in found.fallback.values() for each in targets)]
    for rule in found.rules:
        names += [each for each in (rule.tier, rule.min_tier, rule.max_tier) if each]
    for route in found.routes.values():
        named = (*route.thresholds, route.tier, route.min_tier, route.max_tier, route.default_tier)
        names += [each for each in named if each]
    assert tiers.issuperset(names)
    assert (tiers | {each.name for tier in found.tiers.values() for each in tier.deployments}).issuperset(
        found.aliases.values()
    )


@pytest.mark.parametrize("off", ["", "a", "b", "c", "ab", "ac", "bc"])
@pytest.mark.parametrize(("low", "high"), LIMITS)
def test_whatever_is_off_the_policy_stays_consistent(off: str, low: str | None, high: str | None) -> None:
    """All combinations, so that no reload in the middle of the night meets a name that is not there."""
    limits = ", ".join(f"{key}: {value}" for key, value in (("min_tier", low), ("max_tier", high)) if value)
    text = (
        f"routes: {{r: {{{limits}}}}}\nrules: [{{name: x, when: {{turns: {{gt: 1}}}}, min_tier: {low or 'small'}}}]\n"
    )

    assert_consistent(without(*off, text=text).policy)


def test_the_fingerprint_follows_the_policy_and_not_its_secrets() -> None:
    """It is part of every cache key: a new API key must not empty the cache, a new rule must."""
    before = without().policy.fingerprint
    other_secret = load(OPTIONAL, KEYS | {"A": "another"}).policy.fingerprint

    assert before == other_secret
    assert before != without(text="aliases: {x: small}\n").policy.fingerprint


def test_no_secret_shows_in_a_loaded_policy() -> None:
    """A policy is printed when somebody debugs."""
    loaded = load(OPTIONAL.replace('"${A}"', '"${A}", headers: {X-K: "${A}"}'), KEYS | {"A": "sk-CANARY"})

    assert "CANARY" not in f"{loaded!r} {loaded.policy!s} {loaded.policy.model_dump_json()}"
