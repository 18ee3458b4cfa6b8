"""From a step's result to its rollout record."""

from __future__ import annotations

from pathlib import Path

from surefoot.config import Config
from surefoot.training.samples import SampleSettings, write_samples
from surefoot.training.step import StepResult


def record_step(path: Path, result: StepResult, cfg: Config) -> None:
    """Write every trajectory of a step with all that its advantages rest on."""
    batch, reading = result.batch, result.reading
    count, mean, variance = batch.moments
    settings = SampleSettings(
        step=result.report.step,
        gamma=cfg.ppo.gamma,
        lam=cfg.ppo.lam,
        kl_coef=batch.kl_coef if cfg.ppo.kl.place == "reward" else None,
        whiten=(int(count), mean, variance) if cfg.ppo.whiten else None,
        bootstrap=batch.bootstrap.numpy(),
        shaped_scores=batch.scores.numpy(),
        mask=batch.rollout.mask,
        more={"sampling": dict(result.sampled.info)},
    )
    columns = {
        "logp": reading.logp,
        "ref_logp": reading.ref_logp,
        "values": reading.values,
        "rewards": batch.rewards.numpy(),
        "advantages": batch.advantages.numpy(),
        "returns": batch.returns.numpy(),
        "entropy": reading.entropy,
    }
    write_samples(path, result.sampled, columns, result.scores, settings)
