"""What an upstream's refusal means: status, headers and body → one of our errors.

Only `Refused` carries the upstream's own words, because they are about the caller's request; every other message is
ours, so that no address, key or echo of a prompt gets out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import orjson

from gateway.errors import (
    AttemptError,
    Broken,
    Misconfigured,
    OutOfCredit,
    Overloaded,
    Refused,
    TooLong,
    Unsupported,
)
from router.backoff import parse_retry_after

# How well-known servers say that a prompt does not fit: OpenAI, vLLM, SGLang, llama.cpp, Ollama, TGI, Anthropic,
# Gemini, Bedrock, DashScope, Zhipu. Matched on lower-case text.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context length of|"
    r"exceed\w* .{0,60}context (?:window|length|size)|context (?:window|length|size).{0,20}exceed|"
    r"(?:available|model's?) context (?:size|length)|longer than the model|prompt is too long|input is too long|"
    r"`?inputs?`? tokens? \+ |input token count|too many (?:input )?tokens|range of input length|max_model_len|"
    r"exceeds? the max(?:imum)?[ _](?:number of tokens|model[ _]len|input)|prompt too long|"
    r"上下文长度|输入过长|超过.{0,12}(?:长度|token)"
)
_WINDOW = re.compile(
    r"(?:context (?:length|size|window)(?: of| is|:)?\s*\(?|> |maximum of |limit of |n_ctx\D{0,4}|max(?:imum)? is )"
    r"(\d{3,9})"
)
# Whole phrases: a single word such as "billing" may be the name of a caller's tool.
_NO_CREDIT = re.compile(
    r"insufficient[_ ](?:quota|balance|credits?|funds)|billing_(?:hard_limit_reached|not_active)|out of credits?\b|"
    r"exceeded your current quota|credit balance is too low|reached your (?:specified )?(?:\w+ )?usage limits?\b|"
    r"余额不足|账户欠费|已欠费"
)
# What a model lacks altogether, where another one may have it (llama.cpp, vLLM, Ollama).
_CANNOT = re.compile(
    r"(?:image|audio|multimodal|vision)\w* (?:input|data)?\s*(?:is|are) not supported|"
    r"does not support (?:image|tool|vision)"
)
_OVERLOADED_TYPES = frozenset(("overloaded_error", "rate_limit_error", "rate_limit_exceeded", "overloaded"))


class _Detail(msgspec.Struct):
    message: object = None
    type: object = None
    code: object = None
    param: object = None


def error_detail(body: bytes) -> _Detail:
    """The error object of an OpenAI, Anthropic, FastAPI or plain body; empty where there is none."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _Detail(message=body[:2000].decode("utf-8", "replace"))
    found = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(found, str):
        return _Detail(message=found)
    if not isinstance(found, dict):
        return _Detail()
    message = found.get("message") or found.get("detail") or found.get("error")
    return _Detail(message, found.get("type"), found.get("code"), found.get("param"))


def classify(status: int, headers: Mapping[str, str], body: bytes) -> AttemptError:
    """The error that a response with this status means. `headers` is case-insensitive."""
    detail = error_detail(body)
    text = f"{detail.code} {detail.type} {detail.message}".lower()
    retry_after = parse_retry_after(headers.get("retry-after"))
    code = detail.code if isinstance(detail.code, str) and len(detail.code) <= 64 else None
    if status == 402 or (status in (400, 403, 429) and _NO_CREDIT.search(text)):
        return OutOfCredit("the model's provider reports that the account's credit is used up",
                           status=status, retry_after=retry_after, code=code)  # fmt: skip
    if status in (429, 503, 529):
        return Overloaded("the model is overloaded or rate limited", status=status, retry_after=retry_after, code=code)
    if status == 501 or (status >= 400 and _CANNOT.search(text)):
        return Unsupported("the model cannot take this kind of request", status=status)
    if status in (400, 413, 422) or status >= 500:
        if _TOO_LONG.search(text):
            return too_long(text, status)
        if status >= 500:
            return Broken("the model's server failed", status=status)
    if status in (401, 403, 404) or status < 400:
        return Misconfigured("the gateway's access to the model is misconfigured", status=status)
    if status == 408:
        return Broken("the model's server gave up waiting", status=status)
    return Refused("the model refused the request", status=status, body=_openai_error(detail, status))


def classify_event(error: bytes) -> AttemptError:
    """The error that an in-band error object (the value of `error`) means: a 200 had been sent already."""
    detail = error_detail(b'{"error":' + error + b"}")
    text = f"{detail.code} {detail.type} {detail.message}".lower()
    status = _int_or_none(detail.code)
    if _TOO_LONG.search(text):
        return too_long(text, 400)
    if _NO_CREDIT.search(text):
        return OutOfCredit("the model's provider reports that the account's credit is used up")
    if status in (429, 503, 529) or str(detail.type) in _OVERLOADED_TYPES or str(detail.code) in _OVERLOADED_TYPES:
        return Overloaded("the model is overloaded or rate limited", status=status)
    if "content_filter" in text or "content_policy" in text:
        return Refused("the model refused the request", status=400, body=_openai_error(detail, 400))
    return Broken("the model's server reported an error in its answer")


def too_long(text: str, status: int) -> TooLong:
    window = _WINDOW.search(text)
    size = f" of {window[1]} tokens" if window else ""
    return TooLong(f"the prompt is longer than the model's context window{size}", status=status)


def _int_or_none(value: object) -> int | None:
    return int(value) if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()) else None


def _openai_error(detail: _Detail, status: int) -> bytes:
    """An error object whose fields have the types that typed clients expect: strings, or null."""
    message = detail.message if isinstance(detail.message, str) else orjson.dumps(detail.message).decode()
    return orjson.dumps({
        "error": {
            "message": message if detail.message else f"the model refused the request with status {status}",
            "type": detail.type if isinstance(detail.type, str) else "invalid_request_error",
            "param": detail.param if isinstance(detail.param, str) else None,
            "code": None if detail.code is None else str(detail.code),
        }
    })  # fmt: skip
