"""What does not run yet, and why. Nothing is left out without a line here."""

from __future__ import annotations

NOT_YET_AREAS = {
    "tools": "the area comes with the work on tools and the Anthropic surface",
    "params": "the area comes with the work on parameters and provider differences",
    "proxies": "the area comes with keepalive and the Anthropic surface",
    "validation": "the area comes with the validation of answers",
    "concurrency": "the area comes with the work on traffic: limits, queues, fairness",
    "routing": "the area comes with the work on routing",
    "security": "the area comes with the work on security",
    "rollout": "the area comes with canary and shadow traffic",
}

MESSAGES = "there is no /v1/messages yet"
SEMANTIC = "there is no semantic cache yet"
REDIS = "there is no Redis store yet"

NOT_YET = {
    "sse-04": MESSAGES,
    "errors-10": f"its second request needs the Anthropic surface: {MESSAGES}",
    "cache-07": SEMANTIC,
    "cache-08": SEMANTIC,
    "cache-09": SEMANTIC,
    "cache-10": SEMANTIC,
    "cache-11": SEMANTIC,
    "cache-12": REDIS,
    "cache-13": REDIS,
    "cache-14": REDIS,
    "shutdown-02": "needs a container engine, and the image built",
}

WITHOUT_REQUESTS = {"errors-10": (2,)}
"""Cases of NOT_YET that run all the same without these requests, as `ID-without-N`."""
