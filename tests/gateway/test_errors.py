"""The tree of errors on the wire: every class has a status and a body that typed clients can read."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    AttemptError,
    BadRequest,
    Broken,
    ClientError,
    Exhausted,
    Forbidden,
    GatewayError,
    Misconfigured,
    NotFound,
    OutOfCredit,
    OutputInvalid,
    OverBudget,
    Overloaded,
    QueueFull,
    RateLimited,
    Refused,
    RequestTimeout,
    TimedOut,
    TooLarge,
    TooLong,
    Unauthorized,
    UnknownModel,
    Unreachable,
    Unsupported,
    UnsupportedMedia,
    body,
    wire,
)
from router.types import AttemptOutcome
from tests.client import request_bytes
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import Upstream, answer

REFUSAL = json.dumps(
    {"error": {"message": "内容违规", "type": "invalid_request_error", "param": None, "code": "content_filter"}}
)


def _subclasses(cls: type[GatewayError]) -> Iterator[type[GatewayError]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


def make(cls: type[GatewayError]) -> GatewayError:
    special: dict[type[GatewayError], Any] = {
        TimedOut: lambda: TimedOut("idle"),
        Refused: lambda: Refused("refused", status=400, body=REFUSAL.encode()),
        Exhausted: lambda: Exhausted(()),
    }
    return special.get(cls, lambda: cls("something happened"))()  # type: ignore[no-any-return]


CLASSES = sorted(set(_subclasses(GatewayError)), key=lambda cls: cls.__name__)
ROWS: dict[type[GatewayError], tuple[int, str, str | None]] = {
    BadRequest: (400, "invalid_request_error", None),
    UnsupportedMedia: (415, "invalid_request_error", "unsupported_encoding"),
    Unauthorized: (401, "authentication_error", "invalid_api_key"),
    Forbidden: (403, "permission_error", "model_not_allowed"),
    UnknownModel: (404, "invalid_request_error", "model_not_found"),
    NotFound: (404, "invalid_request_error", "unknown_url"),
    TooLarge: (413, "invalid_request_error", "request_too_large"),
    RequestTimeout: (408, "invalid_request_error", "request_timeout"),
    RateLimited: (429, "rate_limit_error", "rate_limit_exceeded"),
    OverBudget: (429, "insufficient_quota", "insufficient_quota"),
    Unreachable: (502, "server_error", "upstream_unreachable"),
    Overloaded: (503, "server_error", "upstream_overloaded"),
    OutOfCredit: (503, "server_error", "upstream_out_of_credit"),
    TimedOut: (504, "server_error", "upstream_timeout"),
    Broken: (502, "server_error", "upstream_error"),
    Misconfigured: (502, "server_error", "upstream_misconfigured"),
    QueueFull: (503, "server_error", "queue_full"),
    Unsupported: (400, "invalid_request_error", "unsupported_parameter"),
    TooLong: (400, "invalid_request_error", "context_length_exceeded"),
    Refused: (400, "invalid_request_error", None),
    OutputInvalid: (502, "server_error", "output_invalid"),
    Exhausted: (503, "server_error", "no_deployment"),
}


def told(error: BaseException) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body(error, "req-1"))
    return found


def test_tree_holds_no_class_that_this_table_does_not() -> None:
    """A new error needs a status of its own, decided by somebody; it must not become a 500 by accident."""
    assert set(ROWS) | {ClientError, AttemptError} == set(CLASSES)


@pytest.mark.parametrize("cls", ROWS, ids=lambda cls: cls.__name__)
def test_class_has_its_status_type_and_code(cls: type[GatewayError]) -> None:
    """Clients branch on these three; changing one is a breaking change."""
    assert ROWS[cls] == tuple(wire(make(cls)))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_body_has_the_openai_form(cls: type[GatewayError]) -> None:
    """Typed clients refuse an error whose code is a number, and then nobody sees the message."""
    found = told(make(cls))

    assert {"error"} == found.keys()
    assert {"message", "type", "param", "code", "request_id"} == found["error"].keys()
    assert found["error"]["message"]
    assert isinstance(found["error"]["message"], str)
    assert isinstance(found["error"]["type"], str)
    assert all(value is None or isinstance(value, str) for value in found["error"].values())
    assert "req-1" == found["error"]["request_id"]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_class_says_what_may_help(cls: type[GatewayError]) -> None:
    """`execute` reads `then` and `blame`, and nothing else."""
    assert cls.then in ("stop", "retry", "fallback", "larger", "escalate")
    assert isinstance(cls.blame, bool)
    if not issubclass(cls, AttemptError):
        assert ("stop", False) == (cls.then, cls.blame)


@pytest.mark.parametrize(
    ("cls", "then", "blame", "outcome"),
    [
        (Unreachable, "retry", True, AttemptOutcome.UNREACHABLE),
        (Overloaded, "retry", True, AttemptOutcome.OVERLOADED),
        (OutOfCredit, "fallback", True, AttemptOutcome.OVERLOADED),
        (TimedOut, "fallback", True, AttemptOutcome.TIMED_OUT),
        (Broken, "fallback", True, AttemptOutcome.BROKEN),
        (Misconfigured, "fallback", True, AttemptOutcome.MISCONFIGURED),
        (QueueFull, "fallback", False, AttemptOutcome.QUEUE_FULL),
        (TooLong, "larger", False, AttemptOutcome.TOO_LONG),
        (Refused, "stop", False, AttemptOutcome.REFUSED),
        (OutputInvalid, "escalate", False, AttemptOutcome.OUTPUT_INVALID),
        (Unsupported, "fallback", False, AttemptOutcome.REFUSED),
    ],
)
def test_failed_attempts_lead_where_the_design_says(
    cls: type[AttemptError], then: str, blame: bool, outcome: AttemptOutcome
) -> None:
    """What nobody is to blame for must not open a breaker; what was sent must not be sent twice."""
    assert (then, blame, outcome) == (cls.then, cls.blame, cls.outcome)


def test_every_attempt_error_is_in_that_table() -> None:
    """Including the next one that somebody adds."""
    assert {cls for cls in CLASSES if issubclass(cls, AttemptError)} - {AttemptError} == {
        Unreachable, Overloaded, OutOfCredit, TimedOut, Broken, Misconfigured, QueueFull, TooLong, Refused, Unsupported,
        OutputInvalid,
    }  # fmt: skip


def test_subclass_without_a_row_takes_its_parents() -> None:
    """The table is looked up along the MRO."""

    class Slower(TimedOut):
        pass

    assert ROWS[TimedOut] == tuple(wire(Slower("idle")))


@pytest.mark.parametrize("error", [RuntimeError("secret sk-123"), KeyError("你的密码"), GatewayError("boom")])
def test_what_is_not_ours_is_an_internal_error_without_its_text(error: Exception) -> None:
    """An exception's text may hold anything: a path, a key, a prompt."""
    found = told(error)

    assert (500, "server_error", "internal_error") == tuple(wire(error))
    assert "internal_error" == found["error"]["code"]
    if not isinstance(error, GatewayError):
        assert "internal error" == found["error"]["message"]


