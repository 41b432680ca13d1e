"""Every metric of the gateway: name, unit, buckets, labels, and from when to when it counts.

Labels come from the policy or from closed sets in this code, never from a prompt, a key or a client's own words.
A registry is made for each app (`Metrics(registry)`), so that a test can build ten. With several workers
`prometheus_client`'s multiprocess mode adds the processes up (`render`).
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)  # whole answers, first tokens
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)  # between tokens
OVERHEAD_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5)
TENTHS = tuple(i / 10 for i in range(1, 11))

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"


class Served(NamedTuple):
    """The children that one answered (or failed) request updates, looked up once for each (route, tier, deployment)."""

    requests_ok: Counter
    duration: Histogram
    ttft: Histogram
    per_token: Histogram
    input: Counter
    cached_input: Counter
    cache_write: Counter
    output: Counter
    reasoning: Counter
    image_output: Counter
    cost: Counter
    cost_unknown: Counter
    baseline: Counter
    saved: Gauge


class Metrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()

        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(f"tiergate_{name}", help_, labels, registry=self.registry)

        def histogram(name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"tiergate_{name}", help_, labels, registry=self.registry, buckets=buckets)

        def gauge(name: str, help_: str, *labels: str, mode: str = "livesum") -> Gauge:
            return Gauge(
                f"tiergate_{name}", help_, labels, registry=self.registry,
                multiprocess_mode=mode,  # type: ignore[arg-type]
            )  # fmt: skip

        served = ("route", "tier", "deployment")
        self.requests = counter(
            "requests_total",
            "Calls that ended. outcome: ok, error, client_error, client_closed; tier 'none': none answered",
            *served, "surface", "outcome",
        )  # fmt: skip
        self.duration = histogram(
            "request_duration_seconds", "From the request's arrival to the last byte of its answer", SECONDS, *served
        )
        self.ttft = histogram(
            "time_to_first_token_seconds",
            "From the request's arrival to the first content token (a whole answer: to its arrival)",
            SECONDS, *served,
        )  # fmt: skip
        self.per_token = histogram(
            "time_per_output_token_seconds",
            "Mean time between two output tokens of a streamed answer, after the first",
            TOKEN_SECONDS, *served,
        )  # fmt: skip
        self.overhead = histogram(
            "overhead_seconds",
            "Time spent in the gateway itself until the first byte to the caller: elapsed minus waiting for upstreams",
            OVERHEAD_SECONDS, "route", "cache",
        )  # fmt: skip
        self.attempts = counter(
            "attempts_total", "Calls to a deployment, by how they ended", "tier", "deployment", "outcome"
        )
        self.retries = counter("retries_total", "Attempts that repeated the one before", "tier", "deployment")
        self.fallbacks = counter("fallbacks_total", "Moves on to another tier after a failure", "from_tier", "to_tier")
        self.tokens = counter(
            "tokens_total",
            "Tokens in disjoint kinds: input, cached_input, cache_write, output, reasoning, image_output",
            *served, "kind",
        )  # fmt: skip
        self.cost = counter("cost_usd_total", "USD paid for answers and failed attempts", *served)
        self.cost_unknown = counter("cost_unknown_total", "Answers without a known price or usage", *served)
        self.baseline = counter(
            "baseline_cost_usd_total", "USD that the same tokens would have cost on the baseline tier", *served
        )
        self.saved = gauge("saved_usd", "Baseline minus actual cost, summed; may fall", *served, mode="sum")
        self.cache_events = counter(
            "cache_events_total",
            "cache: exact. result: hit, miss, bypass, merged, store, evict, error",
            "cache", "result",
        )  # fmt: skip
        self.in_flight = gauge("in_flight", "Attempts that are open now", "tier", "deployment")
        self.queue_depth = gauge("queue_depth", "Calls waiting for a slot now", "tier", "deployment")
        self.queue_rejected = counter(
            "queue_rejected_total", "Calls that found no slot. reason: full, timeout", "tier", "deployment", "reason"
        )
        self.decisions = counter(
            "decisions_total", "Decisions. by: rule, difficulty, fixed, default", "route", "tier", "by"
        )
        self.difficulty = histogram("difficulty", "Difficulty of requests, as the classifier judged", TENTHS, "route")
        self.classifier_errors = counter("classifier_errors_total", "Requests that went to the default tier for it")
        self.cooldowns = counter("cooldowns_total", "Times that a deployment was left alone", "tier", "deployment")
        self.truncated = counter(
            "stream_truncated_total", "Streams that broke after the first token", "tier", "deployment"
        )
        self.prompt_truncation = counter(
            "prompt_truncation_suspected_total", "Answers whose reported prompt is far shorter than the one sent",
            "tier", "deployment",
        )  # fmt: skip
        self.reloads = counter("policy_reloads_total", "Policy reloads. result: ok, failed", "result")
        self.policy_info = gauge(
            "policy_info", "1 for the policy in use, by fingerprint", "fingerprint", mode="livemax"
        )
        self.ready = gauge("deployment_ready", "1: in use; 0: cooling down", "tier", "deployment", mode="livemin")
        self.log_dropped = counter("request_log_dropped_total", "Request-log lines that could not be written")
        for result in ("ok", "failed"):
            self.reloads.labels(result)  # there from the start, so that the first failure is an increase
        # Children are looked up once: `labels()` costs as much as the update itself.
        self.served = lru_cache(maxsize=4096)(self._served)
        self.overhead_of = lru_cache(maxsize=1024)(self.overhead.labels)
        self.attempt_of = lru_cache(maxsize=4096)(self.attempts.labels)
        self.decision_of = lru_cache(maxsize=1024)(self.decisions.labels)
        self.difficulty_of = lru_cache(maxsize=1024)(self.difficulty.labels)
        self.cache_event_of = lru_cache(maxsize=64)(self.cache_events.labels)

    def _served(self, route: str, tier: str, deployment: str, surface: str) -> Served:
        at = (route, tier, deployment)
        tokens = self.tokens.labels
        return Served(
            self.requests.labels(*at, surface, "ok"), self.duration.labels(*at), self.ttft.labels(*at),
            self.per_token.labels(*at), tokens(*at, "input"), tokens(*at, "cached_input"), tokens(*at, "cache_write"),
            tokens(*at, "output"), tokens(*at, "reasoning"), tokens(*at, "image_output"), self.cost.labels(*at),
            self.cost_unknown.labels(*at), self.baseline.labels(*at), self.saved.labels(*at),
        )  # fmt: skip

    def render(self) -> bytes:
        """The metrics page. Takes milliseconds: call it off the event loop."""
        if MULTIPROCESS in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            return generate_latest(registry)
        return generate_latest(self.registry)
