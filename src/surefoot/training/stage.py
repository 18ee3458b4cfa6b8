"""The stages before PPO as jobs for the trainer: what supervised fine-tuning and reward models have in common."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from torch import nn

from surefoot.config import Config, StageSection
from surefoot.data.order import PromptOrder
from surefoot.errors import CheckpointError
from surefoot.protocols import Tracker
from surefoot.records import StepReport
from surefoot.training.checkpoint import CheckpointStore, verify
from surefoot.training.clock import StepClock
from surefoot.training.display import Display
from surefoot.training.durable import read_records
from surefoot.training.optimizer import Optimizer, StepOutcome
from surefoot.training.report import Metrics, peak_memory_gb
from surefoot.training.run_folder import RunFolder
from surefoot.training.state import load_parameters, read_tensors, refuse_broken, save_tensors
from surefoot.training.stopping import Stopping

logger = logging.getLogger("surefoot")

FORMAT: Final = 1
LOSS: Final = "evaluate/loss"
WEIGHTS, MOMENTS, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"


class Trained(Protocol):
    """What a stage trains."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """What training changes, by name."""
        ...


@dataclass(frozen=True)
class HeldOutLoss:
    """One look at the held-out rows.

    Attributes:
        step: after which; 0: before the first.
        loss: mean loss.
        metrics: ``evaluate/...``.
        rows: a record a row.
        line: the same for a person.
    """

    step: int
    loss: float
    metrics: Metrics
    rows: list[dict[str, Any]]
    line: str

    @property
    def mean(self) -> float | None:
        """The loss with its sign turned: what is wanted high."""
        return -self.loss if math.isfinite(self.loss) else None

    def as_json(self) -> dict[str, Any]:
        """The line of ``evaluations.jsonl``."""
        return {"step": self.step, **self.metrics}

    def responses(self) -> list[dict[str, Any]]:
        """The records of the rows."""
        return self.rows


@dataclass
class StageJob:
    """Everything a stage's run needs, built.

    Attributes:
        cfg, section: the run, and the stage's own section of it.
        group: of its metrics.
        model, optimizer: what is trained, and with what.
        order: which rows a step takes.
        steps: optimizer steps of the whole run.
        step_of: makes a step on these rows.
        held_out: looks at held-out rows after a step; None when there are none.
        folder, store, save_model, display, trackers, facts: as in :class:`surefoot.training.job.AnyJob`.
        ending: called once the weights that become the model are in place, with the step they are of.
    """

    cfg: Config
    section: StageSection
    group: str
    model: Trained
    optimizer: Optimizer
    order: PromptOrder
    steps: int
    step_of: Callable[[int, Sequence[int]], StepReport]
    held_out: Callable[[int], HeldOutLoss] | None
    folder: RunFolder
    store: CheckpointStore
    save_model: Callable[[Path], None]
    display: Display
    trackers: Sequence[Tracker] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    ending: Callable[[int], None] = lambda step: None

    def __post_init__(self) -> None:
        # What looks at PPO's numbers does not apply; patience does.
        stop = self.cfg.stop.model_copy(update={"score": None, "kl_budget": None})
        self.stopping = Stopping(stop, what="held-out loss", lower=True)

    def begin(self, step: int) -> None:
        """Nothing has to be made ready."""

    def make_step(self, step: int) -> StepReport:
        """One optimizer step."""
        report = self.step_of(step, self.order.batch(step))
        return StepReport(step, {**report.metrics, f"{self.group}/epoch": epochs_after(self.order, step)})

    def record(self, step: int) -> None:
        """The metrics say it all."""

    def evaluate(self, step: int) -> HeldOutLoss | None:
        """Look at held-out rows."""
        if self.held_out is None:
            return None
        found = self.held_out(step)
        self.display.note(found.line)
        return found

    def worth_keeping(self, step: int) -> bool:
        """Whether this evaluated step may become the model: its held-out loss is the lowest so far."""
        return self.section.publish == "best" and self.best_step() == step

    def best_step(self) -> int | None:
        """The trained step with the lowest held-out loss, the latest of equals; None when none was evaluated."""
        records = read_records(self.folder.path / "evaluations.jsonl")
        rated = [(r[LOSS], -int(r["step"])) for r in records if r["step"] and r.get(LOSS) is not None]
        return -min(rated)[1] if rated else None

    def cursor(self, step: int) -> Mapping[str, Any]:
        """Of the rows."""
        return self.order.cursor(step)

    def save_elsewhere(self, step: int) -> Mapping[str, Any]:
        """Nothing is."""
        return {}

    def write_state(self, folder: Path, *, step: int, extra: Mapping[str, Any]) -> None:
        """Weights, the optimizer and the counts of both."""
        save_tensors(self.model.trainable(), folder / WEIGHTS)
        tensors, counts = self.optimizer.state()
        save_tensors(tensors, folder / MOMENTS)
        state = {"format": FORMAT, "step": step, "optimizer": counts, "extra": dict(extra)}
        (folder / STATE).write_text(json.dumps(state, indent=1, allow_nan=False), encoding="utf-8")

    def read_state(self, folder: Path) -> Mapping[str, Any]:
        """Put a checkpoint back.

        Raises:
            CheckpointError: it is of another version, another model or not whole.
        """
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise CheckpointError("the checkpoint was written by another version", got=state["format"], allowed=FORMAT)
        load_parameters(self.model.trainable(), folder / WEIGHTS)
        self.optimizer.load(read_tensors(folder / MOMENTS), state["optimizer"])
        extra: Mapping[str, Any] = state["extra"]
        return extra

    def refuse_broken_weights(self) -> None:
        """See :func:`surefoot.training.state.refuse_broken`."""
        refuse_broken(self.model.trainable())

    def updated(self) -> bool:
        """Whether any optimizer step was made."""
        return self.optimizer.steps_taken > self.optimizer.skipped_total

    def before_publishing(self, step: int) -> None:
        """Take the best weights, if they are wanted and are not those in memory."""
        best = self.best_step() if self.section.publish == "best" else None
        if best is not None and best != step:
            folder = self.store.folder / f"step-{best}"
            problems = verify(folder)
            if problems:
                logger.warning("%s was best and cannot be used (%s): the last weights are taken", folder, problems[0])
                best = step
            else:
                load_parameters(self.model.trainable(), folder / WEIGHTS)
                self.display.note(f"the held-out loss was lowest after step {best}: its weights become the model")
        self.ending(step if best is None else best)


def total_steps(section: StageSection, order: PromptOrder) -> int:
    """Optimizer steps of the whole run."""
    return section.steps or max(1, math.ceil(section.epochs * order.batches_per_epoch))


def epochs_after(order: PromptOrder, step: int) -> float:
    """Passes over the data after a step."""
    at = order.cursor(step)
    return at["epoch"] + at["position"] / order.num_rows


def optimizer_metrics(group: str, outcome: StepOutcome) -> Metrics:
    """What became of the optimizer step."""
    return {
        f"{group}/grad_norm": outcome.grad_norm,
        f"{group}/lr": outcome.lr,
        f"{group}/skipped_updates": int(outcome.skipped),
    }


def resource_metrics(clock: StepClock, *, tokens: int) -> Metrics:
    """Time and memory of a step that read so many tokens."""
    update = clock.seconds.get("update", 0.0)
    return {
        "time/update_s": update,
        "time/step_s": clock.total,
        "throughput/tokens_per_s": tokens / update if update else None,
        "memory/peak_gb": peak_memory_gb(),
    }
