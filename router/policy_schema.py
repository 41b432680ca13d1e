"""The JSON Schema of a policy, for editors.

`python -m router.policy_schema --write` renews `policies/policy.schema.json`.

It says what a file may hold before variables are replaced: durations and sizes as text with units, and a reference
such as `${NAME}` wherever a single value stands. What spans several fields is left to `tiergate check`.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import router.policy
from router.policy import Policy
from router.units import DURATION_PATTERN, SIZE_PATTERN, format_duration, format_size

TARGET = Path(__file__).parent.parent / "policies" / "policy.schema.json"
REFERENCE = {
    "type": "string",
    "pattern": r"^(.*\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}]*)?\}.*|os\.environ/[A-Za-z_][A-Za-z0-9_]*)$",
    "description": "A variable of the environment: ${NAME}, or ${NAME:-default}.",
}
_NAMED_BY_KEY = ("Tier", "Route")  # their field `name` is filled in from the key
_OUTSIDE = ("default", "description", "examples")  # stay beside an anyOf rather than inside its first choice


def policy_schema() -> dict[str, Any]:
    """The schema as plain values."""
    schema = Policy.model_json_schema(mode="validation")
    definitions: dict[str, Any] = schema.pop("$defs")
    descriptions = dict(_descriptions())
    for name, model in [*definitions.items(), ("Policy", schema)]:
        if name in _NAMED_BY_KEY:
            model["properties"].pop("name", None)
        properties: dict[str, Any] = model.get("properties", {})
        for field, value in properties.items():
            properties[field] = _value(value, descriptions.get((name, field)))
        model.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tiergate policy",
        **schema,
        "patternProperties": {"^x-": {"description": "Ignored: a place for YAML anchors."}},
        "$defs": {**dict(sorted(definitions.items())), "Reference": REFERENCE},
    }


def schema_text() -> str:
    return json.dumps(policy_schema(), indent=2, ensure_ascii=False) + "\n"


def _value(schema: dict[str, Any], description: str | None = None) -> dict[str, Any]:
    """One value's schema: defaults as one writes them, a reference allowed beside it, no generated titles."""
    schema = {key: value for key, value in schema.items() if key not in ("title", "writeOnly", "format")}
    if "default" in schema:
        schema = _with_default(schema, schema.pop("default"))
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema[key] = _value(schema[key])
    if "anyOf" in schema:
        schema["anyOf"] = [_value(choice) for choice in schema["anyOf"]]
    if description:
        schema["description"] = description
    single = schema.get("type") in ("integer", "number", "boolean") or "enum" in schema or "pattern" in schema
    if not single or "const" in schema:
        return schema
    inside = {key: value for key, value in schema.items() if key not in _OUTSIDE}
    outside = {key: value for key, value in schema.items() if key in _OUTSIDE}
    return {"anyOf": [inside, {"$ref": "#/$defs/Reference"}], **outside}


def _with_default(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    """The default in the words of the file. Left out where it is nothing, or a mapping that has its own defaults."""
    if default in (None, "") or isinstance(default, dict | list):
        return schema
    if schema.get("pattern") == DURATION_PATTERN and not isinstance(default, str):
        default = format_duration(default)
    if schema.get("pattern") == SIZE_PATTERN:
        default = format_size(default)
    return {**schema, "default": default}


def _descriptions() -> Iterator[tuple[tuple[str, str], str]]:
    """(class, field) → the text below it, or the comment behind it, in the source of `router.policy`."""
    source = inspect.getsource(router.policy)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for model in (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)):
        for field, after in zip(model.body, [*model.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                text = _docstring(after) or comments.get(field.end_lineno or 0)
                if text:
                    yield (model.name, field.target.id), text


def _docstring(node: ast.stmt | None) -> str | None:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return node.value.value
    return None


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        TARGET.write_text(schema_text(), encoding="utf-8")
    else:
        sys.stdout.write(schema_text())
