"""Checks of what the scripted servers counted and received."""

from __future__ import annotations

import re
from typing import Any

from tests.cases.checks import Scope, assert_same, at_path, check, settles
from tests.cases.run import Run
from tests.upstream import Received

_NOTHING = object()


@check("upstream_calls")
async def upstream_calls(run: Run, expected: dict[str, int], scope: Scope) -> None:
    for name, count in expected.items():
        assert_same(count, len(run.upstreams[name].requests), f"calls of {name}")


@check("upstream_calls_total_max")
async def upstream_calls_total_max(run: Run, limit: int, scope: Scope) -> None:
    assert run.calls <= limit, f"{run.calls} calls"


@check("upstream_sequence")
async def upstream_sequence(run: Run, expected: list[str], scope: Scope) -> None:
    calls = sorted((request.at, name) for name, upstream in run.upstreams.items() for request in upstream.requests)
    assert_same(expected, [name for _, name in calls], "order of calls")


@check("upstream_max_parallel")
async def upstream_max_parallel(run: Run, expected: dict[str, int], scope: Scope) -> None:
    for name, limit in expected.items():
        assert run.upstreams[name].max_parallel <= limit, f"{run.upstreams[name].max_parallel} at once on {name}"


@check("upstream_never_sees")
async def upstream_never_sees(run: Run, needles: list[str], scope: Scope) -> None:
    for name, upstream in run.upstreams.items():
        for request in upstream.requests:
            seen = [needle for needle in needles if needle.encode() in request.raw_head + request.body]
            assert not seen, f"{name} saw {seen}"


@check("upstream_paths_allowed")
async def upstream_paths_allowed(run: Run, expected: dict[str, list[str]], scope: Scope) -> None:
    for name, patterns in expected.items():
        for request in run.upstreams[name].requests:
            assert any(re.search(pattern, request.path) for pattern in patterns), f"{name} got {request.path}"


@check("upstream_body_contains", fields={"tier", "text"})
async def upstream_body_contains(run: Run, expected: dict[str, str], scope: Scope) -> None:
    bodies = [request.body for request in run.upstreams[expected["tier"]].requests]
    assert any(expected["text"].encode() in body for body in bodies), f"{bodies}"


@check("last_upstream_body_contains", fields={"tier", "text"})
async def last_upstream_body_contains(run: Run, expected: dict[str, str], scope: Scope) -> None:
    requests = run.upstreams[expected["tier"]].requests
    assert requests, "no call"
    assert expected["text"].encode() in requests[-1].body, f"{requests[-1].body!r}"


@check(
    "upstream_request",
    fields={
        "tier", "n", "path", "equals", "absent", "length", "header", "raw_count", "body_bytes_min",
        "exactly_one_of_headers",
    },
)  # fmt: skip
async def upstream_request(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    requests = run.upstreams[expected["tier"]].requests
    number = expected.get("n", len(requests))
    assert 1 <= number <= len(requests), f"{len(requests)} calls"
    request = requests[number - 1]
    if "path" in expected:
        _assert_value(expected, at_path(request.json, expected["path"], _NOTHING))
    if "header" in expected:
        value = request.header(expected["header"])
        _assert_value(expected, _NOTHING if value is None else value)
    _assert_bytes(expected, request)


def _assert_value(expected: dict[str, Any], value: Any) -> None:
    what = expected.get("path") or expected["header"]
    if "absent" in expected:
        assert expected["absent"] == (value is _NOTHING), f"{what}: {value!r}"
        return
    assert value is not _NOTHING, f"no {what}"
    if "equals" in expected:
        assert_same(expected["equals"], value, what)
    if "length" in expected:
        assert_same(expected["length"], len(value), f"length of {what}")


def _assert_bytes(expected: dict[str, Any], request: Received) -> None:
    if count := expected.get("raw_count"):
        assert_same(count["equals"], request.body.count(count["needle"].encode()), f"number of {count['needle']}")
    least = expected.get("body_bytes_min", 0)
    assert len(request.body) >= least, f"{len(request.body)} bytes"
    if names := expected.get("exactly_one_of_headers"):
        there = [name for name in names if request.header(name) is not None]
        assert len(there) == 1, f"of {names}: {there}"


@check("upstream_saw_disconnect", fields={"tier", "within_ms"})
async def upstream_saw_disconnect(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    left_at = max(reply.sent_at + reply.duration for reply in run.replies(scope.req_no) if reply.left)

    async def seen() -> None:
        requests = run.upstreams[expected["tier"]].requests
        times = [request.disconnected for request in requests if request.disconnected is not None]
        assert times, f"still connected: {[request.replied for request in requests]}"
        late = (min(times) - left_at) * 1000
        assert late <= expected["within_ms"], f"{late:.0f} ms after the client had left"

    await settles(seen, expected["within_ms"] / 1000)
