"""A real gateway on a free port in the test's own loop, with scripted upstreams for its tiers."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from gateway.app import App, build_app
from gateway.settings import Settings
from gateway.telemetry.request_log import outcome_label
from router.policy_file import load_policy
from router.types import Outcome
from tests.client import Client
from tests.upstream import Upstream

TIMEOUTS = {"connect": "1s", "first_token": "500ms", "first_byte": "1s", "idle": "700ms", "total": "10s"}
RETRY = {"attempts": 0, "backoff": {"initial": "10ms", "max": "200ms"}}


class Log:
    """Keeps what the process would log."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def _add(self, level: str) -> Callable[..., None]:
        return lambda event, **fields: self.lines.append({"level": level, "event": event, **fields})

    def __getattr__(self, level: str) -> Callable[..., None]:
        return self._add(level)

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


class Gateway(Client):
    """The running app, and a client for it."""

    def __init__(self, app: App, log: Log, url: str, policy_file: Path, requests: Path) -> None:
        super().__init__(url)
        self.app, self.log, self.policy_file, self._requests = app, log, policy_file, requests

    @property
    def rt(self) -> Any:
        return self.app.reloader.current

    def requests(self) -> list[dict[str, Any]]:
        """The request log so far."""
        self.rt.request_log.flush()
        return [json.loads(line) for line in self._requests.read_text().splitlines()]

    async def settled(self, count: int, timeout: float = 3.0) -> list[dict[str, Any]]:
        """The request log, once it holds `count` lines."""
        async with asyncio.timeout(timeout):
            while len(lines := self.requests()) < count:
                await asyncio.sleep(0.005)
        return lines

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples that have these labels."""
        found = [
            sample.value
            for family in self.rt.equipment.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found)


def tier(upstream: Upstream | str, name: str, **fields: Any) -> dict[str, Any]:
    """A tier with one deployment of the same name and `-1`; deployment fields are taken from `deployment`."""
    url = upstream if isinstance(upstream, str) else upstream.url
    deployment = {
        "name": f"{name}-1", "model": f"openai/{name}-model", "api_base": url, "api_key": f"up-key-{name}",
        "price": {"input": 1.0, "output": 2.0}, **fields.pop("deployment", {}),
    }  # fmt: skip
    return {"deployments": [deployment], "timeouts": TIMEOUTS, "retry": RETRY, "cooldown": None, **fields}


Start = Callable[..., Any]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """`await start(policy_dict)` → a `Gateway`. After the test: nothing is left open."""
    async with AsyncExitStack() as stack:
        running: list[Gateway] = []

        async def starter(policy: Mapping[str, Any], classifier: Any = None) -> Gateway:
            gateway = await stack.enter_async_context(_Running(policy, tmp_path, classifier))
            running.append(gateway)
            return gateway

        yield starter
        for gateway in running:
            await _nothing_left(gateway)


class _Running:
    def __init__(self, policy: Mapping[str, Any], folder: Path, classifier: Any) -> None:
        self._log_file = folder / "requests.jsonl"
        self._log_file.touch()
        self._file = folder / "policy.yaml"
        self._text = json.dumps({"version": 1, "log": {"path": str(self._log_file)}, **policy})
        self._file.write_text(self._text)
        self._classifier = classifier

    async def __aenter__(self) -> Gateway:
        log = Log()
        settings = Settings(str(self._file), port=0, watch_s=0.05)
        app = build_app(settings, load_policy(self._text, {}), log=log, classifier=self._classifier)  # type: ignore[arg-type]
        self._sock = socket.socket()
        self._sock.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, http="httptools", ws="none", log_config=None, access_log=False,  # type: ignore[arg-type]
                                server_header=False, date_header=False, timeout_graceful_shutdown=5)  # fmt: skip
        self._server = uvicorn.Server(config)
        self._server.capture_signals = _no_signals  # type: ignore[method-assign,assignment]
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]))
        while not self._server.started:
            await asyncio.sleep(0.001)
        url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        return Gateway(app, log, url, self._file, self._log_file)

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task
        self._sock.close()


class _no_signals:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


async def _nothing_left(gateway: Gateway) -> None:
    """No slot held, no call open, every call settled once."""
    rt = gateway.rt
    async with asyncio.timeout(3):
        while rt._calls or any(slot.open for slot in rt.executor._slots.values()) or rt.cache.in_flight:
            await asyncio.sleep(0.005)
    assert gateway.metric("tiergate_in_flight") == 0


@pytest.fixture
async def small() -> AsyncIterator[Upstream]:
    async with Upstream() as upstream:
        yield upstream
        assert not upstream.unused, "scripts that nobody asked for"
        assert not upstream.unexpected, "requests that no script was for"


@pytest.fixture
async def medium() -> AsyncIterator[Upstream]:
    async with Upstream() as upstream:
        yield upstream
        assert not upstream.unused, "scripts that nobody asked for"
        assert not upstream.unexpected, "requests that no script was for"


@pytest.fixture
async def gateway(start: Start, small: Upstream, medium: Upstream) -> Gateway:
    """Two tiers, small first, with fallback to medium; no retries, no cache, no cooldown."""
    gateway: Gateway = await start(
        {
            "tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium")},
            "routes": {"auto": {"tier": "small"}},
        }
    )
    return gateway


__all__ = ["Gateway", "Outcome", "outcome_label", "tier"]
