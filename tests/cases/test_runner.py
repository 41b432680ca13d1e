"""The runner itself: unknown words are errors, and a check that must fail does fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cases import adapter
from tests.cases.case import Case, UnknownWord, load_cases
from tests.cases.checks import CHECKS, evaluate
from tests.cases.metrics import assert_strict, read_page
from tests.cases.not_yet import NOT_YET, NOT_YET_AREAS, WITHOUT_REQUESTS
from tests.cases.run import Acted, Run
from tests.cases.test_cases import DATA, check_words, without
from tests.client import Client, Reply, SseReader
from tests.process import free_port
from tests.script import DONE, event, finish, role

CASES = load_cases(DATA)


def a_case(**fields: Any) -> Case:
    whole: dict[str, Any] = {
        "id": "x-1", "area": "x", "title": "t", "level": "must", "setup": {}, "upstream": {}, "request": [{}],
        "expect": [],
    }  # fmt: skip
    return Case(**{**whole, **fields})


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_every_word_of_every_case_has_a_meaning(case: Case) -> None:
    """Those of areas that do not run yet included: the next work starts from a runner that reads them."""
    check_words(case)


@pytest.mark.parametrize(
    "fields",
    [
        {"setup": {"turbo": True}},
        {"setup": {"tiers": {"small": {"colour": "red"}}}},
        {"setup": {"config": {"edit": "do something"}}},
        {"upstream": {"small": [{"okay": {"text": "x"}}]}},
        {"upstream": {"small": [{"sse": [{"repeat": {"times": 2, "steps": [{"txt": "x"}]}}]}]}},
        {"request": [{"strem": True}]},
        {"request": [{"client": {"vanish": 1}}]},
        {"expect": [{"stauts": 200}]},
        {"expect": [{"any_of": [{"sse": {"texts": "x"}}]}]},
        {"expect": [{"status": 200, "while": 3}]},
    ],
)
def test_unknown_words_are_errors(fields: dict[str, Any]) -> None:
    """A misspelt check that passes is worse than no check."""
    with pytest.raises(UnknownWord):
        check_words(a_case(**fields))


def test_what_does_not_run_is_named_with_a_reason() -> None:
    """A line for a case that is not there would hide that the case is run."""
    ids, areas = {case.id for case in CASES}, {case.area for case in CASES}

    assert set(NOT_YET) <= ids
    assert set(WITHOUT_REQUESTS) <= set(NOT_YET)
    assert set(NOT_YET_AREAS) <= areas


def test_leaving_out_requests_leaves_out_their_checks() -> None:
    """Numbers of the requests that stay must not change."""
    case = a_case(request=[{}, {"key": "bob"}], expect=[{"req_no": 1, "status": 200}, {"req_no": 2, "status": 400}])

    kept = without(case, (2,))

    assert ([{}], [{"req_no": 1, "status": 200}]) == (kept.request, kept.expect)
    with pytest.raises(AssertionError):
        without(case, (1,))


# --- checks ---


def a_stream(*events: bytes) -> Reply:
    body = b"".join(events)
    reader = SseReader()
    reader.feed(body, at=0.3)
    headers = [("content-type", "text/event-stream"), ("x-tiergate-cache", "miss"), ("retry-after", "3")]
    return Reply(200, headers, b"HTTP/1.1 200 OK", body, [(0.3, body)], complete=True, duration=0.5, sse=reader.close())


def an_error(status: int = 400, **error: Any) -> Reply:
    body = json.dumps({"error": {"message": "too long", "type": "invalid_request_error", **error}}).encode()
    return Reply(status, [("content-type", "application/json")], b"HTTP/1.1 400 Bad", body, complete=True, duration=0.5)


def a_run(folder: Path, *replies: Reply) -> Run:
    run = Run(a_case(), folder)
    run.acted = {number: Acted([reply], calls=1) for number, reply in enumerate(replies, start=1)}
    return run


GOOD = (role(), event("你"), event("好"), finish(), DONE)
HOLDS: list[dict[str, Any]] = [
    {"req_no": 1, "status": 200},
    {"status_in": [400, 502]},
    {"sse": {"text": "你好", "finish": "stop", "done": True, "error": False, "first_delta_role": "assistant"}},
    {"sse": {"usage_chunk_count": 0, "text_length_chars": 2, "text_count": {"needle": "好", "equals": 1}}},
    {"sse": {"every_data_is_json_or_done": True, "every_chunk_model": "m", "usage_in_other_chunks": "null_or_absent"}},
    {"error": {"type": "invalid_request_error", "code": "null", "message": "present", "message_contains": "long"}},
    {"json": {"path": "error.code", "type_in": ["string", "null"], "not_equals": "None"}},
    {"req_no": 1, "header": {"name": "Retry-After", "int_between": [1, 5]}},
    {"req_no": 2, "header": {"name": "retry-after", "absent": True}},
    {"text_absent": "Traceback"},
    {"req_no": "all", "within_ms": 600},
    {"first_text_within_ms": 350},
    {"req_no": 1, "cache": "miss"},
    {"none_of": [{"req_no": 1, "status": 500}]},
    {"any_of": [{"status": 200}, {"all_of": [{"status": 400}, {"text_absent": "FRESH"}]}]},
    {"req_no": 1, "official_sdk_parses": "openai"},
]
FAILS: list[dict[str, Any]] = [
    {"req_no": "all", "status": 200},
    {"status_in": [200]},
    {"all_status": 200},
    {"sse": {"text": "你"}},
    {"sse": {"finish": None}},
    {"sse": {"done": False}},
    {"sse": {"error": True}},
    {"sse": {"usage": {"prompt_tokens": 1}}},
    {"sse": {"usage_chunk_count": 1}},
    {"sse": {"text_count": {"needle": "好", "equals": 2}}},
    {"sse": {"first_delta_role": "user"}},
    {"sse": {"tool_calls": [{"index": 0}]}},
    {"req_no": 2, "sse": {"text": "你好"}},
    {"error": {"code": "present"}},
    {"error": {"message_contains": "8192"}},
    {"req_no": 1, "error": {"type": "present"}},
    {"json": {"path": "error.nothing", "equals": None}},
    {"json": {"path": "error.code", "type": "string"}},
    {"req_no": 1, "header": {"name": "x-request-id", "max_length": 10}},
    {"req_no": 1, "header": {"name": "retry-after", "equals": "4"}},
    {"text_absent": "too long"},
    {"req_no": 1, "within_ms": 400},
    {"first_text_within_ms": 200},
    {"req_no": 1, "cache": "hit"},
    {"none_of": [{"req_no": 1, "status": 200}]},
    {"any_of": [{"status": 200}, {"all_of": [{"status": 400}, {"text_absent": "too"}]}]},
    {"all_of": [{"status": 400}, {"status": 200}]},
    {"status_counts": {"at_least": {200: 2}}},
    {"status_counts": {"at_least": {200: 1}, "rest_in": [429]}},
    {"upstream_calls": {"small": 1}},
]


@pytest.mark.parametrize("entry", HOLDS, ids=str)
async def test_checks_hold_for_what_is_right(entry: dict[str, Any], tmp_path: Path) -> None:
    """One good stream, then one refusal."""
    run = a_run(tmp_path, a_stream(*GOOD), an_error(param=None, code=None))

    await evaluate(run, [entry])


@pytest.mark.parametrize("entry", FAILS, ids=str)
async def test_checks_fail_for_what_is_wrong(entry: dict[str, Any], tmp_path: Path) -> None:
    """Each check word says no to the same two replies when it must."""
    run = a_run(tmp_path, a_stream(*GOOD), an_error(param=None, code=None))

    with pytest.raises(AssertionError):
        await evaluate(run, [entry])


async def test_all_failed_checks_are_told_at_once(tmp_path: Path) -> None:
    """Whoever repairs wants to see the whole picture."""
    run = a_run(tmp_path, a_stream(*GOOD))

    with pytest.raises(AssertionError, match=r"(?s)status.*text") as caught:
        await evaluate(run, [{"status": 500}, {"sse": {"text": "x"}}, {"sse": {"done": True}}])
    assert "done" not in str(caught.value)


def test_all_words_are_in_the_table() -> None:
    """An import that is gone would turn every case into an error."""
    assert {"status", "sse", "metric", "request_log", "upstream_request", "startup", "process", "cache"} <= set(CHECKS)


# --- metrics ---

PAGE = """# HELP tiergate_tokens_total Tokens
# TYPE tiergate_tokens_total counter
tiergate_tokens_total{tier="small",kind="input"} 100.0
tiergate_tokens_total{tier="small",kind="cached_input"} 20.0
tiergate_tokens_total{tier="large",kind="input"} 7.0
tiergate_tokens_total{tier="small",kind="output"} 5.0
"""


def test_roles_are_summed_over_what_is_not_named() -> None:
    """Prompt tokens are several kinds of ours, and no tier named means all of them."""
    page = read_page(PAGE)

    assert (120.0, 127.0) == (
        page.sum("tokens_total", {"tier": "small", "kind": "prompt"}),
        page.sum("tokens_total", {"kind": "prompt"}),
    )
    assert page.has_family("tokens_total")
    assert not page.has_family("cooldowns")


@pytest.mark.parametrize(
    "line",
    [
        'x{a="b"} one', 'x{a="b\n"} 1', 'tiergate_tokens_total{tier="small",kind="output"} 6.0',
        "# TYPE tiergate_tokens_total gauge",
    ],
)  # fmt: skip
def test_broken_pages_are_refused(line: str) -> None:
    """A scraper drops the whole page."""
    assert_strict(PAGE)
    with pytest.raises(AssertionError):
        assert_strict(PAGE + line + "\n")


# --- adapter, process ---


@pytest.mark.parametrize("words", ["file cut in the middle of a mapping", "empty file", "misspelt top-level key"])
def test_edits_change_the_file(words: str, tmp_path: Path) -> None:
    """An edit that leaves a good file would test nothing."""
    urls = dict.fromkeys(adapter.TIERS, "http://127.0.0.1:1/v1")
    launch = adapter.launch({}, urls, tmp_path / "log")

    assert adapter.edit(launch.policy, words) != launch.text


async def test_a_client_without_a_server_says_so() -> None:
    """Not an empty reply that some negative check would accept."""
    with pytest.raises(ConnectionRefusedError):
        await Client(f"http://127.0.0.1:{free_port()}").get("/")
