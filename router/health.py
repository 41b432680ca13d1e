"""Which deployments are left alone for a while: a circuit breaker for each, and nothing more."""

from __future__ import annotations

from collections.abc import Callable

from router.policy import Cooldown


class _Breaker:
    __slots__ = ("failures", "until")

    def __init__(self) -> None:
        self.failures = 0  # in a row
        self.until = 0.0  # cooling down until then


class Health:
    """Failures in a row open the breaker; when its time is over calls go there again, and one failure opens it again.

    Owned by the runtime's process; changed only through `succeeded` and `failed`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._breakers: dict[str, _Breaker] = {}

    def ready(self, deployment: str) -> bool:
        breaker = self._breakers.get(deployment)
        return breaker is None or breaker.until <= self._clock()

    def ready_at(self, deployment: str) -> float:
        """When it may be asked again (clock seconds); 0.0 if it may be now."""
        breaker = self._breakers.get(deployment)
        return breaker.until if breaker else 0.0

    def succeeded(self, deployment: str) -> bool:
        """Note a good answer. True if failures had been noted before."""
        return bool(self._breakers) and self._breakers.pop(deployment, None) is not None

    def failed(self, deployment: str, cooldown: Cooldown | None, retry_after: float | None = None) -> bool:
        """Note a failure that the deployment is to blame for. True if it is cooling down from now on."""
        if cooldown is None:
            return False
        breaker = self._breakers.setdefault(deployment, _Breaker())
        breaker.failures += 1
        now = self._clock()
        pause = cooldown.cooldown_time if breaker.failures >= cooldown.allowed_fails else 0.0
        if retry_after is not None:  # it said itself when to come back
            pause = max(pause, min(retry_after, cooldown.cooldown_time))
        if not pause:
            return False
        opened = breaker.until <= now
        breaker.until = max(breaker.until, now + pause)
        return opened
