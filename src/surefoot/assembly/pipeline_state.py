"""What a pipeline remembers: of each stage what it was made from and what came of it. Torch-free.

``pipeline.json`` lies in the pipeline's folder. A stage whose inputs, config and version are those of the record, and
whose outputs are untouched, is not run again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from surefoot.config.flat import flat
from surefoot.config.pipeline import Stage, places_of
from surefoot.config.pipeline_kinds import LEAVES, RUNS
from surefoot.errors import ConfigError, RunFolderError
from surefoot.training.durable import digest_file, json_bytes, parse_json, write_file, writing
from surefoot.training.lineage import NUMERIC_PACKAGES, describe_function

MODEL_CONFIGS: Final = ("config.json", "adapter_config.json")
STATE_FILE: Final = "pipeline.json"
DIGESTS_FILE: Final = "digests.json"
FORMAT: Final = 1
WITHOUT_EFFECT: Final = (
    *("run.name", "run.dir", "checkpoint", "track", "optim.offload"),
    *("serve", "registry", "gateway"),
)
"""Keys that change nothing in what a stage makes."""

Status = Literal["running", "finished", "failed"]


@dataclass(frozen=True)
class Record:
    """What is known of a stage.

    Attributes:
        status: how it stands; ``running`` is also what a kill leaves.
        made_from: every key of its config, every input with its sha256, and the versions: see :func:`made_from`.
        outputs: path in its folder to sha256; of a finished one.
        reason: why it was run.
        seconds: it took, all its processes together.
    """

    status: Status
    made_from: Mapping[str, Any]
    outputs: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0


class State:
    """``pipeline.json``.

    Args:
        folder: the pipeline's.
        name: its name.

    Attributes:
        records: by stage, those of stages that are no longer in the file among them.
        order: the stages of the file when it was last run; empty where that is not known.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.file, self.name = folder / STATE_FILE, name
        self.digests = Digests(folder / DIGESTS_FILE)
        self.records: dict[str, Record] = {}
        self.order: tuple[str, ...] = ()
        if self.file.is_file():
            try:
                found = parse_json(self.file.read_bytes())
                if found["format"] != FORMAT:
                    raise ValueError(f"format {found['format']}")
                self.records = {name: Record(**record) for name, record in found["stages"].items()}
                self.order = tuple(map(str, found.get("order", ())))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RunFolderError(
                    f"{self.file} cannot be read", got=f"{error!r:.100}", hint="put it back from a copy, or remove it"
                ) from None

    def begin(self, order: Sequence[str]) -> None:
        """Remember which stages the file has now."""
        if self.order != tuple(order):
            self.order = tuple(order)
            self._save()

    def unfinished(self, stages: Sequence[str] = ()) -> list[str]:
        """Which of these stages, or of all that the file has, have not been finished."""
        asked = stages or self.order or tuple(self.records)
        return [name for name in asked if name not in self.records or self.records[name].status != "finished"]

    def put(self, name: str, record: Record) -> None:
        """Remember a stage; durable when it returns."""
        self.records[name] = record
        self._save()
        self.digests.save()

    def _save(self) -> None:
        stages = {key: asdict(value) for key, value in self.records.items()}
        known = {"format": FORMAT, "name": self.name, "order": self.order, "stages": stages}
        with writing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_file(self.file, json_bytes(known, indent=1))


