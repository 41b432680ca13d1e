"""The words of `setup` → our policy; roles of metrics, log lines and headers → our names. Nothing else knows them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cases.case import UnknownWord, known

TIERS = ("small", "medium", "large")
KEYS = {"alice": "key-alice", "bob": "key-bob"}
DEFAULT_PRICES = {
    "small": {"input": 0.1, "output": 0.4},
    "medium": {"input": 0.5, "output": 2.0},
    "large": {"input": 3.0, "output": 15.0},
}


class NotSupported(Exception):
    """The product cannot be told this yet. Such cases belong into not_yet.py, with the reason."""


# --- names ---


@dataclass(frozen=True)
class MetricName:
    """Where a role is found: the family, what our labels are called, and what our label values are."""

    family: str
    labels: Mapping[str, str] = field(default_factory=dict)  # the case's label → ours
    values: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)  # (label, value) → ours, summed
    fixed: Mapping[str, str] = field(default_factory=dict)


KINDS = {
    ("kind", "prompt"): ("input", "cached_input", "cache_write"),
    ("kind", "completion"): ("output", "reasoning", "image_output"),
    ("kind", "cached"): ("cached_input",),
}
RESULTS = {("result", "semantic_hit"): ("hit",)}

METRICS = {
    "requests_total": MetricName("tiergate_requests_total"),
    "upstream_attempts_total": MetricName("tiergate_attempts_total"),
    "fallback_total": MetricName("tiergate_fallbacks_total", {"from": "from_tier", "to": "to_tier"}),
    "escalations_total": MetricName("tiergate_escalations_total", {"from": "from_tier", "to": "to_tier"}),
    "cooldowns": MetricName("tiergate_cooldowns_total"),
    "tokens_total": MetricName("tiergate_tokens_total", values=KINDS),
    "cost_usd_total": MetricName("tiergate_cost_usd_total"),
    "cost_unknown_total": MetricName("tiergate_cost_unknown_total"),
    "saved_usd_total": MetricName("tiergate_saved_usd"),
    "ttft_seconds": MetricName("tiergate_time_to_first_token_seconds"),
    "total_seconds": MetricName("tiergate_request_duration_seconds"),
    "in_flight": MetricName("tiergate_in_flight"),
    "queue_depth": MetricName("tiergate_queue_depth"),
    "queue_rejected_total": MetricName("tiergate_queue_rejected_total"),
    "cache_events": MetricName("tiergate_cache_events_total", values=RESULTS),
    "classifier_errors_total": MetricName("tiergate_classifier_errors_total"),
    "config_reload_failed_total": MetricName("tiergate_policy_reloads_total", fixed={"result": "failed"}),
    "prompt_truncation_suspected": MetricName("tiergate_prompt_truncation_suspected_total"),
}

LOG_EVENTS = {
    "upstream_stream_failure": "stream_broken",
    "upstream_auth": "upstream_misconfigured",
    "config_reload_failed": "policy_reload_failed",
    "prompt_truncation_suspected": "prompt_truncation_suspected",
    "cache_unavailable": "cache_unavailable",
}
RELOADED = ("policy_reloaded", "policy_reload_failed")  # one of them is said after every reload

HEADERS = {"cache": "x-tiergate-cache", "tier": "x-tiergate-tier", "reason": "x-tiergate-reason"}
DECISION_MS = "overhead_ms"  # in the request log: all of our own time, so more than the decision alone


def log_event(about: str) -> str:
    if about not in LOG_EVENTS:
        raise UnknownWord(f"log line about {about}")
    return LOG_EVENTS[about]


def cache_word(told: str | None) -> str:
    """Our cache header as `hit` or `miss`: an answer that went past the cache was not served from it."""
    if told is None:
        raise AssertionError("the reply says nothing about the cache")
    return "hit" if told.startswith("hit") else "miss"


# --- setup ---

SETUP_WORDS = frozenset(
    {
        "route", "fallback", "fallbacks_by_tier", "default_fallback", "retries", "timeouts_ms", "tiers", "aliases",
        "cache", "caps", "cooldown", "prices", "config", "max_body_bytes", "pool_connections", "workers", "log_level",
        "log_prompts", "shutdown_grace_ms", "policy", "default_tier", "extra_upstreams",
        # Known, and not expressible yet. (`pool_connections` needs nothing: our pool of connections has no limit.)
        "validation", "canary", "shadow", "classifier", "classifier_timeout_ms", "keepalive_ms", "run_in",
    }
)  # fmt: skip
LATER = (
    "validation", "canary", "shadow", "classifier", "classifier_timeout_ms", "keepalive_ms", "run_in",
)  # fmt: skip
TIER_LATER = ("accepts", "roles", "modalities", "base_url_query", "model_in_path", "pass_model")
TIER_WORDS = frozenset({"api", "context", "key", "key_env", *TIER_LATER})
CACHE_WORDS = frozenset({"exact", "semantic", "only_deterministic", "merge_identical", "redis"})
CONFIG_WORDS = frozenset({"tier_small_key", "environment", "edit", "variants"})


def check_words(setup: Mapping[str, Any], where: str) -> None:
    """`UnknownWord` unless all words of this setup are known, whether or not we can do what they say."""
    known(setup, SETUP_WORDS, where)
    known(setup.get("cache", {}), CACHE_WORDS, where)
    known(setup.get("tiers", {}), frozenset(TIERS), where)
    known(setup.get("timeouts_ms", {}), frozenset({"first_token", "idle", "total"}), where)
    known(setup.get("policy", {}), frozenset({"key_alice_allowed_models"}), where)
    for tier in setup.get("tiers", {}).values():
        known(tier, TIER_WORDS, where)
    for caps in setup.get("caps", {}).values():
        known(caps, frozenset({"concurrent", "queue", "queue_wait_ms", "fair_by"}), where)
    config = setup.get("config", {})
    known(config, CONFIG_WORDS, where)
    known([config[word] for word in ("edit",) if word in config] + config.get("variants", []), frozenset(EDITS), where)
    if config.get("tier_small_key", SMALL_KEY_REFERENCE) != SMALL_KEY_REFERENCE:
        raise UnknownWord(f"{where}: tier_small_key: {config['tier_small_key']}")


SMALL_KEY_REFERENCE = "reference to environment variable SMALL_KEY"


@dataclass(frozen=True)
class Launch:
    """What a gateway is started with."""

    policy: dict[str, Any]
    text: str
    environ: dict[str, str]
    workers: int
    grace: str
    log_level: str


def ms(value: float) -> str:
    return f"{value}ms"


def launch(setup: Mapping[str, Any], urls: Mapping[str, str], log_path: Path) -> Launch:
    """The gateway of a case. `urls`: API base of each tier's scripted server."""
    if later := [word for word in LATER if word in setup]:
        raise NotSupported(f"setup: {', '.join(later)}")
    built = _Policy(setup, urls, log_path)
    policy = built.build()
    config = setup.get("config", {})
    return Launch(
        policy=policy,
        text=edit(policy, config["edit"]) if "edit" in config else to_yaml(policy),
        environ=built.environ,
        workers=setup.get("workers", 1),
        grace=ms(setup.get("shutdown_grace_ms", 15000)),
        log_level=setup.get("log_level", "info"),
    )


