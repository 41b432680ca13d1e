"""Swapping policies under traffic: a good file takes over, a bad one changes nothing, and no call notices."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.keys import hash_key
from router.types import AttemptOutcome
from tests.client import Client, Reply
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import DONE, HEAD, HEAD_CHUNKED, Chunk, Hang, Send, Until, Upstream, answer, event, finish

BAD = "version: 1\ntiers:\n  small: {deploymants: []}\n"


def policy(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gateway.policy_file.read_text())
    return found


def write(gateway: Gateway, text: str | dict[str, Any]) -> None:
    gateway.policy_file.write_text(text if isinstance(text, str) else json.dumps(text))


def replace(gateway: Gateway, text: str | dict[str, Any]) -> None:
    """As editors and Kubernetes do it: another file takes the name."""
    fresh = gateway.policy_file.with_suffix(".new")
    fresh.write_text(text if isinstance(text, str) else json.dumps(text))
    fresh.replace(gateway.policy_file)


def pointing_to(gateway: Gateway, upstream: Upstream) -> dict[str, Any]:
    changed = policy(gateway)
    changed["tiers"]["small"] = tier(upstream, "small")
    return changed


async def until(condition: Any, timeout: float = 5.0) -> None:
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def one(start: Start, small: Upstream) -> Gateway:
    gateway: Gateway = await start({"tiers": {"small": tier(small, "small")}, "routes": {"auto": {"tier": "small"}}})
    return gateway


# --- a good file ---


async def test_good_file_takes_over(one: Gateway, small: Upstream, medium: Upstream) -> None:
    """The next call goes where the new policy says."""
    small.script(answer("old"))
    medium.script(answer("new"))
    assert "old" == (await one.chat("你好")).text
    before = one.rt.policy.fingerprint
    write(one, pointing_to(one, medium))

    assert () == one.app.reloader.reload()

    assert "new" == (await one.chat("你好")).text
    assert before != one.rt.policy.fingerprint
    assert "policy_reloaded" in one.log.events()
    assert 1 == one.metric("tiergate_policy_reloads_total", result="ok")
    assert 1 == one.metric("tiergate_policy_info", fingerprint=one.rt.policy.fingerprint)
    assert 0 == one.metric("tiergate_policy_info", fingerprint=before)


async def test_routes_rules_and_aliases_are_new_at_once(one: Gateway, small: Upstream) -> None:
    """A reload is for the whole file, not for addresses alone."""
    changed = policy(one)
    changed["aliases"] = {"新名字": "small"}
    changed["routes"]["second"] = {}
    write(one, changed)
    assert () == one.app.reloader.reload()

    listed = await one.get("/v1/models")

    assert {"新名字", "second"} <= {model["id"] for model in listed.json["data"]}


@pytest.mark.parametrize("how", [write, replace])
async def test_changed_file_is_noticed(one: Gateway, medium: Upstream, how: Any) -> None:
    """Edited in place, or replaced by another file of the same name."""
    how(one, pointing_to(one, medium))

    await until(lambda: one.metric("tiergate_policy_reloads_total", result="ok") == 1)
    medium.script(answer("new"))

    assert "new" == (await one.chat()).text


async def test_swapped_folder_of_a_mounted_policy_is_noticed(start: Start, small: Upstream, tmp_path: Path) -> None:
    """Kubernetes updates a ConfigMap by pointing a symbolic link elsewhere: the file's own path never changes."""
    gateway = await start({"tiers": {"small": tier(small, "small")}})
    text = gateway.policy_file.read_text()
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.yaml").write_text(
            text if name == "v1" else text.replace('"version": 1', '"version":1')
        )
    (tmp_path / "data").symlink_to("v1")
    gateway.policy_file.unlink()
    gateway.policy_file.symlink_to("data/policy.yaml")
    await until(lambda: gateway.metric("tiergate_policy_reloads_total", result="ok") >= 1)
    before = gateway.metric("tiergate_policy_reloads_total", result="ok")

    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").replace(tmp_path / "data")

    await until(lambda: gateway.metric("tiergate_policy_reloads_total", result="ok") == before + 1)


