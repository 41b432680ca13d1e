"""Time limits that know their name, and never swallow somebody else's cancellation."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.deadline import within
from gateway.errors import TimedOut


def soon(seconds: float = 0.0) -> float:
    return time.monotonic() + seconds


async def test_block_that_ends_in_time_is_left_alone() -> None:
    """The usual case."""
    async with within(soon(5), "idle"):
        await asyncio.sleep(0)

    task = asyncio.current_task()
    assert task is not None
    assert 0 == task.cancelling()


@pytest.mark.parametrize("phase", ["connect", "first_token", "first_byte", "idle", "total"])
async def test_late_block_ends_with_the_name_of_its_limit(phase: str) -> None:
    """The phase is what an operator needs to know to change the right number."""
    with pytest.raises(TimedOut) as caught:
        async with within(soon(0.01), phase):  # type: ignore[arg-type]
            await asyncio.get_running_loop().create_future()

    assert phase == caught.value.phase
    assert phase in str(caught.value)


async def test_time_that_is_over_already_ends_at_the_first_wait() -> None:
    """A deadline in the past is a deadline."""
    with pytest.raises(TimedOut):
        async with within(soon(-10), "total"):
            await asyncio.get_running_loop().create_future()


async def test_task_goes_on_normally_after_a_timeout() -> None:
    """The next attempt runs in the same task: no cancellation may be left behind."""
    for _ in range(3):
        with pytest.raises(TimedOut):
            async with within(soon(0), "idle"):
                await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
    async with asyncio.timeout(1):
        await asyncio.sleep(0.001)


async def test_inner_limit_does_not_fire_the_outer_one() -> None:
    """First-token inside total, as `execute` nests them."""
    with pytest.raises(TimedOut) as caught:
        async with within(soon(5), "total"), within(soon(0.01), "first_token"):
            await asyncio.get_running_loop().create_future()

    assert "first_token" == caught.value.phase


async def test_outer_limit_is_not_taken_for_the_inner_one() -> None:
    """Nor the other way round."""
    with pytest.raises(TimedOut) as caught:
        async with within(soon(0.01), "total"), within(soon(5), "first_token"):
            await asyncio.get_running_loop().create_future()

    assert "total" == caught.value.phase


async def test_error_of_the_block_is_not_hidden_by_the_limit() -> None:
    """A failure that comes first is the failure."""
    with pytest.raises(KeyError):
        async with within(soon(5), "idle"):
            raise KeyError


async def test_error_raised_while_being_cut_off_is_kept_and_nothing_is_left_behind() -> None:
    """A block may turn the cancellation into its own error (a connection library does); it must not strike twice."""

    async def library() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise KeyError from None

    with pytest.raises(KeyError):
        async with within(soon(0), "idle"):
            await library()

    await asyncio.sleep(0.001)


async def test_block_that_ends_in_the_turn_of_its_limit_leaves_no_late_cancellation() -> None:
    """The timer fires while the block is already on its way out: what follows must not be cancelled for it."""
    limit = within(soon(60), "idle")

    async def finish() -> None:
        await asyncio.sleep(0)
        limit._fire()

    with pytest.raises(TimedOut):
        async with limit:
            await finish()

    await asyncio.sleep(0.001)
    await asyncio.sleep(0.001)


async def test_foreign_cancellation_passes_through() -> None:
    """A caller who left is not a timeout: nobody is blamed, nothing is retried."""
    started = asyncio.Event()

    async def body() -> None:
        async with within(soon(60), "idle"):
            started.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(body())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("first", ["limit", "caller"])
async def test_caller_who_leaves_in_the_turn_of_the_limit_wins(first: str) -> None:
    """Both at once: were it taken for a timeout, a fallback would start for somebody who is gone."""
    limit, started = within(soon(60), "idle"), asyncio.Event()

    async def body() -> None:
        async with limit:
            started.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(body())
    await started.wait()
    for who in (first, {"limit": "caller", "caller": "limit"}[first]):
        limit._fire() if who == "limit" else task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_caller_who_leaves_as_a_cut_off_block_ends_is_not_lost() -> None:
    """The block swallowed our cancellation and ended well, and in that very turn the caller left."""
    limit, started, passed = within(soon(60), "idle"), asyncio.Event(), False

    async def body() -> None:
        nonlocal passed
        async with limit:
            started.set()
            await asyncio.sleep(0)
            limit._fire()
            task.cancel()
        passed = True

    task = asyncio.create_task(body())
    await started.wait()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert not passed
