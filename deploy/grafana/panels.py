"""What the dashboard shows. In this folder, `python panels.py > dashboards/tiergate.json` writes it anew.

Names and labels of the metrics: `gateway/telemetry/metrics.py`. A test keeps the JSON in step with this file and
runs every query against a real Prometheus that scrapes a gateway under load.

Savings are taken as baseline minus cost, both counters, so that they survive a restart; `tiergate_saved_usd` starts
again from nothing.
"""

from __future__ import annotations

import json
import sys

from dashboard import Panel, Query, Row, annotation, dashboard, variable

ROUTE = 'route=~"$route"'
TIER = 'tier=~"$tier"'
SERVED = f"{ROUTE},{TIER}"


def total(metric: str, where: str = SERVED) -> str:
    """How much in the whole range shown."""
    return f"sum(increase(tiergate_{metric}{{{where}}}[$__range]))"


def rate(metric: str, by: str, where: str = SERVED) -> str:
    """How much a second, by some labels."""
    return f"sum by ({by}) (rate(tiergate_{metric}{{{where}}}[$__rate_interval]))"


def hourly(metric: str) -> str:
    """USD an hour, by tier."""
    return f"3600 * {rate(metric, 'tier')}"


def quantile(q: float, metric: str, by: str, where: str = SERVED) -> str:
    """Seconds, by one label."""
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', f'le, {by}', where)})"


def quantiles(metric: str, by: str, where: str = SERVED) -> tuple[Query, Query]:
    return (
        Query(quantile(0.5, metric, by, where), f"p50 {{{{{by}}}}}"),
        Query(quantile(0.95, metric, by, where), f"p95 {{{{{by}}}}}"),
    )


def share(part: str, whole: str) -> str:
    """In [0, 1]; no data, rather than a number, where there is nothing to divide by."""
    return f"({part}) / ({whole} > 0)"


def stat(title: str, unit: str, expr: str, text: str, bad_from: float | None = None) -> Panel:
    return Panel(title, text, unit, (Query(expr),), kind="stat", width=3, bad_from=bad_from)


ALL_REQUESTS = total("requests_total")
ERRORS = total("requests_total", f'{SERVED},outcome="error"')
COST, BASELINE = total("cost_usd_total"), total("baseline_cost_usd_total")
HITS = 'sum(increase(tiergate_cache_events_total{result="hit"}[$__range]))'
LOOKUPS = 'sum(increase(tiergate_cache_events_total{result=~"hit|miss"}[$__range]))'

SUMMARY = Row(
    "Summary",
    (
        stat("Requests", "short", ALL_REQUESTS, "Calls that ended in the range shown."),
        stat("Errors", "percentunit", share(f"{ERRORS} or vector(0)", ALL_REQUESTS),
             "Share of calls that no deployment could answer. Callers' own mistakes are not in it.", 0.01),
        stat("First token, p95", "s",
             f"histogram_quantile(0.95, sum by (le) (increase(tiergate_time_to_first_token_seconds_bucket{{{SERVED}}}"
             "[$__range])))",
             "Nineteen of twenty answers begin within this time."),
        stat("Cost", "currencyUSD", COST, "Paid for answers and for attempts that failed."),
        stat("Saved", "currencyUSD", f"{BASELINE} - {COST}",
             "What the baseline tier would have cost, minus what was paid."),
        stat("Saved share", "percentunit", share(f"{BASELINE} - {COST}", BASELINE),
             "Part of the baseline cost that was not paid."),
        stat("Cost unknown", "short", total("cost_unknown_total"),
             "Answers without a known price or usage. Above zero, cost and savings are lower bounds: give the "
             "deployment a price in the policy.", 1),
        stat("Cache hits", "percentunit", share(f"{HITS} or vector(0)", LOOKUPS),
             "Share of cacheable calls that were answered from the cache."),
    ),
)  # fmt: skip

REQUESTS = Row(
    "Requests",
    (
        Panel("Requests by tier", "Who answered. Tier none: nobody did.", "reqps",
              (Query(rate("requests_total", "tier"), "{{tier}}"),), stacked=True),
        Panel("Requests by route", "What was asked for.", "reqps",
              (Query(rate("requests_total", "route"), "{{route}}"),), stacked=True),
        Panel("Requests by outcome", "error: ours; client_error: the caller's; client_closed: the caller left.",
              "reqps", (Query(rate("requests_total", "outcome"), "{{outcome}}"),), stacked=True),
    ),
)  # fmt: skip

LATENCY = Row(
    "Latency",
    (
        Panel("Time to first token by tier", "From the request's arrival to the first content token.", "s",
              quantiles("time_to_first_token_seconds", "tier")),
        Panel("Total time by tier", "From the request's arrival to the last byte.", "s",
              quantiles("request_duration_seconds", "tier")),
        Panel("Time per output token by tier", "Streams only, after the first token.", "s",
              quantiles("time_per_output_token_seconds", "tier")),
        Panel("Gateway overhead by cache result", "Time in the gateway itself, before the first byte to the caller.",
              "s", quantiles("overhead_seconds", "cache", ROUTE), width=12),
        Panel("In flight and queued", "Attempts that are open, and calls that wait for a slot.", "short",
              (Query(f"sum by (tier) (tiergate_in_flight{{{TIER}}})", "open {{tier}}"),
               Query(f"sum by (tier) (tiergate_queue_depth{{{TIER}}})", "queued {{tier}}"),
               Query(rate("queue_rejected_total", "reason", TIER), "no slot a second: {{reason}}")), width=12),
    ),
)  # fmt: skip

