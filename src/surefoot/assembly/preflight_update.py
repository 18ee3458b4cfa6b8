"""One update, in memory, as the last thing of a check: an update of nothing changes nothing, a real one has sound
gradients, and the learning rate is one that a policy survives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch

from surefoot import algo
from surefoot.assembly.preflight_identities import Start, largest_gap
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config
from surefoot.rewards import score_metrics
from surefoot.training.clock import StepClock
from surefoot.training.report import StepFacts, report
from surefoot.training.step import Parts
from surefoot.training.update import Updates, optimise

LARGE_CLIP: Final = 0.5
LARGE_KL: Final = 0.25
"""Share of clipped ratios, and KL per token, after one update, from which the learning rate is suspect."""
HELD_OUT: Final = ("evaluate/score_mean", "evaluate/score_low", "evaluate/score_high")


def check_update(config: Config, parts: Parts, start: Start, verdicts: Verdicts) -> None:
    """An update of nothing changes nothing; one of everything is sound. The policy is another one afterwards."""
    nothing = replace(start.batch, mask=torch.zeros_like(start.batch.mask))
    one = config.model_copy(update={"ppo": config.ppo.model_copy(update={"epochs": 1, "minibatches": 1})})
    updates = optimise(parts.learner, nothing, one, start.coef, step=1)
    gap = largest_gap(start.reading.logp, parts.learner.policy.evaluate(start.rollout).logp)
    if gap or not all(update.skipped for update in (*updates.policy, *updates.critic)):
        verdicts.problem("update/nothing", "an update on no tokens changed the policy", "report this as a bug", gap=gap)
    else:
        verdicts.ok("update/nothing", "an update on no tokens leaves the policy as it is")
    done = verdicts.attempt("update/one", lambda: optimise(parts.learner, start.batch, one, start.coef, step=1))
    if done is not None:
        _check_one(config, parts, start, done, verdicts)
        _check_metric_names(config, start, done, verdicts)


def _check_one(config: Config, parts: Parts, start: Start, done: Updates, verdicts: Verdicts) -> None:
    bad = [u for u in (*done.policy, *done.critic) if u.skipped]
    norm = done.policy[0].grad_norm if done.policy else None
    if bad or norm is None:
        verdicts.problem(
            "update/one",
            "the first update has a loss or gradient that is not finite",
            "look at the reward's values; model.dtype: float32 has the most room",
        )
        return
    mask = start.batch.mask
    new = torch.from_numpy(np.ascontiguousarray(parts.learner.policy.evaluate(start.rollout).logp))
    kl = float(algo.kl(start.batch.old_logp, new, "k3")[mask].mean())
    clipped = float(
        algo.clip_fraction(
            new, start.batch.old_logp, mask, clip_low=config.ppo.clip_low, clip_high=config.ppo.clip_high
        )
    )
    what = f"one update: gradient norm {norm:.3g}, KL(old, new) {kl:.2g} per token, {clipped:.1%} of the ratios clipped"
    evidence = {"grad_norm": norm, "kl": kl, "clip_fraction": clipped}
    if not np.isfinite(kl):
        verdicts.problem(
            "update/one",
            f"after one update the log-probabilities are not finite (gradient norm {norm:.3g})",
            "lower optim.policy_lr; with float16 weights Adam divides by zero: use model.dtype: bfloat16 or float32",
            grad_norm=norm,
        )
    elif clipped > LARGE_CLIP or kl > LARGE_KL:
        verdicts.warn(
            "update/one",
            what,
            "a single update moves the policy a long way: lower optim.policy_lr, or add optim.warmup_steps",
            **evidence,
        )
    elif norm == 0:
        verdicts.warn("update/one", what, "nothing moves the policy: look at the reward's values", **evidence)
    elif torch.equal(new, start.batch.old_logp):
        verdicts.warn(
            "update/one",
            what,
            f"the update is lost in rounding: weights in {config.model.dtype} cannot hold a change as small as "
            f"optim.policy_lr: {config.optim.policy_lr:g}; use model.lora, model.dtype: float32, or a higher rate",
            **evidence,
        )
    else:
        verdicts.ok("update/one", what, **evidence)


def _check_metric_names(config: Config, start: Start, done: Updates, verdicts: Verdicts) -> None:
    """``checkpoint.best_by`` must name a metric that steps report, else no best checkpoint is ever kept."""
    wanted = config.checkpoint.best_by
    if wanted is None:
        return
    facts = StepFacts(
        1, start.rollout, start.scores, score_metrics(start.scores), start.reading, start.batch, done, 0.0, 0.0, False
    )
    known = {*report(facts, config, StepClock()).metrics, *(HELD_OUT if config.evaluate.prompts else ())}
    if wanted in known:
        verdicts.ok("config/best_by", f"checkpoint.best_by: {wanted} is a metric of this run")
    else:
        like = sorted(name for name in known if name.partition("/")[0] in ("score", "reward", "evaluate"))
        verdicts.problem(
            "config/best_by",
            f"checkpoint.best_by: {wanted} is no metric of this run, so no best checkpoint would be kept",
            f"choose one of {', '.join(like)}",
        )
