"""Each mistake in a policy is refused with its line, its path and what to do about it."""

# ruff: noqa: E501 -- the tables have one case a line

from __future__ import annotations

import pytest

from router.policy_file import Problem
from tests.router.policy_text import OPTIONAL, THREE, load, only, refused

HASH = "sha256:" + "0" * 64


def case(name: str, text: str, line: int, path: str, *words: str) -> object:
    return pytest.param(text, line, path, words, id=name)


def deployment(entry: str) -> str:
    """A policy whose only deployment stands on line 4."""
    return f"version: 1\ntiers:\n  small:\n    deployments: [{entry}]\n"


SHAPE = [
    case("misspelt key", THREE + "routs: {}\n", 6, "routs", "unknown key; did you mean routes?"),
    case("unlike any key", THREE + "zzz: 1\n", 6, "zzz", "unknown key; known keys: version, tiers"),
    case("deep misspelt key", "version: 1\ntiers:\n  small:\n    deployments: [{name: a, model: local/a}]\n    timeouts:\n      idel: 5s\n", 6, "tiers.small.timeouts.idel", "did you mean idle?"),
    case("price key", deployment("{name: a, model: local/a, price: {inputs: 1, output: 1, input: 1}}"), 4, "tiers.small.deployments[0].price.inputs", "did you mean input?"),
    case("name in a tier", "version: 1\ntiers:\n  small:\n    name: x\n    deployments: [{name: a, model: local/a}]\n", 4, "tiers.small.name", "the key above is the name"),
    case("missing version", "tiers:\n  small: {deployments: [{name: a, model: local/a}]}\n", 1, "version", "is missing"),
    case("missing model", deployment("{name: a}"), 4, "tiers.small.deployments[0].model", "is missing"),
    case("other version", THREE.replace("version: 1", "version: 2"), 1, "version", "must be 1"),
    case("no tiers", "version: 1\ntiers: {}\n", 2, "tiers", "at least one tier"),
    case("no deployments", "version: 1\ntiers:\n  small: {deployments: []}\n", 3, "tiers.small.deployments", "must not be empty"),
    case("timeout five", "version: 1\ntiers:\n  small:\n    deployments: [{name: a, model: local/a}]\n    timeouts: {idle: five}\n", 5, "tiers.small.timeouts.idle", "with a unit, such as 200ms"),
    case("timeout 5", THREE + "timeout: 5\n", 6, "timeout", "with a unit, such as 200ms"),
    case("timeout 0s", THREE + "timeout: 0s\n", 6, "timeout", "must be greater than 0"),
    case("size", THREE + "max_body: 32\n", 6, "max_body", "with a unit, such as 500kB"),
    case("list for mapping", THREE + "routes: [auto]\n", 6, "routes", "expected a mapping"),
    case("nothing", THREE + "rules:\n", 6, "rules", "expected a list, found nothing", "remove the key"),
    case("text for number", deployment("{name: a, model: local/a, context_window: big}"), 4, "tiers.small.deployments[0].context_window", "expected a whole number"),
    case("infinite price", deployment("{name: a, model: local/a, price: {input: .inf, output: 1}}"), 4, "tiers.small.deployments[0].price.input", "finite number"),
    case("negative price", deployment("{name: a, model: local/a, price: {input: -1, output: 1}}"), 4, "tiers.small.deployments[0].price.input", "greater than or equal to 0"),
    case("choice", "version: 1\ntiers:\n  small:\n    deployments: [{name: a, model: local/a}]\n    balance: fastest\n", 5, "tiers.small.balance", "'weighted'", "'round_robin'"),
    case("bare off", THREE + "rules:\n  - {name: off, when: {turns: {gt: 1}}, tier: small}\n", 7, "rules[0].name", "a bare off", "put it in quotes"),
    case("bare number", THREE + "baseline: 3\n", 6, "baseline", "YAML reads this as a number", "quotes"),
    case("octal", deployment("{name: a, model: local/a, context_window: 010}"), 4, "tiers.small.deployments[0].context_window", "octal", "decimal"),
    case("base 60", deployment("{name: a, model: local/a, context_window: 1:30}"), 4, "tiers.small.deployments[0].context_window", "base-60"),
    case("key hash", THREE + f"keys:\n  - {{name: k, hash: '{HASH[:-1]}'}}\n", 7, "keys[0].hash", "tiergate keys new"),
]  # fmt: skip

