"""The losses of one micro-batch, as its share of the loss of the whole minibatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from surefoot import algo
from surefoot.config import PPOSection
from surefoot.models.batching import MicroBatch
from surefoot.records import Rollout
from surefoot.training.estimate import Batch


class ValueBatch(Protocol):
    """What training a critic needs of a step's batch; tensors ``[B, T]`` on the CPU, 0 off the mask."""

    @property
    def rollout(self) -> Rollout:
        """The trajectories."""
        ...

    @property
    def mask(self) -> Tensor:
        """Bool: action tokens."""
        ...

    @property
    def values(self) -> Tensor:
        """Before the update."""
        ...

    @property
    def returns(self) -> Tensor:
        """What the values should have been."""
        ...


@dataclass(frozen=True)
class Counts:
    """Denominators of a whole minibatch: action tokens, and trajectories that have any."""

    tokens: int
    sequences: int

    @classmethod
    def of(cls, batch: ValueBatch, rows: list[int]) -> Counts:
        """Count the action tokens of some rows."""
        per_row = batch.mask[rows].sum(dim=1)
        return cls(int(per_row.sum()), int((per_row > 0).sum()))

    def denominator(self, how: str) -> int:
        """What :func:`surefoot.algo.aggregate` divides by."""
        return self.tokens if how == "token-mean" else self.sequences


@dataclass(frozen=True)
class Coefficients:
    """What weighs the terms of a policy loss now.

    Attributes:
        kl: coefficient of the KL to the reference, where it is a loss term.
        surrogate_kl: coefficient of the penalty of ``surrogate: kl``.
    """

    kl: float = 0.0
    surrogate_kl: float = 0.0


@dataclass(frozen=True)
class PolicyOutput:
    """A policy's differentiable view of n action tokens.

    Attributes:
        logp: ``[n]`` log-probabilities.
        entropy: ``[n]`` entropies, or None without an entropy bonus.
    """

    logp: Tensor
    entropy: Tensor | None


@dataclass(frozen=True)
class PolicyTerms:
    """A micro-batch's share of the minibatch's policy loss, and sums for the metrics.

    Attributes:
        loss: differentiable share of the total policy loss.
        surrogate: share of the surrogate alone.
        clipped, kl, entropy: sums over tokens of clip indicators, k3(old, new) and entropies.
    """

    loss: Tensor
    surrogate: float
    clipped: float
    kl: float
    entropy: float


def gather(x: Tensor, micro: MicroBatch, device: torch.device) -> Tensor:
    """``[n]`` entries of a ``[B, T]`` array at a micro-batch's action tokens."""
    rows, columns = micro.where
    return x[torch.from_numpy(rows), torch.from_numpy(columns)].to(device)


def share(x: Tensor, micro: MicroBatch, counts: Counts, how: str) -> Tensor:
    """A micro-batch's share of an aggregated loss: its own sum over the whole minibatch's count.

    Args:
        x: ``[n]`` per-token losses.
        micro: where they belong.
        counts: of the whole minibatch.
        how: aggregation.
    """
    columns = torch.from_numpy(micro.where[1]).to(x.device)
    local = torch.from_numpy(micro.local).to(x.device)
    width = int(micro.where[1].max()) + 1 if len(micro.where[1]) else 1
    shape = (len(micro.rows), width)
    dense = torch.zeros(shape, dtype=x.dtype, device=x.device).index_put((local, columns), x)
    mask = torch.zeros(shape, dtype=torch.bool, device=x.device)
    mask[local, columns] = True
    return algo.aggregate(dense, mask, how, count=counts.denominator(how))


