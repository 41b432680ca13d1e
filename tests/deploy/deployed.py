"""What the deployed files say: the dashboard's queries, the rules' expressions, and the metrics that there are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from gateway.telemetry.metrics import Metrics

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "tiergate.json"
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"

_METRIC = re.compile(r"\btiergate_[a-z0-9_]+")
_COMPARISON = re.compile(r"\s(?:>|<|==)\s[\d.]+$")


@dataclass(frozen=True)
class Expr:
    where: str  # panel or rule
    text: str  # with Grafana's variables in it
    instant: bool = False  # asked once, for the whole range shown

    def filled_in(self, window: str, whole: str, chosen: str = ".*") -> str:
        """As Grafana sends it: `window` for its rates, `whole` for the range shown, `chosen` for route and tier."""
        values = {"$__rate_interval": window, "$__range": whole, "$route": chosen, "$tier": chosen}
        text = self.text
        for name, value in values.items():
            text = text.replace(name, value)
        assert "$" not in text, f"{self.where}: a variable is left in {text}"
        return text


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return loaded


def panel_queries() -> list[Expr]:
    return [
        Expr(f"{panel['title']} {target['refId']}", target["expr"], target["instant"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    ]


def annotation_queries() -> list[Expr]:
    return [Expr(one["name"], one["expr"]) for one in dashboard()["annotations"]["list"]]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def recorded() -> list[Expr]:
    return [Expr(rule["record"], rule["expr"]) for rule in rules() if "record" in rule]


def alerts() -> list[Expr]:
    return [Expr(rule["alert"], rule["expr"]) for rule in rules() if "alert" in rule]


def compared(alert: Expr) -> Expr:
    """What the alert looks at: its expression without the last comparison, which is empty when all is well."""
    assert _COMPARISON.search(alert.text), alert
    return Expr(alert.where, _COMPARISON.sub("", alert.text))


def metrics_named(text: str) -> set[str]:
    """Metrics of the gateway that an expression reads, not those that a rule records (they have colons)."""
    return set(_METRIC.findall(re.sub(r"\w*:[\w:]+", "", text)))


def series_names() -> set[str]:
    """All names that the gateway's metrics have on the page: for a histogram also those of its parts."""
    names: set[str] = set()
    for family in Metrics(CollectorRegistry()).registry.collect():
        if family.type == "histogram":
            names |= {f"{family.name}{part}" for part in ("_bucket", "_sum", "_count")}
        else:
            names.add(f"{family.name}_total" if family.type == "counter" else family.name)
    return names