NAMES = [
    case("baseline", THREE + "baseline: larg\n", 6, "baseline", "no tier is called 'larg'", "did you mean large?"),
    case("route tier", THREE + "routes:\n  r: {tier: huge}\n", 7, "routes.r.tier", "'huge'", "known tiers: small, medium, large"),
    case("route min", THREE + "routes:\n  r: {min_tier: mediun}\n", 7, "routes.r.min_tier", "did you mean medium?"),
    case("route max", THREE + "routes:\n  r: {max_tier: mediun}\n", 7, "routes.r.max_tier", "did you mean medium?"),
    case("route default", THREE + "routes:\n  r: {default_tier: mediun}\n", 7, "routes.r.default_tier", "did you mean medium?"),
    case("threshold", THREE + "routes:\n  r: {thresholds: {mediun: 0.5}}\n", 7, "routes.r.thresholds.mediun", "did you mean medium?"),
    case("fallback of", THREE + "fallback: {smal: [large]}\n", 6, "fallback.smal", "did you mean small?"),
    case("fallback to", THREE + "fallback: {small: [larg]}\n", 6, "fallback.small[0]", "did you mean large?"),
    case("alias", THREE + "aliases: {gpt-4.1: smal}\n", 6, 'aliases["gpt-4.1"]', "did you mean small?"),
    case("alias of a route", THREE + "routes: {r: {tier: small}}\naliases: {x: r}\n", 7, "aliases.x", "a tier or a deployment"),
    case("rule tier", THREE + "rules:\n  - {name: r, when: {turns: {gt: 1}}, tier: smal}\n", 7, "rules[0].tier", "did you mean small?"),
    case("rule max", THREE + "rules:\n  - {name: r, when: {turns: {gt: 1}}, min_tier: small, max_tier: larg}\n", 7, "rules[0].max_tier", "did you mean large?"),
    case("rule key", THREE + f"keys: [{{name: app, hash: '{HASH}'}}]\nrules:\n  - {{name: r, when: {{key: ap}}, tier: small}}\n", 8, "rules[0].when.key", "did you mean app?"),
    case("rule route", THREE + "rules:\n  - {name: r, when: {route: [auto, atuo]}, tier: small}\n", 7, "rules[0].when.route[1]", "did you mean auto?"),
    case("key route", THREE + f"keys:\n  - {{name: k, hash: '{HASH}', routes: [auto, smal]}}\n", 7, "keys[0].routes[1]", "did you mean small?"),
    case("route is a tier", THREE + "routes: {small: {tier: large}}\n", 6, "routes.small", "the tier on line 3", "already"),
    case("alias is a route", THREE + "routes: {x: {tier: large}}\naliases: {x: small}\n", 7, "aliases.x", "the route on line 6"),
    case("deployment is a tier", THREE.replace("name: c", "name: small"), 5, "tiers.large.deployments[0].name", "the tier on line 3"),
    case("same deployment", THREE.replace("name: c", "name: a"), 5, "tiers.large.deployments[0].name", "the deployment on line 3"),
    case("same rule", THREE + "rules:\n  - {name: r, when: {turns: {gt: 1}}, tier: small}\n  - {name: r, when: {turns: {gt: 2}}, tier: small}\n", 8, "rules[1].name", "same name as the rule at rules[0]"),
    case("same key name", THREE + f"keys:\n  - {{name: k, hash: '{HASH}'}}\n  - {{name: k, hash: 'sha256:{'1' * 64}'}}\n", 8, "keys[1].name", "same name as the key at keys[0]"),
    case("same key hash", THREE + f"keys:\n  - {{name: k, hash: '{HASH}'}}\n  - {{name: l, hash: '{HASH}'}}\n", 8, "keys[1].hash", "same hash as the key at keys[0]"),
    case("space at the end", THREE + "aliases: {'x ': small}\n", 6, 'aliases["x "]', "no spaces at its ends"),
]  # fmt: skip

