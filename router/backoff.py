"""How long to wait before the same deployment is asked again."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from router.policy import Backoff

MAX_RETRY_AFTER_S = 86_400.0


def delay(
    retry: int, backoff: Backoff, uniform: Callable[[float, float], float], retry_after: float | None
) -> float | None:
    """Seconds before retry number `retry` (1, 2, ...), or None where retrying is pointless.

    Exponential with full jitter (uniform in [0, initial * 2**(retry - 1)], capped). An upstream's own hint wins; one
    that is longer than the cap means: ask somebody else.
    """
    ceiling = min(backoff.max, backoff.initial * 2.0 ** (retry - 1))
    if retry_after is not None:
        return None if retry_after > backoff.max else max(retry_after, uniform(0.0, ceiling))
    return uniform(0.0, ceiling) if backoff.jitter else ceiling


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """`Retry-After` as seconds from now: a number, or an HTTP date. None if absent or unreadable."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        pass
    else:
        return min(max(0.0, seconds), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return min(max(0.0, (when - (now or datetime.now(UTC))).total_seconds()), MAX_RETRY_AFTER_S)