class Digests:
    """sha256 of files and folders, read again only where size, a time or inode changed.

    Args:
        file: where they are kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, list[Any]] = {}
        if file.is_file():
            try:
                found = parse_json(file.read_bytes())
                self._known = dict(found) if isinstance(found, dict) else {}
            except ValueError:  # It only saves time.
                self._known = {}

    def of(self, path: Path) -> str | None:
        """sha256 of a file's bytes, or of names and digests of a folder's files; None without either.

        Hidden files do not count, nor does the card of a model.
        """
        if path.is_file():
            return self._of_file(path)
        if not path.is_dir():
            return None
        card = path / "README.md" if any((path / name).is_file() for name in MODEL_CONFIGS) else None
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".") and p != card)
        listing = "".join(f"{self._of_file(p)}  {p.relative_to(path).as_posix()}\n" for p in files)
        return hashlib.sha256(listing.encode()).hexdigest()

    def _of_file(self, path: Path) -> str:
        stat = path.stat()
        # The time of the last change of any kind cannot be set back, as the time of the content can (cp -p).
        mark = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        known = self._known.get(os.fspath(path))
        if known is None or known[:-1] != mark:
            known = self._known[os.fspath(path)] = [*mark, digest_file(path)]
        return str(known[-1])

    def save(self) -> None:
        """Keep them."""
        write_file(self._file, json_bytes(self._known))


@functools.cache
def versions() -> Mapping[str, str]:
    """Python and the packages that compute, Surefoot among them."""
    found = {"version.python": platform.python_version()}
    for name in NUMERIC_PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[f"version.{name}"] = metadata.version(name)
    return found


def places_in(stage: Stage) -> list[tuple[str, str, str]]:
    """Key, path and kind of what a stage reads, the base of an adapter included."""
    if stage.config is not None:
        found = list(places_of(stage.config))
    else:
        entry = stage.entry
        found = [(f"inputs.{number}", place, "") for number, place in enumerate(entry.inputs)]
        found += [(key, place, "model") for key in ("model", "pairs") if (place := getattr(entry, key))]
    return [*found, *((f"{key} base", base, kind) for key, place, kind in found if (base := _base_of(place)))]


def _base_of(place: str) -> str | None:
    """The base model of an adapter's folder, as the loader finds it."""
    file = Path(place) / MODEL_CONFIGS[1]
    try:
        base = json.loads(file.read_bytes()).get("base_model_name_or_path") if file.is_file() else None
    except (ValueError, AttributeError):
        return None  # the loader will say so
    if not isinstance(base, str):
        return None
    return str(beside) if (beside := (file.parent / base).resolve()).is_dir() else base


def made_from(stage: Stage, digests: Digests, base: Path) -> dict[str, Any]:
    """What decides what a stage makes, flat: ``config.KEY``, ``input.KEY`` (sha256, or a hub id's name), ``version``.

    Args:
        stage: which.
        digests: of files.
        base: the folder that its process runs in, where modules are looked for.
    Raises:
        ConfigError: an input is not there.
    """
    found: dict[str, Any] = {"kind": stage.entry.kind, **versions()}
    places = places_in(stage)
    if stage.config is not None:
        paths = {place for _, place, _ in places}
        for key, value in flat(stage.config.model_dump(mode="json")).items():
            if not any(key == k or key.startswith(f"{k}.") for k in WITHOUT_EFFECT):
                # A file that lies elsewhere is the same input; a function's name stays.
                found[f"config.{key}"] = _unplaced(value, paths)
    else:
        for key in ("settings", "run", "outputs"):
            found[f"config.{key}"] = list(getattr(stage.entry, key))
    for key, place, kind in places:
        path = Path(place)
        if kind == "module":
            with contextlib.chdir(base):
                found[f"input.{key}"] = describe_function(f"{place}:")["sha256"] or place
            continue
        digest = digests.of(path)
        if digest is None and (path.is_absolute() or stage.entry.kind == "command"):
            raise ConfigError(f"stage {stage.name}: {key} is not there", got=place, hint="correct the path")
        found[f"input.{key}"] = digest or place
    return found


def outputs_of(stage: Stage, digests: Digests) -> dict[str, str]:
    """What a finished stage left, with its sha256.

    Raises:
        RunFolderError: something is missing.
    """
    names = ["model"] if stage.entry.kind in RUNS else LEAVES.get(stage.entry.kind, stage.entry.outputs)
    found = {name: digests.of(stage.folder / name) for name in names}
    missing = [name for name, digest in found.items() if digest is None]
    if missing:
        raise RunFolderError(
            f"stage {stage.name} is over and did not leave {', '.join(missing)}",
            got=str(stage.folder),
            hint="a command makes its outputs in its own folder, stage:NAME",
        )
    return {name: digest for name, digest in found.items() if digest is not None}


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first things that differ, in words; None when nothing does."""
    keys = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
    if not keys:
        return None
    said = []
    for key in keys[:3]:
        group, _, name = key.partition(".")
        if group == "input":
            said.append(f"input {name} changed")
        else:
            said.append(f"{name or group} was {before.get(key)!r:.60}, is {now.get(key)!r:.60}")
    return "; ".join(said) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _unplaced(value: Any, paths: set[str]) -> Any:
    if not isinstance(value, str):
        return value
    if value in paths:
        return "(input)"
    file, colon, name = value.rpartition(":")
    return f"(input):{name}" if colon and file in paths else value
