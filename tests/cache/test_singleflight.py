"""Merged calls: one leads, the others wait, and nobody waits for somebody who left."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable

import pytest

from cache.answer import StoredAnswer
from cache.singleflight import PATIENCE, REMEMBERED, Flights, Turn
from tests.cache.samples import stored

KEY = b"k"
Joined = asyncio.Task[Turn | StoredAnswer]
Start = Callable[..., Joined]


@pytest.fixture
def flights() -> Flights:
    return Flights()


@pytest.fixture
async def join(flights: Flights) -> AsyncIterator[Start]:
    """Starts callers; afterwards nobody may be left over, and no flight."""
    tasks: list[Joined] = []

    def start(until: float | None = None, key: bytes = KEY) -> Joined:
        tasks.append(asyncio.create_task(flights.join(key, time.monotonic() + 60 if until is None else until)))
        return tasks[-1]

    yield start
    assert all(task.done() for task in tasks)
    assert 0 == len(flights)


async def turns_of_the_loop(count: int = 3) -> None:
    """Let everything that can run, run."""
    for _ in range(count):
        await asyncio.sleep(0)


def turn_of(task: Joined) -> Turn:
    turn = task.result()
    assert isinstance(turn, Turn)
    return turn


async def waiting(join: Start, count: int) -> tuple[Turn, list[Joined]]:
    """A leader's turn, and `count` callers that wait for it."""
    leader = join()
    await turns_of_the_loop()
    others = [join() for _ in range(count)]
    await turns_of_the_loop()
    assert not any(task.done() for task in others)
    return turn_of(leader), others


async def test_all_get_the_leaders_answer(join: Start) -> None:
    """Twelve identical calls cost one."""
    turn, others = await waiting(join, 11)
    answer = stored()

    turn.done(answer)

    assert all(got is answer for got in await asyncio.gather(*others))


async def test_other_keys_do_not_wait(join: Start) -> None:
    """Only identical calls are merged."""
    turn, others = await waiting(join, 1)

    other = await join(key=b"another")
    assert isinstance(other, Turn)
    other.done(None)
    assert not others[0].done()
    turn.done(stored())
    await others[0]


async def test_when_the_leader_fails_exactly_one_is_next(join: Start) -> None:
    """All at once would hit an upstream that is just in trouble (cache-15)."""
    turn, others = await waiting(join, 5)

    turn.done(None)
    await turns_of_the_loop()

    assert [True, False, False, False, False] == [task.done() for task in others]
    answer = stored()
    turn_of(others[0]).done(answer)
    assert all(got is answer for got in await asyncio.gather(*others[1:]))


async def test_after_several_failures_all_go_on_by_themselves(join: Start) -> None:
    """Otherwise the twelfth caller would wait for eleven time-outs, one after the other."""
    turn, others = await waiting(join, 6)

    for failed in range(PATIENCE - 1):
        turn.done(None)
        await turns_of_the_loop()
        turn = turn_of(others[failed])
    turn.done(None)

    turns = [turn for turn in await asyncio.gather(*others[PATIENCE - 1 :]) if isinstance(turn, Turn)]
    assert 6 - (PATIENCE - 1) == len(turns)
    for turn in turns:
        turn.done(None)


async def test_a_turn_ends_once(join: Start) -> None:
    """`settle` and a clean-up may both end it; the second must not touch the next leader's turn."""
    turn, others = await waiting(join, 3)

    turn.done(None)
    turn.done(None)
    turn.dissolve()
    turn.done(stored())
    await turns_of_the_loop()

    assert [True, False, False] == [task.done() for task in others]
    turn_of(others[0]).done(stored())
    await asyncio.gather(*others)


async def test_an_answer_that_cannot_be_shared_frees_all_at_once(flights: Flights, join: Start) -> None:
    """One after the other, each would get such an answer of its own, only later. Next time nobody waits at all."""
    turn, others = await waiting(join, 4)

    turn.dissolve()
    for got in await asyncio.gather(*others):
        assert isinstance(got, Turn)
        got.dissolve()

    first, second = flights.lead(KEY), flights.lead(KEY)
    assert first is not None
    assert second is not None
    assert 0 == len(flights)
    first.done(stored())  # this time there was one to share: from now on they are merged again
    second.done(None)
    third = flights.lead(KEY)
    assert third is not None
    assert flights.lead(KEY) is None
    third.done(None)


async def test_what_is_remembered_is_bounded(flights: Flights) -> None:
    """Keys come from callers: an endless number of them must not fill the memory."""
    for number in range(REMEMBERED + 1):
        turn = flights.lead(b"%d" % number)
        assert turn is not None
        turn.dissolve()

    first, latest = flights.lead(b"0"), flights.lead(b"1")
    assert first is not None
    assert latest is not None
    assert 1 == len(flights)  # the oldest is forgotten: it is merged again
    first.done(None)


