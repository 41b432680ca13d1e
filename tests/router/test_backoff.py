"""Delays before a retry: bounded, spread out, and the upstream's own wish where it has one."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backoff import delay, parse_retry_after
from router.policy import Backoff

NOW = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)


def _backoff(initial: float, most: float, jitter: bool = True) -> Backoff:
    return Backoff(initial=f"{initial * 1000:.0f}ms", max=f"{most * 1000:.0f}ms", jitter=jitter)  # type: ignore[arg-type]


def at(share: float):  # type: ignore[no-untyped-def]
    """A `uniform` that gives this share of its range."""
    return lambda low, high: low + share * (high - low)


@given(st.integers(1, 40), st.floats(0, 1), st.integers(1, 5_000), st.integers(1, 60_000))
def test_full_jitter_stays_within_zero_and_the_doubling_ceiling(
    retry: int, share: float, initial_ms: int, max_ms: int
) -> None:
    """Full jitter spreads a herd over the whole interval; the cap keeps the fortieth retry from waiting for years."""
    wait = delay(retry, _backoff(initial_ms / 1000, max_ms / 1000), at(share), None)

    ceiling = min(max_ms, initial_ms * 2 ** (retry - 1)) / 1000
    assert wait is not None
    assert 0 <= wait <= ceiling * (1 + 1e-9)
    assert math.isclose(wait, share * ceiling, abs_tol=1e-9)


def test_without_jitter_the_delay_doubles_up_to_the_cap() -> None:
    """For those who want to predict it."""
    backoff = _backoff(0.2, 1, jitter=False)

    assert [0.2, 0.4, 0.8, 1.0, 1.0] == [delay(retry, backoff, at(0.5), None) for retry in range(1, 6)]


def test_upstreams_hint_is_waited_out() -> None:
    """Coming back earlier than asked is a wasted call and a longer ban."""
    assert 0.7 == delay(1, _backoff(0.2, 5), at(1.0), 0.7)
    assert 0.2 == delay(1, _backoff(0.2, 5), at(1.0), 0.0), "a hint of zero still spreads the herd"


def test_hint_longer_than_the_cap_means_somebody_else() -> None:
    """The caller's time is better spent on the next deployment."""
    assert delay(1, _backoff(0.2, 5), at(0.5), 5.001) is None
    assert 5.0 == delay(1, _backoff(0.2, 5), at(0.5), 5.0)
    assert delay(1, _backoff(0.2, 5), at(0.5), math.inf) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("20", 20.0),
        ("0.5", 0.5),
        (" 3 ", 3.0),
        ("0", 0.0),
        ("-5", 0.0),
        ("Tue, 01 Dec 2026 12:00:30 GMT", 30.0),
        ("Tue, 01 Dec 2026 11:59:00 GMT", 0.0),
        ("Tue, 01 Dec 2026 20:00:10 +0800", 10.0),
        ("Tue, 01 Dec 2026 12:00:07 -0000", 7.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("一会儿", None),
        ("Tue, 99 Dec 2026 12:00:30 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    """Both are in use, and so is nonsense."""
    assert seconds == parse_retry_after(value, NOW)


@given(st.text(max_size=60))
def test_no_header_value_is_able_to_raise(value: str) -> None:
    """It comes from a server that is failing already."""
    seconds = parse_retry_after(value, NOW)

    assert seconds is None or seconds >= 0


@pytest.mark.parametrize("value", ["inf", "Infinity", "1e400"])
def test_retry_after_without_end_is_unreadable(value: str) -> None:
    """What cannot be written as a Retry-After header must not become one of ours."""
    assert parse_retry_after(value, NOW) is None
