"""What `tiergate serve` says first: what is on, what is off and why, and a line that works when pasted."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path

import pytest

from gateway.banner import banner
from gateway.settings import Settings
from router.policy_file import Loaded, load_policy
from tests.gateway.conftest import Start, tier
from tests.needs import need
from tests.upstream import Upstream, answer

TEXT = """\
version: 1
tiers:
  small: {deployments: [{name: tiny, model: openai/tiny, api_base: "http://a/v1", price: {input: 0, output: 0}}]}
  medium: {deployments: [{name: mid, model: openai/mid, api_base: "http://b/v1", price: {input: 0.5, output: 2}}]}
  large:
    deployments:
      - {name: big, model: openai/big, api_base: "http://c/v1", api_key: "${BIG_KEY}", optional: true}
      - {name: odd, model: openai/odd, api_base: "http://d/v1", api_key: "${ODD_KEY}"}
"""
HASH = "sha256:" + "0" * 64
ENVIRON = {"ODD_KEY": "sk-very-secret"}


def told(more: str = "", settings: Settings | None = None, loaded: Loaded | None = None) -> str:
    loaded = loaded or load_policy(TEXT + more, ENVIRON)
    return banner(loaded, settings or Settings("p.yaml"), 4000)


def lines(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip().startswith(start)]


def test_deployments_that_are_on_are_told_with_model_and_price() -> None:
    """Who pays for what should be no surprise; free and unknown are two things."""
    on = "\n".join(lines(told(), "on"))

    assert "tiny: openai/tiny (free)" in on
    assert "mid: openai/mid (0.5 in, 2 out, USD per million tokens)" in on
    assert "odd: openai/odd (price unknown)" in on


def test_deployments_that_are_off_are_told_with_the_reason() -> None:
    """A missing key is the most frequent question of a first evening."""
    [line] = [line for line in lines(told(), "off") if "big" in line]

    assert "BIG_KEY" in line
    assert "big" not in "\n".join(lines(told(), "on"))


def test_no_secret_is_told() -> None:
    """It goes to a terminal, and from there into tickets."""
    assert "sk-very-secret" not in told(f"keys: [{{name: a, hash: '{HASH}'}}]\n")
    assert HASH not in told(f"keys: [{{name: a, hash: '{HASH}'}}]\n")


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("cache: {exact: {ttl: 90s}}\n", "on   cache    exact, in memory, 90s, for each API key"),
        ("cache: {exact: {ttl: 1h, shared: true}}\n", "on   cache    exact, in memory, 1h, shared by all keys"),
        ("", "off  cache"),
        ("routes: {auto: {}, 客服: {tier: small}}\n", "on   classifier for auto"),
        ("routes: {bot: {tier: small}}\n", "off  classifier"),
        (f"keys: [{{name: a, hash: '{HASH}'}}]\n", "on   keys     1 key"),
        ("", "off  keys"),
        ("", "nothing is shared between processes"),
    ],
)  # fmt: skip
def test_features_are_told_on_or_off(more: str, line: str) -> None:
    """Including what one worker does not know of another."""
    assert line in told(more)


def test_address_is_the_one_to_use_as_base_url() -> None:
    """Copied into an app as it stands; IPv6 needs its brackets."""
    assert "http://127.0.0.1:4000/v1" in told()
    assert "http://[::1]:4000/v1" in told(settings=Settings("p.yaml", host="::1"))
    assert "2 workers" in told(settings=Settings("p.yaml", workers=2))


def test_key_is_part_of_the_line_to_try_when_keys_are_needed() -> None:
    """A line that answers 401 is a bad first impression."""
    assert "Authorization: Bearer" in told(f"keys: [{{name: a, hash: '{HASH}'}}]\n")
    assert "Authorization" not in told()


def _command(text: str) -> list[str]:
    """The `curl` line as a shell would read it."""
    [start] = [number for number, line in enumerate(text.splitlines()) if line.strip().startswith("curl ")]
    return shlex.split("\n".join(text.splitlines()[start:]).replace("\\\n", " "))


@pytest.mark.parametrize("routes", ["routes: {auto: {}}\n", "", "routes: {客服: {tier: small}}\n"])
def test_line_to_try_is_a_chat_request_for_a_name_of_the_policy(routes: str) -> None:
    """Quoted so that a shell gives the JSON on unharmed."""
    command = _command(told(routes))

    body = json.loads(command[command.index("-d") + 1])
    assert body["model"] in ("auto", "small", "客服")
    assert "user" == body["messages"][0]["role"]


async def test_line_to_try_works_when_pasted(start: Start, small: Upstream, tmp_path: Path) -> None:
    """Run by a real shell against a real gateway."""
    need("curl", "curl")
    gateway = await start({"tiers": {"small": tier(small, "small")}, "routes": {"auto": {}}})
    small.script(answer("It works."))
    loaded = load_policy(gateway.policy_file.read_text(), {})
    text = banner(loaded, Settings(str(gateway.policy_file)), gateway.port)
    command = text[text.index("curl ") :].replace("curl ", "curl -s ")

    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE, cwd=tmp_path)
    out, _ = await process.communicate()

    assert "It works." == json.loads(out)["choices"][0]["message"]["content"]
