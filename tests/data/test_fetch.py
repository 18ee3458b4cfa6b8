"""Fetching pinned packages: real pip against wheels made here, no network."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import venv
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from surefoot.data.fetch import PinnedPackage, cache_dir, fetch_package, read_member
from surefoot.errors import DataError

WHEEL = "tiny_data-1.0-py3-none-any.whl"
SDIST = "tiny_data-1.0.tar.gz"
METADATA = "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\n"
BACKEND = """
import os, pathlib
pathlib.Path(os.environ["SUREFOOT_TEST_RAN"]).touch()
def prepare_metadata_for_build_wheel(folder, settings=None):
    info = pathlib.Path(folder) / "tiny_data-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text({metadata!r})
    return info.name
def build_wheel(folder, settings=None, metadata=None):
    raise NotImplementedError
"""


def make_wheel(folder: Path, text: str = "hello") -> str:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_STORED) as bundle:
        bundle.writestr("tiny_data/words.txt", text)
        bundle.writestr("tiny_data-1.0.dist-info/METADATA", METADATA)
        bundle.writestr(
            "tiny_data-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        bundle.writestr("tiny_data-1.0.dist-info/RECORD", "")
    return hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()


def make_sdist(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {"PKG-INFO": METADATA, "pyproject.toml": project, "backend.py": BACKEND.format(metadata=METADATA)}
    with tarfile.open(folder / SDIST, "w:gz") as bundle:
        for name, text in (files | {"data/words.txt": "hello"}).items():
            info = tarfile.TarInfo(f"tiny_data-1.0/{name}")
            info.size = len(text.encode())
            bundle.addfile(info, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("tiny_data-1.0/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        bundle.addfile(link)
    return hashlib.sha256((folder / SDIST).read_bytes()).hexdigest()


def serve_only(monkeypatch: pytest.MonkeyPatch, where: str | Path) -> None:
    """Pip sees this place and nothing else, through the environment as a user's own settings would come."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(where))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def wheel_package(digest: str) -> PinnedPackage:
    return PinnedPackage("tiny-data", "1.0", {WHEEL: digest})


def test_a_fetched_file_is_kept_and_a_damaged_one_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = wheel_package(make_wheel(tmp_path / "index"))
    serve_only(monkeypatch, tmp_path / "index")
    cache = tmp_path / "cache"
    path = fetch_package(package, cache)
    assert path == cache / "packages" / WHEEL
    assert read_member(path, "tiny_data/words.txt") == b"hello"

    serve_only(monkeypatch, tmp_path)
    assert fetch_package(package, cache) == path, "a file in the cache needs no pip"

    serve_only(monkeypatch, tmp_path / "index")
    path.write_bytes(path.read_bytes().replace(b"hello", b"hullo"))
    assert read_member(fetch_package(package, cache), "tiny_data/words.txt") == b"hello"
    assert names(cache / "packages") == [WHEEL]


def test_another_file_under_the_pinned_name_is_refused_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = make_wheel(tmp_path / "index", "hello")
    make_wheel(tmp_path / "index", "altered")
    serve_only(monkeypatch, tmp_path / "index")
    with pytest.raises(DataError, match=f"not the pinned file.*{digest}.*hint: "):
        fetch_package(wheel_package(digest), tmp_path / "cache")
    assert names(tmp_path / "cache" / "packages") == []


def test_a_right_digest_under_another_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = make_wheel(tmp_path / "index")
    serve_only(monkeypatch, tmp_path / "index")
    package = PinnedPackage("tiny-data", "1.0", {"other-1.0-py3-none-any.whl": digest})
    with pytest.raises(DataError, match="not the pinned file"):
        fetch_package(package, tmp_path / "cache")
    assert names(tmp_path / "cache" / "packages") == []


def test_the_code_of_an_altered_source_archive_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = tmp_path / "ran"
    monkeypatch.setenv("SUREFOOT_TEST_RAN", str(ran))
    digest = make_sdist(tmp_path / "index")
    make_wheel(tmp_path / "index", "a wheel that no_binary must pass over")
    serve_only(monkeypatch, tmp_path / "index")
    wrong = PinnedPackage("tiny-data", "1.0", {SDIST: "0" * 64}, no_binary=True)
    with pytest.raises(DataError, match="not the pinned file"):
        fetch_package(wrong, tmp_path / "cache")
    assert not ran.exists()

    path = fetch_package(PinnedPackage("tiny-data", "1.0", {SDIST: digest}, no_binary=True), tmp_path / "cache")
    assert path.name == SDIST
    assert ran.exists(), "the archive was not built, so the check above shows nothing"


def test_a_package_that_cannot_be_had_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_only(monkeypatch, tmp_path)
    with pytest.raises(
        DataError, match=r"could not download tiny-data==1\.0; got: No matching.*hint: .*by hand"
    ) as info:
        fetch_package(wheel_package("0" * 64), tmp_path / "cache")
    assert "\n" not in str(info.value)


