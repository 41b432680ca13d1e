"""Cap and queue of a deployment: never more than `max` at once, first come first served, and no place is ever lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from gateway.admission.slots import Slot, slots
from gateway.deadline import Limit
from gateway.errors import QueueFull
from gateway.telemetry.metrics import Metrics
from router.policy import Concurrency
from tests.client import Leave
from tests.gateway.conftest import Start, tier
from tests.router.policy_text import policy
from tests.upstream import Hang, Send, Until, Upstream, answer


class Place(Slot):
    """A slot with its metrics at hand."""

    def __init__(self, most: int = 1, queue: int = 8, cap: bool = True) -> None:
        self.metrics = Metrics()
        concurrency = Concurrency(max=most, queue=queue, queue_timeout="5s")  # type: ignore[arg-type]
        super().__init__("small", "a", concurrency if cap else None, self.metrics)

    def counted(self, name: str, **labels: str) -> float:
        value = self.metrics.registry.get_sample_value(name, {"tier": "small", "deployment": "a", **labels})
        assert value is not None
        return value

    def is_empty(self) -> bool:
        gauges = (self.counted("tiergate_in_flight"), self.counted("tiergate_queue_depth"))
        return self.open == 0 and not self._waiting and gauges == (0, 0)


def later(seconds: float = 5.0) -> Limit:
    return Limit(time.monotonic() + seconds, "total")


async def queued(slot: Slot, count: int = 1) -> list[asyncio.Task[None]]:
    """Tasks that wait in line, in order."""
    tasks = []
    for _ in range(count):
        tasks.append(asyncio.create_task(slot.acquire(later())))
        await turns()
    return tasks


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def refused(waiting: Awaitable[Any]) -> QueueFull:
    with pytest.raises(QueueFull) as caught:
        await waiting
    return caught.value


async def test_places_up_to_the_cap_are_given_at_once() -> None:
    """The cap is exact: `max` at once and not one more."""
    slot = Place(most=2)

    await slot.acquire(later())
    await slot.acquire(later())
    [third] = await queued(slot)

    assert (2, False) == (slot.open, third.done())
    assert (2, 1) == (slot.counted("tiergate_in_flight"), slot.counted("tiergate_queue_depth"))
    slot.release()
    await third
    slot.release()
    slot.release()
    assert slot.is_empty()


async def test_without_a_cap_everybody_gets_a_place() -> None:
    """No cap in the policy is no cap; the gauge counts all the same."""
    slot = Place(cap=False)

    for _ in range(500):
        await slot.acquire(later())

    assert 500 == slot.counted("tiergate_in_flight")
    for _ in range(500):
        slot.release()
    assert slot.is_empty()


async def test_line_is_served_in_order() -> None:
    """First come, first served: nobody starves."""
    slot, served = Place(), []
    await slot.acquire(later())

    async def one(number: int) -> None:
        await slot.acquire(later())
        served.append(number)
        slot.release()

    tasks = []
    for number in range(5):
        tasks.append(asyncio.create_task(one(number)))
        await turns()
    slot.release()
    await asyncio.gather(*tasks)

    assert [0, 1, 2, 3, 4] == served
    assert slot.is_empty()


async def test_newcomer_does_not_overtake_the_line() -> None:
    """A place that was handed over is taken, though its new owner has not run yet."""
    slot = Place()
    await slot.acquire(later())
    [first] = await queued(slot)
    slot.release()

    [newcomer] = await queued(slot)

    assert (True, False) == (first.done(), newcomer.done())
    slot.release()
    await newcomer
    slot.release()
    assert slot.is_empty()


async def test_full_line_refuses_at_once() -> None:
    """A line that grows without end only makes everybody late."""
    slot = Place(queue=2)
    await slot.acquire(later())
    waiting = await queued(slot, 2)

    error = await refused(slot.acquire(later()))

    assert 5.0 == error.retry_after
    assert 1 == slot.counted("tiergate_queue_rejected_total", reason="full")
    for task in waiting:
        slot.release()
        await task
    slot.release()
    assert slot.is_empty()


async def test_line_of_length_zero_means_now_or_never() -> None:
    """`queue: 0` is for those who prefer the next deployment to waiting."""
    slot = Place(queue=0)
    await slot.acquire(later())

    await refused(slot.acquire(later()))

    slot.release()
    assert slot.is_empty()


async def test_wait_in_line_has_its_limit() -> None:
    """And the place in line is given up with it."""
    slot = Place()
    await slot.acquire(later())

    await refused(slot.acquire(later(0.01)))

    assert 1 == slot.counted("tiergate_queue_rejected_total", reason="timeout")
    slot.release()
    assert slot.is_empty()


async def test_waiter_that_leaves_gives_up_its_place_in_line() -> None:
    """The one behind it moves up."""
    slot = Place()
    await slot.acquire(later())
    first, second = await queued(slot, 2)

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    slot.release()
    await second

    assert 1 == slot.open
    slot.release()
    assert slot.is_empty()


async def test_waiter_that_leaves_as_its_turn_comes_hands_the_place_on() -> None:
    """Handed over and cancelled in the same turn of the loop: the place must not vanish."""
    slot = Place()
    await slot.acquire(later())
    first, second = await queued(slot, 2)

    slot.release()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, 1)

    slot.release()
    assert slot.is_empty()


@pytest.mark.parametrize("others", [0, 1])
async def test_place_that_comes_free_as_a_waiter_leaves_goes_to_the_next(others: int) -> None:
    """Cancelled and released in the same turn of the loop, in this order: it must end as a cancellation."""
    slot = Place()
    await slot.acquire(later())
    first, *rest = await queued(slot, 1 + others)

    first.cancel()
    slot.release()
    with pytest.raises(asyncio.CancelledError):
        await first

    for task in rest:
        await asyncio.wait_for(task, 1)
        slot.release()
    assert slot.is_empty()


async def test_no_interleaving_loses_or_doubles_a_place() -> None:
    """Callers that come, wait, leave and finish in every order: the cap holds and all is given back."""
    slot, most = Place(most=3, queue=50), 0

    async def one(number: int) -> None:
        nonlocal most
        await slot.acquire(later())
        most = max(most, slot.open)
        try:
            await turns(number % 4)
        finally:
            slot.release()

    tasks = [asyncio.create_task(one(number)) for number in range(40)]
    for number, task in enumerate(tasks):
        if number % 3 == 1:
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(0)
    await asyncio.gather(*tasks, return_exceptions=True)

    assert 3 == most
    assert slot.is_empty()


async def test_policy_gives_each_deployment_a_slot_of_its_own() -> None:
    """A cap protects one server, so it is not shared by the tier."""
    text = (
        "version: 1\ntiers:\n  small:\n    concurrency: {max: 3}\n    deployments:\n"
        '      - {name: a, model: openai/a, api_base: "http://a/v1"}\n'
        '      - {name: b, model: openai/b, api_base: "http://b/v1"}\n'
    )

    made = slots(policy(text), Metrics())

    assert {"a", "b"} == set(made)
    assert made["a"] is not made["b"]


# --- on the path ---


async def test_cap_holds_at_the_upstream(start: Start, small: Upstream) -> None:
    """What counts is what the server sees: three at once of twenty."""
    gateway = await start({"tiers": {"small": tier(small, "small", concurrency={"max": 3, "queue": 50})}})
    gate = asyncio.Event()
    small.default(Until(gate), answer("好"))

    calls = [asyncio.create_task(gateway.chat("排队", model="small")) for _ in range(20)]
    await small.wait_for_requests(3)
    await gateway.get("/health/live")
    assert 3 == len(small.requests)
    gate.set()
    replies = await asyncio.gather(*calls)

    assert {200} == {reply.status for reply in replies}
    assert 3 == small.max_parallel


async def test_full_queue_goes_to_the_next_tier_and_blames_nobody(
    start: Start, small: Upstream, medium: Upstream
) -> None:
    """Our own cap is not the server's fault: its breaker stays closed."""
    tiers = {
        "small": tier(small, "small", concurrency={"max": 1, "queue": 0}, cooldown={"allowed_fails": 1}),
        "medium": tier(medium, "medium"),
    }
    gateway = await start({"tiers": tiers})
    gate = asyncio.Event()
    small.script(Until(gate), answer("small"))
    medium.script(answer("medium"))

    first = asyncio.create_task(gateway.chat(model="small"))
    await small.wait_for_requests(1)
    second = await gateway.chat(model="small")
    gate.set()

    assert ("medium", "small") == (second.text, (await first).text)
    assert gateway.rt.health.ready("small-1")
    lines = await gateway.settled(2)
    assert "queue_full" in {attempt["outcome"] for line in lines for attempt in line["attempts"]}


async def test_queue_that_is_full_everywhere_is_told_with_a_time(start: Start, small: Upstream) -> None:
    """503 with Retry-After: SDKs know what to do with it."""
    cap = {"max": 1, "queue": 0, "queue_timeout": "3s"}
    gateway = await start({"tiers": {"small": tier(small, "small", concurrency=cap)}})
    small.script(Send(b""), Hang())

    first = asyncio.create_task(gateway.chat(model="small", leave=Leave(after_s=0.3)))
    await small.wait_for_requests(1)
    second = await gateway.chat(model="small")
    await first

    assert (503, "queue_full", "3") == (second.status, second.error["code"], second.header("retry-after"))  # type: ignore[index]
