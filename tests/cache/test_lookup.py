"""The entry point: look up, wait, keep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from cache.lookup import Cache, Lead, Recalled
from router.policy import ExactCache, Policy
from router.types import CacheControl, Call
from tests.cache.samples import CHINESE, Clock, call, policy, stored, whole

NO_CACHE, NO_STORE = CacheControl(no_cache=True), CacheControl(no_store=True)


class Bench:
    """A cache, its clock, and what it reported."""

    def __init__(self, exact: ExactCache | None = None) -> None:
        self.events: Counter[str] = Counter()
        self.clock = Clock()
        self.policy: Policy = policy(exact)
        self.cache = Cache(self.policy.cache.exact, self.report, self.clock)

    def report(self, event: str) -> None:
        self.events[event] += 1

    def peek(self, of: Call, tenant: str = "alice", route_cache: bool = True) -> Recalled:
        recalled = self.cache.peek(of, tenant, self.policy, route_cache)
        assert recalled is not None
        return recalled

    async def recall(self, of: Call, seconds: float = 60) -> Recalled:
        return await self.cache.recall(of, "alice", self.policy, True, self.clock.now + seconds)

    def lead(self, of: Call) -> Lead:
        lead = self.peek(of).lead
        assert lead is not None
        return lead

    def keep(self, of: Call, text: str = "Paris") -> bool:
        return self.lead(of).store(stored(text, self.clock.now))


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Afterwards nothing may be in flight."""
    bench = Bench()
    yield bench
    assert 0 == bench.cache.in_flight


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def test_the_second_identical_call_is_a_hit(bench: Bench) -> None:
    """With the answer, and how old it is."""
    first = bench.peek(call(CHINESE))
    assert ("miss", None, None) == (first.status, first.answer, first.age_s)
    assert first.lead is not None
    assert first.lead.store(stored("巴黎", bench.clock.now))
    bench.clock.now += 5

    hit = bench.peek(call(CHINESE))

    assert ("hit-exact", 5.0, None) == (hit.status, hit.age_s, hit.lead)
    assert hit.answer is not None
    assert whole("巴黎") == hit.answer.body
    assert {"miss": 1, "store": 1, "hit": 1} == bench.events


def test_a_stream_and_a_whole_answer_share_one_entry(bench: Bench) -> None:
    """Stored once, given in either form (cache-04)."""
    bench.keep(call(stream=True, stream_options={"include_usage": True}))

    assert "hit-exact" == bench.peek(call()).status


def test_another_tenant_does_not_hit(bench: Bench) -> None:
    """One app never sees another's answer (cache-03)."""
    bench.keep(call())

    other = bench.peek(call(), tenant="bob")
    assert "miss" == other.status
    assert other.lead is not None
    other.lead.drop()


def test_answers_expire(bench: Bench) -> None:
    """After the policy's ttl."""
    bench.keep(call())
    bench.clock.now += 3600

    again = bench.lead(call())
    again.drop()


@pytest.mark.parametrize(
    "body", [whole(""), whole("half", "length"), b'{"error":{"message":"overloaded"}}', b"nonsense"]
)
def test_what_is_unfit_is_not_stored(bench: Bench, body: bytes) -> None:
    """Whoever hands it in: the check stands in one place (cache-05, cache-06)."""
    assert not bench.lead(call()).store(stored(answer=body))

    assert "miss" == bench.peek(call()).status
    assert 0 == bench.events["store"] == len(bench.cache)


def test_what_the_caller_forbids_is_not_stored(bench: Bench) -> None:
    """`no-store` neither reads nor writes."""
    bench.keep(call())

    recalled = bench.peek(call(control=NO_STORE))

    assert ("bypass", None, None) == (recalled.status, recalled.answer, recalled.lead)


