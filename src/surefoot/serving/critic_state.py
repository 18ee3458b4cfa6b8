"""A critic with its optimizer: the part of a run's state that a service holds, as files and in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefoot.errors import CheckpointError
from surefoot.models.critic import SeparateCritic
from surefoot.models.digest import digest_tensors
from surefoot.models.load import context_length
from surefoot.records import Rollout, StopReason
from surefoot.serving.wire import InferRequest, TrainRequest
from surefoot.training.optimizer import Optimizer
from surefoot.training.state import load_parameters, read_tensors, refuse_broken, save_tensors

FORMAT = 1


@dataclass(frozen=True)
class TrainedCritic:
    """A critic and what trains it, built as a run in one process builds them."""

    critic: SeparateCritic
    optimizer: Optimizer

    @property
    def rows(self) -> int:
        """Token ids that have an embedding."""
        trunk: Any = self.critic.trunk
        return int(trunk.get_input_embeddings().weight.shape[0])

    @property
    def context(self) -> int | None:
        """Longest trajectory, None without a limit."""
        return context_length(self.critic.trunk.config)

    @property
    def dtype(self) -> str:
        """Of the weights."""
        return str(next(self.critic.trunk.parameters()).dtype).removeprefix("torch.")

    def digest(self) -> str:
        """sha256 of all weights as they are in memory, frozen ones too."""
        trunk = ((f"trunk.{name}", tensor) for name, tensor in self.critic.trunk.state_dict().items())
        head = ((f"head.{name}", tensor) for name, tensor in self.critic.head.state_dict().items())
        return digest_tensors([*trunk, *head])

    def write(self, folder: Path, *, step: int, run: str) -> None:
        """Write weights and optimizer into an empty folder; the checkpoint store makes it whole.

        Raises:
            TrainingError: weights that are not finite any more.
        """
        trainable = self.critic.trainable()
        refuse_broken(trainable)
        tensors, counts = self.optimizer.state()
        save_tensors(trainable, folder / "critic.safetensors")
        save_tensors(tensors, folder / "critic_optimizer.safetensors")
        state = {"format": FORMAT, "run": run, "step": step, "optimizers": {"critic": counts}}
        (folder / "state.json").write_text(json.dumps(state, indent=1, allow_nan=False), encoding="utf-8")

    def read(self, folder: Path) -> None:
        """Put what :meth:`write` wrote in the place of what is in memory.

        Raises:
            CheckpointError: it is of another critic or another version.
        """
        state: Mapping[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise CheckpointError("the checkpoint was written by another version", got=state["format"], allowed=FORMAT)
        load_parameters(self.critic.trainable(), folder / "critic.safetensors")
        self.optimizer.adam.state.clear()
        self.optimizer.zero()
        self.optimizer.load(read_tensors(folder / "critic_optimizer.safetensors"), state["optimizers"]["critic"])

    def move(self, device: torch.device) -> None:
        """Take weights and optimizer to a device, in place."""
        self.critic.trunk.to(device)
        self.critic.head.to(device)
        self.optimizer.move(device)


@dataclass(frozen=True)
class StepBatch:
    """What training a critic needs of a step, from a request: tensors ``[B, T]`` on the CPU."""

    rollout: Rollout
    mask: Tensor
    values: Tensor
    returns: Tensor

    @classmethod
    def of(cls, request: TrainRequest) -> StepBatch:
        """Copies, since the request's arrays lie in its body and cannot be written to."""
        rollout = rollout_of(request)
        mask, values, returns = (
            torch.from_numpy(np.array(array)) for array in (request.mask, request.values, request.returns)
        )
        return cls(rollout, mask, values, returns)


def rollout_of(*requests: InferRequest | TrainRequest) -> Rollout:
    """The trajectories of requests with tokens, in order, as one rollout ``[sum of B, largest T]``.

    It holds arrays only; how trajectories ended is not known here and not needed for values.
    """
    width = max(tokens.shape[1] for tokens, _ in map(_arrays, requests))
    count = sum(len(request.lengths) for request in requests)
    tokens, mask = np.zeros((count, width), dtype=np.int64), np.zeros((count, width), dtype=np.bool_)
    lengths = np.array([n for request in requests for n in request.lengths], dtype=np.int64)
    row = 0
    for request in requests:
        own, action = _arrays(request)
        part = np.s_[row : row + len(own), : own.shape[1]]
        tokens[part], mask[part] = own, action
        row += len(own)
    return Rollout(tokens, mask, lengths, (StopReason.EOS,) * count, logp=None, trajectories=())


def _arrays(request: InferRequest | TrainRequest) -> tuple[Any, Any]:
    assert request.tokens is not None and request.mask is not None
    return request.tokens, request.mask
