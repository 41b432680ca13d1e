"""The tree of errors, and its form on the wire.

A class says what happened, what may help (`then`) and whether the deployment's health suffers (`blame`).
`gateway.execute` reads those two and never tests for a class. Statuses and bodies are known here alone.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import orjson

from router.types import AttemptOutcome

Then = Literal["stop", "retry", "fallback", "larger", "escalate"]
Phase = Literal["connect", "first_token", "first_byte", "idle", "total", "deadline"]


class CallerLeft(Exception):
    """The caller went away, or reads nothing any more: nobody's fault."""


class GatewayError(Exception):
    """Base. `str(error)` is safe for callers: our own words, no secret, no prompt, no upstream address."""

    then: ClassVar[Then] = "stop"
    blame: bool = False
    retry_after: float | None = None  # seconds
    param: str | None = None
    code: str | None = None


class ClientError(GatewayError):
    """The caller's mistake; nothing was attempted."""


class BadRequest(ClientError):
    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.code = param, code


class UnsupportedMedia(ClientError):
    """A request body in an encoding that we do not undo."""


class Unauthorized(ClientError):
    pass


class Forbidden(ClientError):
    """A known key that may not name this model."""


class UnknownModel(ClientError):
    param = "model"


class NotFound(ClientError):
    """No such path, or a wrong method."""


class TooLarge(ClientError):
    """The request body is larger than the policy's `max_body`."""


class RequestTimeout(ClientError):
    """The request's body did not arrive in time."""


class RateLimited(ClientError):
    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverBudget(ClientError):
    pass


class AttemptError(GatewayError):
    """One attempt failed."""

    outcome: ClassVar[AttemptOutcome]
    status: int | None = None  # the upstream's, if it answered
    upstream_code: str | None = None  # its error code, if it is a short word

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after, self.upstream_code = status, retry_after, code


class Unreachable(AttemptError):
    """Nothing was sent: refused, no route, name not found, TLS failed."""

    then, blame, outcome = "retry", True, AttemptOutcome.UNREACHABLE


class Overloaded(AttemptError):
    """It said 429, 503 or 529."""

    then, blame, outcome = "retry", True, AttemptOutcome.OVERLOADED


class OutOfCredit(AttemptError):
    """It said 402, or that a quota or balance is used up: waiting a moment does not help."""

    then, blame, outcome = "fallback", True, AttemptOutcome.OVERLOADED


class TimedOut(AttemptError):
    then, blame, outcome = "fallback", True, AttemptOutcome.TIMED_OUT

    def __init__(self, phase: Phase) -> None:
        super().__init__(f"the model did not answer in time ({phase})")
        self.phase = phase
        self.blame = phase != "deadline"  # the caller's own time was up: nobody's fault


class Broken(AttemptError):
    """5xx, reset, cut short, nonsense."""

    then, blame, outcome = "fallback", True, AttemptOutcome.BROKEN


class Misconfigured(AttemptError):
    """Its 401, 403 or 404: our key or model name is wrong, so alert."""

    then, blame, outcome = "fallback", True, AttemptOutcome.MISCONFIGURED


class QueueFull(AttemptError):
    """Our own cap of that deployment."""

    then, outcome = "fallback", AttemptOutcome.QUEUE_FULL


class TooLong(AttemptError):
    """Longer than this model's window: only on to a larger one, never again here."""

    then, outcome = "larger", AttemptOutcome.TOO_LONG
    param = "messages"


class Refused(AttemptError):
    """Its other 4xx (content policy too): the caller's request, passed on as it is."""

    then, outcome = "stop", AttemptOutcome.REFUSED

    def __init__(self, message: str, *, status: int, body: bytes) -> None:
        super().__init__(message, status=status)
        self.body = body  # the upstream's error object in the OpenAI form, as JSON


class Unsupported(AttemptError):
    """This deployment's provider has no place for a field of the request; another one may."""

    then, outcome = "fallback", AttemptOutcome.REFUSED
    code = "unsupported_parameter"

    def __init__(self, message: str, *, param: str | None = None, status: int | None = None) -> None:
        super().__init__(message, status=status)
        self.param = param


class OutputInvalid(AttemptError):
    """Answered, but failed the route's check."""

    then, outcome = "escalate", AttemptOutcome.OUTPUT_INVALID


