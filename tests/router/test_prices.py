"""Prices from LiteLLM's map: in our units, for the right provider, and without importing LiteLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from router import prices
from router.policy import Price
from router.prices import Known, known_model

ENTRIES = {
    "sample_spec": {"max_input_tokens": "in words", "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
    "plain": {
        "litellm_provider": "openai",
        "input_cost_per_token": 3e-07,
        "output_cost_per_token": 1.2e-06,
        "cache_read_input_token_cost": 6e-09,
        "cache_creation_input_token_cost": 0.0,
        "output_cost_per_image_token": 3e-05,
        "max_input_tokens": 1000,
        "max_output_tokens": 100,
        "unknown_field": {"a": [1]},
    },
    "host/plain": {"litellm_provider": "host", "input_cost_per_token": 1e-06, "output_cost_per_token": 2e-06},
    "host/latest": {"alias_of": "host/plain"},
    "host/loop": {"alias_of": "host/loop"},
    "half": {"litellm_provider": "openai", "input_cost_per_token": 1e-06},
    "embed": {
        "litellm_provider": "openai",
        "mode": "embedding",
        "input_cost_per_token": 2e-08,
        "max_input_tokens": 8191,
    },
    "vertex": {"litellm_provider": "vertex_ai-models", "input_cost_per_token": 1e-06, "output_cost_per_token": 1e-06},
}


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small map in place of the one that LiteLLM ships, whose numbers change with its version."""
    path = tmp_path / prices.MAP_FILE
    path.write_text(json.dumps(ENTRIES))
    monkeypatch.setattr(prices, "_map_path", lambda: path)
    return path


@pytest.mark.usefixtures("entries")
@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("openai/plain", Price(input=0.3, output=1.2, cached_input=0.006, cache_write=0, output_image=30)),
        ("host/plain", Price(input=1, output=2)),
        ("host/latest", Price(input=1, output=2)),
        ("vertex_ai/vertex", Price(input=1, output=1)),
        ("openai/embed", Price(input=0.02, output=0)),
        ("local/anything.gguf", Price(input=0, output=0)),
        ("other/plain", None),
        ("openai/half", None),
        ("openai/never-heard-of", None),
        ("host/loop", None),
        ("sample_spec", None),
        ("x/sample_spec", None),
        ("", None),
    ],
)
def test_a_price_is_per_million_tokens_of_the_right_provider_or_unknown(model: str, price: Price | None) -> None:
    """The same name elsewhere has another price; half a price is none; unknown is never zero."""
    assert price == known_model(model).price


@pytest.mark.usefixtures("entries")
def test_limits_come_along() -> None:
    """A prompt that is too long for a model must not be sent there."""
    assert (1000, 100) == (known_model("openai/plain").context_window, known_model("openai/plain").max_output_tokens)
    assert (8191, None) == (known_model("openai/embed").context_window, known_model("openai/embed").max_output_tokens)


@pytest.mark.parametrize("content", [None, b"", b"[1, 2]", b"{broken"])
def test_a_map_that_is_not_there_or_not_a_map_means_unknown(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of LiteLLM may ship it elsewhere, or differently: no reason not to start."""
    path = tmp_path / "map.json"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setattr(prices, "_map_path", lambda: path)

    assert Known() == known_model("openai/plain")


def test_without_litellm_prices_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setattr(prices, "_map_path", lambda: None)

    assert known_model("openai/plain").price is None


def test_the_map_is_read_once(entries: Path) -> None:
    """It has megabytes, and a policy may have a hundred deployments and be reloaded often."""
    first = known_model("host/plain").price
    entries.write_text("{}")

    assert first == known_model("host/plain").price


def test_the_real_map_is_found_without_importing_litellm() -> None:
    """Importing it takes seconds; a start that only wants a price must not pay them."""
    code = (
        "import sys; from router.prices import known_model; price = known_model('anthropic/claude-sonnet-5-5').price; "
        "assert 'litellm' not in sys.modules; print(price.input < price.output)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (0, "True") == (done.returncode, done.stdout.strip()), done.stderr
