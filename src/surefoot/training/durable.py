"""Writing files so that a kill, a full disk or a power cut never leaves half of one behind. Torch-free.

A file or folder is written under a hidden temporary name beside its place, synced, and put in place by one rename.
Lines are appended whole or not at all. JSON is strict: what is undefined is null, never NaN.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from surefoot.errors import RunError, RunFolderError, SurefootError

logger = logging.getLogger("surefoot")

# Legal inside JSON text, but line ends to ``str.splitlines``: escaped, so that every reader sees one record a line.
_LINE_ENDS: Final = str.maketrans({"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def plain(value: Any) -> Any:
    """A value fit for strict JSON: numpy becomes lists and numbers, what is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, os.PathLike) else value


def json_bytes(value: Any, *, indent: int | None = None) -> bytes:
    """Strict JSON with a line end; on one line unless indented."""
    ready = plain(value)
    try:
        text = json.dumps(ready, allow_nan=False, ensure_ascii=False, indent=indent).translate(_LINE_ENDS)
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, as broken texts and truncated decodings hold
        return json.dumps(ready, allow_nan=False, indent=indent).encode() + b"\n"


def parse_json(data: bytes) -> Any:
    """Read strict JSON.

    Raises:
        ValueError: not JSON, or with NaN or infinity in it.
    """
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def temporary_sibling(path: Path, kind: str = "tmp") -> Path:
    """A hidden name beside ``path``: ``.NAME.KIND-PID-RANDOM``."""
    return path.with_name(f".{path.name}.{kind}-{os.getpid()}-{secrets.token_hex(4)}")


def write_file(path: Path, data: bytes) -> None:
    """Put a file in place as a whole, replacing what was there.

    Raises:
        OSError: the file could not be written; what was there before is untouched.
    """
    aside = temporary_sibling(path)
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def overwrite_in_place(path: Path, data: bytes) -> None:
    """Write over a file in the room it takes already: for a full disk only, a kill can leave half of it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _write_all(descriptor, data)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: bytes, *, sync: bool = False) -> None:
    """Append one line: whole, or not at all. A torn line at the end is cut first.

    Raises:
        OSError: the line could not be written; the file is as it was.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        size = _end_of_last_line(descriptor)
        try:
            _write_all(descriptor, line)
        except BaseException:
            os.ftruncate(descriptor, size)
            raise
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_of_last_line(descriptor: int) -> int:
    size = end = os.fstat(descriptor).st_size
    while end:
        start = max(0, end - 65536)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        end = start + newline + 1 if newline >= 0 else start
        if newline >= 0:
            break
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a JSONL file; ``record`` is None when it is not a JSON object."""

    number: int
    data: bytes
    record: Mapping[str, Any] | None


def lines_of(path: Path) -> Iterator[Line]:
    """The whole lines of a JSONL file; one without its line end is torn, or still being written, and left out.

    Raises:
        RunFolderError: there is something else in its place.
    """
    if not path.exists():
        return
    if not path.is_file():
        raise RunFolderError(f"{path} is no file", hint="restore the run folder from a copy")
    with path.open("rb") as stream:
        for number, data in enumerate(stream, start=1):
            if not data.endswith(b"\n"):
                return
            try:
                record = parse_json(data)
            except ValueError:
                record = None
            yield Line(number, data, record if isinstance(record, dict) else None)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Every whole line of a JSONL file; none when there is no file.

    Raises:
        RunFolderError: a line is not a JSON object.
    """
    records = []
    for line in lines_of(path):
        if line.record is None:
            raise bad_line(path, line)
        records.append(dict(line.record))
    return records


def bad_line(path: Path, line: Line) -> RunFolderError:
    """The error for a line that cannot be read."""
    return RunFolderError(
        f"{path} line {line.number} is not a JSON object",
        got=repr(line.data[:60]),
        hint="the file was damaged or edited; remove the line, or restore the file from a copy",
    )


def keep_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> list[Mapping[str, Any]]:
    """Rewrite a JSONL file with the wanted lines only; a torn end goes, and so does what is damaged behind them.

    Returns:
        the records that stayed.
    Raises:
        RunFolderError: a damaged line stands before a wanted one; the file is left as it is.
    """
    if not path.exists():
        return []
    kept: list[Line] = []
    damaged: Line | None = None
    for line in lines_of(path):
        if line.record is None:
            damaged = damaged or line
        elif keep(line.record):
            if damaged is not None:
                raise bad_line(path, damaged)
            kept.append(line)
    data = b"".join(line.data for line in kept)
    if len(data) != path.stat().st_size:
        write_file(path, data)
    return [line.record for line in kept if line.record is not None]


def sync_file(path: Path) -> None:
    """Force a file's bytes onto the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Force a folder's entries onto the disk, where the file system knows how to."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


def digest_file(path: Path) -> str:
    """The file's sha256 in hex, read once, in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_in(folder: Path) -> list[Path]:
    """Every file below a folder, sorted.

    Raises:
        OSError: a symbolic link, a hard link or something that is not a file: what it holds can change from outside.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        if stat.S_ISDIR(info.st_mode):
            continue
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            raise OSError(errno.EINVAL, "not a file of its own (a link, a pipe or a device)", str(path))
        found.append(path)
    return found


def publish_folder(staged: Path, target: Path) -> None:
    """Put a finished, hidden folder in its place by one rename; what was there is set aside first and removed last.

    A kill between the two renames leaves both whole under hidden names: ``.NAME.tmp-...`` and ``.NAME.replaced-...``.

    Raises:
        OSError: it could not be put in place; what was there before is there again.
    """
    for path in (staged, *staged.rglob("*")):
        if path.is_dir():
            sync_folder(path)
    replaced = None
    if os.path.lexists(target):
        replaced = temporary_sibling(target, "replaced")
        target.rename(replaced)
    try:
        staged.rename(target)
    except BaseException:
        if replaced is not None:
            replaced.rename(target)
        raise
    sync_folder(target.parent)
    if replaced is not None:
        remove(replaced)


def remove(path: Path) -> None:
    """Remove a file or a folder with all in it; what cannot be removed is logged and left."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("could not remove %s: %s", path, error)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a refusal of the system to write into the error that ends a run with its last checkpoint whole.

    Raises:
        RunError: instead of an OSError, or of what a library made of one.
    """
    try:
        yield
    except Exception as error:
        if not disk_trouble(error):
            raise
        raise RunError(
            f"{path} could not be written: {getattr(error, 'strerror', None) or error}",
            hint=f"{'make room' if disk_full(error) else 'put that right'}; then run the same command with --resume",
        ) from error


def disk_trouble(error: BaseException | None) -> bool:
    """Whether the system refused to write. Writers in other languages wrap its error in one of their own."""
    if error is None or isinstance(error, (KeyboardInterrupt, SystemExit, SurefootError, AssertionError)):
        return False
    told = any(sign in str(error) for sign in ("os error", "PytorchStreamWriter", "inline_container"))
    return isinstance(error, OSError) or told or disk_full(error) or disk_trouble(error.__cause__)


def disk_full(error: BaseException) -> bool:
    """Whether the reason is that there was no room."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return True
    return any(os.strerror(code) in str(error) for code in _NO_ROOM)
