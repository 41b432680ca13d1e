"""Durations and sizes: what people write, and nothing that could mean two things."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.units import DURATION_PATTERN, SIZE_PATTERN, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("200ms", 0.2),
        ("5s", 5),
        ("1m", 60),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("1d", 86400),
        (" 5s ", 5),
        ("1m500ms", 60.5),
    ],
)
def test_a_duration_with_its_unit_is_read(text: str, seconds: float) -> None:
    """Timeouts are written by people; every documented form must mean what it says."""
    assert seconds == pytest.approx(parse_duration(text))


@pytest.mark.parametrize(
    "value", ["5", 5, 5.0, "five", "", "s", "-5s", "5 s", "5sec", "1e3s", "inf", None, True, "５s", "5s\n5s"]
)
def test_a_duration_that_could_mean_anything_is_refused(value: object) -> None:
    """A bare 5 is seconds to one reader and milliseconds to the next."""
    with pytest.raises(ValueError, match="with a unit, such as 200ms"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("500kB", 500_000), ("64MiB", 64 * 2**20), ("1GiB", 2**30), ("1.5 MB", 1_500_000), ("7B", 7)],
)
def test_a_size_with_its_unit_is_read(text: str, size_bytes: int) -> None:
    """kB and KiB differ by two per cent, GB and GiB by seven."""
    assert size_bytes == parse_size(text)


@pytest.mark.parametrize("value", ["64", 64, "64M", "64mib", "-1MB", "9" * 400 + "GiB", None, ""])
def test_a_size_that_could_mean_anything_is_refused(value: object) -> None:
    """Also one that is too large to be a number: it must be an error of the policy, not a crash."""
    with pytest.raises(ValueError, match="with a unit, such as 500kB"):
        parse_size(value)


@given(st.floats(min_value=1e-3, max_value=1e9))
def test_a_formatted_duration_reads_back_as_the_same(seconds: float) -> None:
    """Durations are shown and dumped in this form; 1e+06s would be a form that nothing reads."""
    text = format_duration(seconds)

    assert re.match(DURATION_PATTERN, text)
    assert seconds == pytest.approx(parse_duration(text), rel=1e-6)


@given(st.integers(min_value=1, max_value=10**14))
def test_a_formatted_size_reads_back_as_the_same(size_bytes: int) -> None:
    """The defaults in the JSON Schema are written this way."""
    text = format_size(size_bytes)

    assert re.match(SIZE_PATTERN, text)
    assert size_bytes == parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "200ms"), (5400, "90m"), (1_000_000, "1000000s"), (86400, "1d"), (0.07, "70ms")]
)
def test_a_duration_is_formatted_shortly(seconds: float, text: str) -> None:
    """People compare it with what they wrote."""
    assert text == format_duration(seconds)
