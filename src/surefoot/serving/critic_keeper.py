"""The critic in memory, kept at what the disk says: loaded, brought through the journal, trained, put back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from surefoot.config import Config
from surefoot.errors import RunError, RunFolderError, ServiceFailed, WireError
from surefoot.serving.bindings import Bindings, RunFiles
from surefoot.serving.control import CriticCard, TrainResult
from surefoot.serving.critic_state import StepBatch, TrainedCritic
from surefoot.serving.frames import Limits
from surefoot.serving.wire import TrainRequest
from surefoot.training.checkpoint import Checkpoint
from surefoot.training.critic_update import position_of, update_critic

logger = logging.getLogger("surefoot.serving")

# What stands in the journal was within the limits of its time.
ANY_SIZE = Limits(1 << 40, 1 << 31, 1 << 40)

Build = Callable[[], TrainedCritic]
Describe = Callable[[TrainedCritic], CriticCard]
Turn = Callable[[], AbstractContextManager[Any]]


class CriticKeeper:
    """Holds the critic. All methods run in one thread.

    Args:
        build: makes the critic with its initial weights, and its optimizer; always the same.
        describe: what is said of it, from the critic as it was built.
        cfg: sections ``ppo`` and ``guard``.
        bindings: whose it is.
        turn: entered around everything that needs the critic on its device.

    Attributes:
        card: what is said of it.
        trained: the last step it was trained on.
        results: by step, the request's digest and what was answered, since the oldest checkpoint.
        waits_for: what it is doing before it can work, None once it can.
        broken: why it can work no more, None while it can.
        replayed: steps applied again from the journal.
    """

    card: CriticCard

    def __init__(self, build: Build, describe: Describe, cfg: Config, bindings: Bindings, turn: Turn) -> None:
        self._build, self._describe, self._cfg, self._bindings, self.turn = build, describe, cfg, bindings, turn
        self.held: TrainedCritic | None = None
        self._initial: str | None = None
        self._fresh = False
        self.trained = self.replayed = 0
        self.results: dict[int, tuple[str, TrainResult]] = {}
        self.waits_for: str | None = "loading the critic"
        self.broken: str | None = None

    @property
    def critic(self) -> TrainedCritic:
        """The critic.

        Raises:
            ServiceFailed: it is lost.
        """
        if self.held is None:
            raise ServiceFailed(
                "the critic is lost",
                got=self.broken,
                hint="put that right and start the service again: nothing that was trained is lost",
                code="model_failed",
            )
        return self.held

    def open(self) -> None:
        """Load the critic and bring it to where its run was.

        Raises:
            UserError: the folder is of another critic, or damaged.
            RunError: what stands in the journal cannot be applied.
        """
        self._rebuild()
        with self.turn():
            self.card = self._describe(self.critic)
        self._initial = self.card.model
        self._bindings.read()
        if self._bindings.files is not None:
            self._recover(self._bindings.files)
        self.waits_for = None

    def start_over(self) -> None:
        """To the initial weights."""
        if not self._fresh:
            self._rebuild()

    def load(self, checkpoint: Checkpoint) -> None:
        """To a whole checkpoint."""
        if self.held is None:
            self._rebuild()
        self._fresh = False
        with self.turn():
            self.critic.read(checkpoint.path)
        self.trained = checkpoint.step

    def restart(self) -> None:
        """To what the disk says; after this the critic is as a new process would find it, or broken."""
        files = self._bindings.files
        try:
            self._rebuild()
            if files is not None:
                self._recover(files)
        except Exception as error:
            self.held, self.broken = None, str(error)
            logger.exception("the critic cannot be put back: start the service again", extra=self.labels())
        finally:
            self.waits_for = None

    def apply(self, request: TrainRequest) -> TrainResult:
        """Train on a step's batch. An exception leaves it trained in part: :meth:`restart` is next."""
        begun = time.monotonic()
        held = self.critic
        self._fresh = False
        held.optimizer.move_to(position_of(request.step, self._cfg))
        plan = [[list(minibatch) for minibatch in epoch] for epoch in request.plan]
        with self.turn():
            updates = list(update_critic(held.critic, held.optimizer, StepBatch.of(request), plan, self._cfg))
        self.trained = request.step
        seconds = time.monotonic() - begun
        return TrainResult.of(request.run, request.step, [asdict(update) for update in updates], seconds=seconds)

    def stored(self, files: RunFiles, step: int) -> tuple[str, TrainResult] | None:
        """A trained step's digest and result; None where they are not kept."""
        if step in self.results:
            return self.results[step]
        kept = files.journal.result(step)
        try:
            return None if kept is None else (str(kept["digest"]), TrainResult(**kept["result"]))
        except (KeyError, TypeError) as error:
            logger.warning("the result of step %d cannot be read and is left out: %r", step, error)
            return None

    def keep(self, files: RunFiles, request: TrainRequest, result: TrainResult) -> None:
        """Keep a result, on disk where that has room."""
        self.results[request.step] = (request.digest, result)
        try:
            files.journal.write_result(request.step, {"digest": request.digest, "result": asdict(result)})
        except OSError as error:
            logger.warning("the result of step %d is kept in memory only: %s", request.step, error)

    def forget_results(self, which: Callable[[int], bool]) -> None:
        """Forget the results of these steps in memory."""
        self.results = {step: kept for step, kept in self.results.items() if not which(step)}

    def labels(self) -> Mapping[str, Any]:
        """For the log."""
        return {"run": self._bindings.run, "step": self.trained}

    def _rebuild(self) -> None:
        self.held = None  # the old one goes before the new one comes: there may be no room for both
        self.results.clear()
        with self.turn():
            held = self._build()
            changed = self._initial is not None and held.digest() != self._initial
        if changed:
            raise RunFolderError(
                "the model that the critic starts from is not the one that it started from before",
                got=f"critic.init: {self._cfg.critic.init}",
                hint="put the model's folder back as it was",
            )
        self.held, self._fresh, self.trained, self.broken = held, True, 0, None

    def _recover(self, files: RunFiles) -> None:
        """From fresh weights to the newest whole checkpoint, and through the journal."""
        files.clean()
        checkpoint = files.store.latest()
        base = 0 if checkpoint is None else checkpoint.step
        pending = files.journal.steps_after(base)
        files.check_card(self.card, pending=len(pending))
        if checkpoint is not None:
            self.load(checkpoint)
        for number, step in enumerate(pending, start=1):
            self.waits_for = f"replaying {number} of {len(pending)}"
            if not self._replay(files, step, last=number == len(pending)):
                break
        # What cannot be applied must not follow a step that is yet to come.
        files.journal.drop_after(self.trained)
        if pending:
            logger.info("applied %d step(s) from the journal", self.trained - base, extra=self.labels())

    def _replay(self, files: RunFiles, step: int, *, last: bool) -> bool:
        """Apply a request of the journal once more; False when it is none that was ever applied."""
        try:
            request = TrainRequest.unpack(files.journal.read(step), ANY_SIZE)
        except WireError as error:
            logger.error("the journal is damaged at step %d and ends before it: %s", step, error, extra=self.labels())
            return False
        if (request.run, request.step) != (files.run, step):
            logger.error("the journal of %s has a step of %s in it and ends before it", files.run, request.run)
            return False
        before = self.stored(files, step)
        try:
            result = self.apply(request)
        except Exception as error:
            if before is not None or not last:
                raise RunError(
                    f"step {step} of the journal cannot be applied again: {error!r}",
                    hint=f"start the service where and with what it ran before; or remove {files.journal.folder}, "
                    "start it, and resume the run from its last checkpoint",
                ) from error
            logger.error("step %d cannot be trained and is left out: %r", step, error, extra=self.labels())
            files.journal.drop_after(step - 1)
            self._rebuild()
            self._recover(files)
            return False
        self.replayed += 1
        if before is not None and before[1].updates != result.updates:
            logger.warning(
                "step %d gave other numbers than the first time: another machine or another version?",
                step,
                extra=self.labels(),
            )
        self.keep(files, request, result if before is None else before[1])
        return True
