"""What the trainer asks of a job: the loop is the same for PPO, supervised fine-tuning and reward models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from surefoot.config import Config
from surefoot.protocols import Tracker
from surefoot.records import StepReport
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.display import Display
from surefoot.training.run_folder import RunFolder
from surefoot.training.stopping import Stopping


class Evaluation(Protocol):
    """One look at held-out rows."""

    @property
    def mean(self) -> float | None:
        """What is wanted high; None when it is not defined."""
        ...

    @property
    def metrics(self) -> Mapping[str, float | int | None]:
        """``evaluate/...``."""
        ...

    def as_json(self) -> dict[str, Any]:
        """The line of ``evaluations.jsonl``."""
        ...

    def responses(self) -> list[dict[str, Any]]:
        """A record for each row that was looked at."""
        ...


class AnyJob(Protocol):
    """What a trainer runs.

    Attributes:
        cfg: the run.
        folder, store: where the run is kept.
        display, trackers: who is told.
        facts: stored with each checkpoint and compared at resume (threads).
        stopping: what ends the run before its last step.
    """

    cfg: Config
    folder: RunFolder
    store: CheckpointStore
    display: Display
    trackers: Sequence[Tracker]
    facts: Mapping[str, Any]
    stopping: Stopping

    @property
    def save_model(self) -> Callable[[Path], None]:
        """Writes what was trained into a folder."""
        ...

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        ...

    def begin(self, step: int) -> None:
        """Get ready to go on after ``step``."""
        ...

    def make_step(self, step: int) -> StepReport:
        """Make a step, counted from 1."""
        ...

    def record(self, step: int) -> None:
        """Write down more of the step just made than its metrics."""
        ...

    def evaluate(self, step: int) -> Evaluation | None:
        """Look at held-out rows, and show it; None when there are none."""
        ...

    def worth_keeping(self, step: int) -> bool:
        """Whether the state after this evaluated step must not be lost."""
        ...

    def cursor(self, step: int) -> Mapping[str, Any]:
        """Where in the data the run stands after a step."""
        ...

    def save_elsewhere(self, step: int) -> Mapping[str, Any]:
        """Save what is kept outside the run folder; gives what the checkpoint's manifest names it by."""
        ...

    def write_state(self, folder: Path, *, step: int, extra: Mapping[str, Any]) -> None:
        """Write all that a resumed run needs; broken weights are refused before."""
        ...

    def read_state(self, folder: Path) -> Mapping[str, Any]:
        """Put a state back; gives the ``extra`` that was written."""
        ...

    def refuse_broken_weights(self) -> None:
        """TrainingError for weights that are not finite."""
        ...

    def updated(self) -> bool:
        """Whether any update was made."""
        ...

    def before_publishing(self, step: int) -> None:
        """The run is over: choose the weights that become the model."""
        ...
