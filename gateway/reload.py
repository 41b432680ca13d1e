"""Swapping policies: read, check, build, swap one reference. A bad file changes nothing and says why."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

from gateway.runtime import Equipment, Runtime
from gateway.settings import Settings
from router.policy import Policy
from router.policy_file import Loaded, PolicyError, Problem, load_policy, read_text


class Reloader:
    """Owns the current `Runtime`. `watch` looks at the file; SIGHUP and `POST /admin/reload` call `reload`."""

    def __init__(self, settings: Settings, loaded: Loaded, equipment: Equipment, environ: Mapping[str, str]) -> None:
        self._path = path = Path(settings.policy)
        self._last_good = Path(settings.last_good) if settings.last_good else None
        self._equipment = equipment
        self._environ = environ
        self._seen = _stamp(path)
        self._announced: str | None = None
        self._background: set[asyncio.Task[None]] = set()
        self.current = Runtime(loaded.policy, equipment)
        self._announce(loaded.policy)

    def reload(self) -> tuple[str, ...]:
        """Put the file's policy to work. Gives the problems, one line each; none if it worked (or nothing changed)."""
        self._seen = _stamp(self._path)
        try:
            text = read_text(self._path)
            loaded = load_policy(text, self._environ, str(self._path))
            self._check_local_models(loaded.policy)
            new = Runtime(loaded.policy, self._equipment, self.current)
        except PolicyError as exc:
            return self._refuse(tuple(str(exc).splitlines()))
        except OSError as exc:  # the request log's file cannot be opened
            return self._refuse((f"{self._path}: log.path: {exc.strerror}",))
        old, self.current = self.current, new
        self._remember(text)
        self._in_background(old.retire(self.current))
        self._in_background(self.current.prepare())
        self._announce(loaded.policy)
        self._equipment.metrics.reloads.labels("ok").inc()
        self._equipment.log.info("policy_reloaded", fingerprint=loaded.policy.fingerprint)
        return ()

    def _remember(self, text: str) -> None:
        """For a worker that starts again while the file is bad."""
        if self._last_good is not None:
            draft = self._last_good.with_suffix(f".{os.getpid()}")
            try:
                draft.write_text(text, encoding="utf-8")
                draft.replace(self._last_good)
            except OSError as exc:
                self._equipment.log.warning("last_good_policy_not_kept", error=exc.strerror)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _refuse(self, problems: tuple[str, ...]) -> tuple[str, ...]:
        self._equipment.metrics.reloads.labels("failed").inc()
        self._equipment.log.error("policy_reload_failed", problems=problems, kept=self.current.policy.fingerprint)
        return problems

    def _check_local_models(self, policy: Policy) -> None:
        """Embedded models are started with the gateway and not later."""
        for tier in policy.tiers.values():
            for deployment in tier.deployments:
                if deployment.provider == "local" and deployment.model not in self._equipment.local_ports:
                    message = f"{deployment.model} is not running; restart the gateway to start it"
                    raise PolicyError([Problem(0, f"tiers.{tier.name}.deployments", message)], str(self._path))

    def _announce(self, policy: Policy) -> None:
        info = self._equipment.metrics.policy_info
        if self._announced is not None:
            info.labels(self._announced).set(0)  # several processes cannot take a series back
        info.labels(policy.fingerprint).set(1)
        self._announced = policy.fingerprint

    def start(self) -> None:
        """Inside the running loop: begin what must not hold up the start."""
        self._in_background(self.current.prepare())

    async def watch(self, every_s: float) -> None:
        """Reload whenever the file is another one than before (edited, replaced, or a mounted ConfigMap swapped)."""
        while True:
            await asyncio.sleep(every_s)
            self.current.tell_health()
            if _stamp(self._path) not in (None, self._seen):
                self.reload()

    def reload_on_signal(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)

    async def aclose(self) -> None:
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.current.retire()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
