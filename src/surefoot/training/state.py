"""A run's state as files: everything that a resumed run needs to repeat the uninterrupted one.

Draws need no stored generator: each comes from (seed, purpose, rank, step).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from surefoot.errors import CheckpointError, TrainingError
from surefoot.training.critic_update import ServedCritic
from surefoot.training.optimizer import Optimizer
from surefoot.training.step import Parts

FORMAT = 1


def refuse_broken_weights(parts: Parts) -> None:
    """Weights with NaN or infinity in them must not become the checkpoint that a resume takes.

    Raises:
        TrainingError: naming some.
    """
    refuse_broken(parts.learner.policy.trainable() | parts.learner.critic.trainable())


def refuse_broken(named: Mapping[str, nn.Parameter]) -> None:
    """As :func:`refuse_broken_weights`, of these parameters."""
    broken = [name for name, p in named.items() if not bool(torch.isfinite(p).all())]
    if broken:
        raise TrainingError(
            f"{len(broken)} of {len(named)} trained tensors are not finite any more, so they are not saved",
            got=", ".join(broken[:3]),
            hint="start another run with a lower learning rate; the last checkpoint is from before",
        )


def write_state(
    folder: Path, parts: Parts, *, step: int, extra: Mapping[str, Any], service: Mapping[str, Any] | None = None
) -> None:
    """Write policy, critic, optimizers, controllers and statistics.

    Args:
        folder: an empty folder; the checkpoint store makes it whole.
        parts: the run.
        step: finished steps.
        extra: JSON of whoever else has state (data cursor, stopping rules, threads).
        service: where the critic lives in a service, what restores it there.
    """
    learner = parts.learner
    save_tensors(learner.policy.trainable(), folder / "policy.safetensors")
    if service is None:
        save_tensors(learner.critic.trainable(), folder / "critic.safetensors")
    optimizers = _optimizers(parts)
    counts = {}
    for name, optimizer in optimizers.items():
        tensors, counts[name] = optimizer.state()
        save_tensors(tensors, folder / f"{name}_optimizer.safetensors")
    state = {
        "format": FORMAT,
        "step": step,
        "optimizers": counts,
        "kl_coef": parts.kl.coef,
        "surrogate_kl_coef": parts.penalty.coef,
        "warmed_up": parts.warmed_up,
        "normaliser": parts.normaliser.state() if parts.normaliser is not None else None,
        "critic_service": None if service is None else dict(service),
        "extra": dict(extra),
    }
    (folder / "state.json").write_text(json.dumps(state, indent=1, allow_nan=False), encoding="utf-8")


def read_state(folder: Path, parts: Parts) -> Mapping[str, Any]:
    """Put a checkpoint back into freshly built parts.

    Returns:
        the ``extra`` that was written.
    Raises:
        CheckpointError: a part is missing or is of another model.
    """
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    if state["format"] != FORMAT:
        raise CheckpointError("the checkpoint was written by another version", got=state["format"], allowed=FORMAT)
    learner = parts.learner
    load_parameters(learner.policy.trainable(), folder / "policy.safetensors")
    service = state.get("critic_service")
    if (service is None) == isinstance(learner.critic, ServedCritic):
        raise CheckpointError(
            "the checkpoint's critic lives elsewhere than this run's",
            got="in a service" if service else "in the checkpoint",
            hint="leave critic.url as it was when the run began",
        )
    if isinstance(learner.critic, ServedCritic):
        learner.critic.restore(service)
    else:
        load_parameters(learner.critic.trainable(), folder / "critic.safetensors")
    for name, optimizer in _optimizers(parts).items():
        optimizer.load(read_tensors(folder / f"{name}_optimizer.safetensors"), state["optimizers"][name])
    parts.kl.coef, parts.penalty.coef = state["kl_coef"], state["surrogate_kl_coef"]
    parts.warmed_up = state["warmed_up"]
    if (parts.normaliser is None) != (state["normaliser"] is None):
        raise CheckpointError("the checkpoint's reward statistics do not fit reward.normalise")
    if parts.normaliser is not None:
        parts.normaliser.load(state["normaliser"])
    extra: Mapping[str, Any] = state["extra"]
    return extra


def _optimizers(parts: Parts) -> dict[str, Optimizer]:
    learner = parts.learner
    both = {"policy": learner.policy_optimizer, "critic": learner.critic_optimizer}
    return {name: optimizer for name, optimizer in both.items() if optimizer is not None}


def save_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors by name as safetensors."""
    # On a CPU nothing is copied: the library writes from where the tensors are.
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, file)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """A file's tensors by name.

    Raises:
        CheckpointError: there is no such file.
    """
    if not file.is_file():
        raise CheckpointError("a part of the checkpoint is missing", got=str(file))
    tensors: dict[str, Tensor] = load_file(file)
    return tensors


@torch.no_grad()
def load_parameters(parameters: Mapping[str, nn.Parameter], file: Path) -> None:
    """Put a file's tensors into parameters. Each must be there, with its shape, and nothing else.

    Raises:
        CheckpointError: a missing head is an error, not a warning.
    """
    tensors = read_tensors(file)
    if set(tensors) != set(parameters):
        odd = sorted(set(tensors) ^ set(parameters))
        raise CheckpointError(f"{file.name} holds other parameters than the run trains", got=odd[:3])
    for name, parameter in parameters.items():
        if tensors[name].shape != parameter.shape:
            raise CheckpointError(f"{name} in {file.name} has another shape", got=tuple(tensors[name].shape))
        parameter.copy_(tensors[name])