async def test_a_waiter_that_leaves_harms_nobody(join: Start) -> None:
    """Its client hung up; the others get their answer, and a leader that fails skips it."""
    turn, others = await waiting(join, 3)
    others[0].cancel()
    await turns_of_the_loop()

    turn.done(None)
    await turns_of_the_loop()
    assert others[0].cancelled()
    turn_of(others[1]).done(stored())
    assert isinstance(await others[2], StoredAnswer)


async def test_a_waiter_that_leaves_while_it_is_handed_the_turn_passes_it_on(join: Start) -> None:
    """In that one moment the turn would be lost, and all others would wait for nobody."""
    turn, others = await waiting(join, 2)

    turn.done(None)  # the turn is others[0]'s now, but it has not run yet
    others[0].cancel()
    await turns_of_the_loop()

    assert others[0].cancelled()
    turn_of(others[1]).done(None)


async def test_a_waiter_that_leaves_while_the_answer_comes_is_cancelled(join: Start) -> None:
    """A cancellation is never swallowed."""
    turn, others = await waiting(join, 1)

    turn.done(stored())
    others[0].cancel()
    await turns_of_the_loop()

    assert others[0].cancelled()


async def test_when_all_waiters_have_left_nothing_is_left(flights: Flights, join: Start) -> None:
    """The next caller is a leader again."""
    turn, others = await waiting(join, 2)
    for task in others:
        task.cancel()
    await turns_of_the_loop()

    turn.done(None)

    assert 0 == len(flights)


async def test_a_waiter_whose_time_is_up_goes_alone(flights: Flights, join: Start) -> None:
    """It still has time to ask by itself; the flight goes on for the others, and for those who come."""
    turn, (patient,) = await waiting(join, 1)
    alone = await asyncio.wait_for(join(until=time.monotonic() + 0.01), 5)

    assert isinstance(alone, Turn)
    alone.done(None)
    assert 1 == len(flights)
    assert not patient.done()
    turn.done(stored())
    assert isinstance(await patient, StoredAnswer)


async def test_the_answer_may_come_in_the_moment_in_which_the_time_is_up(join: Start) -> None:
    """Whichever is first counts, and nothing is set twice."""
    loop, failures = asyncio.get_running_loop(), list[dict[str, object]]()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    turn, _ = await waiting(join, 0)
    loop.call_later(0.01, turn.done, stored())
    task = join(until=time.monotonic() + 0.011)
    await turns_of_the_loop()
    time.sleep(0.03)  # noqa: ASYNC251 - the loop is held up, so that both are due in its next round

    assert isinstance(await task, StoredAnswer)
    assert [] == failures


async def test_who_has_its_answer_leaves_no_clock_running(join: Start) -> None:
    """A timer would hold on to the answer until the deadline."""
    turn, others = await waiting(join, 1)
    answer = stored()
    before = sys.getrefcount(answer)

    turn.done(answer)
    await others[0]

    assert before + 1 == sys.getrefcount(answer)  # the task's result


async def test_a_time_that_is_already_up_does_not_wait(join: Start) -> None:
    """A negative wait is none."""
    turn, _ = await waiting(join, 0)

    alone = await asyncio.wait_for(join(until=time.monotonic() - 5), 5)

    assert isinstance(alone, Turn)
    alone.done(None)
    turn.done(None)


async def test_the_turn_of_an_old_flight_does_not_end_the_new_one(flights: Flights, join: Start) -> None:
    """A call that flew alone ends while others wait for another leader."""
    turn, others = await waiting(join, 1)

    flights.solo(KEY).done(stored("another"))
    flights.solo(KEY).done(None)
    await turns_of_the_loop()

    assert not others[0].done()
    turn.done(stored())
    await others[0]


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_happens_nobody_is_forgotten(flights: Flights, seed: int) -> None:
    """Callers come, fail, leave and run out of time in any order: each ends, and soon."""
    rng = random.Random(seed)
    ends = {"answered": 0, "led": 0, "left": 0}

    async def caller() -> None:
        try:
            got = await flights.join(KEY, time.monotonic() + rng.choice([0.001, 60]))
            if isinstance(got, StoredAnswer):
                ends["answered"] += 1
                return
            try:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                got.done(stored() if rng.random() < 0.3 else None)
            finally:
                got.done(None)
            ends["led"] += 1
        except asyncio.CancelledError:
            ends["left"] += 1
            raise

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(caller()))
        if rng.random() < 0.4:
            await asyncio.sleep(0)
        if rng.random() < 0.3:
            rng.choice(tasks).cancel()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    assert 0 == len(flights)
    assert 200 == sum(ends.values()) + sum(task.cancelled() for task in tasks) - ends["left"]
