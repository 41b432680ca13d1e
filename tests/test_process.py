"""The real command as a child: what the cases stand on must itself tell start, end and failure apart."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.cases import adapter
from tests.client import Client
from tests.process import NotReady, Process, free_port


def policy_file(folder: Path) -> tuple[Path, dict[str, str]]:
    urls = {tier: f"http://127.0.0.1:{free_port()}/v1" for tier in adapter.TIERS}
    launch = adapter.launch({}, urls, folder / "requests.jsonl")
    file = folder / "policy.yaml"
    file.write_text(launch.text, "utf-8")
    return file, launch.environ


async def test_stop_signal_ends_it_with_code_0(tmp_path: Path) -> None:
    """Its output stays readable after the end."""
    file, environ = policy_file(tmp_path)
    async with Process(file, env=environ) as gateway:
        await gateway.ready()
        gateway.send_signal(signal.SIGTERM)

        assert 0 == await gateway.exit(timeout=10)
    assert gateway.url in gateway.stderr
    assert "up-key" not in gateway.stdout + gateway.stderr


async def test_policy_that_is_wrong_never_gets_ready(tmp_path: Path) -> None:
    """The output says why, at once: nobody waits for the time limit."""
    file, environ = policy_file(tmp_path)
    file.write_text("tiers: [", "utf-8")
    started = time.monotonic()
    async with Process(file, env=environ) as gateway:
        with pytest.raises(NotReady, match="not valid YAML"):
            await gateway.ready(timeout=60)

        assert gateway.returncode not in (0, None)
    assert time.monotonic() - started < 30


async def test_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    """The address goes on answering, and another process takes the place of the dead one."""
    file, environ = policy_file(tmp_path)
    async with Process(file, env=environ, workers=2) as gateway:
        await gateway.ready()
        dead = gateway.kill_worker()
        client = Client(gateway.url, check=False)
        end = time.monotonic() + 20
        while dead in gateway.children() or len(gateway.children()) < 2:
            assert time.monotonic() < end, gateway.children()
            await client.get("/health/live")
        await gateway.ready()

        assert gateway.memory_bytes() > 30_000_000
