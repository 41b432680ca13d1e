"""A real Prometheus for tests: the deployed configuration, another target and a shorter interval."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from tests.needs import need
from tests.process import free_port

ROOT = Path(__file__).resolve().parents[2]
DEPLOYED = ROOT / "deploy" / "prometheus"
SCRAPE_S = 0.5

Series = list[tuple[dict[str, str], list[float]]]  # labels, values (never NaN)


def binary(name: str) -> str:
    """Path of `prometheus` or `promtool`. Without it the test is skipped, or fails where CI is set."""
    return need(name, "prometheus")


class Prometheus:
    """Scrapes `target` (host:port) from `async with` on; its data are gone with `folder`."""

    def __init__(self, folder: Path, target: str) -> None:
        self.folder, self.target, self.port = folder, target, free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def config(self) -> Path:
        config = yaml.safe_load((DEPLOYED / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"}
        config["rule_files"] = [str(DEPLOYED / name) for name in config["rule_files"]]
        config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] == "tiergate"]
        config["scrape_configs"][0]["static_configs"] = [{"targets": [self.target]}]
        config["scrape_configs"][0]["scrape_timeout"] = f"{int(SCRAPE_S * 1000)}ms"
        path = self.folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        return path

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            binary("prometheus"),
            f"--config.file={self.config()}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=error",
            stdout=asyncio.subprocess.DEVNULL,
        )
        self._session = aiohttp.ClientSession(self.url, timeout=aiohttp.ClientTimeout(total=10))
        try:
            async with asyncio.timeout(20):
                while not await self._is_ready():
                    await asyncio.sleep(0.05)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    async def _is_ready(self) -> bool:
        assert self._process.returncode is None, "prometheus ended"
        try:
            async with self._session.get("/-/ready") as reply:
                return reply.status == 200
        except aiohttp.ClientConnectionError:
            return False  # not listening yet

    async def get(self, path: str, **params: str) -> Any:
        async with self._session.get(f"/api/v1/{path}", params=params) as reply:
            body = await reply.json()
        assert body["status"] == "success", f"{params}: {body}"
        return body["data"]

    async def instant(self, expr: str) -> Series:
        found = (await self.get("query", query=expr))["result"]
        return _series((one["metric"], [one["value"]]) for one in found)

    async def over_time(self, expr: str, start: float, end: float) -> Series:
        """At each second from `start` to `end` (seconds since 1970)."""
        found = await self.get("query_range", query=expr, start=f"{start:.3f}", end=f"{end:.3f}", step="1s")
        return _series((one["metric"], one["values"]) for one in found["result"])

    async def now(self) -> float:
        """Prometheus' own clock, seconds since 1970."""
        return float((await self.get("query", query="time()"))["result"][1])

    async def scraped(self, times: int, timeout: float = 20.0) -> None:
        """Until the target has been scraped this many times from now on."""
        count = 'sum(count_over_time(up{job="tiergate"}[1h]))'

        async def scrapes() -> float:
            return sum(values[-1] for _, values in await self.instant(count))

        wanted = await scrapes() + times
        async with asyncio.timeout(timeout):
            while await scrapes() < wanted:
                await asyncio.sleep(SCRAPE_S / 4)


def _series(found: Any) -> Series:
    numbers = ((labels, [float(value) for _, value in values]) for labels, values in found)
    kept = ((labels, [value for value in values if not math.isnan(value)]) for labels, values in numbers)
    return [(labels, values) for labels, values in kept if values]
