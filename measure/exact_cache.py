"""What the exact cache costs: µs for a key, a hit, a miss and a store, at 0.6 kB and 32 kB.

    python -m measure.exact_cache [--rounds 7]

Each figure is the best of the rounds: on a shared machine the others measure the neighbours.
"""

from __future__ import annotations

import argparse
import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import orjson

from cache.answer import StoredAnswer, assemble, replay, storable
from cache.key import cache_key
from cache.lookup import Cache
from cache.stores.memory import MemoryStore
from router.policy import Caches, Deployment, ExactCache, Policy, Tier
from router.types import Call, Usage

SIZES = {"0.6 kB": (2, 250), "32 kB": (20, 1600)}  # messages, characters in each
EVENTS = 500


class Row(NamedTuple):
    what: str
    size: str
    microseconds: float


def policy() -> Policy:
    tier = Tier(name="small", deployments=(Deployment(name="a", model="openai/a"),))
    return Policy(version=1, tiers={"small": tier}, cache=Caches(exact=ExactCache()))


def call(messages: int, characters: int) -> Call:
    """A request of that many messages, as client libraries send it."""
    turns = [{"role": "user", "content": f"{i} " + "what is it? " * (characters // 12)} for i in range(messages)]
    body = orjson.dumps({"model": "auto", "messages": turns, "temperature": 0, "max_tokens": 100, "stream": True})
    return Call(request_id="r", surface="chat", body=body, model="auto", stream=True, temperature=0.0)


def answer(characters: int) -> StoredAnswer:
    message = {"role": "assistant", "content": "so it is. " * (characters // 10)}
    whole = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "a",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200},
    }  # fmt: skip
    usage = Usage(input=100, output=100)
    return StoredAnswer(orjson.dumps(whole), usage, "small", "a", "a", "auto", time.monotonic())


def events() -> list[bytes]:
    """A stream of `EVENTS` content events."""
    about = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "a"}
    said: list[dict[str, object]] = [
        {"index": 0, "delta": {"content": " word"}, "finish_reason": None} for _ in range(EVENTS)
    ]
    said.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    return [orjson.dumps({**about, "choices": [choice]}) for choice in said]


def best(run: Callable[[], object], rounds: int) -> float:
    """Best time of one `run`, in µs."""
    number = max(1, int(0.02 / max(1e-7, min(timeit.repeat(run, number=1, repeat=5)))))
    return min(timeit.repeat(run, number=number, repeat=rounds)) / number * 1e6


def ignore(event: str) -> None:
    """A `report` that costs nothing."""


def rows(rounds: int) -> list[Row]:
    rules = policy()
    table = []
    for size, (messages, characters) in SIZES.items():
        request, stored = call(messages, characters), answer(messages * characters)
        runs: dict[str, Callable[[], object]] = {
            "key": partial(cache_key, request, "app", rules),
            "hit": _hit(request, stored, rules),
            "miss": _miss(request, rules),
            "store": _store(stored),
            "storable": partial(storable, stored.body),
            "replay as a stream": partial(replay, stored.body, True),
        }
        table += [Row(what, size, best(run, rounds)) for what, run in runs.items()]
    told = events()
    table.append(Row("assemble, per event", f"{EVENTS} events", best(partial(assemble, told), rounds) / EVENTS))
    return table


def _hit(request: Call, stored: StoredAnswer, rules: Policy) -> Callable[[], object]:
    cache = Cache(rules.cache.exact, ignore)
    recalled = cache.peek(request, "app", rules, True)
    if recalled is None or recalled.lead is None or not recalled.lead.store(stored):
        raise RuntimeError("the answer was not stored")
    return partial(cache.peek, request, "app", rules, True)


def _miss(request: Call, rules: Policy) -> Callable[[], object]:
    """A look-up without a result, and the end of a call that brought nothing to store."""
    cache = Cache(rules.cache.exact, ignore)

    def miss() -> None:
        recalled = cache.peek(request, "app", rules, True)
        if recalled is not None and recalled.lead is not None:
            recalled.lead.drop()

    return miss


def _store(stored: StoredAnswer) -> Callable[[], object]:
    store = MemoryStore(max_bytes=1 << 26, max_entry_bytes=1 << 20, ttl_s=3600.0)
    return partial(store.put, b"k" * 32, stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="measure each this often, and keep the best")
    for what, size, microseconds in rows(parser.parse_args().rounds):
        print(f"{what:22} {size:>10} {microseconds:9.2f} µs")


if __name__ == "__main__":
    main()
