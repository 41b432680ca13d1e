"""What pydantic cannot see: names that must exist, must not clash, or must stand in an order.

Works on the document rather than on a `Policy`, so that one misspelt key does not hide the other faults of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from router.policy_regex import regex_fault
from router.policy_shape import nearest
from router.policy_yaml import Document, Found, Path, Problem, dotted

OPENAI = "https://api.openai.com/v1"
_HEADER = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def find_problems(document: Document) -> Iterator[Problem]:
    """All checks, in the order of the file's sections."""
    checks: tuple[Callable[[Document], Iterator[Found]], ...] = (
        _tiers, _names, _deployments, _fallback, _baseline, _routes, _aliases, _rules, _keys,
    )  # fmt: skip
    for check in checks:
        for path, message in check(document):
            if problem := document.problem(path, message):
                yield problem


def deployments(document: Document) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """Path, tier and mapping of each deployment that is a mapping."""
    for tier in document.section("tiers"):
        for path, entry in document.mappings("tiers", tier, "deployments"):
            yield path, tier, entry


def _tiers(document: Document) -> Iterator[Found]:
    if document.at("tiers") == {}:
        yield ("tiers",), "a policy needs at least one tier"
    for section in ("tiers", "routes"):
        for path, entry in document.mappings(section):
            if "name" in entry:
                yield (*path, "name"), "unknown key; the key above is the name already"


def requestable(document: Document) -> Iterator[tuple[Path, str, str]]:
    """Path, name and kind of all that a request may name: one namespace."""
    for kind, section in (("tier", "tiers"), ("route", "routes"), ("alias", "aliases")):
        for name in document.section(section):
            yield (section, name), name, kind
    for path, _, entry in deployments(document):
        if isinstance(own := entry.get("name"), str):
            yield (*path, "name"), own, "deployment"


def _names(document: Document) -> Iterator[Found]:
    first: dict[str, tuple[str, int]] = {}
    for path, name, kind in sorted(requestable(document), key=lambda each: document.place(each[0])):
        if name in first:
            other, line = first[name]
            yield path, f"the {other} on line {line} has this name already; a request could not tell them apart"
        elif name != name.strip() or not name.isprintable():
            yield path, "a name has no spaces at its ends and no control characters"
        elif document.problem(path, ""):
            first[name] = (kind, document.place(path)[0])


def _deployments(document: Document) -> Iterator[Found]:
    for path, _, entry in deployments(document):
        model = entry.get("model")
        if isinstance(model, str) and model:
            yield from _model(document, path, model, entry)
        if isinstance(base := entry.get("api_base"), str):
            yield from (((*path, "api_base"), fault) for fault in _url_faults(base))
        if isinstance(key := entry.get("api_key"), str) and not (
            key.isascii() and key.isprintable() and " " not in key
        ):
            yield (*path, "api_key"), "holds a space, a line break or a character that no HTTP header may carry"
        for name, value in document.section(*path, "headers").items():
            if not _HEADER.issuperset(name) or not name:
                yield (*path, "headers", name), "is not the name of an HTTP header"
            elif isinstance(value, str) and not (value.isprintable() and value.isascii()):
                yield (
                    (*path, "headers", name),
                    "holds a line break, another control character, or one that is not ASCII",
                )


def _model(document: Document, path: Path, model: str, entry: Mapping[str, Any]) -> Iterator[Found]:
    provider, _, name = model.partition("/")
    if not name or not provider:
        yield (
            (*path, "model"),
            "needs its provider in front: local/NAME, openai/NAME with api_base, or a LiteLLM name like anthropic/NAME",
        )
    needs_key = provider == "openai" and not entry.get("api_base") and not entry.get("api_key")
    if needs_key and document.problem((*path, "api_base"), "") and document.problem((*path, "api_key"), ""):
        yield path, f"openai/ needs api_base (the server's address), or api_key for OpenAI's own cloud ({OPENAI})"
    if provider == "local" and entry.get("api_base"):
        yield (*path, "api_base"), "a local/ model has no address; use openai/ for a server that runs already"


