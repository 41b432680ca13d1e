"""The policy: all that an operator may want to change, as frozen values.

`router.policy_file` turns YAML into a `Policy`; nothing here does I/O. Every default is written once, here.
Names that LiteLLM's users know (`model`, `api_base`, `api_key`, `weight`, `allowed_fails`, ...) keep their meaning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    WrapSerializer,
    model_validator,
)

from router.units import DURATION_PATTERN, SIZE_PATTERN, format_duration, parse_duration, parse_size

Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    Field(gt=0),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "examples": ["200ms", "5s", "1h30m"]}),
]
Bytes = Annotated[
    int,
    BeforeValidator(parse_size),
    Field(gt=0),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN, "examples": ["500kB", "64MiB"]}),
]
Share = Annotated[float, Field(ge=0, le=1)]
Usd = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=128)]


def _read_only(value: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(dict(value))


def _as_dict(value: Mapping[Any, Any], serialize: SerializerFunctionWrapHandler) -> Any:
    return serialize(dict(value))


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _off_is_a_word(value: object) -> object:
    # YAML 1.1 reads a bare `off` as false
    return "off" if value is False else value


V = TypeVar("V")
ReadOnly = Annotated[Mapping[str, V], AfterValidator(_read_only), WrapSerializer(_as_dict)]
EMPTY: Any = Field(default_factory=lambda: MappingProxyType({}))
Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_one_or_many),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class Frozen(BaseModel):
    """Base of all parts of a policy: immutable, no unknown keys, values never shown in error messages."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=False,
        hide_input_in_errors=True,
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
    )


class Price(Frozen):
    """USD per million tokens; buckets without a price of their own cost what their parent costs."""

    input: Usd
    output: Usd
    cached_input: Usd | None = None  # default: as input
    cache_write: Usd | None = None  # default: as input
    output_image: Usd | None = None  # default: as output


class Deployment(Frozen):
    """One concrete model behind one endpoint."""

    name: Name
    model: str = Field(min_length=1)
    """`local/NAME`, `local/path/to/file.gguf`, `openai/MODEL` with `api_base`, or any LiteLLM `provider/model`."""
    api_base: str | None = None
    api_key: SecretStr | None = None
    optional: bool = False
    """Off, and said so at start, while a variable that it names is not in the environment (or a package is missing)."""
    mode: Literal["chat", "embedding"] = "chat"
    price: Price | None = None  # default: 0 for local/, else LiteLLM's price map if it knows the model, else unknown
    weight: Annotated[float, Field(gt=0)] = 1.0
    context_window: Annotated[int, Field(gt=0)] | None = None  # tokens, prompt and answer together; None: not checked
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    headers: ReadOnly[SecretStr] = EMPTY  # sent with every request
    params: ReadOnly[Any] = EMPTY  # body fields that the policy overrides
    stream_usage: bool = True  # ask for usage in streams (stream_options); false for servers that refuse the field

    @property
    def provider(self) -> str:
        return self.model.partition("/")[0]

    @property
    def model_id(self) -> str:
        """The model's name at its endpoint."""
        return self.model.partition("/")[2]


class Timeouts(Frozen):
    connect: Seconds = 3.0
    first_token: Seconds = 30.0  # from sending the request to the first content token, silence before headers included
    idle: Seconds = 30.0  # between two chunks
    total: Seconds = 600.0  # one attempt, end to end
    first_byte: Seconds | None = None  # whole (not streamed) answers: from sending to the first byte; default: total


class Backoff(Frozen):
    initial: Seconds = 0.2
    max: Seconds = 5.0
    jitter: bool = True  # full jitter: uniform in [0, delay]


class Retry(Frozen):
    """`attempts` more tries on the same deployment when its failure may pass quickly (refused, 429, 503)."""

    attempts: Annotated[int, Field(ge=0, le=10)] = 1
    backoff: Backoff = Backoff()


class Concurrency(Frozen):
    """Cap and queue of each deployment of a tier, per worker process."""

    max: Annotated[int, Field(gt=0)]
    queue: Annotated[int, Field(ge=0)] = 64
    queue_timeout: Seconds = 5.0


class Cooldown(Frozen):
    """A deployment that failed `allowed_fails` times in a row is left alone for `cooldown_time`, then probed."""

    allowed_fails: Annotated[int, Field(gt=0)] = 3
    cooldown_time: Seconds = 30.0


class Tier(Frozen):
    name: str = ""  # its key under `tiers`
    deployments: Annotated[tuple[Deployment, ...], Field(min_length=1)]
    balance: Literal["weighted", "round_robin"] = "weighted"
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    concurrency: Concurrency | None = None  # None: no cap
    cooldown: Cooldown | None = Cooldown()  # null: never


