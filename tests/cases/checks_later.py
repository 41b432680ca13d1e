"""Checks for what comes with later work: Anthropic-style answers, groups of a rollout, keys in Redis."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from tests.cases import adapter
from tests.cases.case import UnknownWord
from tests.cases.checks import Scope, assert_same, check
from tests.cases.run import Run
from tests.client import Reply


@dataclass
class Message:
    """An Anthropic-style answer, put together from its events or read from its body."""

    blocks: list[dict[str, Any]] = field(default_factory=list)
    stop_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    last_event: str | None = None
    well_formed: bool = True
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.blocks if block["type"] == "text")

    @property
    def tool_uses(self) -> list[dict[str, Any]]:
        uses = [block for block in self.blocks if block["type"] == "tool_use"]
        return [{name: use[name] for name in ("id", "name", "input")} for use in uses]


def message_of(reply: Reply) -> Message:
    if not reply.is_stream:
        body = reply.json
        return Message(body["content"], body["stop_reason"], body["usage"])
    message = Message()
    reader = _Blocks(message)
    for event in reply.events:
        assert event.name == event.json["type"], f"event {event.name} holds {event.json['type']}"
        message.last_event = event.name
        reader.take(event.json)
    message.well_formed = reader.well_formed and reader.open is None
    return message


class _Blocks:
    """Each block is started, filled and stopped before the next one starts."""

    def __init__(self, message: Message) -> None:
        self.message, self.well_formed = message, True
        self.open: int | None = None
        self.json_parts = ""

    def take(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "message_start":
                self.message.usage |= event["message"]["usage"]
            case "content_block_start":
                self.well_formed &= self.open is None and event["index"] == len(self.message.blocks)
                self.open, self.json_parts = event["index"], ""
                self.message.blocks.append(dict(event["content_block"]))
            case "content_block_delta":
                self.well_formed &= self.open == event["index"]
                self._fill(event["delta"])
            case "content_block_stop":
                self.well_formed &= self.open == event["index"]
                self._stop()
            case "message_delta":
                self.message.stop_reason = event["delta"]["stop_reason"]
                self.message.usage |= event.get("usage", {})
            case "error":
                self.message.error = event["error"]

    def _fill(self, delta: dict[str, Any]) -> None:
        block = self.message.blocks[-1]
        if delta["type"] == "input_json_delta":
            self.json_parts += delta["partial_json"]
        elif delta["type"] in ("text_delta", "thinking_delta"):
            name = delta["type"].removesuffix("_delta")
            block[name] = block.get(name, "") + delta[name]

    def _stop(self) -> None:
        if self.message.blocks[-1]["type"] == "tool_use" and self.json_parts:
            self.message.blocks[-1]["input"] = json.loads(self.json_parts)
        self.open = None


ANTHROPIC_FIELDS = {
    "text", "stop_reason", "last_event", "input_tokens", "output_tokens", "tool_uses", "blocks_well_formed",
    "block_types", "error",
}  # fmt: skip


@check("anthropic", fields=ANTHROPIC_FIELDS)
async def anthropic(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    for reply in run.replies(scope.req_no):
        assert reply.status == 200, f"status {reply.status}: {reply.body[:300]!r}"
        message = message_of(reply)
        told = {
            "text": message.text, "stop_reason": message.stop_reason, "last_event": message.last_event,
            "input_tokens": message.usage.get("input_tokens"), "output_tokens": message.usage.get("output_tokens"),
            "tool_uses": message.tool_uses, "blocks_well_formed": message.well_formed,
            "block_types": [block["type"] for block in message.blocks], "error": message.error is not None,
        }  # fmt: skip
        for name, value in expected.items():
            assert_same(value, told[name], name)


@check("assignment", fields={"one_variant_per", "candidate_share_between", "same_after_restart"})
async def assignment(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    """Who was answered by which tier, over all requests; `user` is the only thing that groups can be held to."""
    if expected.get("one_variant_per") != "user":
        raise UnknownWord(f"assignment: one_variant_per: {expected.get('one_variant_per')}")
    tiers: dict[str, set[str | None]] = defaultdict(set)
    for request in (request for upstream in run.upstreams.values() for request in upstream.requests):
        tiers[request.json["user"]].add(_tier_of(run, request))
    assert all(len(found) == 1 for found in tiers.values()), f"{dict(tiers)}"
    candidate = run.case.setup["canary"]["candidate"]
    share = sum(found == {candidate} for found in tiers.values()) / len(tiers)
    low, high = expected["candidate_share_between"]
    assert low <= share <= high, f"share {share:.2f}"


def _tier_of(run: Run, request: Any) -> str:
    return next(name for name, upstream in run.upstreams.items() if request in upstream.requests)


@check("redis_keys", fields={"max_length", "absent"})
async def redis_keys(run: Run, expected: dict[str, Any], scope: Scope) -> None:
    raise adapter.NotSupported("redis_keys")