async def test_vanished_file_is_waited_for(one: Gateway, medium: Upstream) -> None:
    """Between the old file and the new one there may be none; that is no reason for anything."""
    text = pointing_to(one, medium)
    one.policy_file.unlink()
    await asyncio.sleep(0.15)
    assert 0 == one.metric("tiergate_policy_reloads_total")

    write(one, text)

    await until(lambda: one.metric("tiergate_policy_reloads_total", result="ok") == 1)


async def test_signal_reloads(one: Gateway, medium: Upstream) -> None:
    """`kill -HUP`, as for any other server."""
    one.app.reloader.reload_on_signal()
    try:
        write(one, pointing_to(one, medium))
        one.app.reloader._seen = None  # the watcher is not what is tested here
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: one.metric("tiergate_policy_reloads_total", result="ok") >= 1)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


# --- a bad file ---


async def test_bad_file_changes_nothing_and_says_why(one: Gateway, small: Upstream) -> None:
    """A typing error at night must not take the gateway down; line and path are in the log."""
    before = one.rt
    write(one, BAD)

    problems = one.app.reloader.reload()

    assert before is one.rt
    assert any("line 3" in problem and "deploymants" in problem for problem in problems)
    [logged] = [line for line in one.log.lines if line["event"] == "policy_reload_failed"]
    assert problems == logged["problems"]
    assert before.policy.fingerprint == logged["kept"]
    assert 1 == one.metric("tiergate_policy_reloads_total", result="failed")
    small.script(answer("still here"))
    assert "still here" == (await one.chat()).text


async def test_bad_file_is_reported_once_and_the_next_good_one_is_taken(one: Gateway, medium: Upstream) -> None:
    """The watcher does not repeat itself, and does not give up."""
    good = pointing_to(one, medium)
    write(one, BAD)
    await until(lambda: one.metric("tiergate_policy_reloads_total", result="failed") == 1)
    await asyncio.sleep(0.2)
    assert 1 == one.metric("tiergate_policy_reloads_total", result="failed")

    write(one, good)

    await until(lambda: one.metric("tiergate_policy_reloads_total", result="ok") == 1)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b"{", b"version: 2\n", b"a: &a [*a]\n"])
async def test_no_content_is_able_to_harm(one: Gateway, content: bytes) -> None:
    """Half-written, empty, binary: kept out, whatever it is."""
    before = one.rt
    one.policy_file.write_bytes(content)

    assert one.app.reloader.reload()

    assert before is one.rt


