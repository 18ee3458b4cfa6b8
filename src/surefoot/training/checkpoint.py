"""Checkpoints on disk: written aside, synced, renamed; never a moment without a whole one. Torch-free.

A checkpoint is whole when its ``manifest.json`` is unharmed and every file it names has the size and sha256 written
there. Files the manifest does not name change nothing. What goes into a checkpoint is the caller's business.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from surefoot.errors import CheckpointError
from surefoot.training.durable import (
    digest_file,
    disk_full,
    disk_trouble,
    files_in,
    json_bytes,
    parse_json,
    publish_folder,
    remove,
    sync_file,
    temporary_sibling,
    write_file,
)

logger = logging.getLogger("surefoot")

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"step-(0|[1-9]\d*)")
_HIDDEN: Final = re.compile(r"\.step-(0|[1-9]\d*)\.(tmp|replaced|deleted)-\d+-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint.

    Attributes:
        step: the step it was made after.
        path: its folder.
        manifest: what ``manifest.json`` holds.
    """

    step: int
    path: Path
    manifest: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        """What the writer said about it."""
        meta: Mapping[str, Any] = self.manifest["meta"]
        return meta


class CheckpointStore:
    """The checkpoints of a run: ``FOLDER/step-N/``. One writer at a time (the run folder's lock sees to that).

    Args:
        folder: made when it is first needed.
        keep: newest checkpoints kept, at least 1.
        best_by: a key of ``meta["metrics"]``; the checkpoint where it was highest is kept as well.
        lowest: keep the one where it was lowest instead.
    """

    def __init__(self, folder: Path, *, keep: int, best_by: str | None = None, lowest: bool = False) -> None:
        assert keep >= 1, "a store that keeps nothing would delete what it has just written"
        self.folder, self.keep, self.best_by, self.lowest = folder, keep, best_by, lowest
        self._warned_best = False

    def save(self, step: int, write: Callable[[Path], None], *, meta: Mapping[str, Any]) -> Path:
        """Write a checkpoint; only once it is whole and in place, older ones are removed.

        Args:
            step: the step it is made after. A checkpoint of that step, whole or not, is replaced.
            write: writes all files into the folder it is given.
            meta: stored in the manifest, JSON; ``meta["metrics"]`` is read for ``best_by``.
        Returns:
            the checkpoint's folder.
        Raises:
            CheckpointError: it could not be written (a full disk, a fault of the disk, a link among the files).
                Whatever was whole before still is, and nothing half written is left.
        """
        target = self.folder / f"step-{step}"
        staged = temporary_sibling(target)
        try:
            staged.mkdir(parents=True)
            write(staged)
            self._seal(staged, step, meta)
            publish_folder(staged, target)
        except BaseException as error:
            written = _size_of(staged)
            remove(staged)
            if disk_trouble(error):
                raise self._failure(step, error, written) from error
            raise
        self._prune(step)
        return target

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint, each file read once; None when none is whole. What is passed over is logged."""
        skipped: list[str] = []
        found = None
        for step, path in self._candidates():
            manifest, problems = _examine(path, step)
            if manifest is not None and not problems:
                found = Checkpoint(step, path, manifest)
                break
            skipped.append(f"{path.name} is not whole ({'; '.join(problems[:3])})")
        if skipped:
            instead = f"taking {found.path.name} instead" if found else "there is no whole checkpoint"
            logger.warning("%s: %s; %s", self.folder, ", ".join(skipped), instead)
        return found

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the best ``best_by``; None when there is none."""
        for _, step in sorted(self._rated(self._complete()), reverse=True):
            path = self.folder / f"step-{step}"
            manifest, problems = _examine(path, step)
            if manifest is not None and not problems:
                return Checkpoint(step, path, manifest)
        return None

    def at(self, step: int) -> Checkpoint | None:
        """The whole checkpoint of a step, each file read once; None when there is none, or it is not whole."""
        path = self.folder / f"step-{step}"
        manifest, problems = _examine(path, step)
        return None if manifest is None or problems else Checkpoint(step, path, manifest)

    def steps(self) -> list[int]:
        """Steps whose checkpoints look whole without reading the files, sorted."""
        return sorted(self._complete())

    def discard(self, steps: Iterable[int]) -> None:
        """Remove the checkpoints of these steps, whole or not, one by one in this order; logged where it fails."""
        for step in steps:
            self._discard(self.folder / f"step-{step}")

    def clean(self) -> None:
        """Remove what killed writers left behind; a whole checkpoint that was being replaced goes back to its place."""
        if not self.folder.is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            match = _HIDDEN.fullmatch(path.name)
            if match is None:
                continue
            target = self.folder / f"step-{match[1]}"
            if match[2] == "replaced" and verify(target) and not verify(path, step=int(match[1])):
                remove(target)
                path.rename(target)
            else:
                remove(path)

    def _seal(self, staged: Path, step: int, meta: Mapping[str, Any]) -> None:
        files: dict[str, dict[str, Any]] = {}
        for path in files_in(staged):
            name = path.relative_to(staged).as_posix()
            assert name != MANIFEST, f"{MANIFEST} is the store's own file"
            sync_file(path)
            files[name] = {"sha256": digest_file(path), "bytes": path.stat().st_size}
        assert files, "the writer of a checkpoint wrote nothing"
        manifest = {"format": FORMAT, "step": step, "files": files, "meta": dict(meta)}
        # Through JSON and back, so that the digest is over what a reader will see.
        manifest = parse_json(json_bytes(manifest))
        write_file(staged / MANIFEST, json_bytes({**manifest, "sha256": _own_digest(manifest)}, indent=1))

    def _candidates(self) -> list[tuple[int, Path]]:
        """Newest first; a checkpoint that was set aside to be replaced comes right after the one in its place."""
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            hidden = _HIDDEN.fullmatch(path.name)
            match = _NAME.fullmatch(path.name) or (hidden if hidden and hidden[2] == "replaced" else None)
            if match:
                found.append((int(match[1]), hidden is None, path))
        return [(step, path) for step, _, path in sorted(found, reverse=True)]

    def _complete(self) -> dict[int, Mapping[str, Any]]:
        """Manifests of what looks whole without reading the files, by step: what pruning may count on."""
        found = {}
        for step, path in self._candidates():
            manifest, problems = _examine(path, step, digests=False)
            if _NAME.fullmatch(path.name) and manifest is not None and not problems:
                found[step] = manifest
        return found

    def _rated(self, manifests: Mapping[int, Mapping[str, Any]]) -> list[tuple[float, int]]:
        rated = []
        for step, manifest in manifests.items():
            metrics = manifest["meta"].get("metrics")
            value = metrics.get(self.best_by) if isinstance(metrics, dict) and self.best_by is not None else None
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                rated.append((-float(value) if self.lowest else float(value), step))
        return rated

    def _prune(self, newest: int) -> None:
        manifests = self._complete()
        kept = {newest, *sorted(manifests, reverse=True)[: self.keep]}
        rated = self._rated(manifests)
        if rated:
            kept.add(max(rated)[1])
        elif self.best_by is not None and not self._warned_best:
            self._warned_best = True
            logger.warning("checkpoint.best_by: no checkpoint so far has a number under %r", self.best_by)
        self.discard(manifests.keys() - kept)

    def _discard(self, path: Path) -> None:
        hidden = temporary_sibling(path, "deleted")
        try:
            path.rename(hidden)  # half removed under its own name, it would look like a damaged checkpoint
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("could not remove %s: %s", path, error)
        else:
            remove(hidden)

    def _failure(self, step: int, error: BaseException, written: int) -> CheckpointError:
        what = f"the checkpoint of step {step} could not be written to {self.folder}: {error}"
        try:
            manifests = self._complete()
            free = shutil.disk_usage(next(p for p in (self.folder, *self.folder.parents) if p.is_dir())).free
        except OSError as second:
            return CheckpointError(
                what, got=str(second), hint="look at the disk; then run the same command with --resume"
            )
        needed = max([written, *(sum(f["bytes"] for f in m["files"].values()) for m in manifests.values())])
        left = f"the last whole checkpoint is step-{max(manifests)}" if manifests else "there is no earlier checkpoint"
        todo = "make room (or lower checkpoint.keep)" if disk_full(error) else "put that right"
        return CheckpointError(
            what,
            got=f"{_readable(free)} free, {'' if manifests else 'at least '}{_readable(needed)} needed; {left}",
            hint=f"{todo}; then run the same command with --resume",
        )