def _url_faults(base: str) -> Iterator[str]:
    try:
        url = urlsplit(base)
        good = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        good = False
    if not good or any(character.isspace() for character in base):
        yield "is not an address; write one such as http://127.0.0.1:8000/v1"
    elif not base.isascii():
        yield "must be written in ASCII: a host name as xn--..., other characters as %XX"
    elif url.query or url.fragment or base.endswith(("?", "#")):
        yield "must end with its path, without ? or #; what a server wants besides goes into headers or params"
    elif url.username is not None or url.password is not None:
        yield "must not hold a user or password; use api_key or headers"


def tier_fault(document: Document, path: Path) -> Iterator[Found]:
    """Whether the value at `path`, if it is text, names a tier."""
    value = document.at(*path)
    if isinstance(value, str) and value not in document.section("tiers"):
        yield path, f"no tier is called {document.shown(path)}; {nearest(value, document.section('tiers'), 'tiers')}"


def _fallback(document: Document) -> Iterator[Found]:
    for tier, targets in document.section("fallback").items():
        path: Path = ("fallback", tier)
        if tier not in document.section("tiers"):
            yield path, f"no tier is called '{tier}'; {nearest(tier, document.section('tiers'), 'tiers')}"
        for index, target in enumerate(targets if isinstance(targets, list) else []):
            yield from tier_fault(document, (*path, index))
            if target == tier:
                yield (*path, index), "a tier cannot fall back to itself; `retry` tries a deployment again"
            elif target in targets[:index]:
                yield (*path, index), "is named twice; each tier is tried once"


def _baseline(document: Document) -> Iterator[Found]:
    yield from tier_fault(document, ("baseline",))


def _routes(document: Document) -> Iterator[Found]:
    for path, route in document.mappings("routes"):
        for field in ("tier", "min_tier", "max_tier", "default_tier"):
            yield from tier_fault(document, (*path, field))
        if "tier" in route:
            extra = next((key for key in ("thresholds", "min_tier", "max_tier", "default_tier") if key in route), None)
            if extra:
                yield (*path, extra), "cannot stand beside tier, which fixes the route; remove one of the two"
            if route.get("strategy") == "difficulty":
                yield (*path, "strategy"), "cannot be difficulty where tier fixes the route; remove one of the two"
        elif route.get("strategy") == "fixed":
            yield (*path, "strategy"), "fixed needs tier, the tier to use"
        else:
            yield from _range(document, path, route)
            yield from _thresholds(document, path, route)


def _range(document: Document, path: Path, entry: Mapping[str, Any]) -> Iterator[Found]:
    """`min_tier` must not be above `max_tier`, nor `default_tier` outside of them."""
    order = list(document.section("tiers"))
    low, high = entry.get("min_tier"), entry.get("max_tier")
    if low in order and high in order and order.index(low) > order.index(high):
        yield (*path, "min_tier"), f"is above max_tier; the order of tiers is {', '.join(order)}"
    default = entry.get("default_tier")
    if default in order and default not in allowed_tiers(order, low, high):
        yield (*path, "default_tier"), "is outside of min_tier and max_tier"


def allowed_tiers(order: Iterable[str], low: str | None, high: str | None) -> list[str]:
    """The tiers from `low` to `high`; an unknown or missing limit is none."""
    names = list(order)
    start = names.index(low) if low in names else 0
    end = names.index(high) + 1 if high in names else len(names)
    return names[start:end]


def _thresholds(document: Document, path: Path, route: Mapping[str, Any]) -> Iterator[Found]:
    order = list(document.section("tiers"))
    allowed = allowed_tiers(order, route.get("min_tier"), route.get("max_tier"))
    values = document.section(*path, "thresholds")
    for tier in values:
        where = (*path, "thresholds", tier)
        if tier not in order:
            yield where, f"no tier is called '{tier}'; {nearest(tier, order, 'tiers')}"
        elif tier not in allowed:
            yield where, "is outside of the route's min_tier and max_tier"
        elif tier == allowed[0] and _number(values[tier]) != 0:
            yield where, "the lowest tier of a route is used from 0 on and needs no threshold"
    previous: tuple[str, float] | None = None
    for tier in (each for each in order if each in values):
        value = _number(values[tier])
        if value is not None and previous is not None and value <= previous[1]:
            yield (*path, "thresholds", tier), f"must be larger than that of {previous[0]}, a smaller tier"
        previous = previous if value is None else (tier, value)


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


