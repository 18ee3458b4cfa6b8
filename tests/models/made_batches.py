"""Batches with estimates that need no reward, and the gradients that the product's own update makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.config import Config
from surefoot.models.critic import SharedCritic
from surefoot.models.policy import CausalPolicy
from surefoot.models.scoring import BatchPlan
from surefoot.records import Rollout
from surefoot.training.estimate import Batch
from surefoot.training.losses import Coefficients
from surefoot.training.optimizer import Optimizer
from surefoot.training.update import Learner, Update, optimise

NO_STEP = 1e-300


class RecordingOptimizer(Optimizer):
    """The product's optimizer, which also keeps the gradients of each step."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.gradients: list[dict[str, Tensor]] = []

    def step(self, loss: float) -> Any:
        zeros = {n: torch.zeros_like(p) for n, p in self.named.items()}
        self.gradients.append({n: zeros[n] if p.grad is None else p.grad.clone() for n, p in self.named.items()})
        return super().step(loss)


@dataclass(frozen=True)
class Gradients:
    """What one optimizer step saw."""

    by_name: dict[str, Tensor]
    update: Update

    @property
    def loss(self) -> tuple[float, float]:
        """Of the policy and of the critic."""
        return self.update.policy_loss or 0.0, self.update.value_loss or 0.0


def config_of(ppo: dict[str, Any], **sections: Any) -> Config:
    """A config with one epoch of one minibatch, and plain gradients unless told otherwise."""
    plain = {"optim": {"policy_lr": NO_STEP, "max_grad_norm": None}}
    return Config.model_validate({"ppo": {"epochs": 1, "minibatches": 1} | ppo} | plain | sections)


def batch_of(rollout: Rollout, arrays: dict[str, np.ndarray], dtype: torch.dtype) -> Batch:
    """A batch from ``old_logp``, ``values``, ``returns`` and ``advantages`` in our layout."""
    tensors = {name: torch.from_numpy(array).to(dtype) for name, array in arrays.items()}
    nothing = torch.zeros(rollout.tokens.shape, dtype=dtype)
    return Batch(
        rollout=rollout,
        mask=torch.from_numpy(rollout.mask),
        old_logp=tensors["old_logp"],
        ref_logp=tensors["old_logp"],
        values=tensors["values"],
        kl=nothing,
        scores=nothing[:, 0],
        rewards=nothing,
        returns=tensors["returns"],
        advantages=tensors["advantages"],
        weights=None,
        bootstrap=nothing[:, 0],
        kl_coef=0.0,
        moments=(1.0, 0.0, 1.0),
    )


def with_rows(batch: Batch, rows: list[int]) -> Batch:
    """The same batch with its rows in another order, or fewer of them."""
    rollout = batch.rollout
    numpy = {name: getattr(rollout, name)[rows] for name in ("tokens", "mask", "lengths")}
    fewer = replace(
        rollout,
        **numpy,
        stop_reasons=tuple(rollout.stop_reasons[r] for r in rows),
        trajectories=tuple(rollout.trajectories[r] for r in rows),
    )
    names = ("mask", "old_logp", "ref_logp", "values", "kl", "scores", "rewards", "returns", "advantages", "bootstrap")
    return replace(batch, rollout=fewer, **{name: getattr(batch, name)[rows] for name in names})


def with_garbage(batch: Batch, columns: int) -> Batch:
    """The same batch, wider, with garbage wherever no token is an action token."""
    rollout = batch.rollout
    wide = np.pad(rollout.tokens, ((0, 0), (0, columns)))
    beyond = np.arange(wide.shape[1]) >= rollout.lengths[:, None]
    wide[beyond] = np.resize([-7, 10**9, 3, 127], int(beyond.sum()))
    mask = np.pad(rollout.mask, ((0, 0), (0, columns)))

    def spoilt(x: Tensor) -> Tensor:
        out = torch.full(mask.shape, torch.nan, dtype=x.dtype)
        out[:, : x.shape[1]] = x
        return torch.where(torch.from_numpy(mask), out, torch.nan)

    arrays = ("old_logp", "ref_logp", "values", "kl", "rewards", "returns", "advantages")
    return replace(
        batch,
        rollout=replace(rollout, tokens=wide, mask=mask),
        mask=torch.from_numpy(mask),
        **{name: spoilt(getattr(batch, name)) for name in arrays},
    )


def gradients_of(
    policy: CausalPolicy, critic: SharedCritic, batch: Batch, cfg: Config, plan: BatchPlan | None = None
) -> Gradients:
    """Gradients of one optimizer step of policy and shared critic; the weights stay as they are."""
    view = CausalPolicy(policy.lm, plan or policy.plan)
    groups = [(NO_STEP, policy.trainable()), (NO_STEP, critic.trainable())]
    optimizer = RecordingOptimizer(groups, cfg.optim, total_steps=1, max_skipped=1)
    learner = Learner(view, SharedCritic(view, critic.head), optimizer, None)
    updates = optimise(learner, batch, cfg, Coefficients(), step=1)
    assert len(updates.policy) == len(optimizer.gradients) == 1
    return Gradients(optimizer.gradients[0], updates.policy[0])