def verify(path: Path, *, step: int | None = None) -> list[str]:
    """What keeps a folder from being a whole checkpoint; empty when it is one. Each file is read once.

    Args:
        path: the checkpoint's folder.
        step: the step it must be of; None: the one in its name.
    """
    name = _NAME.fullmatch(path.name)
    return _examine(path, step if step is not None else int(name[1]) if name else None)[1]


def _examine(path: Path, step: int | None, *, digests: bool = True) -> tuple[Mapping[str, Any] | None, list[str]]:
    if not path.exists() and not path.is_symlink():
        return None, ["it does not exist"]
    if path.is_symlink() or not path.is_dir():
        return None, ["it is not a folder"]
    manifest, unreadable = _read_manifest(path / MANIFEST)
    if manifest is None:
        return None, [unreadable]
    problems = []
    if step is not None and manifest["step"] != step:
        problems.append(f"its manifest is of step {manifest['step']}")
    for name, entry in manifest["files"].items():
        problem = _file_problem(path, name, entry, digests=digests)
        if problem:
            problems.append(problem)
    return manifest, problems


def _read_manifest(path: Path) -> tuple[dict[str, Any] | None, str]:
    if path.is_symlink():
        return None, f"{MANIFEST} is a link"
    try:
        manifest = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None, f"{MANIFEST} is missing"
    except (OSError, ValueError) as error:
        return None, f"{MANIFEST} cannot be read: {error}"
    if not isinstance(manifest, dict):
        return None, f"{MANIFEST} is not an object"
    version = manifest.get("format")
    if isinstance(version, int) and version > FORMAT:
        return None, f"it has format {version}, this version of Surefoot reads up to {FORMAT}"
    digest = manifest.pop("sha256", None)
    if digest != _own_digest(manifest):
        return None, f"{MANIFEST} does not match its own sha256"
    if not isinstance(manifest.get("files"), dict) or not isinstance(manifest.get("meta"), dict):
        return None, f"{MANIFEST} lacks files or meta"
    return (manifest, "") if isinstance(manifest.get("step"), int) else (None, f"{MANIFEST} lacks the step")


def _own_digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json_bytes(dict(sorted(manifest.items())))).hexdigest()


def _file_problem(folder: Path, name: str, entry: Any, *, digests: bool) -> str | None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or relative.as_posix() != name or "\0" in name or name == ".":
        return f"{MANIFEST} names {name!r}, which is not a path inside the checkpoint"
    path = folder / relative
    if any(part.is_symlink() for part in (path, *path.parents[: len(relative.parts) - 1])):
        return f"{name} is a link"
    if not isinstance(entry, dict):
        return f"{MANIFEST} says nothing about {name}"
    try:
        size = path.stat().st_size
        if not path.is_file():
            return f"{name} is not a file"
        if size != entry.get("bytes"):
            return f"{name} has {size} bytes instead of {entry.get('bytes')}"
        if digests and digest_file(path) != entry.get("sha256"):
            return f"{name} does not match its sha256"
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error}"
    return None


def _size_of(folder: Path) -> int:
    try:
        return sum(path.lstat().st_size for path in folder.rglob("*"))
    except OSError:
        return 0


def _readable(size: int) -> str:
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
