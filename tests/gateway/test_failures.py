"""What upstreams' refusals mean: real servers' words → one of our errors, and no word of theirs where it is not due."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    AttemptError,
    Broken,
    Misconfigured,
    OutOfCredit,
    Overloaded,
    Refused,
    TooLong,
    Unsupported,
    body,
    wire,
)
from gateway.upstream.failures import classify, classify_event, error_detail
from tests.client import Reply
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import DONE, HEAD, Close, Hang, Reset, Send, Upstream, Wait, answer, completion, data, event, http


def refusal(message: Any = "no", **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}, ensure_ascii=False).encode()


# --- by status ---


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (204, Misconfigured), (301, Misconfigured), (302, Misconfigured),
        (400, Refused), (401, Misconfigured), (402, OutOfCredit), (403, Misconfigured), (404, Misconfigured),
        (405, Refused), (408, Broken), (409, Refused), (413, Refused), (415, Refused), (422, Refused),
        (429, Overloaded), (451, Refused), (500, Broken),
        (501, Unsupported), (502, Broken), (503, Overloaded),
        (504, Broken), (529, Overloaded),
    ],
)  # fmt: skip
def test_status_alone_has_a_meaning(status: int, cls: type[AttemptError]) -> None:
    """Many servers say nothing more."""
    for said in (b"", b"{}", b"<html>bad gateway</html>", b"\xff\xfe", b"[]", b"null", b'"text"', b'{"error":[]}'):
        error = classify(status, {}, said)

        assert cls is type(error)
        assert status == error.status


@pytest.mark.parametrize(
    ("status", "message", "fields"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
         {"code": "context_length_exceeded"}),
        (400, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens", {}),
        (400, "prompt is too long: 210000 tokens > 200000 maximum", {"type": "invalid_request_error"}),
        (400, "the request exceeds the available context size (2048 tokens), try increasing it",
         {"type": "exceed_context_size_error", "code": 400}),
        (400, "Range of input length should be [1, 30720]", {"code": "InvalidParameter"}),
        (400, "输入过长，请缩短后重试", {"code": "1261"}),
        (400, "模型上下文长度超过限制", {}),
        (413, "Input token count exceeds the maximum number of tokens allowed", {}),
        (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 1800 `inputs` "
         "tokens and 512 `max_new_tokens`", {}),
        (500, "input is too long for requested model", {}),
    ],
)  # fmt: skip
def test_prompt_that_is_too_long_is_recognised(status: int, message: str, fields: dict[str, Any]) -> None:
    """The one refusal that another model can answer, said by every server in its own words."""
    error = classify(status, {}, refusal(message, **fields))

    assert isinstance(error, TooLong)
    assert (400, "context_length_exceeded") == (wire(error).status, wire(error).code)


def test_window_that_the_server_named_is_told_and_nothing_else_of_its_words() -> None:
    """The number helps the caller to shorten; the rest might echo the prompt."""
    error = classify(400, {}, refusal("maximum context length is 8192 tokens. You sent: 我的身份证号是"))

    assert "8192" in str(error)
    assert "身份证" not in str(error)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (429, refusal("You exceeded your current quota, please check your plan", code="insufficient_quota")),
        (400, refusal("Your credit balance is too low to access the API", type="invalid_request_error")),
        (403, refusal("账户余额不足")),
        (402, refusal("Insufficient Balance")),
        (402, b""),
    ],
)
def test_account_without_credit_is_not_retried(status: int, said: bytes) -> None:
    """It says 429 like a rate limit, but waiting a moment does not help."""
    error = classify(status, {}, said)

    assert isinstance(error, OutOfCredit)
    assert "fallback" == error.then


@pytest.mark.parametrize(
    ("headers", "seconds"), [({"retry-after": "7"}, 7.0), ({"retry-after": "soon"}, None), ({}, None)]
)
def test_retry_after_is_kept(headers: dict[str, str], seconds: float | None) -> None:
    """For the backoff, the breaker and the caller."""
    assert seconds == classify(429, headers, b"").retry_after
    assert seconds == classify(503, headers, b"").retry_after


# --- whose words get out ---

SECRET = "sk-live-4242 at http://10.0.0.7:8000 said: 你好，我的密码是"


@pytest.mark.parametrize("status", [301, 401, 402, 403, 404, 408, 429, 500, 502, 503, 529])
def test_upstreams_words_do_not_get_out_where_they_are_not_about_the_request(status: int) -> None:
    """Addresses, key fragments and echoes of prompts are in the error messages of real servers."""
    error = classify(status, {}, refusal(SECRET, code="x" * 500, type=SECRET))

    assert "sk-live" not in f"{error} {body(error, 'r').decode()}"
    assert "密码" not in body(error, "r").decode()


def test_refusal_of_the_request_keeps_its_reason() -> None:
    """It is about what the caller sent, so the caller must be able to read it."""
    error = classify(
        400, {}, refusal("图片格式不支持", type="invalid_request_error", param="messages[0]", code="bad_image")
    )

    found = json.loads(body(error, "r"))["error"]
    assert ("图片格式不支持", "messages[0]", "bad_image") == (found["message"], found["param"], found["code"])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b'{"error":"plain text"}', "plain text"),
        (b'{"detail":"fastapi says"}', "fastapi says"),
        (b'{"detail":[{"loc":["body","n"],"msg":"bad"}]}', '[{"loc":["body","n"],"msg":"bad"}]'),
        (b'{"type":"error","error":{"type":"invalid_request_error","message":"anthropic says"}}', "anthropic says"),
        (b'{"message":"flat","code":42}', "flat"),
        (b"not json at all", "not json at all"),
        (b"", "the model refused the request with status 400"),
        (b'{"error":{"code":42}}', "the model refused the request with status 400"),
    ],
)
def test_refusal_of_any_form_becomes_openais(said: bytes, message: str) -> None:
    """Typed clients need strings or null in every field, whatever the server wrote."""
    found = json.loads(body(classify(400, {}, said), "r"))["error"]

    assert message == found["message"]
    assert all(value is None or isinstance(value, str) for value in found.values())


@given(
    st.integers(200, 599),
    st.dictionaries(st.sampled_from(["Retry-After", "x"]), st.text(max_size=20)),
    st.binary(max_size=300),
)
def test_no_response_is_able_to_raise(status: int, headers: dict[str, str], said: bytes) -> None:
    """A failing server is the last that one should trust with JSON."""
    error = classify(status, {name.lower(): value for name, value in headers.items()}, said)

    json.loads(body(error, "r"))


KEYS = st.sampled_from(["message", "type", "code", "param", "error", "detail"])
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | FINITE | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from([400, 403, 429, 500]), JSON)
def test_no_json_is_able_to_raise_or_to_break_the_form(status: int, said: Any) -> None:
    """Codes that are lists, messages that are numbers: all of it has been seen."""
    error = classify(status, {}, json.dumps({"error": said}).encode("utf-8", "replace"))

    found = json.loads(body(error, "r"))["error"]
    assert all(value is None or isinstance(value, str) for value in found.values())
    assert found["message"]


# --- in-band ---


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        ({"message": "x", "type": "overloaded_error"}, Overloaded),
        ({"message": "x", "code": 429}, Overloaded),
        ({"message": "x", "code": "503"}, Overloaded),
        ({"message": "x", "code": "rate_limit_exceeded"}, Overloaded),
        ({"message": "x", "code": "insufficient_quota"}, OutOfCredit),
        ({"message": "prompt is too long: 9 tokens > 8 maximum"}, TooLong),
        ({"message": "filtered", "code": "content_filter"}, Refused),
        ({"message": "CUDA out of memory", "code": 500}, Broken),
        ("plain text", Broken),
        (None, Broken),
        ([], Broken),
        (7, Broken),
    ],
)
def test_error_inside_an_answer_has_a_meaning(error: Any, cls: type[AttemptError]) -> None:
    """A 200 was promised too early; what it turned out to be decides what happens next."""
    assert cls is type(classify_event(json.dumps(error).encode()))


@given(JSON)
def test_no_event_is_able_to_raise(error: Any) -> None:
    """It is in the middle of somebody's answer."""
    found = classify_event(json.dumps(error).encode("utf-8", "replace"))

    json.loads(body(found, "r"))