ORDER = [
    case("falls back to itself", THREE + "fallback: {small: [small]}\n", 6, "fallback.small[0]", "cannot fall back to itself", "retry"),
    case("falls back twice", THREE + "fallback: {small: [large, large]}\n", 6, "fallback.small[1]", "named twice"),
    case("thresholds fall", THREE + "routes:\n  r: {thresholds: {medium: 0.7, large: 0.3}}\n", 7, "routes.r.thresholds.large", "larger than that of medium"),
    case("thresholds equal", THREE + "routes:\n  r: {thresholds: {medium: 0.7, large: 0.7}}\n", 7, "routes.r.thresholds.large", "larger than that of medium"),
    case("threshold above max", THREE + "routes:\n  r: {max_tier: medium, thresholds: {medium: 0.3, large: 0.5}}\n", 7, "routes.r.thresholds.large", "outside of the route's"),
    case("threshold of the lowest", THREE + "routes:\n  r: {thresholds: {small: 0.1, large: 0.5}}\n", 7, "routes.r.thresholds.small", "needs no threshold"),
    case("threshold over 1", THREE + "routes:\n  r: {thresholds: {large: 1.5}}\n", 7, "routes.r.thresholds.large", "less than or equal to 1"),
    case("min above max", THREE + "routes:\n  r: {min_tier: large, max_tier: small}\n", 7, "routes.r.min_tier", "above max_tier", "small, medium, large"),
    case("default outside", THREE + "routes:\n  r: {max_tier: medium, default_tier: large}\n", 7, "routes.r.default_tier", "outside"),
    case("tier and thresholds", THREE + "routes:\n  r: {tier: small, thresholds: {large: 0.5}}\n", 7, "routes.r.thresholds", "beside tier"),
    case("tier and max", THREE + "routes:\n  r: {tier: small, max_tier: large}\n", 7, "routes.r.max_tier", "beside tier"),
    case("fixed without tier", THREE + "routes:\n  r: {strategy: fixed}\n", 7, "routes.r.strategy", "needs tier"),
    case("difficulty with tier", THREE + "routes:\n  r: {strategy: difficulty, tier: small}\n", 7, "routes.r.strategy", "remove one"),
    case("rule without tier", THREE + "rules:\n  - {name: r, when: {turns: {gt: 1}}}\n", 7, "rules[0]", "needs tier (use it) or min_tier"),
    case("rule with both", THREE + "rules:\n  - {name: r, when: {turns: {gt: 1}}, tier: small, min_tier: small}\n", 7, "rules[0]", "use tier alone"),
    case("rule min above max", THREE + "rules:\n  - {name: r, when: {turns: {gt: 1}}, min_tier: large, max_tier: small}\n", 7, "rules[0].min_tier", "above max_tier"),
    case("empty when", THREE + "rules:\n  - {name: r, when: {}, tier: small}\n", 7, "rules[0].when", "match every request"),
    case("same header", THREE + "rules:\n  - {name: r, when: {headers: {X-A: {matches: a}, x-a: {matches: b}}}, tier: small}\n", 7, "rules[0].when.headers.x-a", "same header as X-A"),
    case("bad regex", THREE + "rules:\n  - {name: r, when: {last_user: {matches: '(你好'}}, tier: small}\n", 7, "rules[0].when.last_user.matches", "not a regular expression", "position 0"),
    case("nested repeat", THREE + "rules:\n  - {name: r, when: {headers: {x-a: {matches: '(a+)+$'}}}, tier: small}\n", 7, "rules[0].when.headers.x-a.matches", "exponential", "possessive"),
]  # fmt: skip

