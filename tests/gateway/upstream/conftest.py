"""The LiteLLM adapter in front of a scripted provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.upstream.litellm import LiteLLMUpstream
from tests.gateway.upstream.providers import Provider
from tests.upstream import Upstream


@pytest.fixture
async def adapter() -> AsyncIterator[LiteLLMUpstream]:
    upstream = LiteLLMUpstream()
    await upstream.load()  # seconds, the first time: not on the clock of a test
    yield upstream
    await upstream.aclose()


@pytest.fixture
async def provider(adapter: LiteLLMUpstream) -> AsyncIterator[Provider]:
    """Afterwards: every script was used, and no connection is busy."""
    async with Upstream() as server:
        yield Provider(adapter, server)
        assert not server.unused
        assert not server.unexpected
        async with asyncio.timeout(2):
            await server.wait_for(lambda: server.active == 0)