def test_code_of_strange_digits_does_not_raise() -> None:
    """'²'.isdigit() is true and int('²') is an error."""
    assert isinstance(classify_event('{"message":"x","code":"²"}'.encode()), Broken)


def test_long_plain_bodies_are_cut() -> None:
    """An HTML page of a megabyte is no message."""
    assert len(str(error_detail(b"<" * 10**6).message)) == 2000


# --- over the wire ---


async def failing(gateway: Gateway, small: Upstream, medium: Upstream, *steps: Any) -> Reply:
    small.script(*steps)
    medium.script(answer("medium"))
    reply: Reply = await gateway.chat("换一个", stream=False)
    return reply


NO_ANSWERS = [
    b"", b"not json", b"<html>hello</html>", b"null", b"[]", b"{}", b'{"choices":null}', b'{"choices":[]}',
    b'{"choices":{}}', b'{"choices":[7]}', b'{"object":"list","data":[]}', b'{"choices":[{"finish_reason":"st',
]  # fmt: skip


@pytest.mark.parametrize("said", NO_ANSWERS)
async def test_answer_that_is_none_falls_back(gateway: Gateway, small: Upstream, medium: Upstream, said: bytes) -> None:
    """A 200 with a page of HTML, an empty list, half a JSON: the next model is asked."""
    reply = await failing(gateway, small, medium, Send(http(200, {}, said)))

    assert ("medium", "2") == (reply.text, reply.attempts)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("end", [Close(), Reset()])
