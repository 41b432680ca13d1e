"""What `gateway.execute` asks of an upstream: open an attempt, read its answer, close it.

The callers of these are the only ones who wait with a clock: an upstream sets no time limit of its own, and a
cancelled `open`, `read` or `chunks` lets go of the connection at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from router.types import Attempt, Call


class Reply(Protocol):
    """An open, good (2xx) upstream response; whoever holds it closes it.

    Either `read` or `chunks` is used, once; both raise `AttemptError` when the upstream fails half way.
    """

    async def read(self) -> bytes:
        """The whole answer: a `chat.completion` or embeddings list of OpenAI's form, as JSON bytes."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Raw SSE bytes in OpenAI's form, as they come: a piece may hold half an event, or many."""
        ...

    async def aclose(self) -> None:
        """Cancel the upstream call if it still runs and free its connection. Idempotent; a cancellation that comes
        meanwhile does not stop it half way."""
        ...


class Upstream(Protocol):
    """A way to reach deployments: OpenAI's protocol, LiteLLM, or the embedded model."""

    async def open(self, call: Call, attempt: Attempt, body: bytes) -> Reply:
        """Send `body` (the caller's JSON, rewritten for the deployment) and wait for the head of the answer.

        Raises `AttemptError`; `Unsupported` for a field that cannot be carried over to the provider.
        """
        ...

    async def prepare(self) -> None:
        """Get ready what the first call would have to wait for. Raises `AttemptError`."""
        ...

    async def aclose(self) -> None:
        """Close what is shared between calls (connection pools). Idempotent."""
        ...
