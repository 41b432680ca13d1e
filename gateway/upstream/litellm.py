"""Every provider that does not speak OpenAI's protocol, through LiteLLM's `acompletion` and `aembedding`.

The only importer of LiteLLM, and only when the first request needs it: it takes seconds and 160 MB. It is used as a
translator of formats and for nothing else: no retries, fallbacks, callbacks, caches, logs, or fetches of its own.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import orjson

from gateway.errors import Broken, Misconfigured
from gateway.upstream.base import Reply
from gateway.upstream.litellm_answer import DONE, encode_answer, encode_embeddings, encode_event
from gateway.upstream.litellm_failures import failure
from gateway.upstream.litellm_request import arguments
from router.policy import Deployment
from router.types import Attempt, Call

# Before the import: a price map and header tables from the package instead of the network, and no `.env` file.
_ENVIRONMENT: Mapping[str, str] = MappingProxyType({
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_TELEMETRY": "False",
})  # fmt: skip
_SETTINGS: Mapping[str, Any] = MappingProxyType({
    "telemetry": False,
    "suppress_debug_info": True,  # else each error prints two lines to stdout
    "turn_off_message_logging": True,
    "redact_messages_in_exceptions": True,
    "disable_streaming_logging": True,
    "disable_hf_tokenizer_download": True,  # else a model named like Llama costs a download, on the event loop
    "drop_params": False,
    "num_retries": 0,
    "REPEATED_STREAMING_CHUNK_LIMIT": sys.maxsize,  # else the 100th equal piece ends a stream: a table, a row of zeros
})  # fmt: skip
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")  # they write prompts at DEBUG, and addresses at WARNING
_NO_LIMIT_S = 7 * 24 * 3600.0  # time limits are the caller's, by cancelling
_REMEDY = "run `make setup` (or install the extra: tiergate[providers])"
_FALSE_FINISH = ("gemini", "vertex_ai")  # LiteLLM reports "stop" for every chunk of theirs


def available() -> str | None:
    """Why LiteLLM cannot be used, or None. Imports nothing."""
    return None if importlib.util.find_spec("litellm") else f"needs litellm: {_REMEDY}"


class LiteLLMUpstream:
    """All deployments of other providers. LiteLLM keeps a connection pool per provider for the process."""

    def __init__(self) -> None:
        self._loading: asyncio.Task[Any] | None = None
        self._supported: dict[str, frozenset[str]] = {}  # model → OpenAI's fields that it has a place for

    async def load(self) -> Any:
        """LiteLLM's module, imported in a thread the first time (seconds). Raises `Misconfigured`."""
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_import))
        try:
            return await asyncio.shield(self._loading)  # who leaves early must not undo it for the others
        except ImportError as exc:
            self._loading = None
            raise Misconfigured(f"the gateway lacks a package: {_REMEDY}") from exc

    async def prepare(self) -> None:
        await self.load()

    async def open(self, call: Call, attempt: Attempt, body: bytes) -> Reply:
        """Of a stream: its first event is here. Otherwise: the whole answer is. Raises `AttemptError`."""
        litellm = await self.load()
        deployment = attempt.deployment
        request = {
            **arguments(call, deployment, body, lambda model: self._fields_of(litellm, model)), **_access(deployment)
        }  # fmt: skip
        try:
            if call.surface == "embeddings":
                return WholeReply(_embeddings(await litellm.aembedding(**request), body))
            answer = await litellm.acompletion(**request)
            if not call.stream:
                return WholeReply(encode_answer(answer.model_dump(exclude_none=True)))
        except Exception as exc:
            raise failure(exc, _secrets(deployment)) from exc
        return await StreamReply.begin(answer, deployment)

    def _fields_of(self, litellm: Any, model: str) -> frozenset[str]:
        if model not in self._supported:
            self._supported[model] = frozenset(litellm.get_supported_openai_params(model=model) or ())
        return self._supported[model]

    async def aclose(self) -> None:
        """Close LiteLLM's connection pools. They are the process's: after this, other instances open new ones."""
        if self._loading is None:
            return
        try:
            litellm = await asyncio.shield(self._loading)
        except ImportError:
            return
        await litellm.close_litellm_async_clients()
        litellm.in_memory_llm_clients_cache.flush_cache()


