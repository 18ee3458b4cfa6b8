"""The critic of a service: values, training exactly once, checkpoints and restores, whatever kills it in between.

What it computes is what one process computes: the same critic, optimizer, minibatches and code. What it remembers is
in :mod:`surefoot.serving.journal`, which says what a kill can leave.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from surefoot.config import Config
from surefoot.errors import ServiceError, ServiceFailed, ServiceMismatch, SurefootError
from surefoot.protocols import Values
from surefoot.serving.bindings import Bindings, RunFiles
from surefoot.serving.control import (
    Checkpointed,
    CheckpointRequest,
    CriticCard,
    Released,
    ReleaseRequest,
    Restored,
    RestoreRequest,
    TrainResult,
)
from surefoot.serving.critic_keeper import Build, CriticKeeper, Describe, Turn
from surefoot.serving.critic_state import rollout_of
from surefoot.serving.faults import RESUME, not_finite, stale, unprocessable, writing
from surefoot.serving.wire import InferRequest, TrainRequest
from surefoot.training.checkpoint import MANIFEST, Checkpoint
from surefoot.training.durable import digest_file

logger = logging.getLogger("surefoot.serving")


class CriticHost:
    """The protocol's answers. All methods but the properties and :meth:`touch` run in one thread, the critic's own.

    Args:
        build, describe, cfg, turn: as in :class:`surefoot.serving.critic_keeper.CriticKeeper`.
        folder: the service's.
        lease_s: how long after its last request a run keeps the critic to itself.
    """

    def __init__(
        self, build: Build, describe: Describe, cfg: Config, folder: Path, *, lease_s: float, turn: Turn = nullcontext
    ) -> None:
        self._bindings = Bindings(folder, lease_s=lease_s)
        self._keeper = CriticKeeper(build, describe, cfg, self._bindings, turn)

    # ----------------------------------------------------------------------------------------- what it says of itself

    @property
    def card(self) -> CriticCard:
        """For the handshake, once it is open."""
        return self._keeper.card

    @property
    def run(self) -> str | None:
        """The run it belongs to."""
        return self._bindings.run

    @property
    def trained_step(self) -> int:
        """The last step it was trained on."""
        return self._keeper.trained

    @property
    def waits_for(self) -> str | None:
        """What it is doing before it can work, None once it can."""
        return self._keeper.waits_for

    @property
    def broken(self) -> str | None:
        """Why it can work no more, None while it can."""
        return self._keeper.broken

    @property
    def replayed(self) -> int:
        """Steps applied again from the journal."""
        return self._keeper.replayed

    @property
    def journal_bytes(self) -> int:
        """Size of the bound run's journal."""
        files = self._bindings.files
        return 0 if files is None else files.journal.size()

    def touch(self, run: str | None) -> None:
        """A run has asked for something: its lease goes on."""
        self._bindings.touch(run)

    def open(self) -> None:
        """As :meth:`surefoot.serving.critic_keeper.CriticKeeper.open`."""
        self._keeper.open()

    def move(self, device: torch.device) -> None:
        """Take the critic to a device."""
        if self._keeper.held is not None:
            self._keeper.held.move(device)

    # --------------------------------------------------------------------------------------------------------- values

    def values(self, requests: Sequence[InferRequest]) -> list[Values | Exception]:
        """Values for each request, computed in one go; for one that asks for what cannot be given, why.

        Raises:
            Exception: the critic failed on one of them, and nobody knows on which.
        """
        refused: dict[int, Exception] = {}
        for number, request in enumerate(requests):
            try:
                self._check_infer(request)
            except ServiceError as error:
                refused[number] = error
        good = [request for number, request in enumerate(requests) if number not in refused]
        found = iter(self._computed(good) if good else ())
        return [refused[number] if number in refused else next(found) for number in range(len(requests))]

    def _computed(self, requests: Sequence[InferRequest]) -> list[Values | Exception]:
        with self._keeper.turn():
            found = self._keeper.critic.critic.values(rollout_of(*requests))
        finite = bool(np.isfinite(found.values).all() and np.isfinite(found.after).all())
        if not finite:
            # Rows that are computed together share a NaN: each request is tried by itself.
            raise not_finite()
        answers: list[Values | Exception] = []
        row = 0
        for request in requests:
            assert request.tokens is not None
            part, width = slice(row, row + len(request.tokens)), request.tokens.shape[1]
            values, after = found.values[part, :width], found.after[part]
            answers.append(Values(values, after))
            row = part.stop
        return answers

    def _check_infer(self, request: InferRequest) -> None:
        if request.run is not None:
            self._bindings.require(request.run)
        if request.trained_step is not None:
            self._require_step(request.trained_step)
        self._check_rows(request)

    def _require_step(self, step: int) -> None:
        if step != self.trained_step:
            raise stale("the critic is not at the step that was asked for", step, self.trained_step)

    def _check_rows(self, request: InferRequest | TrainRequest) -> None:
        """What would otherwise fail within the model."""
        critic, tokens = self._keeper.critic, request.tokens
        assert tokens is not None
        largest, longest = int(tokens.max()), max(request.lengths)
        if largest >= critic.rows:
            raise unprocessable("a token id that the critic has no embedding for", largest, f"0 to {critic.rows - 1}")
        if critic.context is not None and longest > critic.context:
            raise unprocessable(
                "a trajectory is longer than the critic's context", f"{longest} tokens", f"at most {critic.context}"
            )

    # ------------------------------------------------------------------------------------------------------- training

    def train(self, request: TrainRequest, body: bytes) -> TrainResult:
        """Train on a step's batch, once: a repeat gets the stored result.

        Args:
            request: what to train on.
            body: its bytes, which go into the journal.
        Raises:
            ServiceError: another run, a step out of order, another content, no room on the disk, or the critic failed;
                nothing was applied.
        """
        keeper, step = self._keeper, request.step
        files = self._bindings.require(request.run)
        if step <= self.trained_step:
            return self._repeat(files, request)
        if step != self.trained_step + 1:
            raise stale("a step was left out", step, self.trained_step + 1)
        self._check_rows(request)
        with writing(f"step {step} could not be written to the journal, and was not trained"):
            files.journal.write(step, body)
        try:
            result = keeper.apply(request)
        except Exception as error:
            logger.exception("step %d failed and is taken back", step, extra=keeper.labels())
            with writing(f"step {step} failed, and the journal could not be put right"):
                files.journal.drop_after(step - 1)
            keeper.restart()
            raise ServiceFailed(
                f"the critic could not be trained on step {step}; it is as it was before",
                got=error.what if isinstance(error, SurefootError) else repr(error),
                hint=getattr(error, "hint", None) or "look at the service's log",
                code="model_failed",
            ) from error
        keeper.keep(files, request, result)
        self._bindings.touch(request.run)  # training may have taken longer than the lease
        return result

    def _repeat(self, files: RunFiles, request: TrainRequest) -> TrainResult:
        stored = self._keeper.stored(files, request.step)
        if stored is None:
            what = "the step was trained long ago, and its result is not kept any more"
            raise stale(what, request.step, self.trained_step + 1)
        digest, result = stored
        if digest != request.digest:
            raise ServiceMismatch(
                f"step {request.step} was trained on another batch",
                got=f"digest {request.digest}",
                allowed=f"digest {digest}",
                hint=RESUME,
                code="other_content",
            )
        return result.again(self.trained_step)

    # ---------------------------------------------------------------------------------------- checkpoints and restores

    def checkpoint(self, request: CheckpointRequest) -> Checkpointed:
        """Save; only once that is whole, what the trainer has no checkpoint of any more is removed.

        Raises:
            ServiceError: another run or step, no room on the disk, or weights that are not finite.
        """
        files, step = self._bindings.require(request.run), request.step
        self._require_step(step)
        store, held = files.store, self._keeper.critic
        if store.at(step) is None:
            with writing(f"the checkpoint of step {step} could not be written"), self._keeper.turn():
                store.save(
                    step,
                    lambda folder: held.write(folder, step=step, run=request.run),
                    meta={"run": request.run, "model": self.card.model},
                )
        self._prune(files, {step, *request.keep})
        digest = digest_file(store.folder / f"step-{step}" / MANIFEST)
        return Checkpointed(request.run, step, f"step-{step}", digest)

    def _prune(self, files: RunFiles, keep: set[int]) -> None:
        store = files.store
        store.discard(step for step in store.steps() if step not in keep)
        oldest = min(store.steps())
        try:
            files.journal.drop_through(oldest)
        except OSError as error:
            logger.warning("old steps stay in the journal: %s", error, extra=self._keeper.labels())
        self._keeper.forget_results(lambda step: step <= oldest)

    def restore(self, request: RestoreRequest) -> Restored:
        """Go back to a checkpoint; step 0 without a digest begins a run with the initial weights.

        Raises:
            ServiceError: another run has the critic, or there is no such checkpoint.
        """
        self._bindings.require_free(request.run)
        files = self._bindings.of(request.run)
        checkpoint = self._wanted(files, request)
        with writing(f"the run {request.run} could not be taken back to step {request.step}"):
            try:
                self._go_back(files, checkpoint)
            except BaseException:
                self._keeper.restart()
                raise
        logger.info("restored", extra=self._keeper.labels())
        return Restored(request.run, self.trained_step)

    def _wanted(self, files: RunFiles, request: RestoreRequest) -> Checkpoint | None:
        if request.digest is None:
            if request.step:
                what = "a checkpoint is restored by its digest"
                raise unprocessable(what, f"step {request.step} without one", "step 0, for a new run")
            return None
        files.clean()
        found = files.store.at(request.step)
        digest = None if found is None else digest_file(found.path / MANIFEST)
        if found is None or digest != request.digest:
            there = [f"step {s}{f' ({digest})' if s == request.step else ''}" for s in files.store.steps()]
            raise ServiceMismatch(
                "the checkpoint that the trainer's belongs to is not here",
                got=f"run {request.run}, step {request.step} ({request.digest})",
                allowed=", ".join(there) or "no checkpoint of that run",
                hint="start the service with the serve.dir of that run, or begin a new run under another run.name",
                code="no_such_checkpoint",
            )
        if found.meta.get("model") != self.card.model:
            raise ServiceMismatch(
                "the checkpoint is of another critic",
                got=f"a critic that began as {found.meta.get('model')}",
                allowed=f"one that began as {self.card.model}",
                hint="start the service with the model that the run began with",
                code="mismatch",
            )
        return found

    def _go_back(self, files: RunFiles, checkpoint: Checkpoint | None) -> None:
        keeper = self._keeper
        if checkpoint is None:
            files.forget()
        else:
            files.go_back(checkpoint.step)
        files.write_card(self.card)
        self._bindings.bind(files.run)
        if checkpoint is None:
            keeper.start_over()
        else:
            keeper.load(checkpoint)
        keeper.forget_results(lambda step: True)

    def release(self, request: ReleaseRequest) -> Released:
        """The run is over: another may have the critic at once."""
        with writing("the end of the run could not be noted"):
            self._bindings.release(request.run)
        return Released(request.run)
