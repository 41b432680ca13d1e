"""A decision with everything that led to it, for people and for `POST /v1/route`. No model is called."""

from __future__ import annotations

from typing import Any

from router.policy import Deployment
from router.types import Call, Decision, Plan

ASSUMED_OUTPUT_TOKENS = 256  # where the caller sets no limit


def explain(call: Call, decision: Decision, plan: Plan, difficulty: float | None) -> dict[str, Any]:
    """Route, tier, reason, difficulty, thresholds, features, attempts and estimated cost, ready for JSON.

    `difficulty` is told even where a rule or a fixed tier decided (`by`).
    """
    output = min(call.max_output_tokens or ASSUMED_OUTPUT_TOKENS, ASSUMED_OUTPUT_TOKENS)
    attempts = [
        {
            "tier": attempt.tier.name,
            "deployment": attempt.deployment.name,
            "model": attempt.deployment.model,
            "estimated_cost_usd": _cost(attempt.deployment, decision.prompt_tokens, output),
        }
        for attempt in plan.attempts
    ]
    return {
        "route": decision.route,
        "tier": decision.tier,
        "by": decision.by,
        "reason": decision.reason,
        "rule": decision.rule,
        "difficulty": None if difficulty is None else round(difficulty, 4),
        "thresholds": dict(decision.thresholds),
        "prompt_tokens": decision.prompt_tokens,
        "features": dict(decision.features),
        "attempts": attempts,
        "skipped": [{"tier": s.tier, "deployment": s.deployment, "reason": s.reason} for s in plan.skipped],
        "estimated_cost_usd": attempts[0]["estimated_cost_usd"] if attempts else None,
        "assumed_output_tokens": output,
    }


def _cost(deployment: Deployment, prompt_tokens: int, output_tokens: int) -> float | None:
    price = deployment.price
    return None if price is None else (prompt_tokens * price.input + output_tokens * price.output) / 1_000_000
