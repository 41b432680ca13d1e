"""Whatever LiteLLM raises → one of our errors.

Its own classes are often wrong (a 529 becomes a 500, a refused connection an "internal server error", a 429 that
speaks of an overload a 500), but the chain of causes keeps what really happened: the HTTP client's error, with the
provider's status, headers and body. So the chain is read first, LiteLLM's verdict where it knows more, then its class.
Classes are looked up by name, along the MRO: nothing here imports LiteLLM.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import orjson

from gateway.errors import (
    AttemptError,
    Broken,
    GatewayError,
    Misconfigured,
    OutOfCredit,
    Overloaded,
    Refused,
    TimedOut,
    Unreachable,
    Unsupported,
)
from gateway.upstream.failures import classify, classify_event, error_detail, too_long

Meaning = Literal[
    "unsupported", "too_long", "filtered", "no_credit", "misconfigured", "timed_out", "overloaded", "refused", "broken"
]  # fmt: skip

# Read from the class itself towards its bases, so a subclass needs a row only where it means something else.
MEANINGS: Mapping[str, Meaning] = MappingProxyType({
    "litellm.exceptions.UnsupportedParamsError": "unsupported",
    "litellm.exceptions.ContextWindowExceededError": "too_long",
    "litellm.exceptions.ContentPolicyViolationError": "filtered",
    "litellm.exceptions.PaymentRequiredError": "no_credit",
    "litellm.exceptions.BudgetExceededError": "no_credit",
    "litellm.exceptions.AuthenticationError": "misconfigured",
    "litellm.exceptions.PermissionDeniedError": "misconfigured",
    "litellm.exceptions.NotFoundError": "misconfigured",
    "litellm.exceptions.LiteLLMUnknownProvider": "misconfigured",
    "litellm.exceptions.ModelNotMappedError": "misconfigured",
    "litellm.exceptions.Timeout": "timed_out",
    "litellm.exceptions.RateLimitError": "overloaded",
    "litellm.exceptions.ServiceUnavailableError": "overloaded",
    "litellm.exceptions.BadRequestError": "refused",
    "litellm.exceptions.InvalidRequestError": "refused",
    "litellm.exceptions.UnprocessableEntityError": "refused",
    "litellm.exceptions.GuardrailRaisedException": "refused",
    "litellm.exceptions.BlockedPiiEntityError": "refused",
    "litellm.exceptions.SensitiveDataRouteException": "refused",
    "litellm.exceptions.ModifyResponseException": "refused",
    "litellm.exceptions.BadGatewayError": "broken",
    "litellm.exceptions.InternalServerError": "broken",
    "litellm.exceptions.APIError": "broken",
    "litellm.exceptions.APIConnectionError": "broken",
    "litellm.exceptions.APIResponseValidationError": "broken",
    "litellm.exceptions.OpenAIError": "broken",
    "litellm.exceptions.MockException": "broken",
    "builtins.ImportError": "misconfigured",  # a provider's own SDK is missing (boto3, ...)
})  # fmt: skip

# LiteLLM's verdicts that hold even against the status: it has read the provider's message for them.
_VERDICTS = frozenset(("unsupported", "too_long", "filtered", "no_credit", "misconfigured"))
_NOT_CONNECTED = frozenset((
    "httpx.ConnectError", "httpx.ConnectTimeout", "aiohttp.client_exceptions.ClientConnectorError",
    "aiohttp.client_exceptions.ConnectionTimeoutError", "botocore.exceptions.EndpointConnectionError",
))  # fmt: skip
_STATUS_ERRORS = frozenset(("httpx.HTTPStatusError", "openai.APIStatusError"))
_MOST_LINKS = 12
_PARAMETERS = re.compile(r"parameters: \[([^\]]*)\]")
_RETRY_DELAY = re.compile(rb'"retryDelay":\s*"(\d+(?:\.\d+)?)s"')  # Gemini's Retry-After
_BAD_KEY = re.compile(rb"API_KEY_INVALID|API key not valid|API key expired")  # Google says 400 to a wrong key
_NO_PROVIDER = "LLM Provider NOT provided"  # said of a model name whose provider LiteLLM does not know
_PREFIX = re.compile(r"^(?:litellm\.\w+: |\w+(?:Exception|Error)(?: - |: ))+")


class Response(msgspec.Struct, frozen=True):
    """What a provider answered, as far as an exception still knows it."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def failure(exc: BaseException, secrets: tuple[str, ...] = ()) -> GatewayError:
    """An `AttemptError`, or `Unsupported` for a field that the provider lacks. `secrets` are cut out of any text."""
    links = tuple(_chain(exc))
    meaning = meaning_of(next((link for link in links if _is_litellm(link)), links[0]))
    if any(_NOT_CONNECTED.intersection(_class_names(link)) for link in links):
        return Unreachable("the model's server cannot be reached")
    response = next((found for link in links if (found := _response(link)) is not None), None)
    if meaning == "unsupported":
        return _unsupported(_message(exc))
    if response is not None and response.status >= 400:
        return _answered(response, meaning, secrets)
    return _unanswered(links, meaning, secrets)


def meaning_of(exc: BaseException) -> Meaning:
    """The row of the first class along the MRO that has one; "broken" for what LiteLLM never meant to raise."""
    return next((MEANINGS[name] for name in _class_names(exc) if name in MEANINGS), "broken")


