"""Wiring: the ASGI app of one worker. No logic."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI

from gateway.api.admin import add_error_handlers, admin_router
from gateway.api.chat import read_chat
from gateway.api.embeddings import read_embeddings
from gateway.api.http import Receive, Scope, Send
from gateway.api.surface import SurfaceApp
from gateway.reload import Reloader
from gateway.runtime import Equipment
from gateway.settings import Settings
from gateway.telemetry.log import Log, make_log
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request_log import FLUSH_S
from router.decide import Classifier
from router.difficulty import Classifier as BuiltIn
from router.policy_file import Loaded


class App:
    """The data path first (raw ASGI, by path), everything else through FastAPI."""

    def __init__(self, surfaces: Mapping[str, SurfaceApp], rest: FastAPI, reloader: Reloader) -> None:
        self._surfaces = surfaces
        self._rest = rest
        self.reloader = reloader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and (app := self._surfaces.get(scope["path"])):
            await app(scope, receive, send)
        else:
            await self._rest(scope, receive, send)


def build_app(
    settings: Settings, loaded: Loaded, *, log: Log | None = None, classifier: Classifier | None = None
) -> App:
    """An app with a metrics registry, clients and caches of its own; to be called inside a running event loop."""
    equipment = Equipment(
        Metrics(), log or make_log(settings.log_level), classifier or BuiltIn.load(), settings.local_ports
    )
    reloader = Reloader(settings, loaded, equipment, os.environ)
    rest = FastAPI(title="Tiergate", lifespan=_lifespan(reloader, settings), redoc_url=None)
    rest.include_router(admin_router(reloader, settings.local_ports))
    add_error_handlers(rest, equipment.log)
    surfaces = {
        "/v1/chat/completions": SurfaceApp("chat", read_chat, lambda: reloader.current),
        "/v1/embeddings": SurfaceApp("embeddings", read_embeddings, lambda: reloader.current),
    }
    return App(surfaces, rest, reloader)


def _lifespan(reloader: Reloader, settings: Settings):  # type: ignore[no-untyped-def]
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        reloader.start()
        tasks = [asyncio.create_task(reloader.watch(settings.watch_s)), asyncio.create_task(_flush(reloader))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await reloader.aclose()

    return lifespan


async def _flush(reloader: Reloader) -> None:
    """Request-log lines reach their file within `FLUSH_S`."""
    while True:
        await asyncio.sleep(FLUSH_S)
        reloader.current.request_log.flush()
