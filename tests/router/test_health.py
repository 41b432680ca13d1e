"""The circuit breaker: patient with one failure, not with many, and ready to forgive."""

from __future__ import annotations

import pytest

from router.health import Health
from router.policy import Cooldown

RULES = Cooldown(allowed_fails=3, cooldown_time="30s")  # type: ignore[arg-type]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(clock)


def fail(health: Health, times: int, **more: float) -> list[bool]:
    return [health.failed("d", RULES, **more) for _ in range(times)]


def test_deployment_is_ready_until_it_has_failed_often_enough(health: Health) -> None:
    """One bad answer is no outage."""
    assert health.ready("d")

    assert [False, False] == fail(health, 2)
    assert health.ready("d")

    assert [True] == fail(health, 1)
    assert not health.ready("d")


def test_success_in_between_starts_the_count_anew(health: Health) -> None:
    """Failures count in a row; one in ten is a matter for retries."""
    fail(health, 2)

    assert health.succeeded("d")
    assert not health.succeeded("d"), "nothing was held against it any more"
    assert [False, False, True] == fail(health, 3)


def test_deployments_do_not_suffer_for_each_other(health: Health) -> None:
    """A breaker is one deployment's, not a tier's."""
    fail(health, 3)

    assert health.ready("e")
    assert 0.0 == health.ready_at("e")


def test_cooldown_ends_after_its_time_and_then_one_failure_opens_it_again(health: Health, clock: Clock) -> None:
    """After the pause it is probed: a good answer forgives all, a bad one means another whole pause."""
    fail(health, 3)
    assert 1030.0 == health.ready_at("d")

    clock.now += 29.99
    assert not health.ready("d")
    clock.now += 0.01
    assert health.ready("d")

    assert [True] == fail(health, 1)
    assert 1060.0 == health.ready_at("d")
    clock.now += 30
    health.succeeded("d")
    assert [False, False] == fail(health, 2)


def test_failures_of_calls_already_under_way_open_it_only_once(health: Health) -> None:
    """A burst of failing calls is one outage in the metrics, not fifty."""
    assert [False, False, True, False, False] == fail(health, 5)


def test_retry_after_pauses_at_once(health: Health, clock: Clock) -> None:
    """Who says when to come back is believed on the first failure."""
    assert [True] == fail(health, 1, retry_after=5.0)

    assert 1005.0 == health.ready_at("d")
    clock.now += 5
    assert health.ready("d")


def test_retry_after_of_hours_pauses_no_longer_than_the_cooldown(health: Health) -> None:
    """A header is a hint from outside: it cannot take a deployment away for a day."""
    fail(health, 1, retry_after=86400.0)

    assert 1030.0 == health.ready_at("d")


def test_shorter_retry_after_does_not_shorten_a_cooldown(health: Health) -> None:
    """Two reasons to wait: the longer one counts."""
    fail(health, 3)
    fail(health, 1, retry_after=1.0)

    assert 1030.0 == health.ready_at("d")


def test_retry_after_of_zero_is_no_pause(health: Health) -> None:
    """Come back at once means just that."""
    assert [False] == fail(health, 1, retry_after=0.0)
    assert health.ready("d")


def test_tier_without_cooldown_is_never_left_alone(health: Health) -> None:
    """`cooldown: null` is for the deployment that has no substitute."""
    assert not any(health.failed("d", None, 60.0) for _ in range(10))
    assert health.ready("d")
