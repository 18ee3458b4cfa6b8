"""Which run a service's critic belongs to, and where that run's files lie. Torch-free.

::

    DIR/
      lock
      service.json             the bound run, and whether it has been released
      runs/RUN/critic.json     the critic that the run's files are of: model, threads, settings
      runs/RUN/checkpoints/    as in a run folder
      runs/RUN/journal/        training calls since the oldest checkpoint
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surefoot.errors import RunFolderError, ServiceMismatch
from surefoot.serving.control import CriticCard
from surefoot.serving.journal import Journal
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.durable import json_bytes, parse_json, write_file

logger = logging.getLogger("surefoot.serving")

FORMAT = 1
ALL = 1 << 31
"""More checkpoints than there can be: which are kept is the trainer's to say."""


@dataclass(frozen=True)
class RunFiles:
    """One run's files in a service's folder."""

    run: str
    folder: Path

    @property
    def journal(self) -> Journal:
        """Its training calls."""
        return Journal(self.folder / "journal")

    @property
    def store(self) -> CheckpointStore:
        """Its checkpoints."""
        return CheckpointStore(self.folder / "checkpoints", keep=ALL)

    @property
    def card_file(self) -> Path:
        """What its files are of."""
        return self.folder / "critic.json"

    def clean(self) -> None:
        """Remove what killed writers left behind."""
        self.journal.clean()
        self.store.clean()

    def go_back(self, step: int) -> None:
        """Throw away what came after ``step``, in an order that a kill may end at any point (see the journal).

        Raises:
            OSError: something could not be removed; what is left is in order.
        """
        self.clean()
        self.journal.drop_after(step)
        store = self.store
        store.discard(s for s in reversed(store.steps()) if s > step)
        if left := [s for s in store.steps() if s > step]:
            raise OSError(f"checkpoints of later steps cannot be removed: {left} in {store.folder}")

    def forget(self) -> None:
        """Throw everything away, in the same order. Raises OSError as :meth:`go_back`."""
        self.go_back(0)
        self.store.discard([0])

    def write_card(self, card: CriticCard) -> None:
        """Note what the files are of."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.card_file, json_bytes({"format": FORMAT, **asdict(card)}, indent=1))

    def check_card(self, card: CriticCard, *, pending: int) -> None:
        """Check that the files are of this critic; other settings are taken over where nothing is to be applied again.

        Args:
            card: the critic in memory.
            pending: requests of the journal that are to be applied again.
        Raises:
            RunFolderError: they are of another critic, or other settings would give other weights.
        """
        stored = _read(self.card_file) if self.card_file.exists() else {"format": FORMAT, **asdict(card)}
        stored.pop("format")
        differences = card.differences(CriticCard(**stored))
        if not differences:
            return
        if pending or any(difference.startswith("model:") for difference in differences):
            raise RunFolderError(
                f"{self.folder} was made with another critic or other settings: {'; '.join(differences)}",
                hint="start the service with the model and the settings of before, or choose another serve.dir",
            )
        logger.warning("%s: settings have changed: %s", self.folder, "; ".join(differences))
        self.write_card(card)


class Bindings:
    """The folder's memory of who the critic belongs to. One writer at a time.

    Args:
        folder: the service's.
        lease_s: how long after its last request a run keeps the critic to itself.
    """

    def __init__(self, folder: Path, *, lease_s: float) -> None:
        self.folder, self.lease_s = folder, lease_s
        self.run: str | None = None
        self._released, self._active = True, 0.0

    def read(self) -> None:
        """What stood before this process began. A run that was not released counts as active at this moment.

        Raises:
            RunFolderError: the file is damaged.
        """
        if self._file.exists():
            stored = _read(self._file)
            self.run, self._released = stored["run"], bool(stored["released"])
            self._active = time.monotonic()

    def of(self, run: str) -> RunFiles:
        """A run's files. The name has been checked: it can be no path."""
        return RunFiles(run, self.folder / "runs" / run)

    @property
    def files(self) -> RunFiles | None:
        """Those of the bound run."""
        return None if self.run is None else self.of(self.run)

    def bind(self, run: str) -> None:
        """The critic belongs to this run from now on.

        Raises:
            OSError: that could not be written; nothing changed.
        """
        self._write(run, released=False)
        self.touch(run)

    def release(self, run: str) -> None:
        """The run is over; another may have the critic at once."""
        if run == self.run:
            self._write(run, released=True)

    def touch(self, run: str | None) -> None:
        """The run has asked for something."""
        if run is not None and run == self.run:
            self._active, self._released = time.monotonic(), False

    def require_free(self, run: str) -> None:
        """Check that this run may take the critic.

        Raises:
            ServiceMismatch: another one holds it.
        """
        left = self._active + self.lease_s - time.monotonic()
        if self.run not in (None, run) and not self._released and left > 0:
            raise ServiceMismatch(
                f"the critic is in use by the run {self.run}",
                got=f"run {run}",
                allowed=f"in {left:.0f} s, if that run asks for nothing more",
                hint="wait for that run to end, end it, or start a service of your own with another serve.dir",
                code="in_use",
            )

    def require(self, run: str) -> RunFiles:
        """The files of a run that must be the bound one.

        Raises:
            ServiceMismatch: it is not.
        """
        if run != self.run:
            raise ServiceMismatch(
                f"the critic does not belong to the run {run}",
                got="no run has it" if self.run is None else f"the run {self.run} has it",
                hint="the trainer begins with a restore; was the service started with another serve.dir?",
                code="mismatch",
            )
        self.touch(run)
        return self.of(run)

    @property
    def _file(self) -> Path:
        return self.folder / "service.json"

    def _write(self, run: str, *, released: bool) -> None:
        write_file(self._file, json_bytes({"format": FORMAT, "run": run, "released": released}))
        self.run, self._released = run, released


def _read(path: Path) -> dict[str, Any]:
    try:
        stored = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(
            "a file of the service cannot be read",
            got=f"{path}: {error}",
            hint="put it back, or choose another serve.dir",
        ) from error
    if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
        raise RunFolderError(
            "a file of the service was written by another version", got=str(path), hint="choose another serve.dir"
        )
    return dict(stored)
