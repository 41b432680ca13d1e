"""A real Prometheus scrapes a real gateway under a short load; then everything that is deployed is asked for real."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.client import Client
from tests.deploy import traffic
from tests.deploy.deployed import (
    Expr,
    alerts,
    annotation_queries,
    compared,
    dashboard,
    panel_queries,
    recorded,
    rules,
)
from tests.deploy.prometheus import Prometheus, Series, binary
from tests.process import Process
from tests.upstream import Upstream

pytestmark = pytest.mark.services

ROUNDS = 3
WINDOW, WHOLE = "8s", "60s"  # what Grafana would put in for $__rate_interval and $__range

# Expressions that may find nothing although all is well, each with its reason.
MAY_BE_EMPTY = {
    "TiergateNoSavingsData": "finds something only where no baseline cost is counted",
}


@dataclass(frozen=True)
class Observed:
    """What was sent, and what Prometheus knew of it afterwards."""

    sent: int
    panels: dict[Expr, Series]
    rules: dict[Expr, Series]
    states: dict[str, str]  # of alerts
    health: dict[str, str]  # of rules
    variables: dict[str, list[str]]
    counted: float

    def empty(self, exprs: Iterable[Expr]) -> list[str]:
        everything = self.panels | self.rules
        return [expr.where for expr in exprs if not everything[expr] and expr.where not in MAY_BE_EMPTY]

    def values(self, where: str) -> dict[str, float]:
        """Last values of one panel's query, by the labels that it keeps."""
        (found,) = [series for expr, series in self.panels.items() if expr.where == where]
        return {",".join(labels.values()): values[-1] for labels, values in found}


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    binary("prometheus")
    return asyncio.run(observe(tmp_path_factory.mktemp("live")))


async def observe(folder: Path) -> Observed:
    policy = folder / "policy.yaml"
    async with Upstream() as upstream:
        upstream.respond(traffic.play)
        text = traffic.POLICY.format(url=upstream.url)
        policy.write_text(text, encoding="utf-8")
        async with Process(policy) as gateway:
            await gateway.ready()
            async with Prometheus(folder, f"127.0.0.1:{gateway.port}") as prometheus:
                return await observe_load(gateway, prometheus, text)


async def observe_load(gateway: Process, prometheus: Prometheus, text: str) -> Observed:
    client, start, sent = Client(gateway.url), await prometheus.now(), 0
    replace(gateway.policy, "version: 1\ntires: {}\n")  # a reload that is refused
    for number in range(ROUNDS):
        await prometheus.scraped(2)
        sent += await traffic.one_round(client, number)
    replace(gateway.policy, text + "timeout: 5m\n")  # and one that works
    await prometheus.scraped(4)
    return await ask(prometheus, start, sent)


def replace(policy: Path, text: str) -> None:
    """As an editor does it: never half a file."""
    new = policy.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, policy)


async def ask(prometheus: Prometheus, start: float, sent: int) -> Observed:
    end = await prometheus.now()

    async def found(expr: Expr) -> Series:
        text = expr.filled_in(WINDOW, WHOLE)
        return await (prometheus.instant(text) if expr.instant else prometheus.over_time(text, start, end))

    groups = (await prometheus.get("rules"))["groups"]
    known = [rule for group in groups for rule in group["rules"]]
    ruled = [*recorded(), *(Expr(rule.where, f"{rule.where}") for rule in recorded()), *map(compared, alerts())]
    return Observed(
        sent=sent,
        panels={expr: await found(expr) for expr in [*panel_queries(), *annotation_queries()]},
        rules={expr: await found(expr) for expr in ruled},
        states={rule["name"]: rule["state"] for rule in known if rule["type"] == "alerting"},
        health={rule["name"]: rule["health"] for rule in known},
        variables={name: await label_values(prometheus, query) for name, query in variables().items()},
        counted=sum(values[-1] for _, values in await prometheus.instant("tiergate_requests_total")),
    )


def variables() -> dict[str, str]:
    found = dashboard()["templating"]["list"]
    return {one["name"]: one["definition"] for one in found if one["type"] == "query"}


async def label_values(prometheus: Prometheus, query: str) -> list[str]:
    """`label_values(metric, label)`, which is Grafana's own."""
    metric, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
    values: list[str] = await prometheus.get(f"label/{label}/values", **{"match[]": metric})
    return values


def test_every_panel_has_data(observed: Observed) -> None:
    """An empty panel is found when somebody needs it."""
    assert [] == observed.empty(observed.panels)


def test_every_rule_has_data(observed: Observed) -> None:
    """What is recorded, what is asked for by its recorded name, and what the alerts compare."""
    assert [] == observed.empty(observed.rules)
    assert {"ok"} == set(observed.health.values())
    assert len(rules()) == len(observed.health)


def test_alerts_answer_to_what_happened(observed: Observed) -> None:
    """The load had wrong keys, errors, fallbacks and unknown costs in it, and nothing else of note."""
    stirred = {name for name, state in observed.states.items() if state != "inactive"}

    assert stirred >= {
        "TiergateUpstreamMisconfigured",
        "TiergateErrorRateHigh",
        "TiergateFallbackRateHigh",
        "TiergateCostUnknown",
        "TiergatePolicyReloadFailed",
    }
    assert not stirred & {
        "TiergateDown",
        "TiergateFirstTokenSlow",
        "TiergateNoSavingsData",
        "TiergateClassifierFailing",
        "TiergateRequestLogDropped",
    }


def test_filters_offer_the_routes_and_tiers(observed: Observed) -> None:
    """Names from the policy, and `none` for calls that nobody answered."""
    assert "auto" in observed.variables["route"]
    assert {"small", "large", "none"} <= set(observed.variables["tier"])


def test_every_call_is_counted_once(observed: Observed) -> None:
    """Answered, refused, failed or left by its caller: all panels stand on this number."""
    assert observed.sent == observed.counted


def test_no_savings_are_claimed_where_the_cost_is_unknown(observed: Observed) -> None:
    """Baseline minus an unknown cost is unknown: counting it as saved would make unpriced models look best of all."""
    saved = observed.values("Saved by tier, an hour A")

    assert 0 == saved["unpriced"]
    assert saved["small"] > 0


def test_what_panels_say_is_plausible(observed: Observed) -> None:
    """Data alone may still be nonsense: shares beyond one, a p95 under the median, savings of the dearest tier."""
    assert 0 < observed.values("Errors A")[""] < 0.5
    assert 0 < observed.values("Saved share A")[""] < 1
    assert 0 < observed.values("Cache hits A")[""] < 1
    assert observed.values("Cost A")[""] > 0
    assert observed.values("Cost unknown A")[""] > 0
    medians, tails = (observed.values(f"Time to first token by tier {ref}") for ref in "AB")
    assert all(medians[tier] <= tails[tier] for tier in medians)
