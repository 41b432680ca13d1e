"""The words of `request`: what clients and the operator do, in order."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tests.cases import adapter
from tests.cases.bodies import WIRE_WORDS, wire
from tests.cases.case import Case, UnknownWord, checks_of, known
from tests.cases.checks import settles
from tests.cases.run import Acted, Run
from tests.client import Client, Leave, Reply

OPERATOR = frozenset(
    {"signal", "to", "kill_worker", "restart", "restart_with", "reload_with", "start_only", "each_variant"}
)
TIMING = frozenset({"delay_ms", "start_after_ms", "parallel_with"})
HOW_OFTEN = frozenset({"repeat", "parallel", "new_connection_each", "client"})
CLIENT_WORDS = frozenset(
    {
        "disconnect_after_ms", "disconnect_after_events", "disconnect_after_event", "disconnect_random_ms",
        "reset_right_after_request", "keep_open",
    }
)  # fmt: skip
RELOAD_S = 5.0
Act = Mapping[str, Any]


def check_words(acts: list[dict[str, Any]], where: str) -> None:
    """`UnknownWord` unless all words of these requests are known."""
    for act in acts:
        known(act, WIRE_WORDS | OPERATOR | TIMING | HOW_OFTEN, where)
        known(act.get("client", {}), CLIENT_WORDS, where)
        if "reload_with" in act and act["reload_with"] not in adapter.EDITS:
            raise UnknownWord(f"{where}: reload_with: {act['reload_with']}")


async def perform(run: Run) -> None:
    """Start the gateway and do all that the case lists."""
    acts = list(enumerate(run.case.request, start=1))
    if any(act.get("each_variant") for _, act in acts):
        await _start_variants(run)
        return
    await run.start()
    if not run.is_up:
        return
    began = time.monotonic()
    for group in _groups(acts):
        async with asyncio.TaskGroup() as tasks:
            for number, act in group:
                tasks.create_task(_act(run, number, act, began))


async def _start_variants(run: Run) -> None:
    for words in run.case.setup["config"]["variants"]:
        await run.start(adapter.edit(run.launch.policy, words), variant=words)


def _groups(acts: list[tuple[int, dict[str, Any]]]) -> list[list[tuple[int, dict[str, Any]]]]:
    """Requests that run beside the one before them are in its group; groups follow each other."""
    groups: list[list[tuple[int, dict[str, Any]]]] = []
    for number, act in acts:
        if groups and ("start_after_ms" in act or "parallel_with" in act):
            groups[-1].append((number, act))
        else:
            groups.append([(number, act)])
    return groups


async def _act(run: Run, number: int, act: Act, began: float) -> None:
    if "start_after_ms" in act:
        await asyncio.sleep(max(0.0, began + act["start_after_ms"] / 1000 - time.monotonic()))
    await asyncio.sleep(act.get("delay_ms", 0) / 1000)
    await _operate(run, act)
    acted = run.acted[number] = Acted()
    if set(act) - OPERATOR - TIMING or not set(act) & OPERATOR:
        calls = run.calls
        await _send_all(run, act, acted)
        acted.calls = run.calls - calls


async def _operate(run: Run, act: Act) -> None:
    if "signal" in act:
        if "to" in act:
            raise adapter.NotSupported(f"to: {act['to']}")
        run.signalled_at = time.monotonic()
        run.process.send_signal(getattr(signal, f"SIG{act['signal']}"))
    if act.get("kill_worker"):
        run.process.kill_worker()
    if "restart_with" in act:
        raise adapter.NotSupported("restart_with")
    if act.get("restart"):
        await run.process.stop()
        await run.start()
    if "reload_with" in act:
        await _reload(run, adapter.edit(run.launch.policy, act["reload_with"]))


async def _reload(run: Run, text: str) -> None:
    """Change the file and let the gateway see it by itself; if it does not, ask with SIGHUP."""
    before = _reloads(run)

    async def noticed() -> None:
        assert _reloads(run) > before, "the gateway says nothing about its changed file"

    run.policy_file.write_text(text, "utf-8")
    with contextlib.suppress(AssertionError):
        await settles(noticed, RELOAD_S)
        return
    run.process.send_signal(signal.SIGHUP)
    await settles(noticed, RELOAD_S)


def _reloads(run: Run) -> int:
    return sum(line.get("event") in adapter.RELOADED for line in run.process.log)


# --- requests ---


async def _send_all(run: Run, act: Act, acted: Acted) -> None:
    if "parallel" in act:
        calls = [_send(run, run.client(), act, number) for number in range(1, act["parallel"] + 1)]
        acted.replies = list(await asyncio.gather(*calls))
        return
    count = act.get("repeat") or act.get("spread_keys") or 1
    client = run.client(keep_alive=count > 1 and not act.get("new_connection_each"))
    for number in range(1, count + 1):
        acted.replies.append(await _send(run, client, act, number))
        if run.first is None and _counts_series(run.case):
            run.first = await run.metrics()
    await client.aclose()


async def _send(run: Run, client: Client, act: Act, number: int) -> Reply:
    """One request. A gateway that gives no answer, or is gone, leaves a reply without a status."""
    leave = _leave(act.get("client", {}), number)
    started = time.monotonic()
    try:
        return await client.send(wire(act, number, run.urls), leave=leave)
    except OSError:  # TimeoutError is one
        return Reply(sent_at=started, duration=time.monotonic() - started)


def _leave(words: Act, number: int) -> Leave | None:
    if not words or "keep_open" in words:
        return None
    after_ms = words.get("disconnect_after_ms")
    if between := words.get("disconnect_random_ms"):
        after_ms = random.Random(number).uniform(*between)
    return Leave(
        after_s=None if after_ms is None else after_ms / 1000,
        after_events=words.get("disconnect_after_events"),
        after_text=words.get("disconnect_after_event"),
        at_once="reset_right_after_request" in words,
        reset="reset_right_after_request" in words,
    )


def _counts_series(case: Case) -> bool:
    return any(role == "series_count" for role in _roles(case))


def _roles(case: Case) -> Iterator[str]:
    for word, argument in checks_of(case.expect):
        if word == "metric":
            yield argument["role"]
