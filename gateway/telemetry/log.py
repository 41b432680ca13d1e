"""The process's own log: JSON lines on stderr. Never a prompt, an answer, a key or an upstream's words."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any, Protocol

import orjson
import structlog


class Log(Protocol):
    def debug(self, event: str, **fields: Any) -> Any: ...
    def info(self, event: str, **fields: Any) -> Any: ...
    def warning(self, event: str, **fields: Any) -> Any: ...
    def error(self, event: str, **fields: Any) -> Any: ...


def log_internal(log: Log, error: BaseException, request_id: str) -> None:
    """An exception that nobody expected: its class and where it arose, not its text, which may hold anything."""
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    log.error("internal_error", request_id=request_id, error=type(error).__name__, frames=frames[-12:])


def _dumps(value: Any, **_: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def make_log(level: str = "info") -> Log:
    """A logger of its own, without structlog's global configuration, so that ten apps can live in one process."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
    )
    return log
