"""The words of `expect`: a table of checks, how they nest, and the small comparisons that they share.

A check is `async (run, argument, scope) -> None` and raises AssertionError. `@check(word, fields={...})` says which
fields its argument may have, so that a case file is checked for unknown words before anything runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.cases.case import SCOPE, UnknownWord, checks_of, known
from tests.cases.run import SETTLE_S, Run


@dataclass(frozen=True)
class Scope:
    """Which requests, or which variant of the configuration, a check is about."""

    req_no: Any = None
    variant: str | None = None


Check = Callable[[Run, Any, Scope], Awaitable[None]]
CHECKS: dict[str, tuple[Check, frozenset[str] | None]] = {}
NESTING = frozenset({"any_of", "all_of", "none_of"})


def check(word: str, fields: set[str] | None = None) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS[word] = (function, None if fields is None else frozenset(fields))
        return function

    return add


def check_words(expect: list[dict[str, Any]], where: str) -> None:
    """`UnknownWord` unless all words of these checks are known."""
    for word, argument in checks_of(expect):
        known([word], frozenset(CHECKS), where)
        fields = CHECKS[word][1]
        if fields is not None:
            if not isinstance(argument, dict):
                raise UnknownWord(f"{where}: {word} wants a mapping, not {argument!r}")
            known(argument, fields, f"{where}: {word}")


async def evaluate(run: Run, checks: list[dict[str, Any]], scope: Scope | None = None) -> None:
    """All of them hold, or AssertionError with every one that does not."""
    failures = [text for entry in checks if (text := await failure(run, entry, scope or Scope()))]
    assert not failures, "\n".join(failures)


async def failure(run: Run, entry: Mapping[str, Any], scope: Scope) -> str | None:
    """Why this check does not hold; None if it does."""
    given = {name: entry[name] for name in SCOPE if name in entry}
    scope = Scope(**{"req_no": scope.req_no, "variant": scope.variant, **given})
    for word, argument in entry.items():
        if word in SCOPE:
            continue
        try:
            await (_nested(word)(run, argument, scope) if word in NESTING else CHECKS[word][0](run, argument, scope))
        except (AssertionError, UnicodeDecodeError, ValueError, LookupError, TypeError) as exc:
            about = "" if scope.req_no is None else f" (request {scope.req_no})"
            return f"{word}{about} {argument!r}: {type(exc).__name__}: {exc}"
    return None


def _nested(word: str) -> Check:
    return {"any_of": _any_of, "all_of": _all_of, "none_of": _none_of}[word]


async def _any_of(run: Run, entries: list[dict[str, Any]], scope: Scope) -> None:
    failures = []
    for entry in entries:
        text = await failure(run, entry, scope)
        if text is None:
            return
        failures.append(text)
    raise AssertionError("none of these holds:\n  " + "\n  ".join(failures))


async def _all_of(run: Run, entries: list[dict[str, Any]], scope: Scope) -> None:
    await evaluate(run, entries, scope)


async def _none_of(run: Run, entries: list[dict[str, Any]], scope: Scope) -> None:
    for entry in entries:
        assert await failure(run, entry, scope) is not None, f"holds, and should not: {entry}"


# --- comparisons ---

_NOTHING = object()
TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "null": type(None), "number": (int, float), "object": dict, "array": list, "boolean": bool,
}  # fmt: skip


async def settles(probe: Callable[[], Awaitable[None]], seconds: float | None = None) -> None:
    """Until `probe` raises no AssertionError; its last one, if that takes longer."""
    end = time.monotonic() + (SETTLE_S if seconds is None else seconds)
    while True:
        try:
            return await probe()
        except AssertionError:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(0.05)


def same(expected: Any, actual: Any) -> bool:
    """Equality as JSON has it: false is not 0, 5 is 5.0."""
    if isinstance(expected, bool) or isinstance(actual, bool) or expected is None or actual is None:
        return expected is actual
    return bool(expected == actual)


def assert_same(expected: Any, actual: Any, what: str) -> None:
    assert same(expected, actual), f"{what}: expected {expected!r}, got {actual!r}"


def assert_said(expected: Any, actual: Any, what: str) -> None:
    """A value of an error object: `present` is a non-empty string, `null` is JSON null."""
    if expected == "present":
        assert isinstance(actual, str), f"{what}: expected some text, got {actual!r}"
        assert actual, f"{what}: empty"
        return
    assert_same(None if expected == "null" else expected, actual, what)


def assert_part(expected: Any, actual: Any, what: str) -> None:
    """Mappings: all that is expected is there, more may be. All else: equal."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), f"{what}: expected an object, got {actual!r}"
        for name, value in expected.items():
            assert name in actual, f"{what}: no {name} in {actual!r}"
            assert_part(value, actual[name], f"{what}.{name}")
        return
    assert_same(expected, actual, what)


def at_path(value: Any, path: str, default: Any = _NOTHING) -> Any:
    """The value at a dotted path such as `choices.0.message`; without a default, LookupError if it is not there."""
    for part in path.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (LookupError, TypeError, ValueError):
            if default is not _NOTHING:
                return default
            raise LookupError(f"nothing at {path}") from None
    return value