def _aliases(document: Document) -> Iterator[Found]:
    targets = {name: kind for _, name, kind in requestable(document) if kind in ("tier", "deployment")}
    for name, target in document.section("aliases").items():
        path: Path = ("aliases", name)
        if not isinstance(target, str) or target in targets:
            continue
        if target in document.section("routes") or target in document.section("aliases"):
            yield path, f"an alias names a tier or a deployment, and {document.shown(path)} is neither"
        else:
            hint = nearest(target, targets, "tiers and deployments")
            yield path, f"no tier or deployment is called {document.shown(path)}; {hint}"


def _rules(document: Document) -> Iterator[Found]:
    rules = list(document.mappings("rules"))
    yield from _repeated(rules, "name", "rule")
    for path, rule in rules:
        for field in ("tier", "min_tier", "max_tier"):
            yield from tier_fault(document, (*path, field))
        if "tier" in rule and ("min_tier" in rule or "max_tier" in rule):
            yield path, "gives tier and also min_tier or max_tier; use tier alone, or min_tier with or without max_tier"
        elif "tier" not in rule and "min_tier" not in rule:
            yield path, "needs tier (use it) or min_tier (at least it)"
        yield from _range(document, path, rule)
        yield from _when(document, (*path, "when"))


def _when(document: Document, path: Path) -> Iterator[Found]:
    when = document.section(*path)
    if when == {} and document.at(*path) is not None:
        yield path, "is empty, so that the rule would match every request; say when it holds"
    yield from _regex(document, (*path, "last_user", "matches"))
    seen: dict[str, str] = {}
    for header in document.section(*path, "headers"):
        where = (*path, "headers", header)
        yield from _regex(document, (*where, "matches"))
        if seen.setdefault(header.lower(), header) != header:
            yield where, f"is the same header as {seen[header.lower()]}: their case does not count"
    keys = [str(entry.get("name")) for _, entry in document.mappings("keys")]
    yield from _known(document, (*path, "key"), keys, "keys")
    routes = list(document.section("routes") or ["auto"])
    yield from _known(document, (*path, "route"), routes, "routes")


def _known(document: Document, path: Path, names: list[str], what: str) -> Iterator[Found]:
    value = document.at(*path)
    one = [(path, value)] if isinstance(value, str) else []
    many = [((*path, index), each) for index, each in enumerate(value)] if isinstance(value, list) else []
    for where, name in [*one, *many]:
        if isinstance(name, str) and name not in names:
            yield where, f"{document.shown(where)} is not among the {what}; {nearest(name, names, what)}"


def _regex(document: Document, path: Path) -> Iterator[Found]:
    pattern = document.at(*path)
    if isinstance(pattern, str) and (fault := regex_fault(pattern)):
        yield path, fault


def _keys(document: Document) -> Iterator[Found]:
    keys = list(document.mappings("keys"))
    yield from _repeated(keys, "name", "key")
    yield from _repeated(keys, "hash", "key")
    names = [name for _, name, _ in requestable(document)]
    if not document.section("routes"):
        names.append("auto")
    for path, _ in keys:
        yield from _known(document, (*path, "routes"), names, "routes, aliases, tiers and deployments")


def _repeated(entries: Iterable[tuple[Path, Mapping[str, Any]]], field: str, what: str) -> Iterator[Found]:
    first: dict[str, Path] = {}
    for path, entry in entries:
        value = entry.get(field)
        if isinstance(value, str) and first.setdefault(value, path) != path:
            yield (*path, field), f"the same {field} as the {what} at {dotted(first[value])}"
