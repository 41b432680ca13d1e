"""Several workers under a small supervisor: started, told of signals, started again when they die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gateway.settings import Settings
from gateway.telemetry.log import Log
from gateway.telemetry.metrics import MULTIPROCESS

WORKER = "TIERGATE_WORKER"  # a worker's settings, as JSON
RESTART_DELAY_S = 1.0
CLEAN = (0, -signal.SIGTERM)  # told to stop before it could listen to signals: that is clean as well


async def keep_workers(settings: Settings, policy_text: str, log: Log) -> int:
    """Keep `settings.workers` workers alive until told to stop; gives the exit code.

    In a folder of this boot their metrics meet, and so does the last policy that worked: a worker that starts again
    while the file is bad goes on with that.
    """
    folder = Path(tempfile.mkdtemp(prefix="tiergate-"))
    metrics, last_good = folder / "metrics", folder / "policy.yaml"
    metrics.mkdir()
    last_good.write_text(policy_text, encoding="utf-8")
    told = msgspec.structs.replace(settings, last_good=str(last_good))
    crew = _Crew({**os.environ, MULTIPROCESS: str(metrics), WORKER: msgspec.json.encode(told).decode()}, log)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, crew.stop)
    loop.add_signal_handler(signal.SIGHUP, crew.tell, signal.SIGHUP)
    try:
        await asyncio.gather(*(crew.keep() for _ in range(settings.workers)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return crew.exit_code


class _Crew:
    """The worker processes; one `keep` for each place."""

    def __init__(self, environ: Mapping[str, str], log: Log) -> None:
        self._environ = environ
        self._log = log
        self._stopping = False
        self._processes: set[asyncio.subprocess.Process] = set()
        self.exit_code = 0

    async def keep(self) -> None:
        while not self._stopping:
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway.worker", env=dict(self._environ), start_new_session=True
            )
            self._processes.add(process)
            if self._stopping:
                process.terminate()
            code = await process.wait()
            self._processes.discard(process)
            _forget_gauges(process.pid, self._environ[MULTIPROCESS])
            if self._stopping:
                self.exit_code = self.exit_code or (0 if code in CLEAN else 1)
                return
            self._log.error("worker_died", pid=process.pid, exit_code=code)
            if time.monotonic() - started < RESTART_DELAY_S:
                await asyncio.sleep(RESTART_DELAY_S)

    def stop(self) -> None:
        """Asked twice, it waits for nobody."""
        self.tell(signal.SIGINT if self._stopping else signal.SIGTERM)
        self._stopping = True

    def tell(self, number: int) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)


def _forget_gauges(pid: int, folder: str) -> None:
    from prometheus_client.multiprocess import mark_process_dead  # only with several workers

    mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]