def to_yaml(policy: Mapping[str, Any]) -> str:
    return yaml.safe_dump(policy, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1000)


class _Policy:
    def __init__(self, setup: Mapping[str, Any], urls: Mapping[str, str], log_path: Path) -> None:
        self.setup, self.urls, self.log_path = setup, urls, log_path
        self.environ: dict[str, str] = {}

    def build(self) -> dict[str, Any]:
        setup = self.setup
        policy: dict[str, Any] = {
            "version": 1,
            "tiers": {tier: self._tier(tier) for tier in TIERS},
            "fallback": self._fallback(),
            "routes": {"auto": self._route()},
            "keys": [self._key(name) for name in KEYS],
            "log": {"path": str(self.log_path), "prompts": setup.get("log_prompts", False)},
        }
        if aliases := setup.get("aliases"):
            policy["aliases"] = dict(aliases)
        if cache := self._cache():
            policy["cache"] = cache
        if "total" in setup.get("timeouts_ms", {}):
            policy["timeout"] = ms(setup["timeouts_ms"]["total"])
        if "max_body_bytes" in setup:
            policy["max_body"] = f"{setup['max_body_bytes']}B"
        self.environ |= setup.get("config", {}).get("environment", {})
        return policy

    def _tier(self, tier: str) -> dict[str, Any]:
        setup = self.setup
        limits = {name: ms(value) for name, value in setup.get("timeouts_ms", {}).items() if name != "total"}
        if "first_token" in limits:  # a whole answer's first sign is its head
            limits["first_byte"] = limits["first_token"]
        built: dict[str, Any] = {
            "deployments": [self._deployment(tier)],
            "timeouts": {"first_token": "20s", "idle": "20s", **limits},
            "retry": {"attempts": setup.get("retries", 0), "backoff": {"initial": "10ms", "max": "50ms"}},
            "cooldown": None,
        }
        if cooldown := setup.get("cooldown"):
            built["cooldown"] = {
                "allowed_fails": cooldown["after_failures"], "cooldown_time": f"{cooldown['seconds']}s",
            }  # fmt: skip
        if caps := setup.get("caps", {}).get(tier):
            built["concurrency"] = self._concurrency(caps)
        return built

    def _concurrency(self, caps: Mapping[str, Any]) -> dict[str, Any]:
        if "fair_by" in caps:
            raise NotSupported("caps: fair_by")
        queue_timeout = {"queue_timeout": ms(caps["queue_wait_ms"])} if "queue_wait_ms" in caps else {}
        return {"max": caps["concurrent"], "queue": caps["queue"], **queue_timeout}

    def _deployment(self, tier: str) -> dict[str, Any]:
        words = self.setup.get("tiers", {}).get(tier, {})
        if later := [word for word in TIER_LATER if word in words]:
            raise NotSupported(f"tiers: {', '.join(later)}")
        variable = self._key_variable(tier, words)
        deployment: dict[str, Any] = {"name": f"{tier}-a", **self._endpoint(tier, words), "api_key": f"${{{variable}}}"}
        price = self._price(tier)
        if price is not None:
            deployment["price"] = dict(price)
        if "context" in words:
            deployment["context_window"] = words["context"]
        return deployment

    def _key_variable(self, tier: str, words: Mapping[str, Any]) -> str:
        """The name of the variable with the key of a tier; it is set, unless the case names one itself."""
        if "key_env" in words:
            return str(words["key_env"])
        if tier == "small" and "tier_small_key" in self.setup.get("config", {}):
            return "SMALL_KEY"
        variable = f"UP_KEY_{tier.upper()}"
        self.environ[variable] = words.get("key", f"up-key-{tier}")
        return variable

    def _endpoint(self, tier: str, words: Mapping[str, Any]) -> dict[str, str]:
        if words.get("api") == "anthropic":  # this provider's base has no version in it
            return {"model": f"anthropic/case-{tier}", "api_base": self.urls[tier].removesuffix("/v1")}
        return {"model": f"openai/case-{tier}", "api_base": self.urls[tier]}

    def _price(self, tier: str) -> Mapping[str, float] | None:
        prices: Mapping[str, Mapping[str, float] | None] = DEFAULT_PRICES | self.setup.get("prices", {})
        return prices[tier]

    def _first(self) -> str:
        return str(self.setup.get("route", "small"))

    def _route(self) -> dict[str, Any]:
        if self._first() == "classifier":
            return {"strategy": "difficulty"} | (
                {"default_tier": self.setup["default_tier"]} if "default_tier" in self.setup else {}
            )
        return {"tier": self._first()}

    def _fallback(self) -> dict[str, list[str]]:
        setup = self.setup
        chains: dict[str, list[str]] = {tier: [] for tier in TIERS}
        for tier in TIERS:
            chains[tier] = [name for name in setup.get("default_fallback", []) if name != tier]
        if "fallback" in setup and self._first() in TIERS:
            chains[self._first()] = list(setup["fallback"])
        return chains | {tier: list(names) for tier, names in setup.get("fallbacks_by_tier", {}).items()}

    def _key(self, name: str) -> dict[str, Any]:
        key = {"name": name, "hash": f"sha256:{hashlib.sha256(KEYS[name].encode()).hexdigest()}"}
        allowed = self.setup.get("policy", {}).get("key_alice_allowed_models")
        return {**key, "routes": list(allowed)} if allowed and name == "alice" else key

    def _cache(self) -> dict[str, Any] | None:
        words = self.setup.get("cache", {})
        if words.get("semantic"):
            raise NotSupported("cache: semantic")
        if redis := words.get("redis"):
            if set(redis) != {"password"}:
                raise NotSupported("cache: redis")
            # The policy knows no Redis yet; its password can be where all secrets are, and must not be shown.
            self.environ["REDIS_PASSWORD"] = redis["password"]
        if not words.get("exact"):
            return None
        return {"exact": {"only_deterministic": words.get("only_deterministic", False)}}