def test_no_cache_asks_again_and_stores(bench: Bench) -> None:
    """The caller wants a new answer; the next one gets that."""
    bench.keep(call(), "old")

    fresh = bench.peek(call(control=NO_CACHE))
    assert ("bypass", None) == (fresh.status, fresh.answer)
    assert fresh.lead is not None
    fresh.lead.store(stored("new", bench.clock.now))

    hit = bench.peek(call())
    assert hit.answer is not None
    assert whole("new") == hit.answer.body


def test_no_cache_does_not_wait_for_a_call_that_began_before(bench: Bench) -> None:
    """Its answer would be older than the wish for a new one."""
    first = bench.lead(call())

    fresh = bench.peek(call(control=NO_CACHE)).lead
    assert fresh is not None
    fresh.drop()
    assert 1 == bench.cache.in_flight
    first.drop()


def test_others_wait_for_a_no_cache_call(bench: Bench) -> None:
    """Its answer is as new as can be."""
    fresh = bench.peek(call(control=NO_CACHE)).lead

    assert bench.cache.peek(call(), "alice", bench.policy, True) is None
    assert fresh is not None
    fresh.drop()


def test_max_age_refuses_older_answers(bench: Bench) -> None:
    """And takes younger ones; zero takes none."""
    bench.keep(call())
    bench.clock.now += 10

    assert "hit-exact" == bench.peek(call(control=CacheControl(max_age_s=10))).status
    for seconds, status in ((9, "miss"), (0, "bypass")):
        too_old = bench.peek(call(control=CacheControl(max_age_s=seconds)))
        assert (status, None) == (too_old.status, too_old.answer)
        assert too_old.lead is not None
        too_old.lead.drop()


def test_off_and_left_alone_is_a_bypass() -> None:
    """Without a cache, on a route without one, and for calls that the policy leaves alone."""
    bench = Bench(ExactCache(only_deterministic=True))
    off = Cache(None, bench.report)

    recalled = [
        off.peek(call(temperature=0), "alice", bench.policy, True), bench.peek(call(temperature=0), route_cache=False),
        bench.peek(call()),
    ]  # fmt: skip

    assert [("bypass", None)] * 3 == [(each.status, each.lead) for each in recalled if each is not None]
    assert {"bypass": 3} == bench.events


def test_an_answer_too_large_is_not_kept() -> None:
    """The policy bounds each entry and the whole; what had to go is counted."""
    bench = Bench(ExactCache(max_entry_bytes="1kB", max_bytes="2kB"))

    assert [True, True, False, True] == [
        bench.keep(call(text), text) for text in ("a", "b", "too large" * 100, "c")
    ]  # fmt: skip
    assert (3, 1) == (bench.events["store"], bench.events["evict"])
    assert 2 == len(bench.cache)
    assert bench.cache.size_bytes <= 2000
    assert 2 == bench.cache.purge()


async def test_identical_calls_share_one_upstream_call(bench: Bench) -> None:
    """Those who wait get the answer as a hit, and are counted as merged."""
    first = await bench.recall(call())
    others = [asyncio.create_task(bench.recall(call(stream=True))) for _ in range(11)]
    await settled()
    assert bench.cache.peek(call(), "alice", bench.policy, True) is None

    assert first.lead is not None
    first.lead.store(stored("Paris", bench.clock.now))
    first.lead.drop()

    got = await asyncio.gather(*others)
    assert {"hit-exact"} == {recalled.status for recalled in got}
    assert {0.0} == {recalled.age_s for recalled in got}
    assert {"miss": 1, "store": 1, "merged": 11} == bench.events


async def test_a_failed_leader_is_followed_by_one(bench: Bench) -> None:
    """Twelve calls and a leader that fails: the second one's answer serves the other ten (cache-15)."""
    first = await bench.recall(call())
    others = [asyncio.create_task(bench.recall(call())) for _ in range(11)]
    await settled()
    assert first.lead is not None
    first.lead.drop()
    await settled()

    [second] = [task.result() for task in others if task.done()]
    assert "miss" == second.status
    assert second.lead is not None
    second.lead.store(stored())

    got = await asyncio.gather(*others)
    assert {"miss": 1, "hit-exact": 10} == Counter(recalled.status for recalled in got)


