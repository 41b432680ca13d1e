"""Every behaviour case is one test: the real command, scripted servers, a client on the socket level.

pytest tests/cases                       # the areas that are built
pytest tests/cases --areas tools,params  # these, whatever not_yet.py says of their area
pytest tests/cases --cases DIR           # the files of another folder
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cases import (
    acts,
    adapter,
    checks,
    checks_http,
    checks_later,
    checks_process,
    checks_stream,
    checks_upstream,
    upstreams,
)
from tests.cases.case import Case, load_cases
from tests.cases.not_yet import NOT_YET, NOT_YET_AREAS, WITHOUT_REQUESTS
from tests.cases.run import Run

# Importing them fills the table of checks.
CHECK_MODULES = (checks_http, checks_later, checks_process, checks_stream, checks_upstream)
DATA = Path(__file__).parent / "data"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        folder = metafunc.config.getoption("cases")
        areas = metafunc.config.getoption("areas")
        cases = _parameters(Path(folder or DATA), set(areas.split(",")) if areas else set())
        metafunc.parametrize("case", list(cases))


def _parameters(folder: Path, areas: set[str]) -> Iterator[Any]:
    """One for each case, with the reason if it is skipped. `areas`: only these, in full; none: those that are built."""
    for case in load_cases(folder):
        if areas and not areas & {"all", case.area}:
            continue
        reason = NOT_YET.get(case.id) or (None if areas else NOT_YET_AREAS.get(case.area))
        yield pytest.param(case, id=case.id, marks=[pytest.mark.skip(reason=reason)] if reason else [])
        if reason and case.id in WITHOUT_REQUESTS:
            left_out = WITHOUT_REQUESTS[case.id]
            yield pytest.param(without(case, left_out), id=f"{case.id}-without-{','.join(map(str, left_out))}")


def without(case: Case, numbers: tuple[int, ...]) -> Case:
    """The case without its last requests, and without the checks about them."""
    kept = [act for number, act in enumerate(case.request, start=1) if number not in numbers]
    assert kept == case.request[: len(kept)], "only the last requests can be left out: the others would change numbers"
    return replace(case, request=kept, expect=[check for check in case.expect if check.get("req_no") not in numbers])


def check_words(case: Case) -> None:
    """UnknownWord unless everything in the case has a meaning here."""
    adapter.check_words(case.setup, f"{case.id}: setup")
    for name, replies in case.upstream.items():
        upstreams.check_words(replies, f"{case.id}: upstream {name}")
    acts.check_words(case.request, f"{case.id}: request")
    checks.check_words(case.expect, f"{case.id}: expect")


async def test_case(case: Case, tmp_path: Path) -> None:
    """A fault that was reported in public for a program of this kind does not happen here."""
    check_words(case)
    async with Run(case, tmp_path) as run:
        try:
            await acts.perform(run)
            await checks.evaluate(run, case.expect)
            run.assert_sound()
        except AssertionError as exc:
            if case.level == "should" and run.is_up:
                pytest.xfail(f"should: {str(exc)[:300]}")
            raise AssertionError(f"{exc}\n{run.report()}") from None
