"""The shape of a policy: what pydantic finds wrong with it, said with line, path and remedy."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from router.policy import Policy
from router.policy_yaml import Document, Path, Problem

_HIDDEN = {"Tier": {"name"}, "Route": {"name"}}  # filled from the key that they stand under
_SHAPES = {
    "model_type": "a mapping",
    "mapping_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}
_NUMBERS = {
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_parsing": "expected a number",
    "bool_parsing": "expected true or false",
    "finite_number": "expected a finite number",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def shape_problems(document: Document) -> Iterator[Problem]:
    """Unknown keys, missing keys, wrong types, values out of range. None of them shows a value."""
    try:
        Policy.model_validate(document.data)
    except ValidationError as exc:
        for error in exc.errors(include_url=False, include_context=True, include_input=False):
            path = _existing(document, tuple(error["loc"]))
            if error["type"] == "too_short" and document.at(*path):
                continue  # pydantic does not count items that are wrong themselves, and those are told
            if problem := document.problem(path, _message(document, error, path)):
                yield problem


def nearest(word: str, known: Iterable[str], what: str) -> str:
    """`did you mean medium?`, or the names that there are."""
    names = list(known)
    if close := difflib.get_close_matches(word, names, n=1, cutoff=0.6):
        return f"did you mean {close[0]}?"
    if not names:
        return f"there are no {what}"
    return f"known {what}: {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"


def known_keys(path: Path) -> tuple[str, ...]:
    """The keys that a policy may have in the mapping at `path`."""
    model = _model_at(path)
    if model is None:
        return ()
    return tuple(name for name in model.model_fields if name not in _HIDDEN.get(model.__name__, ()))


def _existing(document: Document, location: Path) -> Path:
    """Pydantic's location without its own steps, such as the `[key]` of a mapping's key."""
    return location[:-1] if location and location[-1] == "[key]" and document.at(*location) is None else location


def _message(document: Document, error: ErrorDetails, path: Path) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        return f"unknown key; {nearest(str(path[-1]), known_keys(path[:-1]), 'keys')}"
    if kind == "missing":
        return "is missing"
    if kind == "string_pattern_mismatch" and path[-1] == "hash":
        return "must be sha256: and 64 hexadecimal digits; `tiergate keys new` makes a key and its hash"
    if kind == "string_type" and path in document.hints:
        return f"expected text, but {document.hints[path]}"
    if kind in _SHAPES:
        found = ", found nothing; fill it in or remove the key" if document.at(*path) is None else ""
        return f"expected {_SHAPES[kind]}{found}"
    return _NUMBERS.get(kind) or _own_words(error)


def _own_words(error: ErrorDetails) -> str:
    """Our own validators' text, or pydantic's, which names limits and choices but no input."""
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    text = error["msg"]
    for start in ("Input should be ", "String should "):
        if text.startswith(start):
            return f"must be {text.removeprefix(start)}" if "Input" in start else f"must {text.removeprefix(start)}"
    return text[:1].lower() + text[1:]


def _model_at(path: Path) -> type[BaseModel] | None:
    """The model whose fields are the keys at `path`; None where any key goes, or none."""
    here: Any = Policy
    for step in path:
        here = _inside(here, str(step))
    return here if _is_model(here) else None


def _inside(here: Any, step: str) -> Any:
    """The type one step further in, without `| None` and `Annotated`."""
    if _is_model(here):
        field = here.model_fields.get(step)
        return _bare(field.annotation) if field else None
    arguments = typing.get_args(here)
    if not arguments:
        return None
    return _bare(arguments[1] if issubclass(typing.get_origin(here), Mapping) else arguments[0])


def _bare(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (Mapping, tuple) or _is_model(annotation):
        return annotation
    return next((bare for argument in typing.get_args(annotation) if (bare := _bare(argument))), None)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