class Route(Frozen):
    """A model name that apps ask for. Either a fixed `tier`, or `strategy: difficulty` with thresholds."""

    name: str = ""  # its key under `routes`
    strategy: Literal["difficulty", "fixed"] = "difficulty"  # fixed when `tier` is given
    tier: str | None = None
    thresholds: ReadOnly[Share] = EMPTY
    """Tier → the difficulty from which it is used. Filled in by the loader: evenly spaced where nothing is said."""
    min_tier: str | None = None
    max_tier: str | None = None
    default_tier: str | None = None  # where a broken classifier sends to; default: the middle of the allowed tiers
    response_model: Literal["answered", "requested"] | None = None  # default: answered for a choice, requested if fixed
    cache: bool = True


class Range(Frozen):
    """Numbers a rule compares with; all that are given must hold."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def holds(self, value: float) -> bool:
        return (
            (self.gt is None or value > self.gt)
            and (self.ge is None or value >= self.ge)
            and (self.lt is None or value < self.lt)
            and (self.le is None or value <= self.le)
        )


class Text(Frozen):
    """`matches` is a Python regular expression, searched for; compiled at load, a bad one is refused there."""

    matches: str = Field(min_length=1)


class When(Frozen):
    """Conditions of a rule; all that are given must hold."""

    prompt_tokens: Range | None = None
    turns: Range | None = None
    has_tools: bool | None = None
    has_images: bool | None = None
    language: Names | None = None  # en, zh, ... as `router.features.language` tells
    response_format: Names | None = None  # text, json_object, json_schema
    last_user: Text | None = None
    headers: ReadOnly[Text] = EMPTY  # by header name, any case
    key: Names | None = None  # names of API keys
    route: Names | None = None


class Rule(Frozen):
    """First match wins, before the classifier. Exactly one of `tier` (use it) and `min_tier` (at least it)."""

    name: Name
    when: When
    tier: str | None = None
    min_tier: str | None = None
    max_tier: str | None = None


class ExactCache(Frozen):
    ttl: Seconds = 3600.0
    max_bytes: Bytes = 64 * 2**20
    max_entry_bytes: Bytes = 2**20
    shared: bool = False  # true: one cache for all API keys. Off: no key ever sees another's answer
    only_deterministic: bool = False  # true: only requests that say temperature 0
    allow_n: bool = False  # true: also requests with n > 1
    tool_results: bool = True  # false: not when the conversation holds results of tools


class Caches(Frozen):
    exact: ExactCache | None = None


class Key(Frozen):
    """An API key of the gateway; only its hash is kept (`tiergate keys new`)."""

    name: Name
    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    routes: Names | None = None  # routes, aliases, tiers and deployments it may name; None: all
    admin: bool = False  # may use /admin/


class RequestLog(Frozen):
    """One JSON line a request."""

    path: Annotated[
        str,
        BeforeValidator(_off_is_a_word),
        WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"const": False}]}),
        Field(min_length=1),
    ] = "stdout"  # stdout, off, or a file's path
    prompts: bool = False  # true: also the request's body, prompt included


class Policy(Frozen):
    version: Literal[1]
    tiers: ReadOnly[Tier]  # cheapest first; the order is the escalation order
    fallback: ReadOnly[tuple[str, ...]] = EMPTY
    """Tier → tiers tried next. Filled in by the loader where nothing is said: upwards, then down."""
    baseline: str = ""  # the tier that savings are counted against; default: the last
    baseline_price: Price | None = None  # default: of the baseline tier's first priced deployment, even if that is off
    routes: ReadOnly[Route] = EMPTY
    aliases: ReadOnly[str] = EMPTY  # name → tier or deployment
    rules: tuple[Rule, ...] = ()
    cache: Caches = Caches()
    keys: tuple[Key, ...] = ()
    timeout: Seconds = 600.0  # a whole request, all attempts; the header x-tiergate-timeout may shorten it
    max_body: Bytes = 32 * 2**20
    log: RequestLog = RequestLog()
    usage_cost: bool = False  # true: the usage event of a stream also tells cost_usd and saved_usd

    @cached_property
    def tier_names(self) -> tuple[str, ...]:
        return tuple(self.tiers)

    @cached_property
    def rule_headers(self) -> frozenset[str]:
        """Lower-case names of the request headers that decide anything."""
        return frozenset(name.lower() for rule in self.rules for name in rule.when.headers)

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever the policy does; part of every cache key. Holds no secret (they are masked)."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    @model_validator(mode="before")
    @classmethod
    def _names_from_keys(cls, data: Any) -> Any:
        """`tiers` and `routes` are mappings; each value learns its own key as `name`."""
        if not isinstance(data, dict):
            return data
        named = dict(data)
        for section in ("tiers", "routes"):
            if isinstance(entries := named.get(section), dict):
                named[section] = {
                    name: {**entry, "name": name} if isinstance(entry, dict) else entry
                    for name, entry in entries.items()
                }
        return named
