"""What a run that goes on finds in its folder, of whatever kind it is."""

from __future__ import annotations

from pathlib import Path

from surefoot.errors import RunFolderError
from surefoot.records import Lineage
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.lineage import read_lineage
from surefoot.training.run_folder import RunFolder
from surefoot.training.run_status import RunStatus


def earlier_lineage(path: Path) -> Lineage | None:
    """The lineage in a run folder, if there is one."""
    file = path / "lineage.json"
    return read_lineage(file) if file.is_file() else None


def threads_of(lineage: Lineage | None) -> int | None:
    """The CPU threads it speaks of."""
    threads = lineage.machine.get("threads") if lineage is not None else None
    return int(threads) if threads else None


def refuse_lost_checkpoints(folder: RunFolder, store: CheckpointStore) -> None:
    """A run that has had checkpoints is not started over in silence: its records would be written over.

    Raises:
        RunFolderError: no checkpoint can be read, and there are some, or the run is finished.
    """
    if store.latest() is not None:
        return
    damaged = sorted(path.name for path in store.folder.glob("step-*"))
    if damaged:
        raise RunFolderError(
            "none of the run's checkpoints can be read, and starting over would write over its records",
            got=f"{store.folder}: {', '.join(damaged[:5])}",
            hint="put a whole checkpoint back; to start over, choose another run.name or remove the folder",
        )
    state = folder.last_status()
    if folder.model.is_dir() or (state is not None and state.status is RunStatus.FINISHED):
        raise RunFolderError(
            "the run is finished and its checkpoints are gone, so it cannot go on",
            got=str(folder.path),
            hint="choose another run.name to run it again",
        )


def resumed_note(folder: Path, step: int, *, begun: bool, done: int) -> str:
    """What ``--resume`` found, in a line."""
    if not begun:
        return f"there is no run folder {folder} yet: starting at step 1"
    again = f"; steps {step + 1} to {done} are done again" if done > step else ""
    if step == 0:
        return f"no whole checkpoint in {folder}: starting at step 1{again}"
    return f"resumed from {folder / 'checkpoints' / f'step-{step}'}{again}"
