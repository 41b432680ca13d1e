"""Everything beside the data path: models, the decision without a call, health, metrics, reload. FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException

from gateway import errors
from gateway.api.chat import read_chat
from gateway.api.http import error_headers, read_body, request_id
from gateway.api.surface import check_model
from gateway.errors import CallerLeft, Forbidden, GatewayError, NotFound, UnknownModel
from gateway.reload import Reloader
from gateway.runtime import Runtime
from gateway.telemetry.log import Log, log_internal
from router.explain import explain
from router.names import allowed
from router.policy import Key
from router.types import NO_CACHE_CONTROL, Plan

CREATED = 1_764_547_200  # OpenAI's model objects carry a date; ours have none of their own
PROBE_S = 0.5


def admin_router(reloader: Reloader, local_ports: Mapping[str, int]) -> APIRouter:
    """The routes; `reloader.current` is the runtime of the moment."""
    router = APIRouter()

    def caller(request: Request) -> tuple[Runtime, Key | None]:
        rt, headers = reloader.current, dict(request.scope["headers"])
        presented = headers.get(b"x-api-key") or headers.get(b"api-key")
        return rt, rt.keyring.check(headers.get(b"authorization"), presented)

    @router.get("/v1/models", summary="The names that a request may use as its model")
    async def models(request: Request) -> Response:
        rt, key = caller(request)
        names = [name for name in rt.decider.targets if allowed(key, name)]
        return _json(request, {"object": "list", "data": [_model(rt, name) for name in names]})

    @router.get("/v1/models/{name:path}", summary="One of them")
    async def model(name: str, request: Request) -> Response:
        rt, key = caller(request)
        if name not in rt.decider.targets or not allowed(key, name):
            raise UnknownModel("the model does not exist here; GET /v1/models lists them")
        return _json(request, _model(rt, name))

    @router.post("/v1/route", summary="The decision for a chat request, and its reasons; no model is called")
    async def route(request: Request) -> Response:
        rt, key = caller(request)
        headers = dict(request.scope["headers"])
        body = await read_body(headers, request.receive, rt.policy.max_body)
        seen = {name: headers[raw].decode("latin-1") for raw, name in rt.rule_headers if raw in headers}
        call_id = request_id(headers.get(b"x-request-id"))
        call = read_chat(body, call_id, seen, NO_CACHE_CONTROL)
        check_model(call.model, key, rt)
        decision = rt.decider.decide(call, key.name if key else "-")
        plan: Plan = rt.planner.plan(decision, call, rt.decider.targets[call.model], on_paper=True)
        told = explain(call, decision, plan, rt.decider.judge(call))
        return _named(call_id, orjson.dumps({"request_id": call_id, **told}), 200)

    @router.get("/health/live", summary="200 while the process runs")
    async def live(request: Request) -> Response:
        return _json(request, {"status": "ok"})

    @router.get("/health", include_in_schema=False)
    @router.get("/health/ready", summary="200 when requests can be answered, 503 while an embedded model still loads")
    async def ready(request: Request) -> Response:
        loading = [model for model, port in local_ports.items() if not await _is_loaded(port)]
        state = {"status": "loading" if loading else "ok", "loading": loading,
                 "policy": reloader.current.policy.fingerprint}  # fmt: skip
        return _json(request, state, 503 if loading else 200)

    @router.get("/metrics", summary="Prometheus metrics")
    def metrics() -> Response:  # not async: rendering takes milliseconds, so it runs in a thread
        return Response(reloader.current.equipment.metrics.render(), media_type="text/plain; version=0.0.4")

    @router.post("/admin/reload", summary="Put the policy file to work now")
    async def reload(request: Request) -> Response:
        _, key = caller(request)
        if key is not None and not key.admin:
            raise Forbidden("this API key may not use /admin/; give it admin: true in the policy")
        problems = reloader.reload()
        return _json(request, {"reloaded": not problems, "problems": problems,
                      "policy": reloader.current.policy.fingerprint}, 422 if problems else 200)  # fmt: skip

    return router


def add_error_handlers(app: FastAPI, log: Log) -> None:
    """Errors outside the data path have the same form."""

    async def ours(request: Request, exc: Exception) -> Response:
        return _error(request, exc)

    async def left(request: Request, exc: Exception) -> Response:
        return Response(status_code=499)

    async def unexpected(request: Request, exc: Exception) -> Response:
        log_internal(log, exc, request_id(dict(request.scope["headers"]).get(b"x-request-id")))
        return _error(request, exc)

    async def starlettes(request: Request, exc: Exception) -> Response:
        status = exc.status_code if isinstance(exc, HTTPException) else 500
        found = NotFound(f"there is no {request.method} {request.url.path} here")
        return _error(request, found, status if status == 405 else None)

    app.add_exception_handler(GatewayError, ours)
    app.add_exception_handler(HTTPException, starlettes)
    app.add_exception_handler(CallerLeft, left)
    app.add_exception_handler(Exception, unexpected)


def _error(request: Request, exc: Exception, status: int | None = None) -> Response:
    call_id = request_id(dict(request.scope["headers"]).get(b"x-request-id"))
    response = _named(call_id, errors.body(exc, call_id), status or errors.wire(exc).status)
    for name, value in error_headers(exc, call_id):
        response.headers[name.decode()] = value.decode()
    return response


def _json(request: Request, data: Any, status: int = 200) -> Response:
    call_id = request_id(dict(request.scope["headers"]).get(b"x-request-id"))
    return _named(call_id, orjson.dumps(data), status)


def _named(call_id: str, body: bytes, status: int) -> Response:
    """Every response carries its request's id."""
    headers = {"x-request-id": call_id, "x-tiergate-request-id": call_id}
    return Response(body, status, headers, media_type="application/json")


def _model(rt: Runtime, name: str) -> dict[str, Any]:
    target = rt.decider.targets[name]
    return {"id": name, "object": "model", "created": CREATED, "owned_by": "tiergate", "kind": target.kind}


async def _is_loaded(port: int) -> bool:
    """Whether the embedded model's own health page says so; its port is open before."""
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with closing(writer):
                writer.write(b"GET /health HTTP/1.0\r\n\r\n")
                status = (await reader.readline()).split(b" ")
    except (OSError, TimeoutError):
        return False
    return status[1:2] == [b"200"]
