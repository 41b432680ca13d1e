"""The metrics page: what Prometheus can read, labels from closed sets, as many series as the policy has names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.admission.keys import hash_key
from gateway.telemetry.metrics import Metrics
from tests.client import Client
from tests.gateway.conftest import Gateway, Start, tier
from tests.upstream import (
    DONE,
    HEAD,
    Send,
    Upstream,
    Wait,
    answer,
    error_reply,
    event,
    finish,
    stream,
    usage,
    usage_event,
)


async def scrape(gateway: Gateway) -> list[Sample]:
    reply = await gateway.get("/metrics")
    assert 200 == reply.status
    assert (reply.header("content-type") or "").startswith("text/plain")
    return [sample for family in text_string_to_metric_families(reply.body.decode()) for sample in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


@pytest.fixture
async def two(start: Start, small: Upstream, medium: Upstream) -> Gateway:
    gateway: Gateway = await start({
        "tiers": {"small": tier(small, "small"), "medium": tier(medium, "medium")},
        "routes": {"auto": {"tier": "small"}, "客服": {}}, "cache": {"exact": {"ttl": "1h"}},
    })  # fmt: skip
    return gateway


async def test_page_is_read_by_prometheus_own_parser(two: Gateway, small: Upstream) -> None:
    """Every family with help and type, names and units as Prometheus wants them."""
    small.script(answer("ok"))
    await two.chat()

    text = (await two.get("/metrics")).body.decode()

    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {
        "tiergate_requests",
        "tiergate_attempts",
        "tiergate_overhead_seconds",
        "tiergate_in_flight",
    } <= families.keys()
    for name, family in families.items():
        assert name.startswith("tiergate_")
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")


async def test_one_answer_counts_once_everywhere(two: Gateway, small: Upstream) -> None:
    """Dashboards divide these by each other."""
    small.script(answer("ok", usage(1000, 500)))

    await two.chat("第一个")
    await two.settled(1)

    seen = await scrape(two)
    served = {"route": "auto", "tier": "small", "deployment": "small-1"}
    assert 1 == value(seen, "tiergate_requests_total", outcome="ok", surface="chat", **served)
    assert 1 == value(seen, "tiergate_request_duration_seconds_count", **served)
    assert 1 == value(seen, "tiergate_time_to_first_token_seconds_count", **served)
    assert 1 == value(seen, "tiergate_overhead_seconds_count", route="auto", cache="miss")
    assert 1 == value(seen, "tiergate_attempts_total", tier="small", deployment="small-1", outcome="ok")
    assert 1 == value(seen, "tiergate_decisions_total", route="auto", by="fixed", tier="small")
    assert (1000, 500) == tuple(value(seen, "tiergate_tokens_total", kind=kind) for kind in ("input", "output"))
    assert 0 == value(seen, "tiergate_in_flight")
    assert (0, 1) == tuple(value(seen, "tiergate_cache_events_total", result=result) for result in ("hit", "miss"))


async def test_streams_tell_the_pace_of_their_tokens(two: Gateway, small: Upstream) -> None:
    """Time between tokens is from the first token to the last, over the gaps between them."""
    pauses = [step for text in ("一", "二", "三") for step in (Send(event(text)), Wait(0.06))]
    small.script(Send(HEAD), *pauses, Send(finish()), Send(usage_event(3, 3)), Send(DONE))

    await two.chat(stream=True)
    await two.settled(1)

    seen = await scrape(two)
    assert 1 == value(seen, "tiergate_time_per_output_token_seconds_count", tier="small")
    assert 0.05 < value(seen, "tiergate_time_per_output_token_seconds_sum", tier="small") < 0.12
    assert value(seen, "tiergate_time_to_first_token_seconds_sum") < value(
        seen, "tiergate_request_duration_seconds_sum"
    )


async def test_failures_fall_under_the_tier_that_failed(two: Gateway, small: Upstream, medium: Upstream) -> None:
    """Attempts tell each failure, requests only the end."""
    small.script(error_reply(500))
    medium.script(answer("saved"))
    small.script(error_reply(500))
    medium.script(error_reply(503))

    await two.chat("一")
    await two.chat("二")
    await two.settled(2)

    seen = await scrape(two)
    assert 2 == value(seen, "tiergate_attempts_total", tier="small", outcome="broken")
    assert 1 == value(seen, "tiergate_attempts_total", tier="medium", outcome="overloaded")
    assert 2 == value(seen, "tiergate_fallbacks_total", from_tier="small", to_tier="medium")
    assert 1 == value(seen, "tiergate_requests_total", tier="medium", outcome="ok")
    assert 1 == value(seen, "tiergate_requests_total", tier="none", outcome="error")


async def test_overhead_is_not_the_upstreams_time(two: Gateway, small: Upstream) -> None:
    """A slow model must not look like a slow gateway."""
    small.script(Wait(0.3), answer("slow"))

    await two.chat()
    await two.settled(1)

    seen = await scrape(two)
    assert value(seen, "tiergate_request_duration_seconds_sum") > 0.3
    assert value(seen, "tiergate_overhead_seconds_sum") < 0.1


def _labels(samples: list[Sample]) -> Iterator[tuple[str, str]]:
    for sample in samples:
        yield from ((name, text) for name, text in sample.labels.items() if name != "le")


async def test_series_do_not_grow_with_callers(start: Start, small: Upstream) -> None:
    """Three hundred users, request ids, header values and unknown models: as many series as one of each."""
    keys = [{"name": f"key-{number}", "hash": hash_key(f"k{number}".encode())} for number in range(20)]
    gateway = await start({"tiers": {"small": tier(small, "small")}, "routes": {"auto": {}}, "keys": keys})
    small.default(answer("ok"))
    url = f"http://{gateway.host}:{gateway.port}"

    async def ask(number: int) -> None:
        client = Client(url, f"k{number % 20}")
        same = {"x-request-id": f"id-{number}", "user-agent": f"agent-{number}", "x-tiergate-timeout": f"{number + 5}"}
        await client.chat(f"问题{number}", user=f"user-{number}", headers=same)
        await client.chat(model=f"unknown-{number}", headers=same)
        await client.post(f"/v1/{number}", {})
        await Client(url, f"wrong-{number}").chat()

    await ask(0)
    before = len(await scrape(gateway))
    for number in range(1, 75):
        await ask(number)

    seen = await scrape(gateway)
    assert before == len(seen)
    words = ("user-", "id-", "agent-", "unknown-", "wrong-", "key-", "问题")
    assert not [(name, text) for name, text in _labels(seen) if text.startswith(words)]


async def test_labels_come_from_closed_sets(two: Gateway, small: Upstream, medium: Upstream) -> None:
    """Names of the policy, or words of ours."""
    small.default(answer("ok"))
    medium.default(*stream("ok"))
    await two.chat("你好", model="客服")
    await two.chat("你好", model="客服")
    await two.chat(model="medium-1", stream=True)
    await two.chat(model="no")
    await two.post("/v1/chat/completions", b"{")
    await two.settled(5)

    allowed = {
        "route": {"auto", "客服", "none", "deployment:medium-1"},
        "tier": {"small", "medium", "none"},
        "deployment": {"small-1", "medium-1", "none"},
        "surface": {"chat", "embeddings"},
        "outcome": {"ok", "error", "client_error", "client_closed"},
        "cache": {"exact", "miss", "hit-exact", "bypass"},
        "result": {"hit", "miss", "bypass", "merged", "store", "evict", "error", "ok", "failed"},
        "kind": {"input", "cached_input", "cache_write", "output", "reasoning", "image_output"},
        "by": {"rule", "difficulty", "fixed", "default"},
        "reason": {"full", "timeout"},
        "fingerprint": {two.rt.policy.fingerprint},
    }
    for name, text in _labels(await scrape(two)):
        assert text in allowed[name], (name, text)


async def test_classifier_that_fails_is_counted_and_the_request_answered(start: Start, small: Upstream) -> None:
    """Nothing optional may break an answer."""

    class Broken:
        def difficulty(self, features: object, /) -> float:
            raise ValueError("金丝雀 weights")

    gateway = await start({"tiers": {"small": tier(small, "small")}, "routes": {"auto": {}}}, Broken())
    small.script(answer("好"))

    reply = await gateway.chat("你好")
    await gateway.settled(1)

    assert ("好", "the classifier failed", None) == (reply.text, reply.reason, reply.difficulty)
    assert 1 == gateway.metric("tiergate_classifier_errors_total")
    assert 1 == gateway.metric("tiergate_decisions_total", by="default")
    assert "金丝雀" not in json.dumps(gateway.log.lines, ensure_ascii=False)


def test_ten_apps_live_in_one_process() -> None:
    """Each with its own registry: nothing is registered with the library's global one."""
    for _ in range(10):
        Metrics(CollectorRegistry())

    assert b"tiergate_requests_total" in Metrics().render()


