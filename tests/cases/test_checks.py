"""Checks of what servers received, of metrics, logs and start-up say no when they must."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cases.case import Case, UnknownWord
from tests.cases.checks import evaluate
from tests.cases.metrics import read_page
from tests.cases.run import Acted, Run, Startup
from tests.cases.test_cases import CHECK_MODULES
from tests.cases.upstreams import make_upstream
from tests.client import Client, Leave, Reply
from tests.process import Process
from tests.script import http
from tests.upstream import Send, Upstream

assert CHECK_MODULES

BEFORE = """# TYPE tiergate_requests_total counter
tiergate_requests_total{tier="small",outcome="ok"} 3.0
# TYPE tiergate_in_flight gauge
tiergate_in_flight{tier="small"} 0.0
# TYPE tiergate_time_to_first_token_seconds histogram
tiergate_time_to_first_token_seconds_sum{tier="small"} 1.0
tiergate_time_to_first_token_seconds_count{tier="small"} 1.0
"""
AFTER = BEFORE.replace("3.0", "4.0").replace("sum{tier=\"small\"} 1.0", 'sum{tier="small"} 1.7').replace(
    'count{tier="small"} 1.0', 'count{tier="small"} 2.0'
)  # fmt: skip
LOG = [
    {"request_id": "a", "tier": "small", "cost_usd": 4.7e-05, "attempts": [{"tier": "small", "status": 500}]},
    {"request_id": "b", "tier": "large", "cost_usd": None, "overhead_ms": 2.0, "attempts": [{"tier": "large"}]},
]  # fmt: skip
OUTPUT = '{"event": "upstream_misconfigured", "level": "error"}\nnot JSON\n'


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    """A run that has seen: two requests at `small`, one of which the client left; two pages; two log lines."""
    case = Case("x-1", "x", "t", "must", {}, {}, [{}], [])
    replies: list[dict[str, Any]] = [{"ok": {"text": "一"}}, {"sse": [{"text": "x"}, {"end": "hang"}]}]
    async with make_upstream("small", replies) as small, make_upstream("large", []) as large, Upstream() as scrape:
        scrape.default(Send(http(200, {"content-type": "text/plain"}, AFTER.encode())))
        run = Run(case, tmp_path, {"small": small, "large": large})
        run.process = Process(run.policy_file, port=scrape.port)
        run.process._err += OUTPUT.encode()
        run.log_file.write_text("".join(json.dumps(line) + "\n" for line in LOG), "utf-8")
        run.before = run.first = read_page(BEFORE)
        run.startups = {"": Startup(True, 1, "policy.yaml: line 7: tiers.small: duplicate key", 0.5)}
        run.acted = {1: Acted(await _two_requests(small), calls=2)}
        yield run


async def _two_requests(small: Upstream) -> list[Reply]:
    client = Client(small.url, "up-key-small", check=False)
    return [
        await client.chat("secret 你好", top_k=3, vendor=[1, {"a": None}]),
        await client.chat(stream=True, leave=Leave(after_events=1)),
    ]


def request(**words: Any) -> dict[str, Any]:
    return {"upstream_request": {"tier": "small", **words}}


def metric(role: str, **words: Any) -> dict[str, Any]:
    return {"metric": {"role": role, "labels": {"tier": "small"}, **words}}


HOLDS = [
    {"upstream_calls": {"small": 2, "large": 0}},
    {"upstream_calls_total_max": 2},
    {"upstream_sequence": ["small", "small"]},
    {"upstream_max_parallel": {"small": 1}},
    {"upstream_never_sees": ["key-alice"]},
    {"upstream_paths_allowed": {"small": ["^/v1/chat/completions$"]}},
    {"upstream_saw_disconnect": {"tier": "small", "within_ms": 1000}},
    request(n=1, path="messages.0.content", equals="secret 你好"),
    request(n=1, path="vendor", equals=[1, {"a": None}]),
    request(n=1, path="messages", length=1),
    request(path="top_k", absent=True),
    request(header="authorization", equals="Bearer up-key-small"),
    request(header="content-encoding", absent=True),
    request(raw_count={"needle": '"model"', "equals": 1}),
    request(exactly_one_of_headers=["transfer-encoding", "content-length"], body_bytes_min=10),
    metric("requests_total", delta=1),
    metric("requests_total", delta_min=1),
    metric("in_flight", value_after_ms=100, equals=0),
    metric("ttft_seconds", count_delta=1, sum_between=[0.65, 0.75]),
    {"metric": {"role": "series_count", "growth_max": 0}},
    {"metrics_absent": ["fake_metric"]},
    {"request_log": {"n": 1, "fields_approx": {"cost_usd": 4.7e-05}}},
    {"request_log": {"fields": {"cost_usd": None}, "attempts": [{"tier": "large"}]}},
    {"request_log": {"count_for": {"tier": "small"}, "equals": 1}},
    {"request_log": {"absent": "secret"}},
    {"log_has": {"level": "error", "about": "upstream_auth"}},
    {"log_absent_all": ["secret", "Traceback"]},
    {"startup": {"fails": True, "exit_code_not": 0, "message_matches": "(?i)duplicate"}},
    {"startup": {"fails": True, "message_has_line_number": True}},
    {"startup": {"fails": True, "message_names_location": True, "no_trace": True, "within_ms": 600}},
]  # fmt: skip
FAILS = [
    {"upstream_calls": {"small": 1}},
    {"upstream_calls_total_max": 1},
    {"upstream_sequence": ["small", "large"]},
    {"upstream_max_parallel": {"small": 0}},
    {"upstream_never_sees": ["secret"]},
    {"upstream_paths_allowed": {"small": ["^/v1/models$"]}},
    request(n=3, path="model", equals="auto"),
    request(n=1, path="messages.0.content", equals="你好"),
    request(n=1, path="top_k", absent=True),
    request(n=1, path="top_k", equals="3"),
    request(n=1, path="nothing", equals=None),
    request(header="authorization", absent=True),
    request(raw_count={"needle": '"model"', "equals": 2}),
    request(exactly_one_of_headers=["host", "content-length"]),
    request(body_bytes_min=10_000),
    metric("requests_total", delta=2),
    metric("requests_total", delta=0),
    metric("requests_total", delta_min=2),
    metric("requests_total", delta_approx=0.9, tolerance=0.01),
    metric("in_flight", value_after_ms=100, equals=1),
    metric("ttft_seconds", count_delta=2),
    metric("ttft_seconds", sum_between=[0.8, 0.9]),
    metric("cooldowns", delta=0),  # there is no such metric on the page
    {"metric": {"role": "series_count", "growth_max": -1}},
    {"metrics_absent": ["tiergate_requests"]},
    {"request_log": {"n": 2, "fields_approx": {"cost_usd": 4.7e-05}}},
    {"request_log": {"n": 1, "fields": {"cost_usd": None}}},
    {"request_log": {"attempts": [{"tier": "large"}, {"tier": "small"}]}},
    {"request_log": {"attempts": [{"status": 500}]}},
    {"request_log": {"absent": "large"}},
    {"log_has": {"level": "warning", "about": "upstream_auth"}},
    {"log_absent": "not JSON"},
    {"startup": {"fails": False}},
    {"startup": {"fails": True, "message_contains": "SMALL_KEY"}},
    {"startup": {"fails": True, "within_ms": 100}},
]


@pytest.mark.parametrize("entry", HOLDS, ids=str)
async def test_checks_hold_for_what_is_right(entry: dict[str, Any], run: Run) -> None:
    """Each word once, on one made-up run."""
    await evaluate(run, [entry])


@pytest.mark.parametrize("entry", FAILS, ids=str)
async def test_checks_fail_for_what_is_wrong(entry: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot fail is worth nothing."""
    monkeypatch.setattr("tests.cases.checks.SETTLE_S", 0.0)
    with pytest.raises(AssertionError):
        await evaluate(run, [entry])


@pytest.mark.parametrize(
    "entry",
    [
        {"none_of": [{"log_has": {"level": "error", "about": "weather"}}]},
        {"none_of": [{"metric": {"role": "weather", "delta": 1}}]},
        {"none_of": [{"cache": "warm"}]},
    ],
    ids=str,
)
async def test_unknown_values_are_no_failure_that_something_could_want(entry: dict[str, Any], run: Run) -> None:
    """`none_of` must not turn a misspelling into a pass."""
    with pytest.raises(UnknownWord):
        await evaluate(run, [entry])
