"""How Grafana wants a dashboard written down. What is on it: `panels.py`, beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24

Json = dict[str, Any]


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""
    buckets: bool = False  # cumulative `le` series, which Grafana turns into one value a bucket


@dataclass(frozen=True)
class Panel:
    title: str
    help: str  # what the reader should conclude from it
    unit: str  # Grafana's name: s, short, percentunit, currencyUSD, reqps
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "bargauge"] = "timeseries"
    stacked: bool = False
    width: int = 8
    bad_from: float | None = None  # where a stat turns red


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def target(query: Query, ref: str, kind: str) -> Json:
    """One query. Stats and bars show the whole range at once, so they ask for one instant."""
    return {
        "datasource": SOURCE,
        "expr": query.expr,
        "format": "heatmap" if query.buckets else "time_series",
        "instant": kind != "timeseries",
        "legendFormat": query.legend or "__auto",
        "range": kind == "timeseries",
        "refId": ref,
    }


def field_config(panel: Panel) -> Json:
    steps: list[Json] = [{"color": "green" if panel.bad_from is not None else "blue", "value": None}]
    if panel.bad_from is not None:
        steps.append({"color": "red", "value": panel.bad_from})
    defaults: Json = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.unit == "currencyUSD":
        del defaults["min"]  # savings may be negative
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 25 if panel.stacked else 5,
            "lineWidth": 1,
            "showPoints": "never",
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        }
    else:
        defaults["color"] = {"mode": "thresholds"}
    return {"defaults": defaults, "overrides": []}


OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"calcs": ["mean", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    },
    "bargauge": {
        "displayMode": "basic",
        "orientation": "vertical",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "showUnfilled": True,
    },
}


def panel_json(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": field_config(panel),
        "options": OPTIONS[panel.kind],
        "targets": [target(query, chr(ord("A") + i), panel.kind) for i, query in enumerate(panel.queries)],
    }


def lay_out(rows: tuple[Row, ...]) -> Iterator[Json]:
    """Rows from top to bottom, panels from left to right, a new line where one does not fit."""
    number, y = 1, 0
    for row in rows:
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
               "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}}  # fmt: skip
        number, y, x, height = number + 1, y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + height
            height = 4 if panel.kind == "stat" else 9
            yield panel_json(panel, number, {"h": height, "w": panel.width, "x": x, "y": y})
            number, x = number + 1, x + panel.width
        y += height


def variable(name: str, label: str, values: str) -> Json:
    """A filter over label values; "All" is `.*`, so that series with a label that came later are in it too."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": values,
        "query": {"query": values, "refId": name},
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "sort": 1,
    }


def data_source() -> Json:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def annotation(name: str, expr: str, title: str) -> Json:
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": "purple",
        "step": "60s",
        "titleFormat": title,
    }


def dashboard(rows: tuple[Row, ...], variables: tuple[Json, ...], annotations: tuple[Json, ...]) -> Json:
    return {
        "uid": "tiergate",
        "title": "Tiergate",
        "description": "What the gateway answers, how fast, at what price, and what it saves.",
        "tags": ["llm", "tiergate"],
        "schemaVersion": 41,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": list(annotations)},
        "templating": {"list": [data_source(), *variables]},
        "panels": list(lay_out(rows)),
    }
