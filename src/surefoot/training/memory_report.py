"""``memory.json``: what a run's first step took, measured by role and part, beside what was predicted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.models.critic import SeparateCritic, SharedCritic
from surefoot.models.policy import FrozenReference
from surefoot.records import StepReport
from surefoot.rewards import CompositeReward
from surefoot.rewards.model import ModelReward
from surefoot.training.durable import json_bytes, write_file, writing
from surefoot.training.report import peak_memory_gb
from surefoot.training.step import Parts

logger = logging.getLogger("surefoot")


class MemoryReport:
    """A tracker that writes the file after the first step of a process, a resumed one too.

    Args:
        file: where to.
        parts: whose tensors are counted.
        predicted: the plan, in bytes as ``surefoot plan --json`` gives it; None where there is none.
    """

    def __init__(self, file: Path, parts: Parts, predicted: Mapping[str, Any] | None) -> None:
        self.file, self.parts, self.predicted = file, parts, predicted
        self._written = False

    def log(self, report: StepReport) -> None:
        """Write it, once.

        Raises:
            RunError: it could not be written.
        """
        if self._written:
            return
        self._written = True
        found = memory_report(self.parts, self.predicted, step=report.step)
        with writing(self.file):
            write_file(self.file, json_bytes(found, indent=1))
        expected = found["predicted_peak"]
        planned = "" if expected is None else f", {expected / 1e9:.2f} GB were predicted"
        logger.info("step %d took %.2f GB at most%s; see %s", report.step, found["peak"] / 1e9, planned, self.file.name)

    def close(self) -> None:
        """Nothing to let go of."""


def memory_report(parts: Parts, predicted: Mapping[str, Any] | None, *, step: int) -> dict[str, Any]:
    """The record of a process's first step, all sizes in bytes.

    Args:
        parts: after that step.
        predicted: the plan, or None.
        step: which one.
    Returns:
        ``roles``: counted from the live tensors, each once; ``computed``: what had come and gone by then (cache, chunk
        of logits, activations), from the plan; ``peak``: measured, of the process (``resident``) or of the GPU's
        tensors (``allocated``); ``predicted_peak``: before the model is saved; ``predicted``: the whole plan.
    """
    return {
        "step": step,
        "roles": measured_roles(parts),
        "computed": None if predicted is None else predicted["largest"],
        "peak": round(peak_memory_gb() * 1e9),
        "peak_is": "allocated" if torch.cuda.is_available() else "resident",
        "predicted_peak": None if predicted is None else predicted["training_peak"],
        "predicted": predicted,
    }


def measured_roles(parts: Parts) -> dict[str, dict[str, int]]:
    """Bytes of parameters, gradients and optimizer state by role.

    Weights that several roles use count for the first one that holds them. Gradients are gone after an update; they
    are as large as what is trained.
    """
    learner = parts.learner
    policy, critic = learner.policy, learner.critic
    states = [o.adam.state for o in (learner.policy_optimizer, learner.critic_optimizer) if o is not None]
    seen: set[int] = set()

    def role(parameters: Iterable[Tensor], trained: Iterable[Tensor] = ()) -> dict[str, int]:
        new = {id(p): p for p in parameters if id(p) not in seen}
        seen.update(new)
        trained = list(trained)
        moments = [t for p in trained for state in states for t in state.get(p, {}).values()]
        return {"parameters": _bytes(new.values()), "gradients": _bytes(trained), "optimizer": _bytes(moments)}

    roles = {"policy": role(policy.module.parameters(), policy.trainable().values())}
    if isinstance(critic, SharedCritic):
        roles["value head"] = role(critic.head.parameters(), critic.trainable().values())
    elif isinstance(critic, SeparateCritic):
        weights = [*critic.trunk.parameters(), *critic.head.parameters()]
        roles["critic"] = role(weights, critic.trainable().values())
    own = parts.reference.lm.model.parameters() if isinstance(parts.reference, FrozenReference) else ()
    roles["reference"] = role(own)
    for term in parts.reward.terms if isinstance(parts.reward, CompositeReward) else ():
        if isinstance(term, ModelReward):
            modules = [m for m in vars(term.model).values() if isinstance(m, nn.Module)]
            roles[f"reward {term.name}"] = role(p for module in modules for p in module.parameters())
    return roles


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
