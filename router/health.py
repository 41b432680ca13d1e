"""Which deployments are left alone for a while: a circuit breaker for each, and nothing more."""

from __future__ import annotations

from collections.abc import Callable

from router.policy import Cooldown

PROBE_S = 10.0  # a probe that has told nothing by then is no longer waited for


class _Breaker:
    __slots__ = ("failures", "probing_until", "until")

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self.until = 0.0  # cooling down until then
        self.probing_until = 0.0  # one call finds out; the others wait for it so long


class Health:
    """Failures in a row open the breaker; when its time is over one call probes, and one failure opens it again.

    Owned by the runtime's process; changed only through `succeeded` and `failed`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: dict[str, _Breaker] = {}

    def ready(self, deployment: str) -> bool:
        breaker = self._breakers.get(deployment)
        return breaker is None or max(breaker.until, breaker.probing_until) <= self._clock()

    def trying(self, deployment: str) -> None:
        """A call goes there now. After a cooldown it is the probe."""
        breaker = self._breakers.get(deployment)
        if breaker is not None and 0 < breaker.until <= (now := self._clock()):
            breaker.probing_until = now + PROBE_S

    def ready_at(self, deployment: str) -> float:
        """When it may be asked again (clock seconds); 0.0 if it may be now."""
        breaker = self._breakers.get(deployment)
        return max(breaker.until, breaker.probing_until) if breaker else 0.0

    def succeeded(self, deployment: str) -> bool:
        """Note a good answer. True if failures had been noted before."""
        return bool(self._breakers) and self._breakers.pop(deployment, None) is not None

    def failed(self, deployment: str, cooldown: Cooldown | None, retry_after: float | None = None) -> bool:
        """Note a failure that the deployment is to blame for. True if it is cooling down from now on."""
        if cooldown is None:
            return False
        breaker = self._breakers.setdefault(deployment, _Breaker())
        breaker.failures += 1
        breaker.probing_until = 0.0
        now = self._clock()
        pause = cooldown.cooldown_time if breaker.failures >= cooldown.allowed_fails else 0.0
        if retry_after is not None:  # it said itself when to come back
            pause = max(pause, min(retry_after, cooldown.cooldown_time))
        if not pause:
            return False
        opened = breaker.until <= now
        breaker.until = max(breaker.until, now + pause)
        return opened