def _answered(response: Response, meaning: Meaning, secrets: tuple[str, ...]) -> AttemptError:
    status, body = response.status, _without(secrets, response.body)
    headers = dict(response.headers)
    if delay := _RETRY_DELAY.search(body):
        headers.setdefault("retry-after", delay[1].decode())
        if status == 429:  # Gemini words a limit per minute like a used-up account, but says when to come back
            return Overloaded("the model is overloaded or rate limited", status=status, retry_after=float(delay[1]))
    if status == 400 and _BAD_KEY.search(body):
        return _verdict("misconfigured", "", status, b"")
    if meaning in _VERDICTS and status < 500 and status != 429:
        return _verdict(meaning, error_text(body), status, body)
    return classify(status, headers, body)


def _verdict(meaning: Meaning, text: str, status: int, body: bytes) -> AttemptError:
    match meaning:
        case "too_long":
            return too_long(text.lower(), status)
        case "no_credit":
            return OutOfCredit("the model's provider reports that the account's credit is used up", status=status)
        case "misconfigured":
            return Misconfigured("the gateway's access to the model is misconfigured", status=status)
        case _:
            return Refused("the model refused the request", status=status, body=_filtered(text, body))


def _unanswered(links: tuple[BaseException, ...], meaning: Meaning, secrets: tuple[str, ...]) -> AttemptError:
    """No response to read: an error event inside a stream, a broken connection, or LiteLLM's own refusal."""
    text = _without(secrets, _PREFIX.sub("", _message(links[0])).encode()).decode()[:2000]
    status = next((code for link in reversed(links) if (code := _status(link)) is not None), None)
    if meaning == "timed_out":
        return TimedOut("total")
    if meaning == "refused" and text.startswith(_NO_PROVIDER):
        meaning = "misconfigured"
    if meaning in _VERDICTS:
        return _verdict(meaning, text, status or 400, b"")
    if meaning == "refused":
        code = status if status is not None and 400 <= status < 500 else 400
        return Refused("the model refused the request", status=code, body=_openai_error(text, None))
    event = next((link for link in links if type(link).__module__.startswith("litellm.llms.")), None)
    if event is None or _status(event) is None:  # then its text may hold words of the answer: nothing to go by
        return Broken("the answer was cut short, or cannot be read")
    if "overloaded" in _message(event).lower():
        return Overloaded("the model is overloaded or rate limited")
    return classify_event(orjson.dumps({"message": _message(event), "code": _status(event)}))


def _unsupported(text: str) -> Unsupported:
    found = _PARAMETERS.search(text)
    names = re.findall(r"\w+", found[1]) if found else []
    shown = ", ".join(names) or "of this request"
    return Unsupported(
        f"the model's provider has no place for the field {shown}",
        param=names[0] if names else None,
    )


# --- the chain of causes ---


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """From the outside in. An error of ours is where it ends: what lies behind that belongs to another attempt."""
    seen: set[int] = set()
    link: BaseException | None = exc
    while link is not None and len(seen) < _MOST_LINKS and id(link) not in seen:
        if isinstance(link, GatewayError):
            return
        seen.add(id(link))
        inner: object = getattr(link, "original_exception", None)  # of LiteLLM's MidStreamFallbackError
        if isinstance(inner, BaseException):
            yield inner
        else:
            yield link
        link = link.__cause__ or link.__context__


def _class_names(exc: BaseException) -> tuple[str, ...]:
    return tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in type(exc).__mro__)


def _is_litellm(exc: BaseException) -> bool:
    return type(exc).__module__ == "litellm.exceptions"


def _response(exc: BaseException) -> Response | None:
    """The provider's answer, from the HTTP client's error. LiteLLM's own classes carry made-up ones."""
    if _is_litellm(exc) or not _STATUS_ERRORS.intersection(_class_names(exc)):
        return None
    response: Any = getattr(exc, "response", None)
    if response is None:
        return None
    return Response(
        int(response.status_code), {k.lower(): v for k, v in response.headers.items()}, _body(exc, response)
    )


def _body(exc: BaseException, response: Any) -> bytes:
    try:
        content = bytes(response.content)
    except RuntimeError:  # httpx: a streamed response that nobody has read
        content = b""
    return _one(content or _bytes_of(_message(exc)))


def _bytes_of(text: str) -> bytes:
    """LiteLLM sometimes formats bytes into a message: `"b'{...}'"`."""
    if text[:2] in ("b'", 'b"'):
        try:
            return bytes(ast.literal_eval(text))
        except (SyntaxError, ValueError):
            return b""
    return text.encode()


def _one(body: bytes) -> bytes:
    """Google sometimes answers a list with one error in it."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    return orjson.dumps(value[0]) if isinstance(value, list) and value else body


def _message(exc: BaseException) -> str:
    return str(getattr(exc, "message", None) or exc)


def _status(exc: BaseException) -> int | None:
    status = getattr(exc, "status_code", None)
    return status if isinstance(status, int) and status >= 400 else None


# --- what is passed on to callers ---


def error_text(body: bytes) -> str:
    message = error_detail(body).message
    return message if isinstance(message, str) else ""


def _without(secrets: tuple[str, ...], body: bytes) -> bytes:
    for secret in secrets:
        body = body.replace(secret.encode(), b"[...]")
    return body


def _filtered(text: str, body: bytes) -> bytes:
    detail = error_detail(body) if body else None
    code = detail.code if detail is not None and isinstance(detail.code, str) else "content_filter"
    return _openai_error(text, code)


def _openai_error(text: str, code: str | None) -> bytes:
    message = text or "the model refused the request"
    return orjson.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})
