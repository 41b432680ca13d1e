"""One run of one case: its scripted servers, the gateway's process, and what was seen of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.cases import adapter
from tests.cases.case import Case
from tests.cases.metrics import Page, read_page
from tests.cases.upstreams import make_upstream
from tests.client import Client, Reply
from tests.process import NotReady, Process
from tests.upstream import Upstream

POLICY_FILE = "policy.yaml"
START_S = 20.0
SETTLE_S = 2.0  # counters and log lines come this much later at most
CLIENT_TIMEOUT_S = 30.0


@dataclass
class Acted:
    """What came of one entry of `request`."""

    replies: list[Reply] = field(default_factory=list)
    calls: int = 0  # that the scripted servers got meanwhile


@dataclass(frozen=True)
class Startup:
    failed: bool
    code: int | None
    output: str
    seconds: float


@dataclass
class Run:
    case: Case
    folder: Path
    upstreams: dict[str, Upstream] = field(default_factory=dict)
    acted: dict[int, Acted] = field(default_factory=dict)
    startups: dict[str, Startup] = field(default_factory=dict)  # by variant; "" where there are none
    before: Page | None = None
    first: Page | None = None  # after the first request, if a check counts series
    signalled_at: float | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _quiet: bool = False

    async def __aenter__(self) -> Self:
        setup = self.case.setup
        for tier in adapter.TIERS:
            anthropic = setup.get("tiers", {}).get(tier, {}).get("api") == "anthropic"
            self.upstreams[tier] = make_upstream(tier, self.case.upstream.get(tier, []), anthropic=anthropic)
        for name in setup.get("extra_upstreams", []):
            self.upstreams[name] = make_upstream(name, [])
        for upstream in self.upstreams.values():
            await self._stack.enter_async_context(upstream)
        self.launch = adapter.launch(setup, self.urls, self.log_file)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def urls(self) -> dict[str, str]:
        return {name: upstream.url for name, upstream in self.upstreams.items()}

    @property
    def log_file(self) -> Path:
        return self.folder / "requests.jsonl"

    @property
    def policy_file(self) -> Path:
        return self.folder / POLICY_FILE

    # --- the gateway ---

    async def start(self, text: str | None = None, variant: str = "") -> None:
        """Start the gateway; whether it came up is noted in `startups`."""
        launch = self.launch
        self.policy_file.write_text(launch.text if text is None else text, "utf-8")
        self.process = Process(
            self.policy_file, env=launch.environ, workers=launch.workers, grace=launch.grace,
            log_level=launch.log_level,
        )  # fmt: skip
        await self._stack.enter_async_context(self.process)
        try:
            await self.process.ready(START_S)
        except NotReady as exc:
            self._note(variant, failed=True, output=str(exc))
        else:
            self._note(variant, failed=False, output=self.process.stdout + self.process.stderr)
            self.before = await self.metrics()

    def _note(self, variant: str, *, failed: bool, output: str) -> None:
        seconds = time.monotonic() - self.process.started
        self.startups[variant] = Startup(failed, self.process.returncode, output, seconds)

    @property
    def is_up(self) -> bool:
        return any(not startup.failed for startup in self.startups.values())

    def client(self, *, keep_alive: bool = False) -> Client:
        return Client(self.process.url, keep_alive=keep_alive, timeout=CLIENT_TIMEOUT_S, check=False)

    async def metrics(self) -> Page:
        reply = await self.client().get("/metrics", {"authorization": f"Bearer {adapter.KEYS['alice']}"})
        assert reply.status == 200, f"/metrics answers {reply.status}: {reply.body[:300]!r}"
        return read_page(reply.body.decode())

    # --- what was seen ---

    @property
    def calls(self) -> int:
        return sum(len(upstream.requests) for upstream in self.upstreams.values())

    def replies(self, req_no: Any = None, fits: Callable[[Reply], bool] = lambda reply: True) -> list[Reply]:
        """Of the requests with these numbers; without a number the last one that fits, if any does."""
        if req_no is None:
            found = [reply for acted in self._in_order() for reply in acted.replies]
            found = ([reply for reply in found if fits(reply)] or found)[-1:]
        else:
            numbers = list(self.acted) if req_no == "all" else [req_no] if isinstance(req_no, int) else req_no
            found = [reply for number in numbers for reply in self.acted[number].replies]
        assert found, "no reply: the gateway did not start, or no request was made"
        return found

    def _in_order(self) -> list[Acted]:
        return [self.acted[number] for number in sorted(self.acted)]

    def request_log(self) -> list[dict[str, Any]]:
        text = self.log_file.read_text("utf-8") if self.log_file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def request_log_text(self) -> str:
        return self.log_file.read_text("utf-8") if self.log_file.exists() else ""

    @property
    def output(self) -> str:
        return self.process.stdout + self.process.stderr

    async def quiet(self) -> None:
        """Give late log lines the time to come, before a check that something is *not* there."""
        if not self._quiet:
            await asyncio.sleep(0.5)
            self._quiet = True

    def assert_sound(self) -> None:
        """What holds whatever a case looks at."""
        for number, acted in self.acted.items():
            assert all(reply.status or reply.left for reply in acted.replies), f"request {number} got no answer"
        assert not any(upstream.bad_requests for upstream in self.upstreams.values()), "an upstream got no HTTP"
        assert "Traceback" not in self.output, "the gateway wrote a stack trace"

    def report(self) -> str:
        """What a failed case is told with."""
        lines = [f"--- {self.case.id}: {self.case.title}"]
        for number, acted in sorted(self.acted.items()):
            lines += [f"reply to {number}: {_shown(reply)}" for reply in acted.replies[:3]]
        lines += [f"calls: { {name: len(up.requests) for name, up in self.upstreams.items()} }"]
        lines += [f"request log: {self.request_log_text()[-1500:]}", f"output: {self.output[-3000:]}"]
        return "\n".join(lines)


def _shown(reply: Reply) -> str:
    facts: Mapping[str, Any] = {
        "status": reply.status, "complete": reply.complete, "reset": reply.reset, "left": reply.left,
        "seconds": round(reply.duration, 2), "tier": reply.tier, "attempts": reply.attempts, "cache": reply.cache,
    }  # fmt: skip
    return f"{facts} {reply.body[:700].decode(errors='replace')}"
