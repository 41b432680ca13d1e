"""Reading the metrics page, strictly, by roles."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.cases.adapter import METRICS, MetricName
from tests.cases.case import UnknownWord

Labels = Mapping[str, str]
_VALUE = r"(?:[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|Inf)|NaN)"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
_SAMPLE = re.compile(rf"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{{(?:{_LABEL}(?:,{_LABEL})*)?,?\}})? {_VALUE}(?: \d+)?")
_COMMENT = re.compile(r"# (?:HELP|TYPE) [a-zA-Z_:][a-zA-Z0-9_:]* .*")


@dataclass(frozen=True)
class Page:
    """One scrape."""

    text: str
    series: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def sum(self, role: str, labels: Labels, suffix: str = "") -> float:
        """Of all series of this role that have these labels, in the words of the cases."""
        name = metric_name(role)
        return sum(self._sum(name.family + suffix, ours) for ours in _ours(name, labels))

    def _sum(self, family: str, labels: Labels) -> float:
        wanted = set(labels.items())
        return sum(value for (name, has), value in self.series.items() if name == family and wanted <= has)

    def has_family(self, role: str) -> bool:
        """Whether the page describes it at all: a name that is not there must not count as zero."""
        family = metric_name(role).family
        return any(line.startswith(f"# TYPE {family.removesuffix('_total')}") for line in self.text.splitlines())


def metric_name(role: str) -> MetricName:
    if role not in METRICS:
        raise UnknownWord(f"metric role {role}")
    return METRICS[role]


def _ours(name: MetricName, labels: Labels) -> list[dict[str, str]]:
    """The label sets of ours that are added up for the given ones."""
    choices = [
        [(name.labels.get(label, label), ours) for ours in name.values.get((label, value), (value,))]
        for label, value in labels.items()
    ]
    return [dict(name.fixed) | dict(choice) for choice in itertools.product(*choices)]


def read_page(text: str) -> Page:
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return Page(text, {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples})


def assert_strict(text: str) -> None:
    """Every line is of the format, no series comes twice, every family is described once."""
    for line in text.splitlines():
        assert not line or _SAMPLE.fullmatch(line) or _COMMENT.fullmatch(line), f"not a line of the format: {line!r}"
    assert text.endswith("\n"), "the last line has no end"
    kinds = Counter(line.split()[2] for line in text.splitlines() if line.startswith("# TYPE "))
    series = Counter(line.rsplit(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#"))
    twice = [name for name, count in (kinds | series).items() if count > 1]
    assert not twice, f"more than once: {twice[:5]}"
    read_page(text)
