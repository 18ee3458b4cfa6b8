"""What ends a run before its last step, with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surefoot.config import StopSection
from surefoot.records import StepReport


class Stopping:
    """Watches held-out scores and the KL to the reference.

    Args:
        cfg: the config's ``stop`` section.
    """

    def __init__(self, cfg: StopSection) -> None:
        self.cfg = cfg
        self.best: float | None = None
        self.evaluations_since_best = 0

    def after_step(self, report: StepReport) -> str | None:
        """The reason to stop after this step, or None."""
        kl, budget = report.metrics.get("kl/reference_k1"), self.cfg.kl_budget
        if budget is not None and kl is not None and kl > budget:
            return f"the KL to the reference passed its budget: {kl:.3f} > {budget:g} nats per trajectory"
        return None

    def after_evaluation(self, score: float | None) -> str | None:
        """The reason to stop after a held-out score, or None. Call it once per evaluation."""
        if score is None:
            return None
        if self.best is None or score > self.best:
            self.best, self.evaluations_since_best = score, 0
        else:
            self.evaluations_since_best += 1
        if self.cfg.score is not None and score >= self.cfg.score:
            return f"the held-out score reached {score:.4f}, at least {self.cfg.score:g}"
        if self.cfg.patience is not None and self.evaluations_since_best >= self.cfg.patience:
            return f"no better held-out score in {self.evaluations_since_best} evaluations (best {self.best:.4f})"
        return None

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"best": self.best, "evaluations_since_best": self.evaluations_since_best}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.best, self.evaluations_since_best = state["best"], int(state["evaluations_since_best"])
