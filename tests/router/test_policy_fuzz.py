"""Whatever a file holds, it is a policy or a list of problems: never a crash."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.policy_file import PolicyError, load_policy
from router.policy_schema import TARGET

TEXT = (TARGET.parent / "default.yaml").read_text(encoding="utf-8")
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["small", "auto", "${X}", "1h", "你"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
QUIETLY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        found += paths(inner, (*path, step))
    return found


PATHS = paths(yaml.safe_load(TEXT))


def load(text: str) -> None:
    message = "-"
    environ = dict.fromkeys(("OPENAI_API_KEY", "DEEPSEEK_API_KEY"), "CANARY")
    try:
        load_policy(text, environ, installed=lambda module: True)
    except PolicyError as exc:
        message = str(exc)
    assert message, "refused without saying why"
    assert "CANARY" not in message


@QUIETLY
@given(st.sampled_from(PATHS), VALUES)
def test_any_value_in_any_place_is_a_policy_or_a_problem(path: tuple[Any, ...], value: Any) -> None:
    """Lists where mappings belong, numbers where names do: all checks run on it, as one must not hide another."""
    data = yaml.safe_load(TEXT)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value

    load(yaml.safe_dump(data, allow_unicode=True))


@QUIETLY
@given(
    st.integers(0, len(TEXT)),
    st.integers(0, 200),
    st.sampled_from(["", "{", "\t", "- ", "&a ", "*a", "<<: ", "\x00", '"']),
)
def test_any_cut_or_slip_of_the_keyboard_is_a_policy_or_a_problem(start: int, length: int, instead: str) -> None:
    """A file that was cut while it was written, or in the middle of an edit."""
    load(TEXT[:start] + instead + TEXT[start + length :])
