"""What a start costs: time to the first answered request, idle memory, and what the imports take.

    python -m measure.startup [--runs 5] [--top 15]

The gateway is started as a user starts it, with everything on that needs no local model (measure/proxy/bench.yaml), in
front of a small server in this process. Each start and import is a new process; figures are medians. "Cold" means a new
process: files are in the page cache, and Python's compiled modules are written. Linux alone (/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from measure.proxy.launch import Crew, Startup, free_port
from measure.proxy.report import number, table
from measure.proxy.targets import Place, gateway_target

ANSWER = json.dumps(
    {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "mock",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello 你好"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }
).encode()  # fmt: skip
IMPORTS = {
    "nothing (Python itself)": "",
    "gateway.app": "gateway.app",
    "gateway.app and LiteLLM": "gateway.app, litellm",
}
_MEASURE = """
import os, time
began = time.perf_counter()
{statement}
print(time.perf_counter() - began, int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
"""
# LiteLLM otherwise asks the network for a price map
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}


class Import(NamedTuple):
    what: str
    seconds: float
    rss_mb: float


class Module(NamedTuple):
    """One module of `python -X importtime`, in ms."""

    name: str
    own: float
    with_imports: float


class _Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def starts(runs: int) -> list[Startup]:
    """So many starts of the gateway, one after the other."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with tempfile.TemporaryDirectory(prefix="tiergate-startup-") as work:
            place = Place(Path(work), Path(work), server.server_address[1])
            return [_start(place) for _ in range(runs)]
    finally:
        server.shutdown()
        server.server_close()


def _start(place: Place) -> Startup:
    with Crew(place.work) as crew:
        return crew.start(gateway_target(place, "tiergate", free_port()))


def imported(what: str, modules: str, runs: int) -> Import | None:
    """Median time and memory of importing these modules; None where one is not installed."""
    program = _MEASURE.format(statement=f"import {modules}" if modules else "")
    figures = []
    for _ in range(runs):
        done = _python("-c", program)
        if done.returncode:
            return None
        figures.append([float(word) for word in done.stdout.split()])
    return Import(what, *(statistics.median(column) for column in zip(*figures, strict=True)))


def slowest(top: int, runs: int) -> list[Module]:
    """The modules that cost the import of `gateway.app` most by themselves, with medians over the runs."""
    found: dict[str, list[Module]] = {}
    for _ in range(runs):
        for module in read_importtime(_python("-X", "importtime", "-c", "import gateway.app").stderr):
            found.setdefault(module.name, []).append(module)
    medians = [
        Module(name, statistics.median(one.own for one in ones), statistics.median(one.with_imports for one in ones))
        for name, ones in found.items()
    ]
    return sorted(medians, key=lambda module: module.own, reverse=True)[:top]


def read_importtime(text: str) -> list[Module]:
    """What `-X importtime` writes (µs, own and cumulative), in the order of the imports' ends."""
    found = []
    for line in text.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[0].strip().isdigit():
            found.append(Module(parts[2].strip(), int(parts[0]) / 1000, int(parts[1]) / 1000))
    return found


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **_OFFLINE}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environ)


def report(started: Sequence[Startup], imports: Sequence[Import], modules: Sequence[Module]) -> str:
    """Three Markdown tables."""
    columns = {
        "start to first answer s": ([one.seconds for one in started], 2),
        "CPU s": ([one.cpu_s for one in started], 2),
        "idle RSS MB": ([one.idle.rss for one in started], 0),
        "idle PSS MB": ([one.idle.pss for one in started], 0),
    }
    medians = [number(statistics.median(values), digits) for values, digits in columns.values()]
    return "\n\n".join(
        [
            table([f"median of {len(started)} starts", *columns], [["tiergate serve", *medians]]),
            table(["import", "s", "RSS of the process MB"],
                  [[one.what, number(one.seconds, 3), number(one.rss_mb, 0)] for one in imports]),
            table(["module", "own ms", "with its imports ms"],
                  [[one.name, number(one.own, 1), number(one.with_imports, 1)] for one in modules]),
        ]
    )  # fmt: skip


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--top", type=int, default=15, help="modules to list")
    return parser.parse_args(words)


def main() -> None:
    asked = arguments()
    started = starts(asked.runs)
    imports = [one for what, modules in IMPORTS.items() if (one := imported(what, modules, asked.runs))]
    print(report(started, imports, slowest(asked.top, asked.runs)))


if __name__ == "__main__":
    main()
