"""`tiergate explain`: one prompt through the policy, on paper."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.api.chat import read_chat
from router.decide import Decider
from router.difficulty import Classifier
from router.explain import explain
from router.health import Health
from router.names import nearest
from router.plan import Planner
from router.policy import Policy
from router.types import NO_CACHE_CONTROL


class UnknownName(Exception):
    """The policy knows no such route, alias, tier or deployment."""


def explain_prompt(prompt: str, policy: Policy, model: str, as_json: bool) -> str:
    """Text for a terminal, or JSON. Uses the code that serves requests."""
    model = model or next(iter(policy.routes), policy.tier_names[0])
    failures: list[BaseException] = []
    decider = Decider(policy, Classifier.load(), failures.append)
    if model not in decider.targets:
        near = nearest(model, decider.targets, None)
        raise UnknownName(f"{model}: the policy has no such name" + (f"; did you mean {near}?" if near else ""))
    body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]})
    call = read_chat(body, "explain", {}, NO_CACHE_CONTROL)
    decision = decider.decide(call, "-")
    plan = Planner(policy, Health(time.monotonic), random.uniform).plan(
        decision, call, decider.targets[model], on_paper=True
    )
    told = explain(call, decision, plan, decider.judge(call))
    return orjson.dumps(told, option=orjson.OPT_INDENT_2).decode() if as_json else "\n".join(_lines(told))


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"route       {told['route']}"
    yield f"tier        {told['tier']}  ({told['reason']})"
    if told["difficulty"] is not None:
        bounds = ", ".join(f"{tier} from {value:g}" for tier, value in told["thresholds"].items())
        unused = "" if told["by"] == "difficulty" else "; not what decided"
        yield f"difficulty  {told['difficulty']:.3f}  (thresholds: {bounds or 'none'}{unused})"
    if told["rule"]:
        yield f"rule        {told['rule']}"
    yield f"tokens      about {told['prompt_tokens']} in the prompt"
    for number, attempt in enumerate(told["attempts"], 1):
        yield f"attempt {number}   {attempt['tier']} / {attempt['deployment']}: {attempt['model']}, {_usd(attempt)}"
    for skipped in told["skipped"]:
        yield f"skipped     {skipped['tier']} / {skipped['deployment']}: {skipped['reason']}"
    yield f"cost        assuming {told['assumed_output_tokens']} tokens of answer"
    yield "features"
    for name, value in told["features"].items():
        yield f"  {name:<20} {value:.4g}" if isinstance(value, float) else f"  {name:<20} {value}"


def _usd(attempt: Mapping[str, Any]) -> str:
    cost = attempt["estimated_cost_usd"]
    return "price unknown" if cost is None else f"about {cost:.6f} USD"
