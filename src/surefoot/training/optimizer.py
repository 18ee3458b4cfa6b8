"""AdamW with its schedule in optimizer steps, gradient clipping, and the guard against non-finite numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from surefoot.config import OptimSection
from surefoot.errors import CheckpointError, TrainingError
from surefoot.training.offload import MOMENTS, put_away, step_in_parts

HOME = torch.device("cpu")
"""Where offloaded moments live."""


@dataclass(frozen=True)
class StepOutcome:
    """What became of one optimizer step.

    Attributes:
        grad_norm: norm before clipping, None when it was not finite; the first group's where groups are clipped apart.
        other_norms: those of the other groups then.
        lr: learning rate of the first group.
        skipped: whether the step was skipped for a non-finite loss or gradient.
    """

    grad_norm: float | None
    lr: float
    skipped: bool
    other_norms: tuple[float | None, ...] = ()


def schedule_factor(step: int, *, schedule: str, warmup: int, total: int) -> float:
    """Factor of the learning rate at the optimizer step ``step`` (from 0) of ``total``.

    Linear warm-up from 0 over ``warmup`` steps, then constant, or linearly or by a half cosine to 0 at ``total``.
    """
    factor = min(1.0, (step + 1) / warmup) if warmup else 1.0
    done = min(1.0, step / total) if total else 0.0
    if schedule == "linear":
        return factor * (1.0 - done)
    if schedule == "cosine":
        return factor * 0.5 * (1.0 + math.cos(math.pi * done))
    return factor


class Optimizer:
    """AdamW over named groups of parameters.

    A group's schedule goes from the first step that moves it to the run's last planned one. So it ends at 0 however
    long the critic warms up before the policy begins, and however many steps are left out on the way.

    Args:
        groups: learning rates with their parameters by name; names are unique over all groups.
        cfg: the config's ``optim`` section.
        total_steps: optimizer steps that the whole run plans.
        max_skipped: steps in a row that may be skipped.
        clip_apart: the norm of each group's gradients is limited by itself, instead of one norm over all groups.

    Attributes:
        position: of the next step among the planned ones, from 0.
        starts: of each group, the position of its first step; None before.
    """

    def __init__(
        self,
        groups: Sequence[tuple[float, Mapping[str, nn.Parameter]]],
        cfg: OptimSection,
        *,
        total_steps: int,
        max_skipped: int,
        clip_apart: bool = False,
    ) -> None:
        self.cfg, self.total_steps, self.max_skipped = cfg, total_steps, max_skipped
        self.named = {name: p for _, group in groups for name, p in group.items()}
        self.rates = [rate for rate, _ in groups]
        together = [list(group.values()) for _, group in groups]
        self._clipped = together if clip_apart else [[p for group in together for p in group]]
        self.steps_taken = self.skipped_in_a_row = self.skipped_total = self.position = 0
        self.starts: list[int | None] = [None] * len(groups)
        self.adam = torch.optim.AdamW(
            [{"params": list(group.values()), "lr": rate} for rate, group in groups],
            betas=cfg.betas,
            eps=cfg.eps,
            weight_decay=cfg.weight_decay,
            fused=all(p.dtype in (torch.float32, torch.float64, torch.bfloat16) for p in self.named.values()) or None,
        )

    def zero(self) -> None:
        """Forget gradients."""
        self.adam.zero_grad(set_to_none=True)

    def move_to(self, position: int) -> None:
        """Say where the next step stands among the planned ones: those that were not taken count for the schedule."""
        self.position = position

    def step(self, loss: float) -> StepOutcome:
        """Clip, step and advance the schedule; a non-finite loss or gradient is skipped and counted.

        Raises:
            TrainingError: too many steps in a row were skipped.
        """
        for group, rate in zip(self.adam.param_groups, self._scheduled(), strict=True):
            group["lr"] = rate
        lr = float(self.adam.param_groups[0]["lr"])
        self.steps_taken += 1
        self.position += 1
        norms = [clip_gradients(group, self.cfg.max_grad_norm) for group in self._clipped]
        if not math.isfinite(loss) or not all(map(math.isfinite, norms)):
            return self._skip(lr, loss, norms)
        self.skipped_in_a_row = 0
        if self.cfg.offload:
            step_in_parts(self.adam, home=HOME)
        else:
            self.adam.step()
        self.zero()
        return StepOutcome(norms[0], lr, skipped=False, other_norms=tuple(norms[1:]))

    def _scheduled(self) -> list[float]:
        """Each group's learning rate now. One that stands still while another moves has not begun."""
        moving = [any(p.grad is not None for p in group["params"]) for group in self.adam.param_groups]
        rates = []
        for i, rate in enumerate(self.rates):
            start = self.starts[i]
            if start is None:
                start = self.position
                if moving[i] or not any(moving):
                    self.starts[i] = start
            factor = schedule_factor(
                self.position - start,
                schedule=self.cfg.schedule,
                warmup=self.cfg.warmup_steps,
                total=self.total_steps - start,
            )
            rates.append(rate * factor)
        return rates

    def _skip(self, lr: float, loss: float, norms: Sequence[float]) -> StepOutcome:
        self.zero()
        self.skipped_in_a_row += 1
        self.skipped_total += 1
        if self.skipped_in_a_row > self.max_skipped:
            raise TrainingError(
                f"{self.skipped_in_a_row} optimizer steps in a row had a non-finite loss or gradient",
                got=f"loss {loss}, gradient norm {' and '.join(map(str, norms))}",
                hint="lower the learning rate (optim.policy_lr, sft.lr, reward_model.lr), look at what was trained on"
                " (samples/: rewards, advantages); the last checkpoint is whole",
            )
        first, *others = (norm if math.isfinite(norm) else None for norm in norms)
        return StepOutcome(first, lr, skipped=True, other_norms=tuple(others))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and numbers that continue this optimizer exactly.

        The tensors are its own, not copies, which would take as much memory again: the next step changes them.
        """
        tensors = {
            f"{name}::{key}": value.detach()
            for name, parameter in self.named.items()
            for key, value in self.adam.state.get(parameter, {}).items()
        }
        counts = {
            "steps_taken": self.steps_taken,
            "skipped_in_a_row": self.skipped_in_a_row,
            "skipped_total": self.skipped_total,
            "position": self.position,
            "starts": list(self.starts),
        }
        return tensors, counts

    def move(self, device: torch.device) -> None:
        """Take what stands beside the parameters to where these have gone."""
        fused = bool(self.adam.defaults["fused"])
        for state in self.adam.state.values():
            for name, tensor in state.items():
                stays = (name in MOMENTS and self.cfg.offload) or (name == "step" and not fused)
                if isinstance(tensor, Tensor) and not stays:
                    state[name] = tensor.to(device)

    def load(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Continue from :meth:`state`, whose tensors are copied.

        Raises:
            CheckpointError: the state is of other parameters.
        """
        states: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, part = key.rpartition("::")
            states.setdefault(name, {})[part] = value
        unknown = sorted(set(states) - set(self.named))
        if unknown:
            raise CheckpointError("the optimizer's state is of other parameters", got=unknown[:3])
        fused = bool(self.adam.defaults["fused"])
        for name, state in states.items():
            parameter = self.named[name]
            # The fused kernel wants the step count where the parameter is, the others want it on the CPU.
            self.adam.state[parameter] = {
                part: value.to(parameter.device if fused or part != "step" else "cpu").clone()
                for part, value in state.items()
            }
            if self.cfg.offload:
                put_away(self.adam.state[parameter], HOME)
        self.steps_taken = int(counts["steps_taken"])
        self.skipped_in_a_row = int(counts["skipped_in_a_row"])
        self.skipped_total = int(counts["skipped_total"])
        # Checkpoints from before these two were kept began at the first step and left none out.
        self.position = int(counts.get("position", self.steps_taken))
        self.starts = list(counts.get("starts", [0 if self.steps_taken else None] * len(self.starts)))


def clip_gradients(parameters: Any, max_norm: float | None) -> float:
    """Scale gradients down to a norm over all of them; returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    norm = torch.nn.utils.get_total_norm(gradients)
    # A pass over all gradients is saved where none is needed; a norm that is not finite is the caller's matter.
    if max_norm is not None and float(norm) > max_norm - 1e-6:
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return float(norm)
