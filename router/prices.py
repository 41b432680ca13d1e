"""Prices by model name, from the map that LiteLLM ships, without importing LiteLLM (which takes seconds).

The map is read at most once a process, and only when a policy has a deployment without a price of its own.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import msgspec

from router.policy import Price

MAP_FILE = "model_prices_and_context_window_backup.json"
LOCAL = Price(input=0, output=0)  # an embedded model costs no money by the token; what it costs is the machine
_MILLION = 1_000_000


class Known(msgspec.Struct, frozen=True):
    """What the map says about a model: USD per million tokens, and tokens."""

    price: Price | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None


class _Entry(msgspec.Struct):
    """The fields of the map that we read: USD per token, and tokens."""

    litellm_provider: str = ""
    mode: str = "chat"
    alias_of: str | None = None
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None
    cache_creation_input_token_cost: float | None = None
    output_cost_per_image_token: float | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None


def known_model(model: str) -> Known:
    """What the map knows about `provider/model`: tried in full, then without its provider if the map names the same.

    Nothing where the map does not know it, or is not installed. Never a guess.
    """
    if model.startswith("local/"):
        return Known(LOCAL)
    entry = _entry(model)
    if entry is None:
        provider, _, name = model.partition("/")
        entry = _entry(name)
        # the same name at another provider has another price
        if entry is not None and not entry.litellm_provider.startswith(provider):
            entry = None
    return _known(entry) if entry else Known()


def _known(entry: _Entry) -> Known:
    window = entry.max_input_tokens or None
    return Known(_price(entry), window, (entry.max_output_tokens or None) if entry.mode != "embedding" else None)


def _price(entry: _Entry) -> Price | None:
    output = 0.0 if entry.mode == "embedding" else entry.output_cost_per_token
    if entry.input_cost_per_token is None or output is None:
        return None
    return Price(
        input=_per_million(entry.input_cost_per_token),
        output=_per_million(output),
        cached_input=_optional(entry.cache_read_input_token_cost),
        cache_write=_optional(entry.cache_creation_input_token_cost),
        output_image=_optional(entry.output_cost_per_image_token),
    )


def _per_million(usd_per_token: float) -> float:
    return round(usd_per_token * _MILLION, 6)  # 3e-07 * 1e6 is 0.3, not 0.30000000000000004


def _optional(usd_per_token: float | None) -> float | None:
    return None if usd_per_token is None else _per_million(usd_per_token)


def _entry(name: str, hops: int = 3) -> _Entry | None:
    raw = _read_map(_map_path()).get(name)
    if raw is None or hops == 0:
        return None
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except msgspec.ValidationError:  # the sample entry explains its fields in words
        return None
    return _entry(entry.alias_of, hops - 1) if entry.alias_of else entry


def _map_path() -> Path | None:
    spec = importlib.util.find_spec("litellm")
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / MAP_FILE if places else None


@cache
def _read_map(path: Path | None) -> dict[str, msgspec.Raw]:
    """Model → its entry, undecoded: of thousands of models a policy names a few."""
    if path is None:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    except (OSError, msgspec.MsgspecError):
        return {}  # another layout of another version: then prices are unknown, which is not an error
