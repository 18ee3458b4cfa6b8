"""A step's updates: epochs of minibatches, each one optimizer step over all its micro-batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from surefoot import algo
from surefoot.config import Config
from surefoot.models.batching import MicroBatch
from surefoot.models.critic import SeparateCritic, SharedCritic
from surefoot.models.policy import CausalPolicy
from surefoot.parallel.lanes import in_lanes
from surefoot.parallel.rng import generator
from surefoot.training.critic_update import Minibatches, ServedCritic, Update, cut, position_of, update_critic
from surefoot.training.estimate import Batch
from surefoot.training.losses import Coefficients, Counts, PolicyLoss, PolicyOutput, policy_terms, value_term
from surefoot.training.optimizer import Optimizer


@dataclass(frozen=True)
class Updates:
    """All updates of a step.

    Attributes:
        policy: of the policy, with a shared critic.
        critic: of a separate critic.
        kl_after: k3(old, new) per action token that the updates led to; measured for ``surrogate: kl`` only.
        seconds: ``critic_train`` and ``critic_wait``, where the critic was trained beside the policy: how long that
            took, and how much of it after the policy was done.
    """

    policy: tuple[Update, ...] = ()
    critic: tuple[Update, ...] = ()
    kl_after: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Work:
    """What a step's policy updates are made from."""

    batch: Batch
    cfg: Config
    coef: Coefficients
    frozen: bool


@dataclass
class _Sums:
    """What a minibatch's micro-batches add up to."""

    loss: float = 0.0
    policy: float = 0.0
    value: float = 0.0
    clipped: float = 0.0
    kl: float = 0.0


@dataclass
class Learner:
    """What is trained, and with which optimizers.

    Attributes:
        policy, critic: the models.
        policy_optimizer: of the policy, and of a shared critic's head.
        critic_optimizer: of a separate critic in this process, else None.
    """

    policy: CausalPolicy
    critic: SeparateCritic | SharedCritic | ServedCritic
    policy_optimizer: Optimizer
    critic_optimizer: Optimizer | None


