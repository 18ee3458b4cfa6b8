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
        what: what held-out rows are measured by.
        lower: less of it is better; scores are then handed in with their sign turned.
    """

    def __init__(self, cfg: StopSection, *, what: str = "held-out score", lower: bool = False) -> None:
        self.cfg, self.what, self.sign = cfg, what, -1.0 if lower else 1.0
        self.best: float | None = None
        self.evaluations_since_best = 0
        self._kl: float | None = None
        self._score: float | None = None

    def after_step(self, report: StepReport) -> str | None:
        """The reason to stop after this step, or None."""
        self._kl, self._score = report.metrics.get("kl/reference_k1"), None
        return self.reason()

    def after_evaluation(self, score: float | None) -> str | None:
        """The reason to stop after a held-out score, or None. Call it once per evaluation."""
        self._score = score
        if score is not None and (self.best is None or score > self.best):
            self.best, self.evaluations_since_best = score, 0
        elif score is not None:
            self.evaluations_since_best += 1
        return self.reason()

    def reason(self) -> str | None:
        """The reason to stop where the run stands, or None; the same after a resume."""
        kl, score, budget = self._kl, self._score, self.cfg.kl_budget
        if budget is not None and kl is not None and kl > budget:
            return f"the KL to the reference passed its budget: {kl:.3f} > {budget:g} nats per trajectory"
        if score is None:
            return None
        if self.cfg.score is not None and score >= self.cfg.score:
            return f"the {self.what} reached {score:.4f}, at least {self.cfg.score:g}"
        if self.cfg.patience is not None and self.evaluations_since_best >= self.cfg.patience:
            best = self.sign * (self.best or 0.0)
            return f"no better {self.what} in {self.evaluations_since_best} evaluations (best {best:.4f})"
        return None

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "best": self.best,
            "evaluations_since_best": self.evaluations_since_best,
            "kl": self._kl,
            "score": self._score,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.best, self.evaluations_since_best = state["best"], int(state["evaluations_since_best"])
        self._kl, self._score = state["kl"], state["score"]
