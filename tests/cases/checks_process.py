"""Checks of metrics, logs, start-up and the end of the process."""

from __future__ import annotations

import math
import re
from typing import Any

from tests.cases import adapter
from tests.cases.checks import Scope, assert_same, check, same, settles
from tests.cases.metrics import assert_strict, read_page
from tests.cases.run import POLICY_FILE, Run, Startup

# --- metrics ---

METRIC_FIELDS = {
    "role", "labels", "delta", "delta_min", "delta_approx", "tolerance", "value_after_ms", "equals", "growth_max",
    "count_delta", "sum_between",
}  # fmt: skip


@check("metric", fields=METRIC_FIELDS)
async def metric(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    if expected["role"] == "series_count":
        await _series(run, expected)
        return
    wait_s = expected["value_after_ms"] / 1000 if "value_after_ms" in expected else None
    await settles(lambda: _assert_metric(run, expected), wait_s)
    if "delta" in expected:  # and it stays so
        await run.quiet()
        await _assert_metric(run, expected)


async def _series(run: Run, expected: dict[str, Any]) -> None:
    assert run.first is not None, "no request was made"
    grown = len((await run.metrics()).series) - len(run.first.series)
    assert grown <= expected["growth_max"], f"{grown} more series"


async def _assert_metric(run: Run, expected: dict[str, Any]) -> None:
    role, labels = expected["role"], expected.get("labels", {})
    assert run.before is not None
    page = await run.metrics()
    assert page.has_family(role), f"no metric {adapter.METRICS[role].family} on the page"

    def delta(suffix: str = "") -> float:
        assert run.before is not None
        return page.sum(role, labels, suffix) - run.before.sum(role, labels, suffix)

    if "equals" in expected:
        assert_same(expected["equals"], page.sum(role, labels), role)
    if "delta" in expected:
        assert math.isclose(expected["delta"], delta(), abs_tol=1e-9), f"{role} went up by {delta()}"
    if "delta_min" in expected:
        assert delta() >= expected["delta_min"], f"{role} went up by {delta()}"
    if "delta_approx" in expected:
        assert abs(delta() - expected["delta_approx"]) <= expected["tolerance"], f"{role} went up by {delta()}"
    if "count_delta" in expected:
        assert_same(expected["count_delta"], delta("_count"), f"{role}: observations")
    if between := expected.get("sum_between"):
        assert between[0] <= delta("_sum") <= between[1], f"{role}: sum {delta('_sum')}"


@check("metric_never_decreases")
async def metric_never_decreases(run: Run, role: str, scope: Scope) -> None:
    values = [read_page(reply.body.decode()).sum(role, {}) for reply in run.replies(scope.req_no)]
    assert values == sorted(values), f"{values}"


@check("metrics_parse", fields={"strict"})
async def metrics_parse(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    assert_strict((await run.metrics()).text)


@check("metrics_absent")
async def metrics_absent(run: Run, needles: list[str], scope: Scope) -> None:
    text = (await run.metrics()).text
    assert not [needle for needle in needles if needle in text]


# --- logs ---


@check("request_log", fields={"n", "fields", "fields_approx", "attempts", "absent", "count_for", "equals"})
async def request_log(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    if "absent" in expected:
        await run.quiet()
        assert run.request_log(), "the request log is empty"
        assert expected["absent"] not in run.request_log_text(), f"{expected['absent']!r} is in the request log"

    async def probe() -> None:
        _assert_log(run, expected)

    await settles(probe)


def _assert_log(run: Run, expected: dict[str, Any]) -> None:
    lines = run.request_log()
    if "count_for" in expected:
        fitting = [
            line for line in lines if all(same(value, line[name]) for name, value in expected["count_for"].items())
        ]
        assert_same(expected["equals"], len(fitting), "number of lines")
        return
    number = expected.get("n", len(lines))
    assert 1 <= number <= len(lines), f"{len(lines)} lines"
    line = lines[number - 1]
    for name, value in expected.get("fields", {}).items():
        assert_same(value, line[name], name)
    for name, value in expected.get("fields_approx", {}).items():
        assert line[name] is not None, f"{name} is null"
        assert math.isclose(value, line[name], rel_tol=1e-6), f"{name}: {line[name]}"
    if "attempts" in expected:
        _assert_attempts(expected["attempts"], line["attempts"])


def _assert_attempts(expected: list[dict[str, Any]], attempts: list[dict[str, Any]]) -> None:
    assert_same(len(expected), len(attempts), f"number of attempts in {attempts}")
    for wanted, attempt in zip(expected, attempts, strict=True):
        for name, value in wanted.items():
            assert_same(value, attempt[name], f"attempt's {name}")


@check("log_has", fields={"level", "about"})
async def log_has(run: Run, expected: dict[str, str], scope: Scope) -> None:
    event = adapter.log_event(expected["about"])

    async def seen() -> None:
        levels = [line.get("level") for line in run.process.log if line.get("event") == event]
        assert expected["level"] in levels, f"levels of {event}: {levels}"

    await settles(seen)


@check("log_absent")
async def log_absent(run: Run, needle: str, scope: Scope) -> None:
    await log_absent_all(run, [needle], scope)


@check("log_absent_all")
async def log_absent_all(run: Run, needles: list[str], scope: Scope) -> None:
    """In all output of the process and in the request log."""
    await run.quiet()
    text = run.output + run.request_log_text()
    assert not [needle for needle in needles if needle in text]


# --- the process ---

STARTUP_FIELDS = {
    "fails", "exit_code_not", "message_contains", "message_matches", "message_has_line_number", "within_ms",
    "message_names_location", "no_trace",
}  # fmt: skip


@check("startup", fields=STARTUP_FIELDS)
async def startup(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    wanted = run.startups if scope.variant in (None, "all") else {scope.variant: run.startups[str(scope.variant)]}
    assert wanted, "nothing was started"
    for variant, seen in wanted.items():
        try:
            _assert_startup(expected, seen, empty=variant == "empty file")
        except AssertionError as exc:
            raise AssertionError(f"{variant}: {exc}\n{seen.output}") from None


def _assert_startup(expected: dict[str, Any], seen: Startup, *, empty: bool) -> None:
    assert_same(expected["fails"], seen.failed, "fails")
    if seen.failed:
        assert seen.code is not None, "it neither got ready nor ended"
    if "exit_code_not" in expected:
        assert seen.code != expected["exit_code_not"], f"exit code {seen.code}"
    assert expected.get("message_contains", "") in seen.output, f"no {expected['message_contains']!r} in the output"
    assert re.search(expected.get("message_matches", ""), seen.output), "the message does not match"
    if expected.get("message_has_line_number"):
        assert re.search(r"\bline \d+|:\d+:", seen.output), "no line number"
    if expected.get("message_names_location"):
        location = re.escape(POLICY_FILE) if empty else r"\bline \d+"  # an empty file has no lines
        assert re.search(location, seen.output), "no location"
    if expected.get("no_trace"):
        assert "Traceback" not in seen.output, "a stack trace"
    assert seen.seconds * 1000 <= expected.get("within_ms", math.inf), f"took {seen.seconds:.1f} s"


@check("process", fields={"exit_code", "exits_within_ms_of_last_stream", "exits_within_ms_of_signal"})
async def process(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    try:
        code = await run.process.exit(20)
    except TimeoutError:
        raise AssertionError("it goes on running") from None
    if "exit_code" in expected:
        assert_same(expected["exit_code"], code, "exit code")
    if limit := expected.get("exits_within_ms_of_last_stream"):
        last = max(reply.sent_at + reply.duration for reply in run.replies("all"))
        assert (run.process.ended - last) * 1000 <= limit, f"after {run.process.ended - last:.1f} s"
    if limit := expected.get("exits_within_ms_of_signal"):
        assert run.signalled_at is not None
        late = run.process.ended - run.signalled_at
        assert late * 1000 <= limit, f"after {late:.1f} s"
