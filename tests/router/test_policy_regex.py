"""Regular expressions of rules run on what strangers write."""

from __future__ import annotations

import pytest

from router.policy_regex import MAX_PATTERN, regex_fault


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?i)^(hi|hello|你好|谢谢)\W*$",
        r"^[\s\S]{0,200}$",
        r"\b(prove|proof)\b|证明",
        r"(?:\w++\s)+",
        r"(?>a+)+",
        r"(?:a{1,3}b){2,5}",
        r"(ab)+c*",
        r"(?<!a)b+(?=c)",
        r"(?:(?>[a-z]+):)*x",
    ],
)
def test_an_ordinary_pattern_is_fine(pattern: str) -> None:
    """Also nested repeats that cannot backtrack."""
    assert regex_fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "(x+)+",
        "(a*)*$",
        "(?:a|b+)*c",
        r"(\w+\s?)+$",
        "(?=(a+)+)x",
        "(a)(?(1)(b+)+|c)",
        "(a{1,100}){1,100}",
        "((((a+))))*?b",
    ],
)
def test_a_pattern_that_can_take_exponential_time_is_refused(pattern: str) -> None:
    """Forty characters from a stranger would stop the gateway for everybody."""
    fault = regex_fault(pattern)

    assert fault is not None
    assert "exponential" in fault
    assert "possessive" in fault


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(你好", "at position 0"),
        ("[z-a]", "bad character range"),
        ("a**", "at position 2"),
        ("x" * (MAX_PATTERN + 1), "longer than"),
        ("(" * 900 + ")" * 900, "not a regular expression"),
    ],
)
def test_a_broken_pattern_is_refused_with_its_position(pattern: str, words: str) -> None:
    """`re`'s own words, which say where."""
    fault = regex_fault(pattern)

    assert fault is not None
    assert words in fault
