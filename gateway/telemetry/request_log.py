"""One JSON line a request, written from its `Outcome`. No prompt text unless the policy asks for it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from io import FileIO
from typing import Any

import orjson

from gateway import errors
from router.policy import RequestLog
from router.types import AttemptRecord, Outcome

FLUSH_BYTES = 64 * 1024
FLUSH_S = 0.2
MAX_BUFFER_BYTES = 16 * 2**20


def outcome_label(outcome: Outcome) -> str:
    """ok, error, client_error or client_closed: the closed set that metrics and log share."""
    if outcome.status == 499:
        return "client_closed"
    error = outcome.error
    if error is None:
        return "ok"
    return "client_error" if errors.wire(error).status < 500 else "error"


def line(outcome: Outcome, prompts: bool) -> bytes:
    """The line, with its line end."""
    call, decision, usage = outcome.call, outcome.decision, outcome.usage
    last = outcome.attempts[-1] if outcome.attempts else None
    ended = outcome.ended or outcome.started
    record: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": call.request_id,
        "key": outcome.grant.tenant,
        "surface": call.surface,
        "model": call.model,
        "stream": call.stream,
        "route": decision.route if decision else None,
        "tier": outcome.tier,
        "deployment": outcome.deployment,
        "reason": decision.reason if decision else None,
        "difficulty": decision.difficulty if decision else None,
        "cache": outcome.cache,
        "status": outcome.status,
        "outcome": outcome_label(outcome),
        "error": _error(outcome.error),
        "attempts": [_attempt(record) for record in outcome.attempts],
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_input if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "reasoning_tokens": usage.reasoning if usage else None,
        "usage_estimated": usage.estimated if usage else None,
        "cost_usd": outcome.cost_usd,
        "baseline_usd": outcome.baseline_usd,
        "saved_usd": outcome.saved_usd,
        "ttft_ms": _ms(outcome.started, outcome.first_token),
        "duration_ms": _ms(outcome.started, ended),
        "overhead_ms": round(outcome.overhead_s * 1000, 3),
    }
    if last is None:
        record.pop("attempts")
    if prompts:
        record["request"] = _readable(call.body)
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def _readable(body: bytes) -> Any:
    """The caller's body in one line; None if it was refused before it was read, or is no JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _attempt(record: AttemptRecord) -> dict[str, Any]:
    return {
        "tier": record.tier, "deployment": record.deployment, "outcome": record.outcome, "status": record.status,
        "error": record.error, "ms": _ms(record.started, record.ended),
    }  # fmt: skip


def _error(error: BaseException | None) -> str | None:
    if error is None:
        return None
    return type(error).__name__ if isinstance(error, errors.GatewayError) else "internal"


def _ms(start: float, end: float | None) -> float | None:
    return None if end is None else round((end - start) * 1000, 3)


class RequestLogWriter:
    """Lines into a buffer, the buffer to its file every `FLUSH_S`. A full disk loses lines, no request."""

    def __init__(self, policy: RequestLog, on_drop: Callable[[int], None]) -> None:
        self.prompts = policy.prompts
        self._on_drop = on_drop
        self._buffer: list[bytes] = []
        self._size = 0
        self._stalled = False  # the last flush could not write all: only the timer tries again
        self._file: FileIO | None = _open(policy.path)

    @property
    def on(self) -> bool:
        return self._file is not None

    def write(self, outcome: Outcome) -> None:
        data = line(outcome, self.prompts)
        if self._size + len(data) > MAX_BUFFER_BYTES:
            self._on_drop(1)
            return
        self._buffer.append(data)
        self._size += len(data)
        if self._size >= FLUSH_BYTES and not self._stalled:
            self.flush()

    def flush(self) -> None:
        """Write what is there; what cannot be written stays for the next time, up to `MAX_BUFFER_BYTES`."""
        if self._file is None or not self._buffer:
            return
        data = b"".join(self._buffer)
        try:
            while data and (written := self._file.write(data)):  # None: a pipe whose reader stalls
                data = data[written:]
        except (OSError, ValueError):
            pass
        self._buffer = [data] if data else []
        self._size = len(data)
        self._stalled = bool(data)

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None


def _open(path: str) -> FileIO | None:
    """Unbuffered: what could not be written is known, and tried again once."""
    if path == "off":
        return None
    if path == "stdout":
        return FileIO(sys.stdout.fileno(), "ab", closefd=False)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    return FileIO(path, "ab")