@given(st.text(max_size=200), st.none() | st.text(max_size=20), st.none() | st.text(max_size=20))
def test_any_words_stay_json(message: str, param: str | None, code: str | None) -> None:
    """Quotes, line ends and Chinese come from an encoder, never from formatting."""
    found = told(BadRequest(message.encode("utf-8", "replace").decode(), param=param, code=code))

    assert param == found["error"]["param"]
    assert (code or None) == found["error"]["code"]


# --- refusals ---


def test_refusal_passes_the_upstreams_own_words_and_status() -> None:
    """A content filter's reason is the caller's to read; only our request id is added."""
    error = Refused("the model refused the request", status=422, body=REFUSAL.encode())

    assert 422 == wire(error).status
    assert {**json.loads(REFUSAL)["error"], "request_id": "req-1"} == told(error)["error"]


# --- exhaustion ---

TOO_LONG = TooLong("too long", status=400)
BUSY, LIMITED = Overloaded("busy", status=503), Overloaded("slow down", status=429, code="tokens_per_minute")


@pytest.mark.parametrize(
    ("causes", "status", "code"),
    [
        ((), 503, "no_deployment"),
        ((LIMITED,), 429, "tokens_per_minute"),
        ((Overloaded("slow down", status=429),), 429, "rate_limit_exceeded"),
        ((BUSY,), 503, "upstream_overloaded"),
        ((TimedOut("first_token"),), 504, "upstream_timeout"),
        ((Broken("cut"),), 502, "upstream_error"),
        ((Unreachable("refused"),), 502, "upstream_unreachable"),
        ((Misconfigured("401"),), 502, "upstream_misconfigured"),
        ((QueueFull("full"),), 503, "queue_full"),
        ((OutputInvalid("no JSON"),), 502, "output_invalid"),
        ((TOO_LONG,), 400, "context_length_exceeded"),
        ((TOO_LONG, TOO_LONG), 400, "context_length_exceeded"),
        ((LIMITED, TimedOut("idle")), 504, "upstream_timeout"),
        ((TimedOut("idle"), LIMITED), 429, "tokens_per_minute"),
        ((TOO_LONG, BUSY), 503, "upstream_overloaded"),
        ((BUSY, TOO_LONG), 503, "upstream_overloaded"),
    ],
)
def test_status_of_exhaustion_follows_its_causes(causes: tuple[AttemptError, ...], status: int, code: str) -> None:
    """A 429 tells the SDK to wait, a 400 to shorten the prompt: a 503 for everything would tell it nothing.

    A prompt that is too long for one model and found the larger one busy is not a mistake of the caller's.
    """
    error = Exhausted(causes)

    assert (status, code) == (wire(error).status, told(error)["error"]["code"])


def test_exhaustion_for_length_names_the_parameter() -> None:
    """Clients that shorten conversations look at both."""
    assert "messages" == told(Exhausted((TOO_LONG,)))["error"]["param"]
    assert told(Exhausted(()))["error"]["param"] is None


