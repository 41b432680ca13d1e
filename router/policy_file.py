"""Policy text → `Policy`: read, checked as a whole, adapted to what this machine can use.

`load_policy` does no I/O but for LiteLLM's price map, and reports all that is wrong at once, each with line and path.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any

import msgspec

from router.policy import Policy, Price
from router.policy_checks import deployments, find_problems
from router.policy_fill import Lost, adapt, complete, deployment_price
from router.policy_shape import shape_problems
from router.policy_yaml import Document, Path, PolicyError, Problem, dotted, read_document

__all__ = [
    "Loaded",
    "Off",
    "PolicyError",
    "Problem",
    "UnreadablePolicy",
    "is_installed",
    "load_policy",
    "read_policy",
    "read_text",
]

_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})  # as pydantic reads them


class Off(msgspec.Struct, frozen=True):
    """A deployment with `optional: true` that cannot be used here, and why."""

    tier: str
    deployment: str
    reason: str


class Loaded(msgspec.Struct, frozen=True):
    """A policy that can be used. `notes` say in one line each what differs from the file, and what looks odd in it."""

    policy: Policy
    off: tuple[Off, ...] = ()
    notes: tuple[str, ...] = ()


class UnreadablePolicy(PolicyError):
    """There is no such file, or it cannot be opened, or is not text."""


def is_installed(module: str) -> bool:
    """Whether a top-level module could be imported; it is not."""
    return importlib.util.find_spec(module) is not None


def read_policy(path: FilePath | str, environ: Mapping[str, str]) -> Loaded:
    """`load_policy` of a file. Raises `UnreadablePolicy` or `PolicyError`."""
    return load_policy(read_text(path), environ, str(path))


def read_text(path: FilePath | str) -> str:
    """The text of a policy file, UTF-8 with or without a byte order mark. Raises `UnreadablePolicy`."""
    source = str(path)
    try:
        content = FilePath(path).read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise UnreadablePolicy([Problem(line, "", "is not UTF-8 text")], source) from None
    except OSError as exc:
        reason = "no such file" if isinstance(exc, FileNotFoundError) else (exc.strerror or "cannot be read").lower()
        raise UnreadablePolicy([Problem(0, "", reason)], source) from None


def load_policy(
    text: str,
    environ: Mapping[str, str],
    source: str = "policy.yaml",
    installed: Callable[[str], bool] = is_installed,
) -> Loaded:
    """The policy that `text` says, with variables from `environ`. Raises `PolicyError` with all problems found."""
    document = read_document(text, environ, source)
    off = _turned_off(document, installed)
    problems = [
        *document.problems,
        *_unset_problems(document, off),
        *_package_problems(document, off, installed),
        *shape_problems(document),
        *find_problems(document),
    ]
    if problems:
        raise PolicyError(problems, source)
    lost = _lost(document, off)
    if off and len(lost.tiers) == len(lost.order):
        raise PolicyError([_nothing_left(document, off)], source)
    policy = Policy.model_validate(_without(document, off))
    price = policy.baseline_price or _baseline_price(document, policy.baseline or lost.order[-1])
    adapted, notes = adapt(policy, lost)
    return Loaded(complete(adapted, price), tuple(off.values()), (*_literal_keys(document), *notes))


def _turned_off(document: Document, installed: Callable[[str], bool]) -> dict[Path, Off]:
    """Path → why it is off, for the optional deployments that cannot be used here."""
    off: dict[Path, Off] = {}
    for path, tier, entry in deployments(document):
        if str(entry.get("optional")).lower() not in _TRUE:
            continue
        names = [name for where, names in document.unset.items() if where[: len(path)] == path for name in names]
        reasons = [f"{name} is not set" for name in dict.fromkeys(names)]
        if remedy := _missing_package(entry, installed):
            reasons.append(remedy)
        if reasons:
            off[path] = Off(tier, str(entry.get("name") or dotted(path)), "; ".join(reasons))
    return off


def _missing_package(entry: Mapping[str, Any], installed: Callable[[str], bool]) -> str | None:
    """What to install before a deployment can be used; None where nothing is missing."""
    provider, _, name = str(entry.get("model", "")).partition("/")
    if not name or provider == "openai":
        return None
    module, extra = ("xllamacpp", "local") if provider == "local" else ("litellm", "providers")
    return None if installed(module) else f"needs {module}: run `make setup` (or install the extra: tiergate[{extra}])"


def _unset_problems(document: Document, off: Mapping[Path, Off]) -> Iterator[Problem]:
    for path, names in document.unset.items():
        if any(path[: len(start)] == start for start in off):
            continue
        hint = ", or give the deployment `optional: true`" if path[:1] == ("tiers",) else ""
        for name in dict.fromkeys(names):
            yield document.problem_at(
                path, f"the environment variable {name} is not set (or empty); set it, write ${{{name}:-default}}{hint}"
            )


def _package_problems(
    document: Document, off: Mapping[Path, Off], installed: Callable[[str], bool]
) -> Iterator[Problem]:
    for path, _, entry in deployments(document):
        if path not in off and (remedy := _missing_package(entry, installed)):
            yield document.problem_at((*path, "model"), f"{remedy}, or give the deployment `optional: true`")


def _lost(document: Document, off: Mapping[Path, Off]) -> Lost:
    """Counts only deployments for chat, as long as there are any: an embedding model does not make a tier usable."""
    every = [(path, tier) for path, tier, _ in deployments(document)]
    chat = [(path, tier) for path, tier, entry in deployments(document) if entry.get("mode", "chat") == "chat"] or every
    order = tuple(dict.fromkeys(tier for _, tier in chat))
    left = {tier for path, tier in chat if path not in off}
    return Lost(order, frozenset(order) - left, {each.deployment: each.tier for each in off.values()})


def _nothing_left(document: Document, off: Mapping[Path, Off]) -> Problem:
    reasons = "; ".join(dict.fromkeys(each.reason for each in off.values()))
    return document.problem_at(
        ("tiers",), f"no tier can be used, as every deployment is off; remedy one of these: {reasons}"
    )


def _without(document: Document, off: Mapping[Path, Off]) -> dict[str, Any]:
    """The document's values without the deployments that are off, and without the tiers that this empties."""
    tiers: dict[str, Any] = {}
    for name, tier in document.section("tiers").items():
        kept = [
            entry for index, entry in enumerate(tier["deployments"]) if ("tiers", name, "deployments", index) not in off
        ]
        if kept:
            tiers[name] = {**tier, "deployments": kept}
    return {**document.data, "tiers": tiers}


def _baseline_price(document: Document, tier: str) -> Price | None:
    """Of the baseline tier's first deployment with a known price, off or not: savings do not depend on a key."""
    for path, _, entry in deployments(document):
        if path[1] != tier or entry.get("mode", "chat") != "chat" or (*path, "model") in document.unset:
            continue
        priced = entry.get("price")
        if priced is None:
            price = deployment_price(entry["model"], entry.get("api_base")).price
        else:
            unset = any(where[: len(path) + 1] == (*path, "price") for where in document.unset)
            price = None if unset else Price.model_validate(priced)
        if price is not None:
            return price
    return None


def _literal_keys(document: Document) -> Iterator[str]:
    for path, _, entry in deployments(document):
        where = (*path, "api_key")
        if isinstance(entry.get("api_key"), str) and where not in document.unset | dict.fromkeys(
            document.from_environment
        ):
            yield f"{dotted(where)} is written in the file; ${{NAME}} keeps it in the environment"
