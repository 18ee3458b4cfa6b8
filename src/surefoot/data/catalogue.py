"""The catalogue: versions of data sets, each written once and never again. Torch-free.

::

    catalogue/NAME/VERSION.json      name, version, sha256, card, audit, where the data lay, when it was registered
    catalogue/NAME/VERSION.data/     a copy of the data, where one was asked for

Files are the interface. A version appears whole, by one step of the file system, or not at all.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from surefoot.config.yaml_text import read_yaml
from surefoot.data.cards import PLAIN, Card, audit_path, card_of
from surefoot.data.fingerprint import fingerprint_source
from surefoot.errors import DataError

DEFAULT: Final = "catalogue"


@dataclass(frozen=True, slots=True)
class Version:
    """A registered version.

    Attributes:
        name, version: what it is called.
        sha256: of the data.
        registered: when, UTC, ISO 8601.
        path: where the data lay.
        copy: the copy's place in the catalogue, None without.
        card: the card as it was then.
        audit: the summary of the audit as it was then, None without.
    """

    name: str
    version: str
    sha256: str
    registered: str
    path: str
    copy: str | None
    card: dict[str, Any]
    audit: dict[str, Any] | None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


def register(data: str, catalogue: Path, *, keep_copy: bool = False) -> tuple[Version, bool]:
    """Register the version that a data set's card names.

    Args:
        data: a file or folder with a card.
        catalogue: the catalogue's folder; made when missing.
        keep_copy: put a copy of the data into the catalogue.
    Returns:
        the version, and whether it is new; the same version of the same data is registered once.
    Raises:
        DataError: there is no card, it does not fit the data, the version exists with other data or another card, or
            the catalogue cannot be written.
    """
    card = card_of(data)
    if card is None:
        raise DataError("only data with a card can be registered", got=data, hint=f"surefoot data card {data}")
    place = Path(data).expanduser().resolve()
    file = catalogue.expanduser() / card.name / f"{card.version}.json"
    if file.exists():
        return _unchanged(read_version(file), card), False
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        copy = _copied(place, file.with_suffix(".data"), card.sha256) if keep_copy else None
        version = Version(
            name=card.name,
            version=card.version,
            sha256=card.sha256,
            registered=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            path=str(place),
            copy=None if copy is None else str(copy.relative_to(file.parent)),
            card=card.model_dump(mode="json"),
            audit=saved_audit(data, card.sha256),
        )
        _write_once(file, json.dumps({"format": 1, **asdict(version)}, indent=1, ensure_ascii=False) + "\n")
    except FileExistsError:  # another process was faster
        return _unchanged(read_version(file), card), False
    except OSError as error:
        raise DataError(
            f"the catalogue {catalogue} cannot be written", got=str(error), hint="name another with --catalogue"
        ) from error
    return version, True


def _unchanged(old: Version, card: Card) -> Version:
    new = card.model_dump(mode="json")
    changed = [name for name in new if new[name] != old.card.get(name)]
    if changed:
        raise DataError(
            f"{old} is registered already, and a version never changes",
            got=f"another {', '.join(changed)}",
            hint="give the card another version",
        )
    return old


def _copied(data: Path, target: Path, sha256: str) -> Path:
    """A copy of the data in the catalogue; the digest is checked on the copy."""
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        aside.mkdir()
        if data.is_dir():
            shutil.copytree(data, aside / data.name)
        else:
            shutil.copy2(data, aside / data.name)
        if fingerprint_source(aside / data.name) != sha256:
            raise DataError("the data changed while it was copied", got=str(data), hint="register it again")
        if target.exists():
            shutil.rmtree(target)  # of a registration that was cut off before its last step
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target / data.name


def _write_once(path: Path, text: str) -> None:
    """Put a file in place whole, unless there is one.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be written.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with aside.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        aside.chmod(0o444)
        try:
            os.link(aside, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            if path.exists():  # a file system without links: the next best
                raise FileExistsError(str(path)) from error
            aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def saved_audit(data: str | os.PathLike[str], sha256: str | None) -> dict[str, Any] | None:
    """The summary of the data's last audit, None without; one of other data says so: ``{"stale": True, ...}``."""
    try:
        found = read_yaml(audit_path(data).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError("the audit's summary cannot be read", got=f"{audit_path(data)} ({error})") from error
    summary = dict(found) if isinstance(found, dict) else {}
    return summary if summary.get("sha256") == sha256 else {"stale": True, "sha256": summary.get("sha256")}


def read_version(file: Path) -> Version:
    """A version from its file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return Version(**{name: stored[name] for name in Version.__slots__})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError("a version in the catalogue cannot be read", got=f"{file} ({error!r})") from error


def find_versions(reference: str, catalogue: Path) -> list[Version]:
    """The registered versions that ``NAME`` or ``NAME@VERSION`` names, the oldest first.

    Raises:
        DataError: there is none.
    """
    name, _, version = reference.partition("@")
    folder = catalogue.expanduser() / name
    files = sorted(folder.glob("*.json")) if re.fullmatch(PLAIN, name) and folder.is_dir() else []
    versions = sorted((read_version(file) for file in files), key=lambda v: (v.registered, v.version))
    found = [v for v in versions if version in ("", v.version)]
    if not found:
        known = ", ".join(map(str, versions)) or ", ".join(sorted(p.name for p in _named(catalogue))) or "nothing"
        raise DataError(
            f"{reference} is not registered in {catalogue}",
            allowed=known,
            hint="`surefoot data register FILE` registers a version; --catalogue names another catalogue",
        )
    return found


def _named(catalogue: Path) -> list[Path]:
    place = catalogue.expanduser()
    return [p for p in place.iterdir() if p.is_dir()] if place.is_dir() else []


def data_of(version: Version, catalogue: Path) -> Path:
    """Where the data of a version is: its copy, or the place where it lay if it is still the same there.

    Raises:
        DataError: it is gone.
    """
    if version.copy is not None:
        return catalogue.expanduser() / version.name / version.copy
    place = Path(version.path)
    if place.exists() and fingerprint_source(place) == version.sha256:
        return place
    raise DataError(
        f"the data of {version} is not where it was, or changed, and no copy was kept",
        got=version.path,
        hint="`surefoot data register FILE --keep-copy` keeps one",
    )
