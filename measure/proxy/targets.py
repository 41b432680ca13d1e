"""What is measured: how each target is started and spoken to. Values alone; `measure.proxy.launch` starts them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

import msgspec

HERE = Path(__file__).resolve().parent
JSON_MODEL = "mock"
STREAM_MODEL = "mock-t50-n32-i10"
STREAM_FIRST_MS, STREAM_TOTAL_MS = 50.0, 360.0  # of a stream of that model, if nothing added to it: t + 31 * i
PATH = "/v1/chat/completions"

# Whatever it is: LiteLLM refuses to start without a strong one. It opens nothing but a bench on loopback.
LITELLM_KEY = "sk-bench-3f9c1b7e52d84a60a1c7e9d2b4f60835"


class Target(msgspec.Struct, frozen=True):
    """One thing to measure, at 127.0.0.1:`port`."""

    name: str
    port: int
    command: tuple[str, ...] = ()  # empty: it runs already (the upstream itself)
    environ: Mapping[str, str] = {}
    headers: tuple[str, ...] = ()
    model: str = JSON_MODEL
    stream_model: str = STREAM_MODEL
    workers: int = 1  # one has core 0 for itself; several share both cores with the load and the upstream
    same_prompt: bool = False  # every request is the same one: hits in a cache
    streams: bool = True
    needs: str = ""  # the peer that has to be installed for it


class Place(msgspec.Struct, frozen=True):
    """Where a run finds and leaves things."""

    work: Path  # a folder of this run alone
    peers: Path  # LiteLLM's virtual environment, Portkey's npm folder
    port: int = 9001  # of the upstream; the targets have ports above it


def tools_folder() -> Path:
    """Where run.sh puts what it builds and installs."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TIERGATE_BENCH_CACHE") or Path(caches) / "tiergate-bench")


def targets(place: Place) -> dict[str, Target]:
    """All targets there are, by name. Writes their configuration files into `place.work`."""
    return {
        target.name: target
        for target in (
            Target("direct", place.port),
            *_nginx(place),
            *_litellm(place),
            _portkey(place),
            *_tiergate(place),
        )
    }


def _nginx(place: Place) -> list[Target]:
    """nginx as a plain reverse proxy: what it costs at least to stand between."""
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"  # Debian keeps it out of the path of plain users
    found = []
    for name, workers, port in (("nginx", 1, place.port + 100), ("nginx-2w", 2, place.port + 101)):
        config = _config(place, name, "nginx.conf", WORKERS=str(workers), PORT=str(port))
        found.append(Target(name, port, (nginx, "-p", str(place.work), "-c", config), workers=workers))
    return found


def _litellm(place: Place) -> list[Target]:
    """LiteLLM's proxy, without a database or callbacks; `litellm-hit` with its cache in process."""
    folder = place.peers / "litellm" / "bin"
    environ = {
        "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
        "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}",
    }  # fmt: skip
    found = []
    for name, workers, cache, port in (
        ("litellm", 1, "", place.port + 110),
        ("litellm-2w", 2, "", place.port + 111),
        ("litellm-hit", 1, ", cache: true, cache_params: {type: local}", place.port + 112),
    ):
        config = _config(place, name, "litellm.yaml", CACHE=cache, KEY=LITELLM_KEY)
        command = (str(folder / "litellm"), "--config", config, "--host", "127.0.0.1", "--port", str(port),
                   "--num_workers", str(workers))  # fmt: skip
        found.append(
            Target(
                name, port, command, environ, (f"Authorization: Bearer {LITELLM_KEY}",), workers=workers,
                same_prompt=bool(cache), streams=not cache, needs="litellm",
            )
        )  # fmt: skip
    return found


def _portkey(place: Place) -> Target:
    """Portkey's gateway on Node, with a repair: see portkey_shim.cjs."""
    port = place.port + 120
    script = place.peers / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
    environ = {
        "TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost", "NODE_ENV": "production",
        "NODE_OPTIONS": f"--require {HERE / 'portkey_shim.cjs'}",
    }  # fmt: skip
    headers = ("x-portkey-provider: openai", f"x-portkey-custom-host: http://127.0.0.1:{place.port}/v1",
               "Authorization: Bearer sk-x")  # fmt: skip
    return Target(
        "portkey", port, ("node", str(script), f"--port={port}", "--headless"), environ, headers, needs="portkey"
    )


def _tiergate(place: Place) -> list[Target]:
    return [
        gateway_target(place, "tiergate", place.port + 130),
        gateway_target(place, "tiergate-2w", place.port + 131, workers=2),
        gateway_target(place, "tiergate-hit", place.port + 132, same_prompt=True),
    ]


def gateway_target(place: Place, name: str, port: int, workers: int = 1, same_prompt: bool = False) -> Target:
    """This gateway with everything on, as bench.yaml says; asked for the same again, it answers from its cache."""
    command = (
        sys.executable, "-m", "gateway.cli", "serve", "--policy", str(HERE / "bench.yaml"),
        "--port", str(port), "--workers", str(workers), "--log-level", "warning",
    )  # fmt: skip
    environ = {
        "TIERGATE_BENCH_UPSTREAM": f"http://127.0.0.1:{place.port}/v1",
        "TIERGATE_BENCH_LOG": str(place.work / f"{name}-requests.jsonl"),
    }
    return Target(
        name, port, command, environ, model="bench-json", stream_model="bench-stream",
        workers=workers, same_prompt=same_prompt, streams=not same_prompt,
    )  # fmt: skip


def _config(place: Place, name: str, template: str, **values: str) -> str:
    """The path of a configuration file made from a template of this folder."""
    path = place.work / f"{name}-{template}"
    text = Template((HERE / template).read_text())
    path.write_text(
        text.substitute(values, WORK=str(place.work), NAME=name, UPSTREAM=str(place.port), STREAM=STREAM_MODEL)
    )
    return str(path)
