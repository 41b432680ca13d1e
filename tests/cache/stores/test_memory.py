"""The store in memory: its three bounds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cache.answer import ENTRY_OVERHEAD_BYTES, StoredAnswer
from cache.stores.memory import MemoryStore
from tests.cache.samples import Clock, stored

ENTRY = ENTRY_OVERHEAD_BYTES + 100
TTL_S = 60.0


def answer(at: float, size: int = 100) -> StoredAnswer:
    return stored(at=at, answer=b"x" * size)


def store(entries: int = 3, clock: Clock | None = None) -> MemoryStore:
    return MemoryStore(entries * ENTRY, 2 * ENTRY, TTL_S, clock or Clock())


def test_what_was_put_is_given() -> None:
    """And what was not, is not."""
    answers = store()
    kept = answer(1000)

    assert 0 == answers.put(b"a", kept)
    assert answers.get(b"a") is kept
    assert answers.get(b"b") is None


def test_the_least_recently_used_goes_first() -> None:
    """A question that is asked all the time stays, however old its answer."""
    answers = store(3)
    for key in (b"a", b"b", b"c"):
        answers.put(key, answer(1000))
    answers.get(b"a")

    assert 1 == answers.put(b"d", answer(1000))
    assert [True, False, True, True] == [answers.get(key) is not None for key in (b"a", b"b", b"c", b"d")]


def test_a_large_answer_takes_the_room_of_several() -> None:
    """The bound is in bytes, not in entries."""
    answers = store(3)
    for key in (b"a", b"b", b"c"):
        answers.put(key, answer(1000))

    assert 2 == answers.put(b"d", answer(1000, ENTRY + 100))
    assert 2 == len(answers)
    assert 3 * ENTRY == answers.size_bytes


def test_an_answer_too_large_is_not_stored_and_pushes_nothing_out() -> None:
    """One huge answer must not empty the cache."""
    answers = store(3)
    answers.put(b"a", answer(1000))

    assert answers.put(b"b", answer(1000, 2 * ENTRY)) is None
    assert answers.get(b"a") is not None
    assert answers.get(b"b") is None


def test_a_bound_smaller_than_one_entry_stores_nothing() -> None:
    """Rather than evicting what was just put in."""
    answers = MemoryStore(ENTRY - 1, 2 * ENTRY, TTL_S, Clock())

    assert answers.put(b"a", answer(1000)) is None
    assert 0 == len(answers) == answers.size_bytes


def test_an_answer_past_its_time_is_not_given() -> None:
    """And frees its room when it is met."""
    clock = Clock()
    answers = store(clock=clock)
    answers.put(b"a", answer(clock.now))
    clock.now += TTL_S - 0.001
    assert answers.get(b"a") is not None
    clock.now += 0.001

    assert answers.get(b"a") is None
    assert 0 == len(answers) == answers.size_bytes


def test_use_does_not_prolong_life() -> None:
    """An answer in constant use must still be renewed some day."""
    clock = Clock()
    answers = store(clock=clock)
    answers.put(b"a", answer(clock.now))
    for _ in range(6):
        clock.now += TTL_S / 5
        last = answers.get(b"a")

    assert last is None


def test_expired_answers_go_before_live_ones() -> None:
    """A put clears what is past its time, in whatever order it was used, and evicts nobody for it."""
    clock = Clock()
    answers = store(3, clock)
    answers.put(b"old", answer(clock.now))
    clock.now += 30
    answers.put(b"b", answer(clock.now))
    answers.put(b"c", answer(clock.now))
    answers.get(b"old")
    clock.now += 30

    assert 0 == answers.put(b"d", answer(clock.now))
    assert [False, True, True, True] == [answers.get(key) is not None for key in (b"old", b"b", b"c", b"d")]


def test_a_caller_may_want_a_younger_answer() -> None:
    """`max-age` is that caller's wish alone: the entry stays for the others."""
    clock = Clock()
    answers = store(clock=clock)
    answers.put(b"a", answer(clock.now))
    clock.now += 10

    assert answers.get(b"a", max_age_s=9.9) is None
    assert answers.get(b"a", max_age_s=10) is not None
    assert answers.get(b"a") is not None


def test_a_new_answer_replaces_the_old_one() -> None:
    """With its own size and its own time."""
    clock = Clock()
    answers = store(clock=clock)
    answers.put(b"a", answer(clock.now, 150))
    clock.now += 50
    answers.put(b"a", answer(clock.now))
    clock.now += 50

    assert answers.get(b"a") is not None
    assert (1, ENTRY) == (len(answers), answers.size_bytes)


def test_purge_forgets_everything() -> None:
    """And says how much that was."""
    answers = store()
    answers.put(b"a", answer(1000))
    answers.put(b"b", answer(1000))

    assert 2 == answers.purge()
    assert 0 == len(answers) == answers.size_bytes
    assert answers.get(b"a") is None
    assert 0 == answers.put(b"a", answer(1000))


KEYS = [b"a", b"b", b"c", b"d", b"e"]
STEP = st.tuples(st.sampled_from(["put", "get", "wait"]), st.sampled_from(KEYS), st.integers(1, 900))


@settings(deadline=None, max_examples=200)
@given(st.lists(STEP, max_size=60))
def test_the_books_always_balance(steps: list[tuple[str, bytes, int]]) -> None:
    """Whatever happens: size is the sum of what can be got, within the bound, and nothing given is past its time."""
    clock = Clock()
    answers = store(3, clock)
    for step, key, number in steps:
        if step == "put":
            answers.put(key, answer(clock.now, number))
        elif step == "wait":
            clock.now += number / 10
        elif (found := answers.get(key)) is not None:
            assert clock.now - found.stored_at < TTL_S

        assert answers.size_bytes <= 3 * ENTRY
    left = [found for key in KEYS if (found := answers.get(key)) is not None]
    assert (len(left), sum(found.size_bytes for found in left)) == (len(answers), answers.size_bytes)