class WholeReply:
    """An answer that is here already."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self) -> bytes:
        return self._body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        """Nothing is open."""


class StreamReply:
    """A running stream of LiteLLM's, as server-sent events in OpenAI's form. Made by `begin`."""

    def __init__(self, stream: Any, deployment: Deployment) -> None:
        self._stream = stream
        self._secrets = _secrets(deployment)
        self._watched: _Watched | None = None
        self._first: bytes | None = None

    @classmethod
    async def begin(cls, stream: Any, deployment: Deployment) -> StreamReply:
        """Wait for the first event: for some providers LiteLLM sends the request only when it is asked for one."""
        reply = cls(stream, deployment)
        try:
            if deployment.provider in _FALSE_FINISH:
                await reply._watch()
            reply._first = await reply._next()
            if reply._first is None:
                raise Broken("the stream ended before it said anything")
        except BaseException:
            await asyncio.shield(reply.aclose())
            raise
        return reply

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        event = self._first
        while event is not None:
            yield event
            event = await self._next()
        yield DONE

    async def aclose(self) -> None:
        await asyncio.shield(self._stream.aclose())

    async def _next(self) -> bytes | None:
        try:
            chunk = await self._stream.__anext__()
        except StopAsyncIteration:
            return None
        except Exception as exc:
            raise failure(exc, self._secrets) from exc
        event: dict[str, Any] = chunk.model_dump(exclude_none=True)
        if any(choice.get("finish_reason") for choice in event["choices"]) and not self._has_finished():
            raise Broken("the stream ended before the model had finished")
        return encode_event(event)

    def _has_finished(self) -> bool:
        """Whether the provider said so. At the end of the bytes LiteLLM makes up a finish reason if none came."""
        if self._watched is not None:
            return self._watched.finished
        stream = self._stream
        return bool(
            stream.received_finish_reason or stream.intermittent_finish_reason or stream.received_any_finish_reason
        )

    async def _watch(self) -> None:
        """Send the request, and look at the lines of its answer before LiteLLM does."""
        try:
            source = await self._stream.fetch_stream()
        except Exception as exc:
            raise failure(exc, self._secrets) from exc
        source.streaming_response = self._watched = _Watched(source.streaming_response)


class _Watched:
    """The lines of a Gemini stream; remembers whether one had a finish reason."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.finished = False

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> str:
        line = await self._lines.__anext__()
        # inside a text of the model the quotes would be escaped
        self.finished = self.finished or '"finishReason"' in line or '"blockReason"' in line
        return line

    async def aclose(self) -> None:
        close = getattr(self._lines, "aclose", None)
        if close is not None:
            await close()


def _import() -> Any:
    os.environ.update(_ENVIRONMENT)
    litellm = importlib.import_module("litellm")
    for name, value in _SETTINGS.items():
        setattr(litellm, name, value)
    for logger in map(logging.getLogger, _LOGGERS):
        logger.handlers.clear()
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
    # A call cancelled while LiteLLM prepares it in a thread leaves a coroutine behind that nobody starts.
    warnings.filterwarnings("ignore", r"coroutine '.*completion.*' was never awaited", RuntimeWarning)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # writes each address at INFO
    return litellm


def _access(deployment: Deployment) -> dict[str, Any]:
    """Where and with what to call, and that LiteLLM is to add nothing of its own."""
    access: dict[str, Any] = {
        "model": deployment.model, "timeout": _NO_LIMIT_S, "num_retries": 0, "max_retries": 0, "no-log": True
    }  # fmt: skip
    if deployment.api_base is not None:
        access["api_base"] = deployment.api_base
    if deployment.api_key is not None:
        access["api_key"] = deployment.api_key.get_secret_value()
    if deployment.headers:
        access["extra_headers"] = {name: value.get_secret_value() for name, value in deployment.headers.items()}
    return access


def _secrets(deployment: Deployment) -> tuple[str, ...]:
    """What must not appear in a message: the key, the headers, the address, a cloud's credentials."""
    values = [value.get_secret_value() for value in deployment.headers.values()]
    if deployment.api_key is not None:
        values.append(deployment.api_key.get_secret_value())
    values += [value for name, value in deployment.params.items() if isinstance(value, str) and _is_secret(name)]
    values.append(deployment.api_base or "")
    return tuple(value for value in values if len(value) >= 4)


def _is_secret(name: str) -> bool:
    return name.endswith(("_key", "_key_id", "_token", "_secret", "_credentials", "_password"))


def _embeddings(answer: Any, body: bytes) -> bytes:
    as_base64 = orjson.loads(body).get("encoding_format") == "base64"
    return encode_embeddings(answer.model_dump(exclude_none=True), as_base64=as_base64)