def plan_minibatches(batch: Batch, cfg: Config, step: int) -> Minibatches:
    """Rows of each minibatch of each epoch: a new order every epoch, sizes as even as can be, none empty."""
    rows = batch.trained_rows
    plan = []
    for epoch in range(cfg.ppo.epochs):
        order = generator(cfg.run.seed, "minibatch", step=step, index=epoch).permutation(len(rows))
        count = min(cfg.ppo.minibatches, len(rows))
        cuts = [len(rows) * i // count for i in range(count + 1)] if count else [0]
        plan.append([[rows[i] for i in order[a:b]] for a, b in pairwise(cuts)])
    return plan


def optimise(
    learner: Learner, batch: Batch, cfg: Config, coef: Coefficients, *, step: int, warming_up: bool = False
) -> Updates:
    """Run a step's updates.

    Args:
        learner: what to train.
        batch: estimates of one rollout.
        cfg: sections ``ppo`` and ``run``.
        coef: coefficients now.
        step: seeds the order of minibatches.
        warming_up: only the critic is trained.
    """
    if not batch.trained_rows:
        if isinstance(learner.critic, ServedCritic):
            list(learner.critic.update(batch, (), step=step))
        return Updates(
            tuple(Update(e, 0, skipped=True) for e in range(cfg.ppo.epochs) for _ in range(cfg.ppo.minibatches))
        )
    plan = plan_minibatches(batch, cfg, step)
    # Schedules go by the planned steps, wherever the last step's updates were stopped.
    for optimizer in (learner.policy_optimizer, learner.critic_optimizer):
        if optimizer is not None:
            optimizer.move_to(position_of(step, cfg))
    work = _Work(batch, cfg, coef, frozen=warming_up)
    shared = isinstance(learner.critic, SharedCritic)
    policy_clock, critic_clock = _Lasting(), _Lasting()

    def policy_work() -> Iterator[Update]:
        return iter(()) if warming_up and not shared else policy_clock.over(_policy_updates(learner, work, plan))

    def critic_work() -> Iterator[Update]:
        if isinstance(learner.critic, SharedCritic):
            return iter(())
        if isinstance(learner.critic, ServedCritic):
            return critic_clock.over(learner.critic.update(batch, plan, step=step))
        assert learner.critic_optimizer is not None
        return critic_clock.over(update_critic(learner.critic, learner.critic_optimizer, batch, plan, cfg))

    seconds = {}
    served = isinstance(learner.critic, ServedCritic)
    together = cfg.critic.overlap if served else cfg.batch.side_by_side == "on"
    if together and not shared and not warming_up:
        # A critic elsewhere only has to be waited for.
        interrupt = learner.critic.interrupt if isinstance(learner.critic, ServedCritic) else lambda: None
        critic, policy = in_lanes((critic_work, policy_work), share_threads=not served, interrupt=interrupt)
        waited = max(0.0, critic_clock.ended - policy_clock.ended)
        seconds = {"critic_train": critic_clock.ended - critic_clock.begun, "critic_wait": waited}
    else:
        policy, critic = list(policy_work()), list(critic_work())
    measured = cfg.ppo.surrogate == "kl" and not warming_up
    kl_after = update_kl(learner.policy, batch) if measured else None
    return Updates(tuple(policy), tuple(critic), kl_after, seconds)


@dataclass
class _Lasting:
    """When a piece of work began and ended."""

    begun: float = 0.0
    ended: float = 0.0

    def over(self, updates: Iterator[Update]) -> Iterator[Update]:
        self.begun = time.perf_counter()
        yield from updates
        self.ended = time.perf_counter()


def update_kl(policy: CausalPolicy, batch: Batch) -> float:
    """Mean k3(old, new) per action token of the policy as it is now; the batch has at least one."""
    now = torch.from_numpy(policy.evaluate(batch.rollout).logp)
    return float(algo.kl(batch.old_logp, now, "k3")[batch.mask].mean())


def _policy_updates(learner: Learner, work: _Work, plan: Minibatches) -> Iterator[Update]:
    limit = work.cfg.ppo.max_update_kl
    for epoch, minibatches in enumerate(plan):
        for rows in minibatches:
            counts = Counts.of(work.batch, rows)
            sums = _Sums()
            for micro in cut(work.batch, rows, learner.policy.plan, learner.policy.lm.device):
                _backward(learner, micro, work, counts, sums)
            kl = sums.kl / counts.tokens
            update = Update(
                epoch,
                counts.tokens,
                policy_loss=None if work.frozen else sums.policy,
                value_loss=sums.value if learner.critic.shared else None,
                clip_fraction=None if work.frozen else sums.clipped / counts.tokens,
                kl=None if work.frozen else kl,
            )
            if not work.frozen and limit is not None and kl > limit:
                learner.policy_optimizer.zero()
                yield replace(update, stopped=True)
                return
            outcome = learner.policy_optimizer.step(sums.loss)
            yield replace(
                update,
                grad_norm=None if work.frozen else outcome.grad_norm,
                lr=outcome.lr,
                skipped=outcome.skipped,
                head_grad_norm=outcome.other_norms[0] if outcome.other_norms else None,
            )


def _backward(learner: Learner, micro: MicroBatch, work: _Work, counts: Counts, sums: _Sums) -> None:
    """One forward and backward pass; its loss is its share of the minibatch's."""
    ppo = work.cfg.ppo
    policy = learner.policy
    known = PolicyLoss.of(micro, work.batch, counts, ppo, work.coef, policy.lm.device)
    with torch.set_grad_enabled(not work.frozen):
        logp, entropy, states = policy.forward(micro, entropy=ppo.entropy_coef > 0, slopes=known.slopes)
    loss: Tensor | None = None
    if not work.frozen:
        terms = policy_terms(PolicyOutput(logp, entropy), known)
        loss = terms.loss
        sums.policy += float(terms.loss.detach())
        sums.clipped += terms.clipped
        sums.kl += terms.kl
    if isinstance(learner.critic, SharedCritic):
        value = value_term(learner.critic.head(states), micro, work.batch, counts, ppo)
        sums.value += float(value.detach())
        weighted = ppo.value_coef * value
        loss = weighted if loss is None else loss + weighted
    if loss is not None:
        sums.loss += float(loss.detach())
        torch.autograd.backward(loss)
