"""A reward model while it is trained: a trunk, and one or several score heads that read the last token of a text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from surefoot.errors import ModelError
from surefoot.models.batching import MicroBatch, lay_out
from surefoot.models.critic import load_critic
from surefoot.models.load import first_line, hidden_states
from surefoot.models.packing import groups_within
from surefoot.models.policy import Lora
from surefoot.models.scoring import BatchPlan, ValueHead
from surefoot.records import FloatArray, IntArray, Rollout, Trajectory


class ScoreHeads(nn.Module):
    """k linear maps from a hidden state to a score, in float32 at least.

    Args:
        weight: ``[k, H]``.
        bias: ``[k]`` or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """``[n, H]`` states to ``[n, k]`` scores."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(wide)
        return nn.functional.linear(hidden.to(wide), self.weight.to(wide), bias)

    def mean(self) -> dict[str, Tensor]:
        """The head whose score is the mean of all: ``weight`` ``[1, H]``, and ``bias`` ``[1]`` if there is one."""
        found = {"weight": self.weight.detach().mean(dim=0, keepdim=True)}
        if self.bias is not None:
            found["bias"] = self.bias.detach().mean(dim=0, keepdim=True)
        return found


class ScoreModel:
    """A reward model in training.

    Args:
        trunk: a transformers trunk, adapters injected where they are trained.
        heads: from states to scores.
        plan: how forward passes are cut.
        adapters: the peft model around the trunk, None where all weights are trained.
    """

    def __init__(self, trunk: Any, heads: ScoreHeads, plan: BatchPlan, adapters: Any = None) -> None:
        self.trunk, self.heads, self.plan, self.adapters = trunk, heads, plan, adapters

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.heads.weight.device

    @property
    def packed(self) -> bool:
        """Whether texts are laid out end to end."""
        return self.plan.packed(self.device)

    def trunk_parameters(self) -> dict[str, nn.Parameter]:
        """What training changes in the trunk, by name."""
        module = self.adapters if self.adapters is not None else self.trunk
        return {f"trunk.{name}": p for name, p in module.named_parameters() if p.requires_grad}

    def head_parameters(self) -> dict[str, nn.Parameter]:
        """Of the heads."""
        return {f"heads.{name}": p for name, p in self.heads.named_parameters()}

    def trainable(self) -> dict[str, nn.Parameter]:
        """What training changes, by name."""
        return self.trunk_parameters() | self.head_parameters()

    def forward(self, batch: MicroBatch) -> Tensor:
        """``[r, k]`` scores of a micro-batch's r texts, differentiable; it must be laid out with ``after``."""
        scores: Tensor = self.heads(hidden_states(self.trunk, batch).index_select(0, batch.last))
        return scores

    @torch.no_grad()
    def scores(self, rows: Sequence[IntArray]) -> FloatArray:
        """``[n, k]`` scores of token rows, in order; each as if it were alone."""
        out = np.zeros((len(rows), len(self.heads.weight)), dtype=np.float64)
        for group in groups_within(rows, self.plan.tokens, packed=self.packed):
            batch = texts_batch([rows[i] for i in group], packed=self.packed, device=self.device)
            out[group] = self.forward(batch).double().cpu().numpy()
        return out


def texts_batch(rows: Sequence[IntArray], *, packed: bool, device: torch.device) -> MicroBatch:
    """One micro-batch of whole texts, in order, none of them empty."""
    rollout = Rollout.of([Trajectory(row.tolist(), [False] * len(row)) for row in rows])
    return lay_out(rollout, range(len(rows)), packed=packed, device=device, after=True)


def load_score_model(
    path: str | Path,
    *,
    heads: int = 1,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
    lora: Lora | None = None,
    **options: Any,
) -> ScoreModel:
    """A trunk from a causal LM, a reward model, or an adapter of either (merged), with fresh or inherited heads.

    A single head starts at zero, or as the reward model's score layer. Several start around that, each with noise of
    its own, since equal heads would stay alike.

    Args:
        path: folder or hub id.
        heads: how many.
        seed: of the heads' noise and of fresh adapters.
        dtype, device, lora: as for :func:`surefoot.models.policy.load_policy`.
        options: ``plan``, ``trust_remote_code``, ``gradient_checkpointing``, ``rows_needed``, as for
            :func:`surefoot.models.critic.load_critic`.
    Raises:
        ModelError: it cannot be loaded, or transformers has no sequence classifier of its architecture.
    """
    critic = load_critic(path, dtype=dtype, device=device, lora=lora, seed=seed, **options)
    trunk: Any = critic.trunk
    classifier_of(trunk)
    start: ValueHead = critic.head
    weight = start.weight.detach().repeat(heads, 1)
    bias = None if start.bias is None else start.bias.detach().repeat(heads)
    if heads > 1:
        noise = torch.Generator().manual_seed(seed)
        width = weight.shape[1]
        weight += (torch.randn(heads, width, generator=noise, dtype=torch.float64) / width).to(weight)
    return ScoreModel(trunk, ScoreHeads(weight, bias), critic.plan, critic.adapters)


def classifier_of(trunk: Any, *, pad_id: int | None = None) -> Any:
    """The standard sequence classifier with one label around a trunk of this kind; it holds no weights.

    Raises:
        ModelError: there is none, or it has no linear score layer.
    """
    config = copy.deepcopy(trunk.config)
    config.num_labels = 1
    if pad_id is not None:
        config.pad_token_id = config.get_text_config().pad_token_id = pad_id
    try:
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(config, dtype=trunk.dtype)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ModelError(
            "transformers has no sequence classifier of this architecture, so a reward model of it could not be saved",
            got=f"{type(trunk).__name__} ({first_line(error)})",
            hint="Llama, Qwen, Gemma, Mistral, GPT-2, Phi and most newer models have one",
        ) from error
    if not isinstance(getattr(model, "score", None), nn.Linear):
        raise ModelError(f"{type(model).__name__} has no single linear score layer", hint="take another architecture")
    return model
