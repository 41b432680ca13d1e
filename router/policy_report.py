"""What `tiergate check FILE` says: whether a policy can be used, what is on, what is off, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from router.policy import Deployment, Price, Tier
from router.policy_file import Off, PolicyError, Problem, UnreadablePolicy, is_installed, load_policy, read_text


class CheckedDeployment(msgspec.Struct, frozen=True):
    """A deployment that can be used. Prices in USD per million tokens; None: unknown, which is not zero."""

    name: str
    model: str
    mode: str
    input_usd: float | None
    output_usd: float | None


class CheckedTier(msgspec.Struct, frozen=True):
    name: str
    deployments: tuple[CheckedDeployment, ...]
    fallback: tuple[str, ...]


class CheckReport(msgspec.Struct, frozen=True):
    """The result of a check. Holds no secret: no key, no header, no address."""

    source: str
    ok: bool
    problems: tuple[Problem, ...] = ()
    tiers: tuple[CheckedTier, ...] = ()
    routes: tuple[str, ...] = ()
    off: tuple[Off, ...] = ()
    notes: tuple[str, ...] = ()
    readable: bool = True

    @property
    def exit_code(self) -> int:
        """0 good, 1 something is wrong in the file, 2 there is no such file."""
        if not self.readable:
            return 2
        return 0 if self.ok else 1

    def json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    def text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if not self.ok:
            yield from (problem.text(self.source) for problem in self.problems)
            yield f"{len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}; the policy cannot be used"
            return
        yield f"{self.source}: good"
        for tier in self.tiers:
            yield f"  {tier.name}" + (f" (falls back to {', '.join(tier.fallback)})" if tier.fallback else "")
            for each in tier.deployments:
                mode = "" if each.mode == "chat" else f", {each.mode}"
                yield f"    {each.name}: {each.model}{mode}, {_price_text(each)}"
        yield f"  routes: {', '.join(self.routes)}"
        yield from (f"  off: {each.tier}/{each.deployment}: {each.reason}" for each in self.off)
        yield from (f"  note: {note}" for note in self.notes)


def check_policy(
    path: Path | str, environ: Mapping[str, str], installed: Callable[[str], bool] = is_installed
) -> CheckReport:
    """Read and check a policy; never raises about what is in the file, or that it cannot be read."""
    source = str(path)
    try:
        loaded = load_policy(read_text(path), environ, source, installed)
    except PolicyError as exc:
        return CheckReport(source, False, exc.problems, readable=not isinstance(exc, UnreadablePolicy))
    policy = loaded.policy
    return CheckReport(
        source,
        True,
        tiers=tuple(_tier(tier, policy.fallback[name]) for name, tier in policy.tiers.items()),
        routes=tuple(policy.routes),
        off=loaded.off,
        notes=loaded.notes,
    )


def _tier(tier: Tier, fallback: tuple[str, ...]) -> CheckedTier:
    return CheckedTier(tier.name, tuple(_deployment(each) for each in tier.deployments), fallback)


def _deployment(deployment: Deployment) -> CheckedDeployment:
    price: Price | None = deployment.price
    return CheckedDeployment(
        deployment.name,
        deployment.model,
        deployment.mode,
        price.input if price else None,
        price.output if price else None,
    )


def _price_text(deployment: CheckedDeployment) -> str:
    if deployment.input_usd is None:
        return "price unknown"
    return f"{deployment.input_usd:g} / {deployment.output_usd:g} USD per million tokens"
