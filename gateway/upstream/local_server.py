"""`python -m gateway.upstream.local_server --model PATH --port P`: one embedded model behind llama.cpp's HTTP server.

Started and watched by `gateway.upstream.local`. It prints `ready` on its standard output once it answers, and ends
when its standard input ends: the gateway holds the pipe's other end, so even a killed gateway leaves no model behind.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
READY = b"ready\n"
MAX_THREADS = 4
# llama.cpp looks at cancellations and at other requests between two batches only, so a batch is the time that a caller
# who left goes on costing, and that all running answers stand still. Larger batches were not faster on CPUs: see
# docs/local-model.md.
BATCH_TOKENS = 64
# Prompts that were pushed out of their slot and may come back as the next turn of the same conversation.
PROMPT_CACHE_MIB = 128
# Small models do not always find an end by themselves.
ANSWER_TOKENS = 512
ERRORS_ONLY, CHATTY = 1, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends or SIGTERM comes. Exit code 1: the model could not be served (why: stderr)."""
    options = parse(arguments)
    greeting = _keep_stdout_for_greeting()
    # Threads that spin while they wait for each other stand still for whole time slices as soon as the gateway needs
    # a core as well: 1 token a second instead of 50. Read by OpenMP when the library is loaded, hence before it.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        server = _serve(options)
    except (ImportError, OSError, RuntimeError, ValueError) as exc:
        sys.stderr.write(f"cannot serve {options.model}: {exc}\n")
        return 1
    os.write(greeting, READY)
    _wait_for_the_end()
    signal.raise_signal(signal.SIGTERM)  # not by freeing the server: that waits for answers still running, up to 30 s
    return int(server is None)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gateway.upstream.local_server", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1; 0 lets the system choose")
    parser.add_argument("--alias", default="", help="the model's name in answers (default: the file's name)")
    parser.add_argument("--parallel", type=int, default=4, help="answers at the same time")
    parser.add_argument("--ctx", type=int, default=2048, help="tokens of one request, prompt and answer together")
    parser.add_argument("--threads", type=int, default=0, help="default: cores, less one for the gateway, at most 4")
    parser.add_argument(
        "--answer", type=int, default=ANSWER_TOKENS, help="longest answer to requests that set no limit"
    )
    parser.add_argument("--temperature", type=float, help="for requests that do not say")
    parser.add_argument("--top-p", type=float, help="for requests that do not say")
    parser.add_argument("--batch", type=int, default=BATCH_TOKENS, help="prompt tokens worked on at once")
    parser.add_argument("--verbose", action="store_true", help="llama.cpp's log on stderr; IT SHOWS PARTS OF PROMPTS")
    return parser.parse_args(arguments)


def parameters(options: argparse.Namespace, params: Any) -> Any:
    """Fill in llama.cpp's `CommonParams`, where its own defaults are not ours."""
    params.model.path = str(options.model)
    params.model_alias = {options.alias or options.model.stem}
    params.hostnames, params.port = [HOST], options.port
    params.reuse_port = True  # the gateway holds the port, so that nobody else gets it during a restart
    params.n_parallel, params.n_ctx = options.parallel, options.ctx * options.parallel
    params.n_batch = params.n_ubatch = min(options.batch, options.ctx)
    threads = options.threads or default_threads()
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_predict = options.answer
    if options.temperature is not None:
        params.sampling.temp = options.temperature
    if options.top_p is not None:
        params.sampling.top_p = options.top_p
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.fit_params = False  # never shrink the context on its own
    params.ctx_shift = False  # a prompt that does not fit is an error, not a prompt without its beginning
    params.ui = False
    params.endpoint_metrics, params.endpoint_slots = True, False  # slots would show prompts
    params.cors_origins, params.cors_origins_explicit = f"http://{HOST}", True  # no site's page may read answers
    params.verbosity = CHATTY if options.verbose else ERRORS_ONLY
    return params


def default_threads() -> int:
    """All usable cores but one, which is the gateway's; at least 1 and at most `MAX_THREADS`."""
    return max(1, min(MAX_THREADS, usable_cores() - 1))


def usable_cores(cpus: Path = Path("/sys/devices/system/cpu"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use: within its affinity and its container's quota, hyperthreads counted once."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = {_text(cpus / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in allowed}
    quota, _, period = _text(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(len(siblings), int(quota) // int(period)))
    return len(siblings)


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


def _serve(options: argparse.Namespace) -> Any:
    """The server, which answers from the moment that this returns."""
    if not options.model.is_file():
        raise FileNotFoundError("no such file")
    import xllamacpp  # an extra, and 100 MB

    return xllamacpp.Server(parameters(options, xllamacpp.CommonParams()))


def _keep_stdout_for_greeting() -> int:
    """Whatever the library prints goes to stderr; gives the descriptor that was standard output."""
    greeting = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return greeting


def _wait_for_the_end(parent: Callable[[], int] = os.getppid) -> None:
    """Until stdin ends, or the parent is another one (a copy of the pipe in a forked process keeps stdin open)."""
    first = parent()
    while parent() == first:
        if select.select([sys.stdin], [], [], 1.0)[0] and not os.read(sys.stdin.fileno(), 4096):
            return


if __name__ == "__main__":
    sys.exit(main())