async def test_an_unfit_answer_frees_those_who_wait(bench: Bench) -> None:
    """Each asks for itself at once, and the next identical calls are not merged at all."""
    first = await bench.recall(call())
    others = [asyncio.create_task(bench.recall(call())) for _ in range(3)]
    await settled()
    assert first.lead is not None
    first.lead.store(stored(answer=whole("half", "length")))

    got = await asyncio.gather(*others)
    later = [bench.peek(call()), bench.peek(call())]
    assert {"miss"} == {recalled.status for recalled in [*got, *later]}
    assert all(recalled.lead is not None for recalled in [*got, *later])


async def test_a_large_answer_still_serves_those_who_wait() -> None:
    """It is good; there is only no room to keep it."""
    bench = Bench(ExactCache(max_entry_bytes="700B"))
    first = await bench.recall(call())
    other = asyncio.create_task(bench.recall(call()))
    await settled()
    assert first.lead is not None

    assert not first.lead.store(stored("long " * 200))

    assert "hit-exact" == (await other).status
    assert 0 == len(bench.cache) == bench.events["store"]


async def test_half_of_the_time_is_kept_for_an_own_try(bench: Bench) -> None:
    """Who waited to the end of its deadline could not ask any more."""
    first = await bench.recall(call())

    impatient = await asyncio.wait_for(bench.recall(call(), seconds=0.02), 5)

    assert "miss" == impatient.status
    assert impatient.lead is not None
    impatient.lead.store(stored(at=bench.clock.now))
    assert "hit-exact" == bench.peek(call()).status  # its answer is as good
    assert first.lead is not None
    first.lead.drop()


async def test_a_caller_that_leaves_while_it_waits_leaves_nothing(bench: Bench) -> None:
    """Cancelled at its only wait."""
    first = await bench.recall(call())
    other = asyncio.create_task(bench.recall(call()))
    await settled()

    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    assert first.lead is not None
    first.lead.drop()


def test_a_lead_ends_once(bench: Bench) -> None:
    """`store` after `drop` would store what somebody gave up; `drop` after `store` is what a clean-up does."""
    given_up, done = bench.lead(call("a")), bench.lead(call("b"))

    given_up.drop()
    assert not given_up.store(stored())
    assert done.store(stored())
    done.drop()
    assert not done.store(stored())
    assert 1 == len(bench.cache)


async def test_a_broken_cache_is_a_bypass(bench: Bench) -> None:
    """Nothing optional can break an answer: counted, and the call goes on."""
    bench.keep(call())
    bench.clock.broken = True

    recalled = await bench.cache.recall(call(), "alice", bench.policy, True, deadline=2000)

    assert ("bypass", None) == (recalled.status, recalled.lead)
    assert 1 == bench.events["error"]


def test_nobody_waits_for_a_lead_that_could_not_store(bench: Bench) -> None:
    """`settle` counts the error; the flight is over all the same."""
    lead = bench.lead(call())
    bench.clock.broken = True

    with pytest.raises(OSError, match="no clock"):
        lead.store(stored())

    assert 0 == bench.cache.in_flight


def test_a_reload_keeps_the_entries_if_nothing_changed(bench: Bench) -> None:
    """A policy saved again, or with another log file, is no reason to start cold in memory."""
    bench.keep(call())

    assert bench.cache.replaced(ExactCache()) is bench.cache
    assert bench.cache.replaced(None) is not bench.cache
    smaller = bench.cache.replaced(ExactCache(ttl="5s"))
    assert 0 == len(smaller)
    assert 1 == len(bench.cache)


def test_a_new_policy_does_not_find_the_old_answers(bench: Bench) -> None:
    """The fingerprint is in the key, so the same memory serves both (and the calls that began under the old one)."""
    bench.keep(call())
    old, bench.policy = bench.policy, policy(timeout="5s")

    bench.lead(call()).drop()
    bench.policy = old
    assert "hit-exact" == bench.peek(call()).status
