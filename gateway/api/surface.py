"""One public surface on the data path: request in, `pipeline.answer`, answer out. Raw ASGI, no framework."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.api.http import (
    EVENTS,
    JSON,
    Headers,
    Leaving,
    Receive,
    Scope,
    Send,
    cache_control,
    header_value,
    read_body,
    request_id,
    send_bytes,
    send_error,
    time_limit,
)
from gateway.deadline import within
from gateway.errors import CallerLeft, Forbidden, RequestTimeout, TimedOut, UnknownModel
from gateway.pipeline import Served, answer
from gateway.runtime import Runtime
from router.names import allowed, nearest
from router.policy import Key
from router.types import CacheControl, Call, Grant, Outcome, Surface

STALLED_S = 1.0  # after the end of the attempt: whoever has not read by then does not read


class Reader(Protocol):
    """A surface's own parsing."""

    def __call__(
        self, body: bytes, request_id: str, headers: Mapping[str, str], cache_control: CacheControl, /
    ) -> Call: ...


class SurfaceApp:
    """The ASGI app of one surface. `current` gives the runtime of the moment; a call keeps the one it began with."""

    def __init__(self, surface: Surface, read: Reader, current: Callable[[], Runtime]) -> None:
        self._surface = surface
        self._read = read
        self._current = current

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        rt = self._current()
        rt.enter()
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            call_id = request_id(headers.get(b"x-request-id"))
            try:
                call, outcome = await self._admit(headers, receive, rt, call_id, started)
            except CallerLeft:
                return
            except Exception as exc:  # noqa: BLE001 - settled (and, if it is no error of ours, logged) already
                await send_error(send, exc, call_id)
                return
            await _answer(call, outcome, rt, receive, send)
        finally:
            rt.leave()

    async def _admit(
        self, headers: dict[bytes, bytes], receive: Receive, rt: Runtime, call_id: str, started: float
    ) -> tuple[Call, Outcome]:
        """Key, size, body, model, deadline. Whatever raises here has been settled as a call without a tier."""
        call, key = Call(call_id, self._surface, b"", ""), None
        try:
            key = rt.keyring.check(headers.get(b"authorization"), headers.get(b"x-api-key") or headers.get(b"api-key"))
            limit = time_limit(headers.get(b"x-tiergate-timeout"), rt.policy.timeout)
            body = await _body_in_time(headers, receive, rt.policy.max_body, started + limit)
            seen = {name: headers[raw].decode("latin-1") for raw, name in rt.rule_headers if raw in headers}
            call = self._read(body, call_id, seen, cache_control(headers.get(b"cache-control")))
            check_model(call.model, key, rt)
        except BaseException as exc:
            rt.settle(Outcome(call, Grant(key, started), started), None, None, error=exc)
            raise
        return call, Outcome(call, Grant(key, started + limit), started)


async def _body_in_time(headers: dict[bytes, bytes], receive: Receive, max_bytes: int, due: float) -> bytes:
    try:
        async with within(due, "deadline"):
            return await read_body(headers, receive, max_bytes)
    except TimedOut as exc:
        raise RequestTimeout("the body of the request did not arrive in time") from exc


def check_model(model: str, key: Key | None, rt: Runtime) -> None:
    """Raises `UnknownModel` or `Forbidden`."""
    known = rt.decider.targets
    if model not in known:
        near = nearest(model, known, key)
        hint = f"; did you mean {near!r}?" if near else "; GET /v1/models lists them"
        raise UnknownModel(f"the model does not exist here{hint}")
    if not allowed(key, model):
        raise Forbidden("this API key may not use the model")


async def _answer(call: Call, outcome: Outcome, rt: Runtime, receive: Receive, send: Send) -> None:
    leaving = Leaving(receive)
    try:
        async with await answer(call, outcome, rt, leaving.watch) as served:
            await _send(served, send, leaving)
    except asyncio.CancelledError:
        if not leaving.left:
            raise
        asyncio.current_task().uncancel()  # type: ignore[union-attr]
    except Exception as exc:  # noqa: BLE001 - the last line of defence: settled and logged already, told as a 500
        leaving.stop()
        if outcome.first_byte is None:
            await send_error(send, exc, call.request_id, explaining(outcome))
    finally:
        leaving.stop()


async def _send(served: Served, send: Send, leaving: Leaving) -> None:
    """The answer, as fast as its caller reads. Raises `CallerLeft` for one who does not read at all."""
    try:
        async with within(served.last.due + STALLED_S, served.last.phase):
            await _send_all(served, send, leaving)
    except TimedOut as exc:
        raise CallerLeft from exc


async def _send_all(served: Served, send: Send, leaving: Leaving) -> None:
    outcome, body = served.outcome, served.whole
    outcome.status = 200
    headers = explaining(outcome)
    if body is not None:
        headers += EVENTS if outcome.call.stream else [JSON]
        headers.append((b"content-length", b"%d" % len(body)))
        outcome.first_byte = time.monotonic()
        leaving.stop()
        await send_bytes(send, 200, headers, body)
        return
    headers += EVENTS
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    outcome.first_byte = time.monotonic()
    async for data in served.events():
        await send({"type": "http.response.body", "body": data, "more_body": True})
    leaving.stop()
    await send({"type": "http.response.body", "body": b""})


def explaining(outcome: Outcome) -> Headers:
    """The `x-tiergate-*` headers: every answer explains itself."""
    call, decision = outcome.call, outcome.decision
    name = call.request_id.encode("ascii")
    headers: Headers = [
        (b"x-request-id", name),
        (b"x-tiergate-request-id", name),
        (b"x-tiergate-cache", outcome.cache.encode("ascii")),
        (b"x-tiergate-attempts", b"%d" % len(outcome.attempts)),
    ]
    route = decision.route if decision is not None else outcome.cached_route
    for header, text in (
        (b"x-tiergate-route", route), (b"x-tiergate-tier", outcome.tier),
        (b"x-tiergate-deployment", outcome.deployment), (b"x-tiergate-model", outcome.model),
    ):  # fmt: skip
        if text:
            headers.append((header, header_value(text)))
    if outcome.cache == "hit-exact":
        headers.append((b"x-tiergate-reason", b"answered from the exact cache"))
    if decision is not None:
        headers.append((b"x-tiergate-reason", header_value(decision.reason)))
        if decision.difficulty is not None:
            headers.append((b"x-tiergate-difficulty", b"%.3f" % decision.difficulty))
    if outcome.cache_age_s is not None:
        headers.append((b"age", b"%d" % outcome.cache_age_s))
    if outcome.cost_usd is not None:
        headers.append((b"x-tiergate-cost-usd", b"%.9g" % outcome.cost_usd))
        if (saved := outcome.saved_usd) is not None:
            headers.append((b"x-tiergate-saved-usd", b"%.9g" % saved))
    return headers