@dataclass(frozen=True)
class PolicyLoss:
    """The policy's loss on one micro-batch, as a function of its numbers.

    Attributes:
        old, advantages: ``[n]``, of its action tokens.
        weights: ``[n]`` importance weights, or None.
        reference: ``[n]`` log-probabilities of the reference where KL is a loss term, or None.
        shares: ``[n]``: what one of each token's loss adds to the minibatch's.
        cfg: the config's ``ppo`` section.
        coef: coefficients now.
    """

    old: Tensor
    advantages: Tensor
    weights: Tensor | None
    reference: Tensor | None
    shares: Tensor
    cfg: PPOSection
    coef: Coefficients

    @classmethod
    def of(
        cls,
        micro: MicroBatch,
        batch: Batch,
        counts: Counts,
        cfg: PPOSection,
        coef: Coefficients,
        device: torch.device,
    ) -> PolicyLoss:
        """Gather what the loss needs: of which tokens, with which estimates, out of how many."""
        old = gather(batch.old_logp, micro, device)
        one = torch.zeros_like(old, requires_grad=True)
        with torch.enable_grad():
            (shares,) = torch.autograd.grad(share(one, micro, counts, cfg.aggregate), one)
        penalised = coef.kl and cfg.kl.place == "loss"
        return cls(
            old,
            gather(batch.advantages, micro, device),
            None if batch.weights is None else gather(batch.weights, micro, device),
            gather(batch.ref_logp, micro, device) if penalised else None,
            shares,
            cfg,
            coef,
        )

    def surrogate(self, logp: Tensor, rows: slice = slice(None)) -> Tensor:
        """The share of the minibatch's surrogate loss that ``[k]`` log-probabilities of these tokens make."""
        cfg, old, advantages = self.cfg, self.old[rows], self.advantages[rows]
        if cfg.surrogate == "kl":
            per_token = algo.kl_policy_loss(logp, old, advantages, coef=self.coef.surrogate_kl)
        else:
            per_token = algo.policy_loss(
                logp, old, advantages, clip_low=cfg.clip_low, clip_high=cfg.clip_high, dual_clip=cfg.dual_clip
            )
        if self.weights is not None:
            per_token = per_token * self.weights[rows]
        return (self.shares[rows] * per_token).sum()

    def penalty(self, logp: Tensor, rows: slice = slice(None)) -> Tensor | None:
        """That of the KL to the reference, where it is a loss term."""
        if self.reference is None:
            return None
        kl = algo.kl(logp, self.reference[rows], self.cfg.kl.used_estimator)
        return self.coef.kl * (self.shares[rows] * kl).sum()

    def slopes(self, rows: slice, logp: Tensor) -> tuple[Tensor, Tensor | None]:
        """As :data:`surefoot.models.output_head.Slopes`."""
        with torch.enable_grad():
            own = logp.detach().requires_grad_()
            loss, penalty = self.surrogate(own, rows), self.penalty(own, rows)
            (by_logp,) = torch.autograd.grad(loss if penalty is None else loss + penalty, own)
        if not self.cfg.entropy_coef:
            return by_logp, None
        return by_logp, (-self.cfg.entropy_coef * self.shares[rows]).to(logp.dtype)


def policy_terms(output: PolicyOutput, loss: PolicyLoss) -> PolicyTerms:
    """The policy's loss on one micro-batch, and what the metrics need.

    Args:
        output: of the policy on its action tokens.
        loss: of these tokens.
    """
    logp, entropy, cfg = output.logp, output.entropy, loss.cfg
    surrogate, penalty = loss.surrogate(logp), loss.penalty(logp)
    total = surrogate
    if entropy is not None and cfg.entropy_coef:
        total = total - cfg.entropy_coef * (loss.shares * entropy).sum()
    if penalty is not None:
        total = total + penalty
    with torch.no_grad():
        everywhere = torch.ones_like(logp, dtype=torch.bool)[None]
        clipped = algo.clip_fraction(
            logp.detach()[None], loss.old[None], everywhere, clip_low=cfg.clip_low, clip_high=cfg.clip_high
        )
        # k3 of old against new: with samples of the old policy, (r - 1) - log r is unbiased.
        update_kl = algo.kl(loss.old, logp.detach(), "k3")
    return PolicyTerms(
        loss=total,
        surrogate=float(surrogate.detach()),
        clipped=float(clipped) * len(logp),
        kl=float(update_kl.sum()),
        entropy=0.0 if entropy is None else float(entropy.detach().sum()),
    )


def value_term(values: Tensor, micro: MicroBatch, batch: ValueBatch, counts: Counts, cfg: PPOSection) -> Tensor:
    """A micro-batch's share of the value loss, before its coefficient.

    Args:
        values: ``[n]`` differentiable values of the states in which its action tokens were chosen.
        micro, batch, counts: which tokens, with which estimates, out of how many.
        cfg: the config's ``ppo`` section.
    """
    device = values.device
    per_token = algo.value_loss(
        values, gather(batch.values, micro, device), gather(batch.returns, micro, device), clip=cfg.value_clip
    )
    return share(per_token, micro, counts, cfg.aggregate)
