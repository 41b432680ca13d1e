"""docs/deploy.md: its values render, its files exist, its tables are complete."""

from __future__ import annotations

import re
from typing import Any

import helm_python as helm
import kubernetes_validate
import yaml

from tests.deploy.deployed import ROOT, alerts

TEXT = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def example_values() -> dict[str, Any]:
    (text,) = blocks("yaml")
    return dict(yaml.safe_load(text))


def test_the_example_values_render_and_say_what_they_promise() -> None:
    """It is the first thing that is copied."""
    with helm.Chart.load(ROOT / "helm" / "tiergate") as chart:
        rendered = chart.render(example_values(), name="tiergate", namespace="llm")
    objects = [one for name, text in rendered.items() if "NOTES" not in name for one in yaml.safe_load_all(text) if one]
    kinds = {one["kind"] for one in objects}

    assert {"HorizontalPodAutoscaler", "ServiceMonitor", "Ingress"} <= kinds
    for one in objects:
        if one["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(one, "1.37", strict=True)


def test_the_files_that_are_named_exist() -> None:
    """A page that names a file which has moved helps nobody."""
    named = set(re.findall(r"(?:deploy|helm|tests)/[\w./-]*[\w]", TEXT))

    assert len(named) >= 8
    assert [] == [path for path in sorted(named) if not (ROOT / path).exists()]


def test_every_alert_is_explained() -> None:
    """Whoever is woken by one looks it up here."""
    assert [alert.where for alert in alerts()] == re.findall(r"^\| (Tiergate\w+) \|", TEXT, flags=re.MULTILINE)


def test_every_variable_of_compose_is_mentioned() -> None:
    """A variable that must be set stops the start; one that may be set is of no use unknown."""
    compose = (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    policy = (ROOT / "deploy" / "policy.yaml").read_text(encoding="utf-8")
    names = set(re.findall(r"(?<!\$)\$\{(\w+)", compose + policy)) - {"TIERGATE_EXTRAS"}

    assert [] == [name for name in sorted(names) if f"`{name}`" not in TEXT and name not in "".join(blocks("sh"))]
