"""Checks of replies: status, headers, JSON bodies, errors, times, cache."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from tests.cases import adapter
from tests.cases.case import UnknownWord
from tests.cases.checks import TYPES, Scope, assert_said, assert_same, at_path, check, same
from tests.cases.run import Run
from tests.client import Reply

ERROR_FIELDS = {"type", "message", "param", "code", "message_contains", "code_in", "present"}


@check("status")
async def status(run: Run, expected: int, scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        assert_same(expected, reply.status, "status")


@check("status_in")
async def status_in(run: Run, expected: list[int], scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        assert reply.status in expected, f"status {reply.status}"


@check("all_status")
async def all_status(run: Run, expected: int, scope: Scope) -> None:
    counts = Counter(reply.status for reply in run.replies("all" if scope.req_no is None else scope.req_no))
    assert set(counts) == {expected}, f"statuses {dict(counts)}"


@check("same_status")
async def same_status(run: Run, numbers: list[int], scope: Scope) -> None:
    statuses = {reply.status for reply in run.replies(numbers)}
    assert len(statuses) == 1, f"statuses {statuses}"


@check("status_counts", fields={"at_least", "rest_in"})
async def status_counts(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    counts = Counter(reply.status for reply in run.replies("all" if scope.req_no is None else scope.req_no))
    wanted = {int(code): least for code, least in expected["at_least"].items()}
    for code, least in wanted.items():
        assert counts[code] >= least, f"{counts[code]} times {code}: {dict(counts)}"
    if "rest_in" in expected:
        rest = set(counts) - set(wanted)
        assert rest <= set(expected["rest_in"]), f"statuses {dict(counts)}"


@check("header", fields={"name", "equals", "matches", "absent", "max_length", "int_between"})
async def header(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        value = reply.header(expected["name"])
        if expected.get("absent"):
            assert value is None, f"{expected['name']}: {value!r}"
            continue
        assert value is not None, f"no header {expected['name']}"
        if "equals" in expected:
            assert_same(expected["equals"], value, expected["name"])
        assert re.search(expected.get("matches", ""), value), f"{expected['name']}: {value!r}"
        assert len(value) <= expected.get("max_length", len(value)), f"{expected['name']}: {len(value)} characters"
        if between := expected.get("int_between"):
            assert between[0] <= int(value) <= between[1], f"{expected['name']}: {value!r}"


@check("all_headers_ascii")
async def all_headers_ascii(run: Run, expected: bool, scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        assert expected == reply.raw_head.isascii(), f"{reply.raw_head!r}"


@check("json", fields={"path", "equals", "not_equals", "type", "type_in", "length", "present", "parses_as_json"})
async def json_value(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    for reply in run.replies(scope.req_no, fits=lambda reply: not reply.is_stream):
        _assert_value(reply, expected)


@check("json_body", fields={"path", "equals", "not_equals", "type", "type_in", "length", "present", "parses_as_json"})
async def json_body(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    await json_value(run, expected, scope)


def _assert_value(reply: Reply, expected: dict[str, Any]) -> None:
    path = expected["path"]
    if expected.get("present") is False:
        assert at_path(body_json(reply), path, None) is None, f"{path} is there"
        return
    value = at_path(body_json(reply), path)
    if "equals" in expected:
        assert_same(expected["equals"], value, path)
    if "not_equals" in expected:
        assert not same(expected["not_equals"], value), f"{path} is {value!r}"
    allowed = expected.get("type_in", [expected["type"]] if "type" in expected else [])
    if allowed:
        assert any(isinstance(value, TYPES[name]) for name in allowed), f"{path} is {value!r}, not {allowed}"
    if "length" in expected:
        assert_same(expected["length"], len(value), f"length of {path}")
    if "parses_as_json" in expected:
        assert_same(expected["parses_as_json"], json.loads(value), path)


def body_json(reply: Reply) -> Any:
    return reply.json


@check("body_decodes_as_declared")
async def body_decodes_as_declared(run: Run, expected: bool, scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        assert reply.complete, "the body is cut"
        encoding = reply.header("content-encoding") or "identity"
        assert encoding in ("identity", "gzip"), f"content-encoding {encoding}, which nothing here undoes"
        assert expected == bool(reply.decoded.decode("utf-8"))


@check("response_is_valid_utf8")
async def response_is_valid_utf8(run: Run, expected: bool, scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        reply.decoded.decode("utf-8")


@check("error", fields=ERROR_FIELDS)
async def error(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        assert reply.status >= 400, f"status {reply.status} is no error"
        assert_error(expected, body_json(reply)["error"])


def assert_error(expected: dict[str, Any], told: dict[str, Any]) -> None:
    for name in ("type", "message", "param", "code"):
        if name in expected:
            assert name in told, f"no {name} in {told}"
            assert_said(expected[name], told[name], f"error.{name}")
    assert expected.get("message_contains", "") in told["message"], f"message {told['message']!r}"
    if "code_in" in expected:
        allowed = [None if code == "null" else code for code in expected["code_in"]]
        assert told["code"] in allowed, f"code {told['code']!r}"


@check("text_absent")
async def text_absent(run: Run, needle: str, scope: Scope) -> None:
    for reply in run.replies("all" if scope.req_no is None else scope.req_no):
        assert needle.encode() not in reply.raw_head + reply.body, f"{needle!r} is in {reply.body[:500]!r}"


# --- times ---


@check("within_ms")
async def within_ms(run: Run, limit: int, scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        assert reply.status, "no answer at all"
        assert reply.duration * 1000 <= limit, f"took {reply.duration * 1000:.0f} ms"


@check("last_within_ms")
async def last_within_ms(run: Run, limit: int, scope: Scope) -> None:
    replies = run.replies("all" if scope.req_no is None else scope.req_no)
    took = max(reply.sent_at + reply.duration for reply in replies) - min(reply.sent_at for reply in replies)
    assert took * 1000 <= limit, f"the last one came after {took * 1000:.0f} ms"


@check("decision_ms_max")
async def decision_ms_max(run: Run, limit: float, scope: Scope) -> None:
    wanted = {reply.request_id for reply in run.replies(scope.req_no)}
    await run.quiet()
    told = [line[adapter.DECISION_MS] for line in run.request_log() if line["request_id"] in wanted]
    assert len(told) == len(wanted), f"{len(told)} log lines for {len(wanted)} requests"
    assert max(told) <= limit, f"{max(told)} ms"


@check("refused", fields={"within_ms", "header_retry_after", "error_type"})
async def refused(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    replies = [reply for reply in run.replies("all" if scope.req_no is None else scope.req_no) if reply.status != 200]
    assert replies, "none was refused"
    for reply in replies:
        assert reply.duration * 1000 <= expected["within_ms"], f"took {reply.duration * 1000:.0f} ms"
        if "header_retry_after" in expected:
            assert_said(expected["header_retry_after"], reply.header("retry-after"), "retry-after")
        if "error_type" in expected:
            assert_error({"type": expected["error_type"]}, body_json(reply)["error"])


# --- what the gateway says of itself ---


@check("cache")
async def cache(run: Run, expected: str, scope: Scope) -> None:
    if expected not in ("hit", "miss"):
        raise UnknownWord(f"cache: {expected}")
    for reply in run.replies(scope.req_no):
        assert_same(expected, adapter.cache_word(reply.header(adapter.HEADERS["cache"])), "the header")
    if isinstance(scope.req_no, int):
        calls = run.acted[scope.req_no].calls
        assert (calls == 0) == (expected == "hit"), f"{calls} calls upstream"


@check("routing_disclosed", fields={"tier", "model", "reason_matches"})
async def routing_disclosed(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        if "tier" in expected:
            assert_same(expected["tier"], reply.header(adapter.HEADERS["tier"]), "tier")
        if "model" in expected:
            assert_same(expected["model"], reply.model, "model")
        if "reason_matches" in expected:
            reason = reply.header(adapter.HEADERS["reason"]) or ""
            assert re.search(expected["reason_matches"], reason), f"reason {reason!r}"