async def test_cooling_deployment_is_seen(start: Start, small: Upstream, medium: Upstream) -> None:
    """An alert needs a gauge for it, which comes back with the first good answer."""
    cooldown = {"allowed_fails": 1, "cooldown_time": "100ms"}
    tiers = {"small": tier(small, "small", cooldown=cooldown), "medium": tier(medium, "medium")}
    gateway = await start({"tiers": tiers})
    small.script(error_reply(500))
    medium.default(answer("medium"))
    assert 1 == gateway.metric("tiergate_deployment_ready", deployment="small-1")

    await gateway.chat(model="small")
    during = gateway.metric("tiergate_deployment_ready", deployment="small-1")
    second = await gateway.chat(model="small")
    small.default(answer("small"))
    while (await gateway.chat(model="small")).tier != "small":
        pass

    assert (0, "medium") == (during, second.tier)
    async with asyncio.timeout(2):  # looked at together with the policy file
        while gateway.metric("tiergate_deployment_ready", deployment="small-1") != 1:
            await asyncio.sleep(0.01)
    assert 1 == gateway.metric("tiergate_cooldowns_total", tier="small")


async def test_prompt_that_was_cut_by_its_server_is_suspected(two: Gateway, small: Upstream) -> None:
    """Some servers silently drop what does not fit, and answer a question that nobody asked."""
    small.script(answer("ok", usage(300, 5)))
    small.script(answer("ok", usage(5000, 5)))

    await two.chat("一段很长的文字，" * 800)
    await two.chat("另一段很长的文字，" * 800)
    await two.settled(2)

    assert 1 == two.metric("tiergate_prompt_truncation_suspected_total", tier="small")
    [logged] = [line for line in two.log.lines if line["event"] == "prompt_truncation_suspected"]
    assert 300 == logged["reported_tokens"] < logged["expected_tokens"]