def test_exhaustion_says_when_the_first_one_may_be_back() -> None:
    """The shortest of the waits: then somebody at least can be asked."""
    causes = (Overloaded("a", retry_after=20.0), Broken("b"), Overloaded("c", retry_after=7.0), QueueFull("d"))

    assert 7.0 == Exhausted(causes).retry_after
    assert Exhausted((Broken("b"),)).retry_after is None


# --- over the wire: whatever a caller sends, it is told as the caller's mistake, or served ---

ODD_HEADERS = [
    {"cache-control": "max-age=\u00b2"},
    {"cache-control": "max-age=" + "9" * 400}, {"cache-control": ",,=;max-age="},
    {"x-tiergate-timeout": "\u00b2"}, {"x-tiergate-timeout": "inf"}, {"x-tiergate-timeout": "9" * 400},
    {"x-tiergate-timeout": "-1s"}, {"x-tiergate-timeout": ""}, {"x-request-id": "\u00ff"}, {"content-type": "\u00e9"},
    {"content-encoding": ""}, {"content-encoding": "gzip, gzip"}, {"accept": "\u00b2"}, {"x-api-key": "\u00ff"},
]  # fmt: skip


@pytest.mark.parametrize("headers", ODD_HEADERS, ids=str)
async def test_no_header_is_an_internal_error(gateway: Gateway, small: Upstream, headers: dict[str, str]) -> None:
    """Digits that are none, numbers without end, bytes that are no text."""
    small.default(answer("好"))

    reply = await gateway.chat("你好", headers={name: value.encode("latin-1") for name, value in headers.items()})  # type: ignore[misc]

    assert reply.status in (200, 400, 415), reply.body


ODD_BODIES = [
    rb'{"model":"auto","messages":[{"role":"user","content":"\ud800"}]}',
    rb'{"model":"\ud800","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"auto","messages":[{"role":"user","content":"\xff"}]}',
    b'{"model":"auto","messages":[{"role":"user","content":"\xf0\x9f\x91\x8b\\u0000"}]}',
    b'{"model":"auto","messages":[{"role":"user","content":null}]}',
    b'{"model":"auto","messages":[{"role":"user","content":[]}],"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"model":"auto","n":-3,"max_tokens":-1,"temperature":-7e300,"messages":[{"role":"robot"}]}',
    b'{"model":"auto","max_tokens":99999999999999999999999,"messages":[{"role":"user"}]}',
    b'\xef\xbb\xbf{"model":"auto","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"' + b"x" * 10**6 + b'","messages":[{"role":"user","content":"x"}]}',
    b'{"model":"auto","input":""}', b'{"model":"auto","input":[]}', b'{"input":"x"}',
    b'{"model":"auto","input":[[1],2]}',
    b"null", b"0", b'""', b"{}", b"[]", b"NaN", b"\x00",
]  # fmt: skip


@pytest.mark.parametrize("body", ODD_BODIES, ids=lambda body: body[:60].decode("latin-1"))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/route", "/v1/embeddings"])
async def test_no_body_is_an_internal_error(gateway: Gateway, small: Upstream, path: str, body: bytes) -> None:
    """Half characters, wrong types, endless nesting: refused with a place, or passed on as they are."""
    small.default(answer("好"))

    reply = await gateway.post(path, body)

    assert reply.status in (200, 400, 404), reply.body
    assert "internal_error" not in gateway.log.events()


CHAT = b'{"model":"auto","messages":[{"role":"user","content":"' + "压".encode() * 900 + b'"}]}'


@pytest.mark.parametrize(
    ("encoding", "sent", "status"),
    [
        ("deflate", zlib.compress(CHAT), 200), ("gzip", gzip.compress(CHAT), 200), ("GZIP", gzip.compress(CHAT), 200),
        ("gzip", CHAT, 400), ("gzip", gzip.compress(CHAT)[:-9], 400), ("gzip", b"", 400), ("zstd", CHAT, 415),
    ],
    ids=["deflate", "gzip", "GZIP", "plain", "cut", "nothing", "unknown"],
)  # fmt: skip
async def test_compressed_body_is_read_or_told(
    gateway: Gateway, small: Upstream, encoding: str, sent: bytes, status: int
) -> None:
    """What a body's header promises and its bytes do not hold is the caller's mistake."""
    small.default(answer("好"))

    reply = await gateway.post("/v1/chat/completions", sent, headers={"content-encoding": encoding})

    assert status == reply.status


@pytest.mark.parametrize("size", [5_000, 500_000])
async def test_body_without_a_length_is_held_to_the_limit_as_it_comes(start: Start, small: Upstream, size: int) -> None:
    """Chunked requests declare nothing; they are cut off at the limit, not at their end."""
    gateway = await start({"tiers": {"small": tier(small, "small")}, "max_body": "20kB"})
    small.default(answer("好"))
    body = json.dumps({"model": "small", "messages": [{"role": "user", "content": "x" * size}]}).encode()

    reply = await gateway.send(request_bytes("POST", "/v1/chat/completions", body=body, chunked=True))

    assert (200 if size == 5_000 else 413) == reply.status
