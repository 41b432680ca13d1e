"""Bytes → a typed body, with the place of every mistake."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gateway.errors import BadRequest

Body = TypeVar("Body")

_PATH = re.compile(r" - at `\$\.?(.*?)`$")
_MISSING = re.compile(r"missing required field `(.+?)`")


def decode(decoder: Callable[[bytes], Body], body: bytes) -> Body:
    """Raises `BadRequest`; its message holds places and types, never a value of the caller's."""
    if not body:
        raise BadRequest("the request has no body; send a JSON object")
    try:
        return decoder(body)
    except msgspec.ValidationError as exc:
        raise _invalid(str(exc)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise BadRequest(f"the body is not valid JSON: {exc}") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None


def _invalid(text: str) -> BadRequest:
    path = _PATH.search(text)
    place = path[1] if path else ""
    what = _PATH.sub("", text)
    if missing := _MISSING.search(what):
        param = f"{place}.{missing[1]}".lstrip(".")
        return BadRequest(f"{param} is missing", param=param)
    return BadRequest(f"{place or 'the body'}: {what[:1].lower()}{what[1:]}", param=place or None)


def no_model() -> BadRequest:
    return BadRequest("model is missing; name a route, alias, tier or deployment (GET /v1/models)", param="model")