async def test_answer_cut_in_its_body_falls_back(
    gateway: Gateway, small: Upstream, medium: Upstream, chunked: bool, end: Close | Reset
) -> None:
    """Before its length, or before its last chunk: nothing of it has gone out."""
    whole = http(200, {}, json.dumps(completion("断" * 2000)).encode(), chunked=chunked)

    reply = await failing(gateway, small, medium, Send(whole[:-300]), end)

    assert "medium" == reply.text


async def test_whole_answer_may_come_in_chunks(gateway: Gateway, small: Upstream) -> None:
    """Many servers do not know its length when they begin."""
    small.script(Send(http(200, {}, json.dumps(completion("分块")).encode(), chunked=True)))

    assert "分块" == (await gateway.chat()).text


@pytest.mark.parametrize("encoding", ["x-gzip", "GZIP", "Gzip", "Identity", ""])
async def test_content_codings_are_read_in_any_case(start: Start, small: Upstream, encoding: str) -> None:
    """HTTP says that their case does not count."""
    gateway = await start({"tiers": {"small": tier(small, "small")}})
    plain = json.dumps(completion("平")).encode()
    said = gzip.compress(plain) if "zip" in encoding.lower() else plain
    small.script(Send(http(200, {"content-encoding": encoding}, said)))

    reply = await gateway.chat(model="small")

    assert 200 == reply.status
    assert "平" == reply.text


@pytest.mark.parametrize("first", [b"event: error\n", b"event:error\n", b"event: error\r\n"])
async def test_error_event_by_name_falls_back(
    gateway: Gateway, small: Upstream, medium: Upstream, first: bytes
) -> None:
    """Some servers name the event and send the bare object."""
    small.script(Send(HEAD), Send(first + b'data: {"message":"overloaded","type":"overloaded_error"}\n\n'))
    medium.script(Send(HEAD), Send(event("ok")), Send(DONE))

    reply = await gateway.chat("换一个", stream=True)

    assert ("ok", "medium") == (reply.text, reply.tier)


@pytest.mark.parametrize(
    "pieces", [[b"id: 1\nevent: error\ndata: {}\n\n"], [b": ping\r\n\r", b"\nevent: error\r\ndata: {}\r\n\r\n"]]
)
async def test_error_event_by_name_is_seen_wherever_its_line_stands(
    gateway: Gateway, small: Upstream, pieces: list[bytes]
) -> None:
    """Behind an id, or behind a CR LF that the network cut in half; an end marker may follow, and is no success."""
    said = [piece.replace(b"{}", b'{"message":"boom"}') for piece in pieces]
    apart = [step for piece in said for step in (Send(piece), Wait(0.05))]
    small.script(Send(HEAD), Send(event("half")), *apart, Send(DONE))

    reply = await gateway.chat("换一个", stream=True)

    assert reply.error is not None
    assert not reply.sse.done


async def test_refusal_in_an_unknown_encoding_is_judged_by_its_status(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """A 429 stays a 429 though its body cannot be read: it has a Retry-After, and is no broken server."""
    reply = await failing(
        gateway, small, medium, Send(http(429, {"content-encoding": "br", "retry-after": "20"}, b"\x0b\x02\x80"))
    )

    [line] = await gateway.settled(1)
    assert "medium" == reply.text
    assert "overloaded" == line["attempts"][0]["outcome"]


async def test_answer_in_an_unknown_encoding_is_let_go_of(gateway: Gateway, small: Upstream, medium: Upstream) -> None:
    """Its connection must not stay open behind the error."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: br\r\ncontent-length: 100\r\n\r\n"

    reply = await failing(gateway, small, medium, Send(head), Hang())

    assert "medium" == reply.text
    await small.wait_for_disconnect(2)


async def test_infinite_retry_after_of_an_upstream_is_survived(
    gateway: Gateway, small: Upstream, medium: Upstream
) -> None:
    """float() reads it; a header cannot carry it."""
    for upstream in (small, medium):
        upstream.script(Send(http(429, {"retry-after": "inf"}, b"{}")))

    reply = await gateway.chat("你好")

    assert 429 == reply.status


async def test_mid_stream_error_event_becomes_ours(gateway: Gateway, small: Upstream) -> None:
    """After the first token the error is told in the stream, in our words."""
    small.script(Send(HEAD), Send(event("half")), Send(data({"error": {"message": SECRET, "type": "x", "code": None}})))

    reply = await gateway.chat("你好", stream=True)

    assert "half" == reply.text
    assert reply.error is not None
    assert b"sk-live" not in reply.body
    assert not reply.sse.done
