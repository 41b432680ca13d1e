"""Short ways to write policies in tests, and to read what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from router.policy import Policy
from router.policy_file import Loaded, PolicyError, Problem, load_policy

THREE = """\
version: 1
tiers:
  small: {deployments: [{name: a, model: openai/a, api_base: "http://a/v1"}]}
  medium: {deployments: [{name: b, model: openai/b, api_base: "http://b/v1"}]}
  large: {deployments: [{name: c, model: openai/c, api_base: "http://c/v1"}]}
"""  # five lines: what a test adds starts on line 6

OPTIONAL = """\
version: 1
tiers:
  small: {deployments: [{name: a, model: openai/a, api_base: "http://a/v1", api_key: "${A}", optional: true}]}
  medium: {deployments: [{name: b, model: openai/b, api_base: "http://b/v1", api_key: "${B}", optional: true}]}
  large: {deployments: [{name: c, model: openai/c, api_base: "http://c/v1", api_key: "${C}", optional: true}]}
"""


def load(text: str, environ: Mapping[str, str] | None = None, *, packages: bool = True) -> Loaded:
    return load_policy(text, environ or {}, installed=lambda module: packages)


def policy(text: str, environ: Mapping[str, str] | None = None) -> Policy:
    return load(text, environ).policy


def refused(text: str, environ: Mapping[str, str] | None = None, *, packages: bool = True) -> tuple[Problem, ...]:
    """The problems of a policy that must not load."""
    with pytest.raises(PolicyError) as caught:
        load(text, environ, packages=packages)
    assert "Traceback" not in str(caught.value)
    assert len(caught.value.problems) == len(str(caught.value).splitlines()), "one line a problem"
    return caught.value.problems


def only(problems: tuple[Problem, ...]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]
