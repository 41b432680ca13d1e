"""Tokens → USD. A model without a price costs an unknown amount, which is None and never zero."""

from __future__ import annotations

from router.policy import Policy, Price
from router.types import MODE_OF, Surface, Usage

_MILLION = 1_000_000


def baseline_price(policy: Policy, surface: Surface) -> Price | None:
    """The price that savings are counted against; None: unknown. Embeddings are compared with embeddings."""
    if surface == "chat" and policy.baseline_price is not None:
        return policy.baseline_price
    deployments = policy.tiers[policy.baseline].deployments if policy.baseline else ()
    return next((one.price for one in deployments if one.mode == MODE_OF[surface] and one.price is not None), None)


def cost_usd(usage: Usage | None, price: Price | None) -> float | None:
    """USD for these tokens; None where usage or price is unknown. No tokens cost nothing, whatever the price."""
    if usage is None:
        return None
    if not (usage.prompt_tokens or usage.completion_tokens):
        return 0.0
    if price is None:
        return None
    cached = price.input if price.cached_input is None else price.cached_input
    written = price.input if price.cache_write is None else price.cache_write
    image = price.output if price.output_image is None else price.output_image
    return (
        usage.input * price.input
        + usage.cached_input * cached
        + usage.cache_write * written
        + (usage.output + usage.reasoning) * price.output
        + usage.image_output * image
    ) / _MILLION
