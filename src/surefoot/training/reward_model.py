"""A reward model from pairs: one optimizer step of the Bradley-Terry loss, and the order of held-out pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surefoot import algo
from surefoot.config import RewardModelSection
from surefoot.data.pair_tokens import EncodedPair
from surefoot.evals.calibration import accuracy, log_loss
from surefoot.models.packing import WORTH, shared_length
from surefoot.models.score_model import ScoreModel, texts_batch
from surefoot.parallel.rng import generator
from surefoot.records import FloatArray, IntArray, StepReport
from surefoot.training.clock import StepClock
from surefoot.training.optimizer import Optimizer
from surefoot.training.report import Metrics
from surefoot.training.stage import HeldOutLoss, optimizer_metrics, resource_metrics


@dataclass(frozen=True)
class PreferenceParts:
    """What a step works with.

    Attributes:
        model, optimizer: what is trained.
        counts: ``[k, N]`` how often each head's bootstrap has each of the N training pairs; None: each once.
    """

    model: ScoreModel
    optimizer: Optimizer
    counts: IntArray | None = None


def bootstrap(heads: int, pairs: int, seed: int) -> IntArray | None:
    """``[k, N]`` draws with replacement of N pairs for each head; None for a single head, which sees all."""
    if heads == 1:
        return None
    draws = [generator(seed, "bootstrap", index=head).integers(0, pairs, pairs) for head in range(heads)]
    return np.stack([np.bincount(drawn, minlength=pairs) for drawn in draws]).astype(np.int64)


def preference_step(
    step: int,
    rows: Sequence[int],
    pairs: Sequence[EncodedPair],
    parts: PreferenceParts,
    cfg: RewardModelSection,
    clock: StepClock,
) -> StepReport:
    """One optimizer step: the mean loss of these pairs, averaged over the heads.

    Args:
        step: from 1.
        rows: which of the pairs.
        pairs: all training pairs.
        parts: what to work with; the optimizer moves on.
        cfg: margin and centring.
        clock: times the update.
    Raises:
        TrainingError: losses or gradients stayed non-finite for too long.
    """
    model, chosen = parts.model, [pairs[i] for i in rows]
    loss, scores, tokens = 0.0, np.zeros((len(rows), 2, len(model.heads.weight))), 0
    with clock("update"):
        for group in pair_groups(chosen, model.plan.tokens, packed=model.packed):
            texts = [text for i in group for text in (chosen[i].chosen, chosen[i].rejected)]
            micro = texts_batch(texts, packed=model.packed, device=model.device)
            found = model.forward(micro).unflatten(0, (len(group), 2))
            counts = None if parts.counts is None else parts.counts[:, [rows[i] for i in group]]
            part = pair_loss(found, [chosen[i] for i in group], cfg, counts) * (len(group) / len(rows))
            part.backward()
            loss += float(part.detach())
            scores[group] = found.detach().double().cpu().numpy()
            tokens += micro.input_ids.numel()
        outcome = parts.optimizer.step(loss)
    metrics = {
        "pairs/loss": loss if math.isfinite(loss) else None,
        "pairs/count": len(rows),
        **score_metrics("pairs", scores),
        **optimizer_metrics("pairs", outcome),
        **resource_metrics(clock, tokens=tokens),
    }
    return StepReport(step, metrics)


def pair_loss(
    scores: Tensor, pairs: Sequence[EncodedPair], cfg: RewardModelSection, counts: IntArray | None = None
) -> Tensor:
    """Mean loss of n pairs, averaged over the k heads.

    Args:
        scores: ``[n, 2, k]`` of chosen and rejected.
        pairs: the n pairs.
        cfg: ``margin_scale`` and ``centering``.
        counts: ``[k, n]`` how often each head counts each pair; None: once. A head's sum is divided by n all the same,
            so that the pairs of a batch weigh as in its bootstrap.
    """
    n, heads = scores.shape[0], scores.shape[2]
    margins = torch.tensor(
        [cfg.margin_scale * (pair.margin or 0.0) for pair in pairs], dtype=scores.dtype, device=scores.device
    )
    total = scores.new_zeros(())
    for head in range(heads):
        repeated = np.repeat(np.arange(n), 1 if counts is None else counts[head])
        which = torch.from_numpy(repeated).to(scores.device)
        chosen, rejected = (scores[:, side, head].index_select(0, which) for side in (0, 1))
        margin = margins.index_select(0, which)
        mean = algo.preference_loss(chosen, rejected, margin=margin, centering=cfg.centering)
        total = total + mean * (len(which) / n)
    return total / heads


def pair_groups(pairs: Sequence[EncodedPair], tokens: int, *, packed: bool) -> Iterator[list[int]]:
    """Numbers of pairs in groups of at most ``tokens`` tokens once laid out; one pair always fits.

    Both texts of a pair come together; what they begin with counts once when they are packed.
    """
    group: list[int] = []
    used = longest = 0
    for i in sorted(range(len(pairs)), key=lambda i: (_longest(pairs[i]), i)):
        width = max(longest, _longest(pairs[i]))
        after = used + _packed_size(pairs[i]) if packed else 2 * (len(group) + 1) * width
        if group and after > tokens:
            yield group
            group, width = [], _longest(pairs[i])
            after = _packed_size(pairs[i]) if packed else 2 * width
        group.append(i)
        used, longest = after, width
    if group:
        yield group


def _longest(pair: EncodedPair) -> int:
    return max(len(pair.chosen), len(pair.rejected))


def _packed_size(pair: EncodedPair) -> int:
    shared = shared_length(pair.chosen, pair.rejected)
    return len(pair.chosen) + len(pair.rejected) - (shared if shared >= WORTH else 0)


def pair_scores(model: ScoreModel, pairs: Sequence[EncodedPair]) -> FloatArray:
    """``[n, 2, k]`` scores of chosen and rejected by each head."""
    flat = model.scores([text for pair in pairs for text in (pair.chosen, pair.rejected)])
    return flat.reshape(len(pairs), 2, -1)


def score_metrics(group: str, scores: FloatArray) -> Metrics:
    """Of ``[n, 2, k]`` scores, the heads' mean: how pairs are ordered, and where scores lie."""
    mean = scores.mean(axis=2)
    leads = mean[:, 0] - mean[:, 1]
    metrics: Metrics = {
        f"{group}/accuracy": float((leads > 0).mean()),
        f"{group}/lead_mean": float(leads.mean()),
        f"{group}/scores_mean": float(mean.mean()),
        f"{group}/scores_std": float(mean.std()),
    }
    if scores.shape[2] > 1:
        metrics[f"{group}/spread"] = float(scores.std(axis=2).mean())
    return metrics


