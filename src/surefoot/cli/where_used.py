"""``surefoot data where-used``: runs and models that rest on a data set, from run folders alone. Loads no torch."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surefoot.cli.run_summary import run_folders
from surefoot.cli.table import aligned
from surefoot.data.catalogue import Version, find_versions
from surefoot.errors import SurefootError
from surefoot.models.weight_files import digest_weights
from surefoot.training.lineage import digest_folder, read_lineage

logger = logging.getLogger("surefoot")


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a data set.

    Attributes:
        run: the run folder.
        used_as: name of the input, as ``prompts``.
        through: the version of the data, or the run whose model was used.
        model: the model that came of it, None when there is none (yet).
    """

    run: str
    used_as: str
    through: str
    model: str | None


@dataclass(frozen=True)
class _Run:
    path: Path
    inputs: Mapping[str, Mapping[str, Any]]

    @property
    def model(self) -> Path | None:
        folder = self.path / "model"
        return folder if folder.is_dir() else None


def run_where_used(name: str, folders: Sequence[Path], *, catalogue: Path, as_json: bool) -> int:
    """Print the runs that used a data set, and the models made from it. Returns the exit code.

    Raises:
        UserError: nothing is registered under that name, or a folder of runs is missing.
    """
    uses = where_used(find_versions(name, catalogue), folders)
    if as_json:
        sys.stdout.write(json.dumps([asdict(use) for use in uses]) + "\n")
    elif uses:
        rows = [(use.run, use.used_as, use.through, use.model or "-") for use in uses]
        sys.stdout.write(aligned(("run", "used as", "through", "model"), rows))
    else:
        sys.stderr.write(f"no run in {', '.join(map(str, folders))} used {name}\n")
    return 0


def where_used(versions: Iterable[Version], folders: Sequence[Path]) -> list[Use]:
    """Direct uses by the data's digest, then uses of models made from it, of models made from those, and so on."""
    digests = {version.sha256: str(version) for version in versions}
    runs = list(_runs(folders))
    found: dict[Path, list[Use]] = {}
    for run in runs:
        uses = [_use(run, name, digests[d]) for name, place in run.inputs.items() for d in _of_data(place) & {*digests}]
        if uses:
            found[run.path] = uses
    fresh = [run for run in runs if run.path in found]
    while fresh:
        made = {run.path: _model_digests(run) for run in fresh}
        fresh = []
        for run in runs:
            if run.path in found:
                continue
            uses = [_use(run, name, maker) for name, place in run.inputs.items() for maker in _maker(place, made)]
            if uses:
                found[run.path] = uses
                fresh.append(run)
    return [use for uses in found.values() for use in uses]


def _runs(folders: Sequence[Path]) -> Iterable[_Run]:
    for folder in folders:
        for path in run_folders(folder):
            try:
                yield _Run(path.resolve(), read_lineage(path / "lineage.json").inputs)
            except SurefootError as error:
                logger.warning("%s is passed over: %s", path, error.what)


def _use(run: _Run, name: str, through: str) -> Use:
    return Use(str(run.path), name, through, None if run.model is None else str(run.model))


def _of_data(place: Mapping[str, Any]) -> set[str]:
    """Digests that an input of kind data goes by: its own, and those of the files in a folder."""
    if place.get("kind") != "data":
        return set()
    files = place.get("files")
    return {str(d) for d in (place.get("sha256"), *(files.values() if isinstance(files, dict) else ())) if d}


def _model_digests(run: _Run) -> Mapping[str, str]:
    """The digest that a run's model goes by as an input of a kind: in a folder, or behind an address."""
    try:
        if run.model is None:
            return {}
        return {"model": str(digest_folder(run.model)["sha256"]), "service": digest_weights(run.model)}
    except (SurefootError, OSError):
        return {}


def _maker(place: Mapping[str, Any], made: Mapping[Path, Mapping[str, str]]) -> list[str]:
    """The run whose model an input is: by its place, or by its digest when it was moved or is served."""
    kind, digest = str(place.get("kind")), place.get("sha256")
    path = Path(str(place.get("path")))
    inside = [run for run in made if kind == "model" and path.is_absolute() and path.resolve().is_relative_to(run)]
    same = [run for run, digests in made.items() if digest is not None and digests.get(kind) == digest]
    return [f"the model of {run.name}" for run in dict.fromkeys((*inside, *same))][:1]
