"""Going on with a run that an earlier process began: what it left, what is refused, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from surefoot.errors import RunFolderError
from surefoot.monitor.sinks import TensorBoardTracker
from surefoot.records import Lineage
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.lineage import read_lineage
from surefoot.training.run_folder import RunFolder
from surefoot.training.run_status import RunStatus
from surefoot.training.trainer import Trainer


def earlier_lineage(folder: RunFolder) -> Lineage | None:
    """What the run was begun with; None where it was not begun."""
    return read_lineage(folder.lineage) if folder.lineage.is_file() else None


def threads_of(lineage: Lineage | None) -> int | None:
    """The thread count that its numbers rest on."""
    threads = lineage.machine.get("threads") if lineage is not None else None
    return int(threads) if threads else None


def resume_run(trainer: Trainer, boards: Sequence[TensorBoardTracker], *, begun: bool) -> str:
    """Load the last checkpoint, if there is one.

    Args:
        trainer: of a job in an open run folder.
        boards: go on with their curves from there.
        begun: whether the run folder was there before this process.
    Returns:
        what was found, in a line.
    Raises:
        RunFolderError: see :func:`refuse_lost_checkpoints`.
        CheckpointError, TrainingError: the checkpoint is of another model or another order of prompts.
    """
    folder, store = trainer.job.folder, trainer.job.store
    store.clean()
    refuse_lost_checkpoints(folder, store)
    step = trainer.restore()
    for board in boards:
        board.resume_step = step or None
    return _found(folder.path.absolute(), step, begun=begun, done=len(folder.read_metrics()))


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


def _found(folder: Path, step: int, *, begun: bool, done: int) -> str:
    if not begun:
        return f"there is no run folder {folder} yet: starting at step 1"
    again = f"; steps {step + 1} to {done} are done again" if done > step else ""
    if step == 0:
        return f"no whole checkpoint in {folder}: starting at step 1{again}"
    return f"resumed from {folder / 'checkpoints' / f'step-{step}'}{again}"
