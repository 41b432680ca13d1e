"""The values that travel along the path of one request.

Everything here is either frozen, or one named record with one named owner (`Outcome`, owned by the pipeline).
This module and `router.policy` are the floor: they import nothing else of ours.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from router.policy import Deployment, Key, Tier

Surface = Literal["chat", "embeddings"]
ResponseFormat = Literal["text", "json_object", "json_schema"]
MODE_OF: Mapping[Surface, Literal["chat", "embedding"]] = {"chat": "chat", "embeddings": "embedding"}
CacheStatus = Literal["hit-exact", "hit-semantic", "miss", "bypass"]


class CacheControl(msgspec.Struct, frozen=True):
    """What the caller's Cache-Control header asks for."""

    no_cache: bool = False  # do not answer from the cache (the new answer may be stored)
    no_store: bool = False  # neither read nor store
    max_age_s: float | None = None  # answer only with entries at most this old


NO_CACHE_CONTROL = CacheControl()


class Call(msgspec.Struct, frozen=True):
    """One parsed request. `body` holds the caller's own bytes; the rest is what we decide on."""

    request_id: str
    surface: Surface
    body: bytes
    model: str  # the name the caller asked for: a route, alias, tier or deployment
    stream: bool = False
    wants_usage: bool = False  # stream_options.include_usage
    system: str = ""  # system and developer messages, joined by newlines
    last_user: str = ""  # text of the last user message
    text: str = ""  # all text of all messages, joined by newlines (for embeddings: the inputs)
    extra_tokens: int = 0  # of tools, tool calls, schemas and images: a rough count, beside `text`
    turns: int = 1  # user messages
    messages: int = 1
    has_tools: bool = False  # tools are offered
    has_tool_results: bool = False  # a message with role tool (or function) is present
    has_images: bool = False
    response_format: ResponseFormat = "text"
    max_output_tokens: int | None = None
    n: int = 1
    temperature: float | None = None
    headers: Mapping[str, str] = {}  # lower-case names; only those that the policy's rules look at
    cache_control: CacheControl = NO_CACHE_CONTROL


class Grant(msgspec.Struct, frozen=True):
    """What admission allowed: who calls, and until when an answer is wanted."""

    key: Key | None  # None: the policy has no keys (loopback only)
    deadline: float  # time.monotonic() seconds

    @property
    def tenant(self) -> str:
        return self.key.name if self.key else "-"


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Tokens in disjoint buckets: their sum is what the provider billed as prompt plus completion."""

    input: int = 0  # prompt tokens that were not read from, or written to, a prompt cache
    cached_input: int = 0
    cache_write: int = 0
    output: int = 0  # completion tokens without the two below
    reasoning: int = 0
    image_output: int = 0
    estimated: bool = False  # counted by us, because the upstream told nothing

    @property
    def prompt_tokens(self) -> int:
        return self.input + self.cached_input + self.cache_write

    @property
    def completion_tokens(self) -> int:
        return self.output + self.reasoning + self.image_output


class Decision(msgspec.Struct, frozen=True):
    """Which tier, and why: always explainable."""

    route: str  # the policy's name for what was asked: a route, or "tier:NAME", "deployment:NAME", "alias:NAME"
    tier: str
    by: Literal["rule", "difficulty", "fixed", "default"]
    reason: str  # one line for people and for the x-tiergate-reason header, ASCII
    rule: str | None = None
    difficulty: float | None = None  # in [0, 1]; None: not computed (a rule or a fixed tier decided)
    thresholds: Mapping[str, float] = {}
    features: Mapping[str, float | int | str | bool] = {}
    prompt_tokens: int = 0  # estimate
    only_deployment: str | None = None  # the caller named one deployment
    response_model: Literal["answered", "requested"] = "answered"


class Attempt(msgspec.Struct, frozen=True):
    """One step of a plan."""

    tier: Tier
    deployment: Deployment


class Skipped(msgspec.Struct, frozen=True):
    """A deployment that was not planned for, and why."""

    tier: str
    deployment: str
    reason: str


class Plan(msgspec.Struct, frozen=True):
    """The ordered attempts that a decision leads to, fallbacks included; empty if nobody can serve the call."""

    attempts: tuple[Attempt, ...]
    skipped: tuple[Skipped, ...] = ()


class AttemptOutcome(StrEnum):
    """How one call to one deployment ended (also a metric label: a closed set)."""

    OK = "ok"
    UNREACHABLE = "unreachable"
    OVERLOADED = "overloaded"
    TIMED_OUT = "timed_out"
    BROKEN = "broken"
    MISCONFIGURED = "misconfigured"
    QUEUE_FULL = "queue_full"
    TOO_LONG = "too_long"
    REFUSED = "refused"
    OUTPUT_INVALID = "output_invalid"
    CANCELLED = "cancelled"


class AttemptRecord(msgspec.Struct):
    """What one attempt did; written by `execute` and by the open stream, read by `settle`."""

    tier: str
    deployment: str
    started: float  # time.monotonic()
    retry: int = 0  # 0 for the first try at this step of the plan
    outcome: AttemptOutcome | None = None  # None while it runs
    status: int | None = None  # of the upstream's response, if there was one
    error: str | None = None  # one line of ours, never the upstream's text
    first_token: float | None = None  # time.monotonic()
    ended: float | None = None
    usage: Usage | None = None
    cost_usd: float | None = None


class Outcome:
    """The one record of a call, from which log, metrics and headers derive.

    Made by the pipeline; changed by the stage that is running, never by two at once; read by `settle`, once.
    """

    __slots__ = (
        "attempts", "baseline_usd", "cache", "cache_age_s", "cached_route", "call", "cost_usd", "decision",
        "deployment", "ended", "error", "finish_reason", "first_byte", "first_token", "grant", "keep", "model",
        "settled", "started", "status", "tier", "upstream_s", "usage",
    )  # fmt: skip

    def __init__(self, call: Call, grant: Grant, started: float | None = None) -> None:
        self.call = call
        self.grant = grant
        self.started = time.monotonic() if started is None else started
        self.decision: Decision | None = None
        self.attempts: list[AttemptRecord] = []
        self.cache: CacheStatus = "bypass"
        self.cache_age_s: float | None = None
        self.cached_route: str | None = None  # the route whose answer a hit repeats
        self.keep = False  # the answer may be stored: a stream keeps its events for that
        self.status = 0  # HTTP status sent to the caller; 499 when the caller left
        self.error: BaseException | None = None
        self.finish_reason: str | None = None
        self.first_token: float | None = None
        self.first_byte: float | None = None  # when the answer's head went out
        self.tier: str | None = None  # that answered (now, or when the cached answer was made)
        self.deployment: str | None = None
        self.model: str | None = None  # at the deployment
        self.usage: Usage | None = None
        self.cost_usd: float | None = None  # None: unknown, which is not zero
        self.baseline_usd: float | None = None
        self.upstream_s = 0.0  # spent in attempts and between them, up to the first token
        self.ended: float | None = None
        self.settled = False

    @property
    def overhead_s(self) -> float:
        """The gateway's own time until the head of the answer went out (waiting for upstreams is not its own)."""
        return max(0.0, (self.first_byte or self.ended or self.started) - self.started - self.upstream_s)

    @property
    def saved_usd(self) -> float | None:
        """Baseline minus actual; None where either is unknown. May be negative."""
        if self.cost_usd is None or self.baseline_usd is None:
            return None
        return self.baseline_usd - self.cost_usd