MONEY = Row(
    "Money",
    (
        Panel("Cost by tier, an hour", "What is paid at the present rate.", "currencyUSD",
              (Query(hourly("cost_usd_total"), "{{tier}}"),), stacked=True),
        Panel("Baseline by tier, an hour", "What the same tokens would cost on the baseline tier.", "currencyUSD",
              (Query(hourly("baseline_cost_usd_total"), "{{tier}}"),), stacked=True),
        Panel("Saved by tier, an hour", "Below zero: the tier costs more than the baseline, failed attempts included.",
              "currencyUSD",
              (Query(f"{hourly('baseline_cost_usd_total')} - {hourly('cost_usd_total')}", "{{tier}}"),)),
        Panel("Saved share by tier", "Part of each tier's baseline cost that was not paid.", "percentunit",
              (Query("1 - " + share(rate("cost_usd_total", "tier"), rate("baseline_cost_usd_total", "tier")),
                     "{{tier}}"),)),
        Panel("Tokens by kind", "Disjoint kinds: their sum is what was billed.", "short",
              (Query(rate("tokens_total", "kind"), "{{kind}}"),), stacked=True),
        Panel("Answers of unknown cost", "By deployment: these lack a price or did not tell their usage.", "reqps",
              (Query(rate("cost_unknown_total", "deployment"), "{{deployment}}"),)),
    ),
)  # fmt: skip

ROUTING = Row(
    "Routing",
    (
        Panel("Difficulty", "How the classifier's judgements are spread, by upper bound of each tenth.", "short",
              (Query(f"sum by (le) (increase(tiergate_difficulty_bucket{{{ROUTE}}}[$__range]))", "{{le}}",
                     buckets=True),), kind="bargauge"),
        Panel("Decisions by tier", "Where calls were sent, before any fallback.", "reqps",
              (Query(rate("decisions_total", "tier"), "{{tier}}"),), stacked=True),
        Panel("Decisions by cause", "default: the classifier failed or was too slow.", "reqps",
              (Query(rate("decisions_total", "by"), "{{by}}"),
               Query("sum(rate(tiergate_classifier_errors_total[$__rate_interval]))", "classifier errors"))),
    ),
)  # fmt: skip

CACHE = Row(
    "Cache",
    (
        Panel("Hit ratio", "Of the calls that looked into the cache.", "percentunit",
              (Query(share(rate("cache_events_total", "cache", 'result="hit"'),
                           rate("cache_events_total", "cache", 'result=~"hit|miss"')), "{{cache}}"),), width=12),
        Panel("Events", "merged: shared an identical call that was already under way.", "reqps",
              (Query(rate("cache_events_total", "cache, result", ""), "{{cache}} {{result}}"),), width=12),
    ),
)  # fmt: skip

FAILURES = Row(
    "Failures",
    (
        Panel("Attempts by outcome", "How calls to deployments ended.", "reqps",
              (Query(rate("attempts_total", "outcome", TIER), "{{outcome}}"),), stacked=True),
        Panel("Failed attempts by deployment", "Who fails, and how. Cancelled ones are nobody's fault.", "reqps",
              (Query(rate("attempts_total", "deployment, outcome", f'{TIER},outcome!~"ok|cancelled"'),
                     "{{deployment}} {{outcome}}"),)),
        Panel("Fallbacks", "Moves on to another tier after a failure.", "reqps",
              (Query(rate("fallbacks_total", "from_tier, to_tier", 'from_tier=~"$tier"'),
                     "{{from_tier}} to {{to_tier}}"),)),
        Panel("Retries", "Second tries at the same deployment.", "reqps",
              (Query(rate("retries_total", "deployment", TIER), "{{deployment}}"),)),
        Panel("Deployments in use", "1: in use; 0: left alone for a while after failures.", "short",
              (Query(f"min by (deployment) (tiergate_deployment_ready{{{TIER}}})", "{{deployment}}"),
               Query(f"sum by (deployment) (increase(tiergate_cooldowns_total{{{TIER}}}[$__rate_interval]))",
                     "cooldowns {{deployment}}"))),
        Panel("Broken answers", "Streams cut after the first token, and answers to a prompt that arrived shortened.",
              "reqps",
              (Query(rate("stream_truncated_total", "deployment", TIER), "cut {{deployment}}"),
               Query(rate("prompt_truncation_suspected_total", "deployment", TIER), "prompt cut {{deployment}}"))),
        Panel("The gateway's own troubles", "Log lines lost, and policy files that were refused.", "short",
              (Query("sum(increase(tiergate_request_log_dropped_total[$__rate_interval]))", "log lines lost"),
               Query("sum by (result) (increase(tiergate_policy_reloads_total[$__rate_interval]))",
                     "reload {{result}}"))),
    ),
)  # fmt: skip

ROWS = (SUMMARY, REQUESTS, LATENCY, MONEY, ROUTING, CACHE, FAILURES)

VARIABLES = (
    variable("route", "Route", "label_values(tiergate_requests_total, route)"),
    variable("tier", "Tier", "label_values(tiergate_requests_total, tier)"),
)

_IN_USE = "max by (fingerprint) (tiergate_policy_info"
ANNOTATIONS = (
    annotation("New policy", f"{_IN_USE}) == 1 unless {_IN_USE} offset 2m) == 1", "policy {{fingerprint}}"),
)  # fmt: skip

if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(ROWS, VARIABLES, ANNOTATIONS), indent=2) + "\n")
