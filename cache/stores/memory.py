"""Answers in this process's memory: bounded by bytes, by age, and by use."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from cache.answer import StoredAnswer


class MemoryStore:
    """Least recently used goes first; every operation takes constant time (expiry: amortised).

    For one event loop: nothing in here waits, so nothing in here is locked.
    """

    def __init__(
        self, max_bytes: int, max_entry_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes, self._max_entry_bytes, self._ttl_s, self._clock = max_bytes, max_entry_bytes, ttl_s, clock
        self._by_use: OrderedDict[bytes, StoredAnswer] = OrderedDict()
        self._by_age: OrderedDict[bytes, None] = OrderedDict()  # all live equally long: the first expires first
        self._size_bytes = 0

    def get(self, key: bytes, max_age_s: float | None = None) -> StoredAnswer | None:
        """The answer, if it is within its time and not older than `max_age_s`."""
        answer = self._by_use.get(key)
        if answer is None:
            return None
        age_s = self._clock() - answer.stored_at
        if age_s >= self._ttl_s:
            self._remove(key)
            return None
        if max_age_s is not None and age_s > max_age_s:
            return None  # too old for this caller, not for the next
        self._by_use.move_to_end(key)
        return answer

    def put(self, key: bytes, answer: StoredAnswer) -> int | None:
        """Store, and give the number of entries that had to go to make room; None: too large to be stored."""
        size = answer.size_bytes
        if size > self._max_entry_bytes or size > self._max_bytes:
            return None
        if key in self._by_use:
            self._remove(key)
        self._expire()
        self._by_use[key] = answer
        self._by_age[key] = None
        self._size_bytes += size
        evicted = 0
        while self._size_bytes > self._max_bytes:
            self._remove(next(iter(self._by_use)))
            evicted += 1
        return evicted

    def purge(self) -> int:
        """Forget everything; gives the number of entries that there were."""
        count = len(self._by_use)
        self._by_use.clear()
        self._by_age.clear()
        self._size_bytes = 0
        return count

    def __len__(self) -> int:
        return len(self._by_use)

    @property
    def size_bytes(self) -> int:
        """Bodies and an estimate of what each entry costs besides."""
        return self._size_bytes

    def _expire(self) -> None:
        oldest_allowed = self._clock() - self._ttl_s
        while self._by_age:
            key = next(iter(self._by_age))
            if self._by_use[key].stored_at > oldest_allowed:
                return
            self._remove(key)

    def _remove(self, key: bytes) -> None:
        self._size_bytes -= self._by_use.pop(key).size_bytes
        del self._by_age[key]
