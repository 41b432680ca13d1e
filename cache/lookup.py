"""The cache's one entry point: look a call up, and keep its answer. Never raises, never delays what it cannot serve."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from cache.answer import StoredAnswer, storable
from cache.key import bypass_reason, cache_key
from cache.singleflight import Flights, Turn
from cache.stores.memory import MemoryStore
from router.policy import ExactCache, Policy
from router.types import CacheStatus, Call

Report = Callable[[str], None]
"""Told of every event: hit, miss, bypass, merged, store, evict, error."""

SHARE_OF_TIME = 0.5  # of the time left that a caller waits for somebody else's answer, to have the rest for its own try


class Recalled(msgspec.Struct, frozen=True):
    """What the cache says about one call."""

    status: CacheStatus
    answer: StoredAnswer | None = None  # given with hit-exact, and only then
    lead: Lead | None = None  # given if the answer to come may be stored; `settle` ends it, whatever happened
    age_s: float | None = None  # of the answer


class Lead:
    """The duty to say how a call ended, for others may wait for it. `store` or `drop`, once; more does nothing."""

    __slots__ = ("_cache", "_key", "_turn")

    def __init__(self, cache: Cache, key: bytes, turn: Turn) -> None:
        self._cache, self._turn = cache, turn
        self._key: bytes | None = key  # None: ended

    def store(self, answer: StoredAnswer) -> bool:
        """The call was answered; gives whether the answer is in the cache now.

        What is not fit to be given to others is dropped here. What is merely too large still goes to those who wait.
        """
        key, self._key = self._key, None
        if key is None:
            return False
        fit = kept = False
        try:
            fit = storable(answer.body)
            kept = fit and self._cache.keep(key, answer)
        finally:
            if fit:
                self._turn.done(answer)
            else:
                self._turn.dissolve()
        return kept

    def drop(self) -> None:
        """There is no answer: the call failed, was cut, or its caller left. The next one that waits takes over."""
        self._key = None
        self._turn.done(None)


BYPASS = Recalled("bypass")


class Cache:
    """The exact cache of one process, for one event loop. With `exact` None it answers every call with a bypass."""

    def __init__(self, exact: ExactCache | None, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self._exact, self._report, self._clock = exact, report, clock
        limits = exact or ExactCache()
        self._store = MemoryStore(limits.max_bytes, limits.max_entry_bytes, limits.ttl, clock)
        self._flights = Flights(clock)

    def peek(self, call: Call, tenant: str, policy: Policy, route_cache: bool) -> Recalled | None:
        """`recall` without waiting: None if an identical call is under way and `recall` would wait for it."""
        try:
            return self._look_up(call, tenant, policy, route_cache)
        except Exception:  # noqa: BLE001 - a broken cache must not break an answer: counted, and the call goes on
            self._report("error")
            return BYPASS

    async def recall(self, call: Call, tenant: str, policy: Policy, route_cache: bool, deadline: float) -> Recalled:
        """Look up; if an identical call is under way, wait for its answer (at most half of the time to `deadline`).

        Raises nothing but the caller's own cancellation.
        """
        recalled = self.peek(call, tenant, policy, route_cache)
        if recalled is not None:
            return recalled
        key = cache_key(call, tenant, policy)
        now = self._clock()
        shared = await self._flights.join(key, now + (deadline - now) * SHARE_OF_TIME)
        if isinstance(shared, StoredAnswer):
            self._report("merged")
            return Recalled("hit-exact", answer=shared, age_s=max(0.0, self._clock() - shared.stored_at))
        self._report("miss")
        return Recalled("miss", lead=Lead(self, key, shared))

    def keep(self, key: bytes, answer: StoredAnswer) -> bool:
        """Put one answer in; gives whether it was small enough. Callers use `Lead.store`."""
        evicted = self._store.put(key, answer)
        if evicted is None:
            return False
        self._report("store")
        for _ in range(evicted):
            self._report("evict")
        return True

    def replaced(self, exact: ExactCache | None) -> Cache:
        """The cache for a new policy: this one if its settings are the same (every key holds the policy's fingerprint,
        so answers of the old policy are found by calls of the old policy alone)."""
        return self if exact == self._exact else Cache(exact, self._report, self._clock)

    def purge(self) -> int:
        """Forget all answers; gives their number. Calls under way are not disturbed."""
        return self._store.purge()

    def __len__(self) -> int:
        return len(self._store)

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes

    @property
    def in_flight(self) -> int:
        """Different calls that others may wait for now."""
        return len(self._flights)

    def _look_up(self, call: Call, tenant: str, policy: Policy, route_cache: bool) -> Recalled | None:
        if bypass_reason(call, self._exact, route_cache) is not None:
            self._report("bypass")
            return BYPASS
        key = cache_key(call, tenant, policy)
        wanted = call.cache_control
        if wanted.no_cache or wanted.max_age_s == 0:
            # A new answer, not one that was begun before this call came: neither looked up nor waited for.
            self._report("bypass")
            return Recalled("bypass", lead=Lead(self, key, self._flights.lead(key) or self._flights.solo(key)))
        answer = self._store.get(key, wanted.max_age_s)
        if answer is not None:
            self._report("hit")
            return Recalled("hit-exact", answer=answer, age_s=max(0.0, self._clock() - answer.stored_at))
        turn = self._flights.lead(key)
        if turn is None:
            return None
        self._report("miss")
        return Recalled("miss", lead=Lead(self, key, turn))
