"""Prometheus' own tool on its configuration and rules."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.deploy.deployed import ROOT, alerts, recorded, rules
from tests.deploy.prometheus import binary

DEPLOYED = ROOT / "deploy" / "prometheus"
UNIT_TESTS = Path(__file__).with_name("rules.test.yml")


def promtool(*arguments: str) -> None:
    done = subprocess.run([binary("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_scrape_configuration() -> None:
    """A Prometheus that refuses its configuration does not start."""
    promtool("check", "config", str(DEPLOYED / "prometheus.yml"))


def test_prometheus_accepts_the_rules() -> None:
    """With `--lint-fatal`, so that a duplicate rule is refused too."""
    promtool("check", "rules", "--lint=all", "--lint-fatal", str(DEPLOYED / "rules.yml"))


def test_each_alert_fires_on_its_trouble_and_none_on_a_healthy_gateway() -> None:
    """An alert that cannot fire is worse than none, and one that always fires is switched off."""
    promtool("test", "rules", str(UNIT_TESTS))


def test_every_alert_is_in_the_unit_tests() -> None:
    """Otherwise a new one would be untested, and nobody would notice."""
    tested = UNIT_TESTS.read_text(encoding="utf-8")

    assert [] == [alert.where for alert in alerts() if tested.count(f"alertname: {alert.where}\n") != 1]
    assert [] == [alert.where for alert in alerts() if f"{{alertname: {alert.where}, " not in tested]


def test_alerts_say_how_bad_it_is_and_what_to_do() -> None:
    """Whoever is woken by one has only these lines."""
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert rule["annotations"]["summary"].endswith(".")


def test_recorded_names_have_the_usual_form() -> None:
    """level:metric:operation, as Prometheus' documentation recommends: whoever graphs one knows what it is."""
    assert [] == [one.where for one in recorded() if one.where.count(":") != 2]