class Exhausted(GatewayError):
    """Every attempt failed; the status follows from the causes."""

    def __init__(self, causes: tuple[AttemptError, ...]) -> None:
        self.causes = causes
        super().__init__(str(self.decisive or "no deployment is available for this request"))
        waits = [cause.retry_after for cause in causes if cause.retry_after is not None]
        self.retry_after = min(waits) if waits else None

    @property
    def decisive(self) -> AttemptError | None:
        """The cause that the caller is told: the last one that is not about the prompt's length, else the last."""
        others = [cause for cause in self.causes if not isinstance(cause, TooLong)]
        return others[-1] if others else (self.causes[-1] if self.causes else None)


class Wire(NamedTuple):
    """How an error looks to the caller."""

    status: int
    type: str
    code: str | None


# One row for each class that may reach the caller, looked up along the MRO.
_WIRE: dict[type[GatewayError], Wire] = {
    ClientError: Wire(400, "invalid_request_error", None),
    UnsupportedMedia: Wire(415, "invalid_request_error", "unsupported_encoding"),
    Unauthorized: Wire(401, "authentication_error", "invalid_api_key"),
    Forbidden: Wire(403, "permission_error", "model_not_allowed"),
    UnknownModel: Wire(404, "invalid_request_error", "model_not_found"),
    NotFound: Wire(404, "invalid_request_error", "unknown_url"),
    TooLarge: Wire(413, "invalid_request_error", "request_too_large"),
    RequestTimeout: Wire(408, "invalid_request_error", "request_timeout"),
    RateLimited: Wire(429, "rate_limit_error", "rate_limit_exceeded"),
    OverBudget: Wire(429, "insufficient_quota", "insufficient_quota"),
    Unreachable: Wire(502, "server_error", "upstream_unreachable"),
    Overloaded: Wire(503, "server_error", "upstream_overloaded"),
    OutOfCredit: Wire(503, "server_error", "upstream_out_of_credit"),
    TimedOut: Wire(504, "server_error", "upstream_timeout"),
    Broken: Wire(502, "server_error", "upstream_error"),
    Misconfigured: Wire(502, "server_error", "upstream_misconfigured"),
    QueueFull: Wire(503, "server_error", "queue_full"),
    TooLong: Wire(400, "invalid_request_error", "context_length_exceeded"),
    Refused: Wire(400, "invalid_request_error", None),
    Unsupported: Wire(400, "invalid_request_error", "unsupported_parameter"),
    OutputInvalid: Wire(502, "server_error", "output_invalid"),
    Exhausted: Wire(503, "server_error", "no_deployment"),
    GatewayError: Wire(500, "server_error", "internal_error"),
}
INTERNAL = Wire(500, "server_error", "internal_error")


def wire(error: BaseException) -> Wire:
    """Status, type and code for the caller. Anything that is not a `GatewayError` is an internal error."""
    if isinstance(error, Exhausted) and (cause := error.decisive) is not None:
        return wire(cause)
    if isinstance(error, Overloaded) and error.status == 429:
        return Wire(429, "rate_limit_error", error.upstream_code or "rate_limit_exceeded")
    found = next((_WIRE[cls] for cls in type(error).__mro__ if cls in _WIRE), INTERNAL)
    if isinstance(error, Refused) and error.status is not None:
        return found._replace(status=error.status)
    return found


def body(error: BaseException, request_id: str) -> bytes:
    """The OpenAI error object. The upstream's own words appear only in what it refused of the caller's request."""
    if isinstance(error, Refused):
        return _with_request_id(error.body, request_id)
    row = wire(error)
    known = isinstance(error, GatewayError)
    return orjson.dumps({
        "error": {
            "message": str(error) if known else "internal error",
            "type": row.type,
            "param": _param(error),
            "code": (error.code if isinstance(error, BadRequest) and error.code else row.code),
            "request_id": request_id,
        }
    })  # fmt: skip


def _param(error: BaseException) -> str | None:
    if isinstance(error, Exhausted):
        return error.decisive.param if error.decisive else None
    return error.param if isinstance(error, GatewayError) else None


def _with_request_id(refusal: bytes, request_id: str) -> bytes:
    data = orjson.loads(refusal)
    data["error"]["request_id"] = request_id
    return orjson.dumps(data)
