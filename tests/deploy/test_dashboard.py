"""The dashboard as a file: in step with its source, loadable, and asking only for metrics that there are."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.deploy.deployed import (
    DASHBOARD,
    ROOT,
    Expr,
    alerts,
    annotation_queries,
    dashboard,
    metrics_named,
    panel_queries,
    recorded,
    series_names,
)

GRAFANA = ROOT / "deploy" / "grafana"

# Metrics on no panel, each for a reason.
NOT_SHOWN = {
    "tiergate_saved_usd": "starts again with the process: panels subtract the two counters that it is made of",
}


def test_the_dashboard_is_what_its_source_prints() -> None:
    """Changes belong into panels.py, where a reviewer can read them."""
    printed = subprocess.run(
        [sys.executable, "panels.py"], cwd=GRAFANA, capture_output=True, text=True, check=True, timeout=30
    )

    assert printed.stdout == DASHBOARD.read_text(encoding="utf-8")


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    """Grafana moves overlapping panels about, and shows one of two with the same id."""
    panels = dashboard()["panels"]
    places = [panel["gridPos"] for panel in panels]

    assert len(panels) == len({panel["id"] for panel in panels})
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert [] == [pair for pair in itertools.combinations(places, 2) if overlap(*pair)]


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    apart = (
        a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
    )
    return not apart


def test_every_query_goes_to_the_chosen_data_source() -> None:
    """A fixed uid works on one Grafana alone."""
    board = dashboard()
    sources = [panel["datasource"] for panel in board["panels"] if "targets" in panel]
    sources += [target["datasource"] for panel in board["panels"] for target in panel.get("targets", ())]
    sources += [one["datasource"] for one in board["templating"]["list"] if one["type"] == "query"]
    sources += [one["datasource"] for one in board["annotations"]["list"]]

    assert {"${datasource}"} == {source["uid"] for source in sources}
    assert ["datasource", "route", "tier"] == [one["name"] for one in board["templating"]["list"]]


def test_every_panel_says_what_it_shows() -> None:
    """A title and a unit are not enough to act on."""
    shown = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]

    assert len(shown) >= 30
    assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in shown)


@pytest.mark.parametrize(
    "expr", [*panel_queries(), *annotation_queries(), *recorded(), *alerts()], ids=lambda expr: expr.where
)
def test_every_expression_reads_metrics_that_there_are(expr: Expr) -> None:
    """A renamed metric leaves an empty panel, which looks like peace."""
    assert metrics_named(expr.text) - series_names() == set()


def test_every_metric_is_shown_or_left_out_for_a_reason() -> None:
    """A metric that nobody looks at costs memory and tells nothing."""
    shown = set().union(*(metrics_named(expr.text) for expr in [*panel_queries(), *annotation_queries()]))
    bases = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in series_names()}

    missing = bases - {name.removesuffix("_bucket") for name in shown}

    assert set(NOT_SHOWN) == missing


def test_grafana_finds_data_source_and_dashboard() -> None:
    """Provisioning that points elsewhere is skipped with one line in Grafana's log."""

    def provisioned(kind: str, name: str) -> dict[str, Any]:
        path = GRAFANA / "provisioning" / kind / name
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))

    (source,) = provisioned("datasources", "prometheus.yaml")["datasources"]
    (provider,) = provisioned("dashboards", "tiergate.yaml")["providers"]
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    mounts = dict(volume.split(":")[:2] for volume in compose["grafana"]["volumes"])

    assert "http://prometheus:9090" == source["url"]
    assert "prometheus" in compose
    assert provider["options"]["path"] == mounts["./grafana/dashboards"]
    assert "/etc/grafana/provisioning" == mounts["./grafana/provisioning"]
