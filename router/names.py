"""What a request may name as its model, and what that name stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from router.policy import Key, Policy, Route

MAX_NAME = 128  # as long as a name in a policy may be


class Target(msgspec.Struct, frozen=True):
    """A name that callers may use. `label` is its name in logs and metrics."""

    kind: Literal["route", "alias", "tier", "deployment"]
    label: str
    route: Route | None = None
    tier: str = ""  # alias, tier, deployment, or the fixed tier of a route
    deployment: str | None = None


def targets(policy: Policy) -> Mapping[str, Target]:
    """Every name of the policy: deployments, tiers, aliases, routes (one namespace, checked at load)."""
    return dict(_pairs(policy))


def _pairs(policy: Policy) -> Iterator[tuple[str, Target]]:
    homes = {deployment.name: tier for tier in policy.tiers.values() for deployment in tier.deployments}
    for name, tier in homes.items():
        yield name, Target("deployment", f"deployment:{name}", tier=tier.name, deployment=name)
    for name in policy.tiers:
        yield name, Target("tier", f"tier:{name}", tier=name)
    for name, to in policy.aliases.items():
        if to in policy.tiers:
            yield name, Target("alias", f"alias:{name}", tier=to)
        elif to in homes:
            yield name, Target("alias", f"alias:{name}", tier=homes[to].name, deployment=to)
    for name, route in policy.routes.items():
        yield name, Target("route", name, route=route, tier=route.tier or "")


def nearest(name: str, known: Mapping[str, Target], key: Key | None) -> str | None:
    """The known name that looks most like `name`, among those that the key may use."""
    if len(name) > MAX_NAME:  # comparing takes time
        return None
    usable = [known_name for known_name in known if allowed(key, known_name)]
    return next(iter(difflib.get_close_matches(name, usable, n=1)), None)


def allowed(key: Key | None, name: str) -> bool:
    """Whether a key may name this model; without keys everybody may name everything."""
    return key is None or key.routes is None or name in key.routes
