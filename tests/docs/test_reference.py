"""The reference pages say what the code does: every field, metric, header and error, and nothing else."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.api.admin import admin_router
from gateway.api.surface import explaining
from gateway.cli import app
from gateway.errors import AttemptError, Exhausted, GatewayError, Overloaded, Wire, wire
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.request_log import line
from router.explain import explain
from router.policy import Policy, Seconds
from router.types import AttemptOutcome, AttemptRecord, Call, Decision, Grant, Outcome, Plan, Usage
from router.units import format_duration, format_size
from tests.docs.markdown import ROOT, code, rows, section

POLICY, METRICS, API, OPERATIONS = (ROOT / "docs" / f"{name}.md" for name in ("policy", "metrics", "api", "operations"))
FROM_KEY = {("Tier", "name"), ("Route", "name")}  # the key that they stand under
DURATION = typing.get_args(Seconds)[1]


def models(model: type[BaseModel] = Policy, found: dict[str, type[BaseModel]] | None = None) -> dict[str, Any]:
    """Every model that a policy is made of, by name."""
    found = {} if found is None else found
    if model.__name__ not in found:
        found[model.__name__] = model
        for field in model.model_fields.values():
            for part in _parts(field.annotation):
                models(part, found)
    return found


def _parts(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _parts(inner)


def documented(model: str) -> dict[str, tuple[str, str]]:
    """Field → default and meaning, from the table that is marked as this model's."""
    text = POLICY.read_text(encoding="utf-8")
    _, marker, rest = text.partition(f"<!-- model: {model} -->\n")
    assert marker, f"docs/policy.md has no table of {model}"
    table = re.split(r"\n(?=[^|\n])", rest)[0]
    return {name: (default, meaning) for field, default, meaning in rows(table) if (name := code(field))}


def default_cell(field: FieldInfo) -> str | None:
    """A default as the page writes it; None where the page says in words what the loader fills in."""
    value = field.default
    if field.is_required():
        return "required"
    if value is None or value is PydanticUndefined or value in ("", ()) or isinstance(value, BaseModel):
        return None
    if DURATION in field.metadata or any(DURATION in getattr(each, "__metadata__", ()) for each in field.metadata):
        return f"`{format_duration(value)}`"
    if "parse_size" in repr(field.metadata):
        return f"`{format_size(value)}`"
    return f"`{orjson.dumps(value).decode()}`".replace('"', "").replace(".0`", "`")


@pytest.mark.parametrize("model", sorted(models()))
def test_every_field_of_a_policy_is_documented_with_its_default(model: str) -> None:
    """A default that the page has wrong is worse than none."""
    fields: Mapping[str, FieldInfo] = models()[model].model_fields
    told = documented(model)

    expected = {name for name in fields if (model, name) not in FROM_KEY}
    assert expected == set(told)
    for name in sorted(expected):
        default, meaning = told[name]
        assert meaning, f"{name} has no meaning"
        cell = default_cell(fields[name])
        if cell is None:
            assert code(default) is None, f"{model}.{name} has no fixed default, the page says {default}"
        else:
            assert cell == default, f"{model}.{name}"


def test_the_reader_of_models_finds_all_parts() -> None:
    """Parts hide in mappings, tuples and optional fields."""
    assert {"Policy", "Backoff", "Text", "ExactCache", "Cooldown", "Price", "RequestLog"} <= set(models())


def test_every_metric_is_documented_with_its_labels() -> None:
    """Dashboards are written from this page."""
    metrics = [value for value in vars(Metrics()).values() if isinstance(value, MetricWrapperBase)]
    real = {_exposed(one): (one._type, ", ".join(one._labelnames)) for one in metrics}

    told = {
        name: (kind, labels)
        for name, kind, labels in (cells[:3] for cells in rows(METRICS.read_text(encoding="utf-8")) if len(cells) == 4)
    }

    assert real == {name.strip("`"): rest for name, rest in told.items()}


def test_every_value_of_an_outcome_is_documented() -> None:
    """Alerts compare with them."""
    told = {code(name) or name: values for name, values in rows(METRICS.read_text(encoding="utf-8"))[:5]}

    assert [outcome.value for outcome in AttemptOutcome] == re.findall(r"`(\w+)`", told["`outcome` of attempts"])


