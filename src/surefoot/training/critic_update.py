"""The critic's share of a step: the same minibatches as the policy's, its own optimizer, wherever it lives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from surefoot.config import Config
from surefoot.models.batching import MicroBatch, micro_batches
from surefoot.models.critic import SeparateCritic
from surefoot.models.scoring import BatchPlan
from surefoot.protocols import Values
from surefoot.records import Rollout, Trajectory
from surefoot.training.losses import Counts, ValueBatch, value_term
from surefoot.training.optimizer import Optimizer

Minibatches = Sequence[Sequence[list[int]]]


class ServedCritic(ABC):
    """A critic that lives in another process, where it is read, trained and saved.

    Attributes:
        updated: whether it has ever made an update that was not skipped.
    """

    shared = False
    updated = False

    @abstractmethod
    def values(self, rollout: Rollout) -> Values:
        """As :meth:`surefoot.models.critic.SeparateCritic.values`."""

    @abstractmethod
    def update(self, batch: ValueBatch, plan: Minibatches, *, step: int) -> Iterator[Update]:
        """As :func:`update_critic`; the service has the optimizer. Once a step, with an empty plan too."""

    @abstractmethod
    def checkpoint(self, step: int, *, keep: Sequence[int]) -> Mapping[str, Any]:
        """Save it as it is after ``step``; what :meth:`restore` needs, JSON.

        Args:
            step: the last step trained.
            keep: steps whose checkpoints the run still has.
        """

    @abstractmethod
    def restore(self, record: Mapping[str, Any] | None) -> None:
        """Put it back to a checkpoint of this run; None: to its initial weights, for a run that begins.

        Raises:
            ServiceMismatch: the service has no such checkpoint, or is another one than before.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """The run is ended at once: whatever is being waited for ends now, with an error."""

    def listeners(self) -> Sequence[Callable[[int, Trajectory], None]]:
        """What wants to hear of a trajectory (row, trajectory) as soon as it has ended."""
        return ()

    def trainable(self) -> dict[str, nn.Parameter]:
        """Nothing that this process trains."""
        return {}


@dataclass(frozen=True)
class Update:
    """One optimizer step, or the decision not to take one.

    Attributes:
        epoch: from 0.
        tokens: action tokens of the minibatch.
        grad_norm: before clipping, None when not finite.
        head_grad_norm: that of a shared critic's head, which is clipped apart from the policy; None without one.
        lr: learning rate.
        skipped: for a non-finite loss or gradient.
        stopped: the step's updates ended here, since KL(old, new) had passed its limit.
        policy_loss, value_loss: of the minibatch, None where that part was not trained.
        clip_fraction, kl: share of clipped ratios and mean k3(old, new) per token, None for a critic's update.
    """

    epoch: int
    tokens: int
    grad_norm: float | None = None
    lr: float = 0.0
    skipped: bool = False
    stopped: bool = False
    policy_loss: float | None = None
    value_loss: float | None = None
    clip_fraction: float | None = None
    kl: float | None = None
    head_grad_norm: float | None = None


def position_of(step: int, cfg: Config) -> int:
    """Where a step's first update stands among all planned ones: schedules go by that, whatever was left out before."""
    return (step - 1) * cfg.ppo.epochs * cfg.ppo.minibatches


def update_critic(
    critic: SeparateCritic, optimizer: Optimizer, batch: ValueBatch, plan: Minibatches, cfg: Config
) -> Iterator[Update]:
    """The critic's share of a step: the same minibatches, its own optimizer.

    Args:
        critic, optimizer: what to train.
        batch: with old values and returns.
        plan: rows of each minibatch of each epoch.
        cfg: section ``ppo``.
    """
    device = next(critic.trunk.parameters()).device
    for epoch, minibatches in enumerate(plan):
        for rows in minibatches:
            counts = Counts.of(batch, rows)
            total = 0.0
            for micro in cut(batch, rows, critic.plan, device):
                value = value_term(critic.forward(micro), micro, batch, counts, cfg.ppo)
                total += float(value.detach())
                torch.autograd.backward(cfg.ppo.value_coef * value)
            outcome = optimizer.step(total)
            yield Update(
                epoch,
                counts.tokens,
                grad_norm=outcome.grad_norm,
                lr=outcome.lr,
                skipped=outcome.skipped,
                value_loss=total,
            )


def cut(batch: ValueBatch, rows: list[int], plan: BatchPlan, device: torch.device) -> Iterable[MicroBatch]:
    """Micro-batches of a minibatch."""
    return micro_batches(batch.rollout, rows, tokens=plan.tokens, packed=plan.packed(device), device=device)