# --- changes to the file, in the words of the cases ---


def _key_twice(policy: dict[str, Any]) -> str:
    return to_yaml(policy).replace("  small:\n", "  small:\n    timeouts: {idle: 7s}\n", 1)


def _misspelt(policy: dict[str, Any]) -> str:
    return to_yaml({("ruotes" if name == "routes" else name): value for name, value in policy.items()})


def _cut(policy: dict[str, Any]) -> str:
    text = to_yaml(policy)
    return text[: text.index("{", len(text) // 2) + 6]


def _unknown_tier(policy: dict[str, Any]) -> str:
    return to_yaml({**policy, "routes": {**policy["routes"], "auto": {"tier": "huge"}}})


EDITS: dict[str, Callable[[dict[str, Any]], str]] = {
    "write the key for tier small's timeouts twice with different values": _key_twice,
    "empty file": lambda _policy: "",
    "misspelt top-level key": _misspelt,
    "timeout given as the text five": lambda policy: to_yaml({**policy, "timeout": "five"}),
    "file cut in the middle of a mapping": _cut,
    "valid YAML, unknown tier in a route": _unknown_tier,
}


def edit(policy: dict[str, Any], words: str) -> str:
    """The policy's text after the change that these words describe."""
    if words not in EDITS:
        raise UnknownWord(f"config: {words}")
    return EDITS[words](policy)