WHERE = "tiers.small.deployments[0]"
ENDPOINTS = [
    case("no provider", deployment("{name: a, model: gpt-4o}"), 4, f"{WHERE}.model", "openai/NAME with api_base"),
    case("no address and no key", deployment("{name: a, model: openai/x}"), 4, WHERE, "needs api_base", "api_key"),
    case("no scheme", deployment("{name: a, model: openai/x, api_base: 'vllm:8000/v1'}"), 4, f"{WHERE}.api_base", "http://127.0.0.1:8000/v1"),
    case("other scheme", deployment("{name: a, model: openai/x, api_base: 'ftp://h/v1'}"), 4, f"{WHERE}.api_base", "is not an address"),
    case("bad port", deployment("{name: a, model: openai/x, api_base: 'http://h:99999/v1'}"), 4, f"{WHERE}.api_base", "is not an address"),
    case("host in Chinese", deployment("{name: a, model: openai/x, api_base: 'http://模型/v1'}"), 4, f"{WHERE}.api_base", "in ASCII"),
    case("header in Chinese", deployment("{name: a, model: openai/x, api_base: 'http://h/v1', headers: {x-team: 平台组}}"), 4, f"{WHERE}.headers.x-team", "not ASCII"),
    case("query", deployment("{name: a, model: openai/x, api_base: 'http://h/v1?v=2'}"), 4, f"{WHERE}.api_base", "without ? or #"),
    case("password in it", deployment("{name: a, model: openai/x, api_base: 'http://u:CANARY@h/v1'}"), 4, f"{WHERE}.api_base", "must not hold a user or password"),
    case("address of a local model", deployment("{name: a, model: local/x, api_base: 'http://h/v1'}"), 4, f"{WHERE}.api_base", "has no address"),
    case("line break in a key", deployment('{name: a, model: openai/x, api_key: "CANARY\\nX: y"}'), 4, f"{WHERE}.api_key", "line break"),
    case("header name", deployment("{name: a, model: local/x, headers: {'X Y': CANARY}}"), 4, f'{WHERE}.headers["X Y"]', "not the name of an HTTP header"),
    case("header value", deployment('{name: a, model: local/x, headers: {X-Y: "CANARY\\r\\nZ: 1"}}'), 4, f"{WHERE}.headers.X-Y", "control character"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "path", "words"), [*SHAPE, *NAMES, *ORDER, *ENDPOINTS])
def test_a_mistake_is_refused_with_its_line_its_path_and_a_remedy(
    text: str, line: int, path: str, words: tuple[str, ...]
) -> None:
    """The operator sees the message alone: it must lead to the place and say what to write there."""
    problem = only(refused(text))

    assert (line, path) == (problem.line, problem.path)
    assert all(word in problem.message for word in words), problem.message
    assert "CANARY" not in problem.message


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    """Mending one line only to be told of the next is what makes people dislike a checker."""
    text = THREE + "timeout: 5\nbaseline: smal\nroutes:\n  r: {tier: x, strat: y}\nrules:\n  - {name: 1, when: {}}\n"

    problems = refused(text)

    assert ["timeout", "baseline", "routes.r.tier", "routes.r.strat", "rules[0]", "rules[0].name", "rules[0].when"] == [
        each.path for each in problems
    ]
    assert sorted(each.line for each in problems) == [each.line for each in problems]


def test_a_problem_reads_as_one_line_with_the_name_of_the_file() -> None:
    """This line is what `serve`, `check` and a failed reload print."""
    assert "policy.yaml line 7: tiers.medium.timeouts.idel: unknown key; did you mean idle?" == Problem(
        7, "tiers.medium.timeouts.idel", "unknown key; did you mean idle?"
    ).text("policy.yaml")


def test_a_package_that_a_deployment_needs_is_named_with_its_remedy() -> None:
    """Without the package the first request would fail; the start must say so, and how to help."""
    text = deployment(
        "{name: a, model: local/x}, {name: b, model: anthropic/y}, {name: c, model: openai/z, api_key: k}"
    )

    first, second = refused(text, packages=False)

    assert (f"{WHERE}.model", "tiers.small.deployments[1].model") == (first.path, second.path)
    assert "`make setup` (or install the extra: tiergate[local])" in first.message
    assert "`make setup` (or install the extra: tiergate[providers])" in second.message
    assert "optional: true" in first.message


def test_cyclic_fallback_is_fine() -> None:
    """small → large → small is the default's own shape: each tier is tried once."""
    fallback = load(THREE + "fallback: {small: [large], large: [small]}\n").policy.fallback

    assert (("large",), ("small",)) == (fallback["small"], fallback["large"])


def test_a_value_from_the_environment_is_not_shown() -> None:
    """A variable may hold a secret that landed in the wrong place."""
    problem = only(refused(THREE + "baseline: ${TIER}\n", {"TIER": "sk-CANARY"}))

    assert "no tier is called this name" in problem.message
    assert "CANARY" not in str(problem)


def test_nothing_left_says_what_to_set() -> None:
    """A policy of optional deployments only, on a machine without any key."""
    problem = only(refused(OPTIONAL))

    assert (2, "tiers") == (problem.line, problem.path)
    assert "A is not set; B is not set; C is not set" in problem.message