def test_a_python_without_pip_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(DataError, match=r"fetched with pip, which .*bare.* does not have; hint: .*ensurepip"):
        fetch_package(wheel_package("0" * 64), tmp_path / "cache")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written.*SUREFOOT_CACHE"):
        fetch_package(wheel_package("0" * 64), tmp_path / "file")


def test_two_at_once_both_get_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = wheel_package(make_wheel(tmp_path / "index", "x" * 1_000_000))
    serve_only(monkeypatch, tmp_path / "index")
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: fetch_package(package, tmp_path / "cache"), range(2)))
    assert [len(read_member(path, "tiny_data/words.txt")) for path in paths] == [1_000_000] * 2
    assert names(tmp_path / "cache" / "packages") == [WHEEL]


class HalfServer(http.server.BaseHTTPRequestHandler):
    """Sends half of the wheel, then nothing until it is released."""

    half_sent: threading.Event
    release: threading.Event
    wheel: bytes

    def do_GET(self) -> None:
        body = self.wheel if self.path.endswith(".whl") else f'<a href="{WHEEL}">{WHEEL}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if body is not self.wheel else "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body is not self.wheel:
            self.wfile.write(body)
            return
        self.wfile.write(body[: len(body) // 2])
        self.wfile.flush()
        self.half_sent.set()
        self.release.wait(30)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_kill_in_the_middle_of_a_download_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = make_wheel(tmp_path / "index", "x" * 1_000_000)
    HalfServer.half_sent, HalfServer.release = threading.Event(), threading.Event()
    HalfServer.wheel = (tmp_path / "index" / WHEEL).read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HalfServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    serve_only(monkeypatch, f"http://127.0.0.1:{server.server_address[1]}/")
    program = (
        "import sys; from pathlib import Path; from surefoot.data.fetch import *;"
        "fetch_package(PinnedPackage('tiny-data', '1.0', {sys.argv[1]: sys.argv[2]}), Path(sys.argv[3]))"
    )
    arguments = [sys.executable, "-c", program, WHEEL, digest, str(tmp_path / "cache")]
    child = subprocess.Popen(arguments, start_new_session=True)
    try:
        assert HalfServer.half_sent.wait(30)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        HalfServer.release.set()
        server.shutdown()
        server.server_close()
    folder = tmp_path / "cache" / "packages"
    (left,) = folder.iterdir()
    assert left.name.startswith(".partial-")

    os.utime(left, (0, time.time() - 2 * 24 * 3600))
    serve_only(monkeypatch, tmp_path / "index")
    fetch_package(wheel_package(digest), tmp_path / "cache")
    assert names(folder) == [WHEEL], "what a kill left is removed after a day"


@pytest.mark.parametrize("member", ["../secret", "/etc/passwd", "a/../../secret", "a\\..\\secret"])
def test_a_path_that_leaves_the_archive_is_refused(tmp_path: Path, member: str) -> None:
    with zipfile.ZipFile(tmp_path / "evil.whl", "w") as bundle:
        bundle.writestr(member, "secret")
    with pytest.raises(DataError, match="may not lead out"):
        read_member(tmp_path / "evil.whl", member)


def test_members_of_source_archives_are_read_and_links_refused(tmp_path: Path) -> None:
    make_sdist(tmp_path / "index")
    archive = tmp_path / "index" / SDIST
    assert read_member(archive, "tiny_data-1.0/data/words.txt") == b"hello"
    with pytest.raises(DataError, match="no file of that name"):
        read_member(archive, "tiny_data-1.0/link.txt")
    with pytest.raises(DataError, match=r"no file of that name.*word\.txt.*tiny_data-1\.0/data/words\.txt"):
        read_member(archive, "tiny_data-1.0/data/word.txt")


@pytest.mark.parametrize("make", [make_wheel, make_sdist])
def test_a_damaged_archive_is_named(tmp_path: Path, make: Callable[[Path], str]) -> None:
    make(tmp_path / "index")
    (archive,) = (tmp_path / "index").iterdir()
    if archive.name == WHEEL:
        archive.write_bytes(archive.read_bytes().replace(b"hello", b"hullo", 1))
    else:
        archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"damaged or no archive"):
        read_member(archive, "tiny_data/words.txt")


def test_the_cache_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SUREFOOT_CACHE", "~/elsewhere")
    assert cache_dir() == tmp_path / "elsewhere"
    monkeypatch.setenv("SUREFOOT_CACHE", "")
    assert cache_dir() == tmp_path / ".cache" / "surefoot"
    monkeypatch.delenv("SUREFOOT_CACHE")
    assert cache_dir() == tmp_path / ".cache" / "surefoot"
