"""Supervised fine-tuning: one optimizer step on demonstrations, and the loss on held-out ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surefoot.data.demonstrations import Encoded
from surefoot.models.batching import micro_batches
from surefoot.models.policy import CausalPolicy
from surefoot.models.scoring import score_rollout
from surefoot.records import Rollout, StepReport, Trajectory
from surefoot.training.clock import StepClock
from surefoot.training.losses import Counts, share
from surefoot.training.optimizer import Optimizer
from surefoot.training.stage import HeldOutLoss, optimizer_metrics, resource_metrics

READ_AT_ONCE = 64
LARGEST_LOSS = 700.0


@dataclass(frozen=True)
class SFTParts:
    """What a step works with."""

    policy: CausalPolicy
    optimizer: Optimizer


def as_rollout(rows: Sequence[Encoded]) -> Rollout:
    """Demonstrations in the one layout: the trained tokens are the action tokens."""
    return Rollout.of([Trajectory(row.tokens.tolist(), row.mask.tolist()) for row in rows])


def sft_step(step: int, rows: Sequence[Encoded], parts: SFTParts, clock: StepClock) -> StepReport:
    """One optimizer step: the mean negative log-probability of all trained tokens of these rows.

    Args:
        step: from 1.
        rows: of this step.
        parts: what to work with; the optimizer moves on.
        clock: times the update.
    Raises:
        TrainingError: losses or gradients stayed non-finite for too long.
    """
    policy, batch = parts.policy, as_rollout(rows)
    counts = Counts(tokens=int(batch.mask.sum()), sequences=batch.num_rows)
    loss, slope = 0.0, -1.0 / max(counts.tokens, 1)

    def slopes(_: slice, logp: Tensor) -> tuple[Tensor, None]:
        return torch.full_like(logp, slope), None

    with clock("update"):
        device, plan = policy.lm.device, policy.plan
        for micro in micro_batches(
            batch, range(batch.num_rows), tokens=plan.tokens, packed=plan.packed(device), device=device
        ):
            logp, _, _ = policy.forward(micro, slopes=slopes)
            part = share(-logp, micro, counts, "token-mean")
            part.backward()
            loss += float(part.detach())
        outcome = parts.optimizer.step(loss)
    metrics = {
        "sft/loss": loss if math.isfinite(loss) else None,
        "sft/rows": batch.num_rows,
        "sft/tokens": counts.tokens,
        **optimizer_metrics("sft", outcome),
        **resource_metrics(clock, tokens=int(batch.lengths.sum())),
    }
    return StepReport(step, metrics)


def held_out_loss(step: int, rows: Sequence[Encoded], policy: CausalPolicy) -> HeldOutLoss:
    """Loss and perplexity on held-out demonstrations, each token counting once.

    Args:
        step: after which.
        rows: at least one.
        policy: as it is now; not changed.
    """
    total, tokens, records = 0.0, 0, []
    for start in range(0, len(rows), READ_AT_ONCE):
        part = rows[start : start + READ_AT_ONCE]
        scores = score_rollout(policy.lm.trunk, as_rollout(part), policy.plan, head=policy.lm.head, want_entropy=False)
        assert scores.logp is not None
        for row, logp in zip(part, scores.logp, strict=True):
            count = int(row.mask.sum())
            loss = -float(logp[: len(row.mask)][row.mask].sum(dtype="float64"))
            total, tokens = total + loss, tokens + count
            records.append({"id": row.id, "tokens": count, "loss": loss / count})
    mean = total / tokens
    metrics = {
        "evaluate/loss": mean,
        "evaluate/perplexity": math.exp(min(mean, LARGEST_LOSS)) if math.isfinite(mean) else None,
        "evaluate/tokens": tokens,
        "evaluate/rows": len(rows),
    }
    line = f"held-out loss after step {step}: {mean:.4f}  perplexity {math.exp(min(mean, LARGEST_LOSS)):.3f}"
    return HeldOutLoss(step, mean, metrics, records, f"{line}  {len(rows)} rows, {tokens} tokens")