async def test_secret_that_is_not_there_keeps_the_old_policy(one: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is named without its value."""
    monkeypatch.delenv("NOT_THERE", raising=False)
    changed = policy(one)
    changed["tiers"]["small"]["deployments"][0]["api_key"] = "${NOT_THERE}"
    write(one, changed)

    [problem] = one.app.reloader.reload()

    assert "NOT_THERE" in problem


async def test_embedded_model_that_is_not_running_is_refused_with_the_reason(one: Gateway, tmp_path: Path) -> None:
    """Models are started with the gateway; a policy that needs another one has to wait for a restart."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    changed = policy(one)
    changed["tiers"]["small"] = {"deployments": [{"name": "l", "model": f"local/{model}"}]}
    write(one, changed)

    problems = one.app.reloader.reload()

    assert problems
    assert any("restart" in problem or "xllamacpp" in problem for problem in problems)


async def test_log_that_cannot_be_opened_keeps_the_old_policy(one: Gateway, small: Upstream) -> None:
    """A file that checks out but cannot be put to work is a bad file too."""
    before = one.rt
    changed = policy(one)
    changed["log"] = {"path": "/proc/no/such/folder/log.jsonl"}
    write(one, changed)

    assert one.app.reloader.reload()

    assert before is one.rt


async def test_watch_survives_a_policy_that_cannot_be_put_to_work(one: Gateway, medium: Upstream) -> None:
    """Otherwise the next, corrected file is never noticed, and nobody is told."""
    good = pointing_to(one, medium)
    bad = {**good, "log": {"path": "/proc/no/such/folder/log.jsonl"}}
    write(one, bad)
    await asyncio.sleep(0.2)

    write(one, good)

    await until(lambda: one.metric("tiergate_policy_reloads_total", result="ok") == 1, 1.0)


# --- calls under way ---


async def test_call_under_way_is_finished_by_the_policy_that_it_began_with(
    one: Gateway, small: Upstream, medium: Upstream
) -> None:
    """Its connection, its slot and its settlement are the old runtime's; the session is closed after it."""
    gate = asyncio.Event()
    small.script(Send(HEAD), Send(event("one ")), Until(gate), Send(event("two")), Send(finish()), Send(DONE))
    medium.script(answer("new"))
    old = one.rt
    running = asyncio.create_task(one.chat("慢慢说", stream=True))
    await until(lambda: any(slot.open for slot in old.executor._slots.values()) and small.requests)

    write(one, pointing_to(one, medium))
    assert () == one.app.reloader.reload()
    fresh = await one.chat("快")
    assert not old._upstreams["openai"].pool.closed
    gate.set()
    reply: Reply = await running

    assert ("new", "one two", True) == (fresh.text, reply.text, reply.sse.done)
    await until(lambda: old._upstreams["openai"].pool.closed)
    await until(lambda: not one.app.reloader._background)
    assert 2 == len(await one.settled(2))
    await until(lambda: small.open_connections == 0)


async def test_stream_that_ends_after_a_reload_gives_its_connection_back(
    one: Gateway, small: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last call of an old policy: first its stream is closed, then the session that it runs on."""
    gate, lost = asyncio.Event(), []
    small.script(Send(HEAD_CHUNKED), Chunk(event("last")), Until(gate), Chunk(finish()), Chunk(DONE), Hang())
    running = asyncio.create_task(one.chat("最后一个", stream=True))
    await small.wait_for_requests(1)
    assert () == one.app.reloader.reload()

    monkeypatch.setattr(sys, "unraisablehook", lambda fault: lost.append(str(fault.exc_value)))
    gate.set()
    reply = await running
    await small.wait_for_disconnect()
    await until(lambda: not one.app.reloader._background)
    await asyncio.sleep(0.1)
    gc.collect()

    assert ("last", True) == (reply.text, reply.sse.done)
    assert not lost


async def test_hundred_reloads_under_traffic_lose_no_call(one: Gateway, small: Upstream) -> None:
    """Every call is answered and logged, and only the last runtime is left open."""
    small.default(answer("好的"))
    done = asyncio.Event()

    async def ask() -> list[Reply]:
        replies = []
        while not done.is_set():
            replies.append(await one.chat("重载"))
        return replies

    callers = [asyncio.create_task(ask()) for _ in range(4)]
    retired = []
    for _ in range(100):
        retired.append(one.rt)
        assert () == one.app.reloader.reload()
        await asyncio.sleep(0.002)
    done.set()
    replies = [reply for caller in callers for reply in await caller]

    assert {("好的", 200)} == {(reply.text, reply.status) for reply in replies}
    await until(lambda: not one.app.reloader._background)
    assert all(rt._calls == 0 for rt in retired)
    assert len(replies) == len(await one.settled(len(replies)))
    ok = one.metric("tiergate_attempts_total", outcome=AttemptOutcome.OK)
    assert len(replies) == ok


# --- POST /admin/reload ---


async def test_admin_reload_answers_what_happened(one: Gateway, medium: Upstream) -> None:
    """For a pipeline that must know whether its policy is in use."""
    write(one, pointing_to(one, medium))
    good = await one.post("/admin/reload", b"")
    write(one, BAD)
    bad = await one.post("/admin/reload", b"")

    assert (200, True, []) == (good.status, good.json["reloaded"], good.json["problems"])
    assert one.rt.policy.fingerprint == good.json["policy"] == bad.json["policy"]
    assert (422, False) == (bad.status, bad.json["reloaded"])
    assert any("deploymants" in problem for problem in bad.json["problems"])


async def test_admin_reload_needs_an_admin_key_where_there_are_keys(start: Start, small: Upstream) -> None:
    """An app's key must not be able to change what the gateway does."""
    keys = [{"name": "app", "hash": hash_key(b"app")}, {"name": "ops", "hash": hash_key(b"ops"), "admin": True}]
    gateway = await start({"tiers": {"small": tier(small, "small")}, "keys": keys})
    url = f"http://{gateway.host}:{gateway.port}"

    statuses = [(await Client(url, key, check=False).post("/admin/reload", b"")).status for key in (None, "app", "ops")]

    assert [401, 403, 200] == statuses
