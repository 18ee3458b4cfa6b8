"""The loop around the steps: report, evaluate, checkpoint, stop. It is handed a job and knows no config file.

What a step is, what is evaluated and what makes up the state is the job's; :class:`Job` is PPO's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from surefoot.config import Config
from surefoot.data.order import PromptOrder
from surefoot.errors import RunError, TrainingError
from surefoot.protocols import Tracker
from surefoot.records import Prompt, StepReport
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.clock import StepClock
from surefoot.training.critic_update import ServedCritic
from surefoot.training.display import Display
from surefoot.training.durable import append_line, json_bytes, keep_lines, read_records, write_file, writing
from surefoot.training.evaluation import Evaluator, HeldOut
from surefoot.training.job import AnyJob, Evaluation
from surefoot.training.recording import record_step
from surefoot.training.run_folder import RunFolder
from surefoot.training.run_status import RunStatus
from surefoot.training.signals import GracefulStop
from surefoot.training.state import read_state, refuse_broken_weights, write_state
from surefoot.training.step import Parts, StepResult, ppo_step
from surefoot.training.stopping import Stopping

logger = logging.getLogger("surefoot")


@dataclass
class Job:
    """Everything a PPO run needs, built.

    Attributes:
        cfg: the run.
        parts: of a step.
        prompts, order: what is sampled from, and which of it in which step.
        evaluator: of held-out prompts, or None.
        folder, store: where the run is kept.
        save_model: writes the aligned policy into a folder.
        display, trackers: who is told.
        facts: stored with each checkpoint and compared at resume (threads).
    """

    cfg: Config
    parts: Parts
    prompts: Sequence[Prompt]
    order: PromptOrder
    evaluator: Evaluator | None
    folder: RunFolder
    store: CheckpointStore
    save_model: Callable[[Path], None]
    display: Display
    trackers: Sequence[Tracker] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stopping = Stopping(self.cfg.stop)
        self._latest: StepResult | None = None
        self._service: Mapping[str, Any] | None = None

    @property
    def steps(self) -> int:
        """PPO steps of the whole run."""
        assert self.cfg.run.steps is not None
        return self.cfg.run.steps

    def begin(self, step: int) -> None:
        """Whatever engine and service held before a restart, they have the current weights now."""
        critic = self.parts.learner.critic
        if step == 0 and isinstance(critic, ServedCritic):
            critic.restore(None)
        self.parts.engine.publish(self.parts.learner.policy, version=step + 1)

    def make_step(self, step: int) -> StepReport:
        """One PPO step."""
        prompts = [self.prompts[i] for i in self.order.batch(step)]
        self._latest = ppo_step(step, prompts, self.parts, self.cfg, StepClock())
        return self._latest.report

    def record(self, step: int) -> None:
        """The rollout record of chosen steps."""
        every = self.cfg.track.samples_every
        if self._latest is not None and every and (step in (1, self.steps) or step % every == 0):
            with writing(self.folder.samples):
                record_step(self.folder.samples_file(step), self._latest, self.cfg)

    def evaluate(self, step: int) -> HeldOut | None:
        """Score held-out prompts."""
        if self.evaluator is None:
            return None
        result = self.evaluator(self.parts.learner.policy, step)
        self.display.evaluation(result)
        return result

    def worth_keeping(self, step: int) -> bool:
        """Never beyond ``checkpoint.every``."""
        return False

    def cursor(self, step: int) -> Mapping[str, Any]:
        """Of the prompts."""
        return self.order.cursor(step)

    def save_elsewhere(self, step: int) -> Mapping[str, Any]:
        """A critic in a service: whole over there before a checkpoint here names it."""
        critic = self.parts.learner.critic
        self._service = None
        if not isinstance(critic, ServedCritic):
            return {}
        # Older ones stay as long as a checkpoint here names them.
        self._service = critic.checkpoint(step, keep=self.store.steps())
        return {"critic_service": self._service}

    def write_state(self, folder: Path, *, step: int, extra: Mapping[str, Any]) -> None:
        """See :func:`surefoot.training.state.write_state`."""
        write_state(folder, self.parts, step=step, extra=extra, service=self._service)

    def read_state(self, folder: Path) -> Mapping[str, Any]:
        """See :func:`surefoot.training.state.read_state`."""
        return read_state(folder, self.parts)

    def refuse_broken_weights(self) -> None:
        """See :func:`surefoot.training.state.refuse_broken_weights`."""
        refuse_broken_weights(self.parts)

    def updated(self) -> bool:
        """Whether policy or critic were updated."""
        learner = self.parts.learner
        optimizers = [o for o in (learner.policy_optimizer, learner.critic_optimizer) if o is not None]
        served = isinstance(learner.critic, ServedCritic) and learner.critic.updated
        return served or any(o.steps_taken > o.skipped_total for o in optimizers)

    def before_publishing(self, step: int) -> None:
        """The aligned policy is the last one."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        folder: the run folder.
        status: FINISHED or KILLED.
        reason: why it ended.
        step: last step.
        evaluations: the held-out records, in order, as in ``evaluations.jsonl``.
        last: the last step's report; None when no step was made in this process.
    """

    folder: Path
    status: RunStatus
    reason: str
    step: int
    evaluations: Sequence[Mapping[str, Any]]
    last: StepReport | None


class Trainer:
    """Runs a job from its last checkpoint, or from the start.

    Args:
        job: what to run.
    """

    def __init__(self, job: AnyJob) -> None:
        self.job, self.cfg = job, job.cfg
        self.stopping = job.stopping
        self.evaluations_file = job.folder.path / "evaluations.jsonl"
        self.step = 0
        self.last: StepReport | None = None
        self._saved: int | None = None

    def restore(self) -> int:
        """Load the newest whole checkpoint, if there is one.

        Returns:
            the step it was made after; 0 without one.
        """
        checkpoint = self.job.store.latest()
        if checkpoint is None:
            return 0
        extra = self.job.read_state(checkpoint.path)
        self.stopping.load(extra["stopping"])
        cursor = self.job.cursor(checkpoint.step)
        if extra["cursor"] != cursor:
            raise TrainingError(
                "the data order of the checkpoint is not that of this run", got=extra["cursor"], allowed=cursor
            )
        self.step = self._saved = checkpoint.step
        return checkpoint.step

    def run(self, *, warnings: Sequence[str] = ()) -> RunResult:
        """Go on to the end, a reason to stop, or a signal.

        Args:
            warnings: what the resume could not promise, for the record.
        Raises:
            RunError: trouble that the run could not survive; the last checkpoint is whole.
        """
        job = self.job
        job.folder.begin(self.step, warnings=warnings)
        # A run that starts again from the beginning makes its first evaluation again.
        keep_lines(self.evaluations_file, lambda record: 0 < self.step >= int(record["step"]))
        job.begin(self.step)
        job.display.start(self.step, job.steps)
        try:
            with GracefulStop() as stop:
                status, reason = self._loop(stop)
                self._finish(status, reason)
        finally:
            job.display.stop()
            for tracker in job.trackers:
                tracker.close()
        return RunResult(job.folder.path, status, reason, self.step, read_records(self.evaluations_file), self.last)

    def _loop(self, stop: GracefulStop) -> tuple[RunStatus, str]:
        """Steps until there is a reason to stop; how the run ended, and the reason."""
        started, longest, budget = time.monotonic(), 0.0, self.cfg.run.time_budget_s
        if self.step == 0:
            self._evaluate(0)
        # The process may have been killed between the checkpoint and the end that was due after it.
        reason = self.stopping.reason() if self.step else None
        while reason is None and self.step < self.job.steps:
            if stop.received:
                return RunStatus.KILLED, f"stopped by {stop.received.name}"
            begun = time.monotonic()
            if budget is not None and begun - started + longest > budget:
                return RunStatus.FINISHED, f"the time budget of {budget:g} s would not hold another step"
            reason = self._one_step()
            longest = max(longest, time.monotonic() - begun)
        return RunStatus.FINISHED, reason or f"all {self.job.steps} steps are done"

    def _one_step(self) -> str | None:
        """One step with all that follows from it; a reason to stop, or None."""
        job, step = self.job, self.step + 1
        report = job.make_step(step)
        reason = self.stopping.after_step(report)
        every = self.cfg.evaluate.every
        due = step == job.steps or (every and step % every == 0)
        job.display.step(report)
        evaluated = None
        if due:
            evaluated, stop = self._evaluate(step)
            if evaluated is not None:
                report = StepReport(step, {**report.metrics, **evaluated.metrics})
            reason = reason or stop
        self._record(step, report)
        self.step, self.last = step, report
        regular = self.cfg.checkpoint.every and step % self.cfg.checkpoint.every == 0
        if step < job.steps and (regular or (evaluated is not None and job.worth_keeping(step))):
            self._checkpoint()
        return reason

    def _record(self, step: int, report: StepReport) -> None:
        self.job.record(step)
        self.job.folder.append_metrics(report)
        for tracker in self.job.trackers:
            tracker.log(report)

    def _evaluate(self, step: int) -> tuple[Evaluation | None, str | None]:
        """Look at held-out rows; what was seen, and a reason to stop."""
        result = self.job.evaluate(step)
        if result is None:
            return None, None
        rows = self.job.folder.evaluations / f"step-{step}.jsonl"
        with writing(self.job.folder.evaluations):
            rows.parent.mkdir(exist_ok=True)
            write_file(rows, b"".join(map(json_bytes, result.responses())))
            append_line(self.evaluations_file, json_bytes(result.as_json()))
        reason = self.stopping.after_evaluation(result.mean)
        return result, reason if step else None

    def _checkpoint(self) -> None:
        """Save the state after the current step, once."""
        if self._saved == self.step or self.step == 0:
            return
        self.job.refuse_broken_weights()
        self.job.folder.sync()
        extra = {
            "stopping": self.stopping.state(),
            "cursor": self.job.cursor(self.step),
            "facts": dict(self.job.facts),
        }
        named = self.job.save_elsewhere(self.step)
        self.job.store.save(
            self.step,
            lambda folder: self.job.write_state(folder, step=self.step, extra=extra),
            meta={"metrics": {} if self.last is None else self.last.as_json(), **named},
        )
        self._saved = self.step

    def _finish(self, status: RunStatus, reason: str) -> None:
        """Save; when the run is over for good, evaluate if that is not done yet and write the model."""
        self._checkpoint()
        if status is RunStatus.FINISHED:
            if self.step == 0 or not self.job.updated():
                raise TrainingError("the run made no update", hint="look at skipped_updates in metrics.jsonl")
            done = {int(record["step"]) for record in read_records(self.evaluations_file)}
            if self.step not in done:
                self._evaluate(self.step)
            self.job.before_publishing(self.step)
            try:
                self.job.folder.publish_model(self.job.save_model)
            except OSError as error:
                raise RunError("the model could not be written", got=str(error)) from error
        self.job.folder.finish(status, reason, step=self.step)