def held_out_order(step: int, pairs: Sequence[EncodedPair], model: ScoreModel) -> HeldOutLoss:
    """How the model orders held-out pairs: loss without margin or centring, accuracy with its interval.

    Args:
        step: after which.
        pairs: at least one.
        model: as it is now; not changed.
    """
    scores = pair_scores(model, pairs)
    mean, spread = scores.mean(axis=2), scores.std(axis=2)
    leads = mean[:, 0] - mean[:, 1]
    loss, found = log_loss(leads), accuracy(leads)
    metrics: Metrics = {
        "evaluate/loss": loss,
        "evaluate/pairs": len(pairs),
        "evaluate/accuracy_low": found["low"],
        "evaluate/accuracy_high": found["high"],
        **score_metrics("evaluate", scores),
    }
    records = [
        {
            "id": pair.id,
            "chosen": float(good),
            "rejected": float(bad),
            "margin": pair.margin,
            **({} if scores.shape[2] == 1 else {"spread": [float(gap) for gap in gaps]}),
        }
        for pair, (good, bad), gaps in zip(pairs, mean, spread, strict=True)
    ]
    share, low, high = (found[name] or 0.0 for name in ("accuracy", "low", "high"))
    line = f"held-out accuracy after step {step}: {share:.3f}  (95 % {low:.3f} to {high:.3f})  loss {loss:.4f}"
    return HeldOutLoss(step, loss, metrics, records, f"{line}  {len(pairs)} pairs")