def _exposed(metric: MetricWrapperBase) -> str:
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


def outcome() -> Outcome:
    """A call about which everything is known."""
    call = Call("id-1", "chat", b'{"model":"auto"}', "auto")
    made = Outcome(call, Grant(None, 1.0), 0.0)
    made.decision = Decision("auto", "small", "difficulty", "difficulty 0.10 below all thresholds", difficulty=0.1)
    made.attempts = [AttemptRecord("small", "small-1", 0.0, outcome=AttemptOutcome.OK, ended=1.0, usage=Usage(1, 2))]
    made.tier, made.deployment, made.model = "small", "small-1", "m"
    made.usage, made.cost_usd, made.baseline_usd, made.cache_age_s = Usage(1, 2), 0.1, 0.2, 1.0
    made.status = 200
    return made


def first_column(page: Path, heading: str) -> list[str]:
    return [name for cells in rows(section(page, heading)) if (name := code(cells[0]))]


def test_every_field_of_the_request_log_is_documented() -> None:
    """Log pipelines are written from this page."""
    record = orjson.loads(line(outcome(), prompts=True))

    assert list(record) == first_column(METRICS, "Request log")
    assert all(f"`{name}`" in section(METRICS, "Request log") for name in record["attempts"][0])


def test_every_explaining_header_is_documented() -> None:
    """They are what a newcomer looks at to understand what happened."""
    sent = {name.decode() for name, _ in explaining(outcome())}

    assert sent - {"x-request-id"} == set(first_column(API, "Response headers"))


def test_every_field_of_a_decision_is_documented() -> None:
    """`/v1/route` is for programs."""
    call = outcome().call
    told = explain(call, Decision("auto", "small", "fixed", "-"), Plan(()), None)

    assert ["request_id", *told] == first_column(API, "The decision without the answer")


def errors(base: type[GatewayError] = GatewayError) -> Iterator[type[GatewayError]]:
    yield base
    for cls in base.__subclasses__():
        yield from errors(cls)


def wire_of(cls: type[GatewayError]) -> Wire:
    error = cls.__new__(cls)
    if isinstance(error, Exhausted):
        error.causes = ()
    return wire(error)


def test_every_error_is_documented_as_it_looks() -> None:
    """Clients branch on status, type and code."""
    real = {cls.__name__: wire_of(cls) for cls in errors() if cls is not AttemptError}
    real["Overloaded, by a 429"] = wire(Overloaded("", status=429))

    told: dict[str, Wire] = {}
    for names, status, kind, word, _ in rows(section(API, "Errors")):
        for name in [names] if names in real else names.split(", "):
            told[name] = Wire(int(status), kind.strip("`"), code(word))

    assert real == told


def test_every_endpoint_is_documented() -> None:
    """And none that is not there."""
    routes = {f"{method} {route.path}" for route in admin_router(None, {}).routes for method in route.methods}  # type: ignore[arg-type,attr-defined]
    real = {path.replace("{name:path}", "{id}") for path in routes}

    told = re.findall(r"`((?:GET|POST) /[^`]*)`", section(API, "The API"))

    assert real | {"POST /v1/chat/completions", "POST /v1/embeddings", "GET /openapi.json", "GET /docs"} == set(told)


def test_every_option_of_serve_is_documented_with_its_default() -> None:
    """`--help` is cut for width; this table is not."""
    import typer.main  # not at the top: pytest would import it for every test of the folder

    [serve] = [one for name, one in typer.main.get_command(app).commands.items() if name == "serve"]  # type: ignore[attr-defined]
    real = {one.opts[0]: str(one.default) for one in serve.params if one.name != "help"}

    told = {code(option): code(default) for option, default, _ in rows(section(OPERATIONS, "Start"))}

    assert real == told


def test_every_message_under_troubleshooting_exists() -> None:
    """People search for the words that they see; words that no code says are not found by anybody."""
    source = "".join(
        path.read_text(encoding="utf-8") for folder in ("gateway", "router") for path in (ROOT / folder).rglob("*.py")
    )
    messages = first_column(OPERATIONS, "Troubleshooting")

    assert len(messages) >= 12
    assert [] == [message for message in messages if message not in source]
