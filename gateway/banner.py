"""What `tiergate serve` says at its start: what is on, what is off and why, and a line to try it with."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.settings import Settings
from router.policy import Policy, Price
from router.policy_file import Loaded
from router.units import format_duration

NOTES = 3  # as many as a newcomer reads


def banner(loaded: Loaded, settings: Settings, port: int) -> str:
    """Plain text for a terminal; holds no secret."""
    return "\n".join((*_lines(loaded, settings, port), ""))


def _lines(loaded: Loaded, settings: Settings, port: int) -> Iterator[str]:
    policy = loaded.policy
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    base = f"http://{host}:{port}/v1"
    yield f"Tiergate on {base}  (policy {settings.policy}, {policy.fingerprint}; {_count(settings.workers, 'worker')})"
    yield ""
    for tier in policy.tiers.values():
        for deployment in tier.deployments:
            yield f"  on   {tier.name:<8} {deployment.name}: {deployment.model} ({_price(deployment.price)})"
    for off in loaded.off:
        yield f"  off  {off.tier:<8} {off.deployment}: {off.reason}"
    yield from _features(policy)
    for note in loaded.notes[:NOTES]:
        yield f"  note {note}"
    if (more := len(loaded.notes) - NOTES) > 0:
        yield f"  note and {more} more: tiergate check {settings.policy}"
    yield ""
    yield "Try it:"
    yield f"  curl {base}/chat/completions -H 'Content-Type: application/json' \\"
    if policy.keys:
        yield '    -H "Authorization: Bearer $TIERGATE_KEY" \\'
    model = next(iter(policy.routes), policy.tier_names[0])
    yield f"""    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'"""


def _features(policy: Policy) -> Iterator[str]:
    exact = policy.cache.exact
    if exact is None:
        yield "  off  cache    not in the policy"
    else:
        scope = "shared by all keys" if exact.shared else "for each API key"
        yield f"  on   cache    exact, in memory, {format_duration(exact.ttl)}, {scope}"
    judged = [route.name for route in policy.routes.values() if route.tier is None]
    yield f"  on   classifier for {', '.join(judged)}" if judged else "  off  classifier no route chooses by difficulty"
    if policy.keys:
        yield f"  on   keys     {_count(len(policy.keys), 'key')}"
    else:
        yield "  off  keys     none in the policy: only this machine may call"
    yield "  note cache, cooldowns and slots are kept by each process; nothing is shared between processes"


def _price(price: Price | None) -> str:
    if price is None:
        return "price unknown"
    if not (price.input or price.output):
        return "free"
    return f"{price.input:g} in, {price.output:g} out, USD per million tokens"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
