"""The policy: a causal LM that is sampled from, read and trained at one temperature."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from surefoot.errors import ModelError
from surefoot.models.batching import MicroBatch
from surefoot.models.digest import digest_tensors
from surefoot.models.load import CausalLM, check_temperature, load_model_config, read_causal_lm, ready_lm
from surefoot.models.lora import add_adapter, base_of_adapter, is_adapter, load_adapter, merge_adapter, starting_policy
from surefoot.models.output_head import Slopes
from surefoot.models.quantise import quantise, require_codec
from surefoot.models.scoring import BatchPlan, TokenScores, ValueHead, score_rollout
from surefoot.models.tokenizer import load_codec
from surefoot.models.tokenizer_files import TOKENIZER_FILES
from surefoot.protocols import Evaluation
from surefoot.records import FloatArray, Rollout


@dataclass(frozen=True)
class Lora:
    """Adapters to train: rank, scale and where."""

    rank: int = 16
    alpha: float = 32.0
    targets: str | list[str] = "all-linear"


class CausalPolicy:
    """A trainable policy.

    Args:
        lm: the model.
        plan: how forward passes are cut.
    """

    def __init__(self, lm: CausalLM, plan: BatchPlan) -> None:
        self.lm, self.plan = lm, plan

    @property
    def temperature(self) -> float:
        """That every log-probability is under."""
        return self.lm.head.settings.temperature

    @property
    def module(self) -> nn.Module:
        """The model with its adapters, if any."""
        module: nn.Module = self.lm.adapters if self.lm.adapters is not None else self.lm.model
        return module

    def trainable(self) -> dict[str, nn.Parameter]:
        """What training changes, by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def evaluate(self, rollout: Rollout) -> Evaluation:
        """Log-probabilities and entropies of the action tokens.

        Args:
            rollout: B trajectories.
        Returns:
            ``.logp`` and ``.entropy`` (nats), both ``[B, T]`` and 0 off the mask.
        """
        scores = self.read(rollout)
        assert scores.logp is not None and scores.entropy is not None
        return Evaluation(scores.logp, scores.entropy)

    def read(
        self, rollout: Rollout, value_head: ValueHead | None = None, rows: Sequence[int] | None = None
    ) -> TokenScores:
        """As :meth:`evaluate`, of these rows only; and values, where a value head sits on the trunk."""
        return score_rollout(self.lm.trunk, rollout, self.plan, head=self.lm.head, value_head=value_head, rows=rows)

    def forward(
        self, batch: MicroBatch, *, entropy: bool = False, slopes: Slopes | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """One differentiable pass over a micro-batch of n action tokens.

        Args:
            batch: what to read.
            entropy: also compute entropies.
            slopes: as for :meth:`surefoot.models.output_head.OutputHead.logp`.
        Returns:
            ``[n]`` log-probabilities, ``[n]`` entropies or None, and the ``[n, H]`` states they come from.
        """
        states = self.lm.hidden(batch).index_select(0, batch.states)
        logp, entropies = self.lm.head.logp(states, batch.tokens, entropy=entropy, slopes=slopes)
        return logp, entropies, states


class FrozenReference:
    """A reference that is a model of its own."""

    def __init__(self, lm: CausalLM, plan: BatchPlan) -> None:
        self.lm, self.plan = lm, plan
        lm.model.requires_grad_(False)

    def logp(self, rollout: Rollout) -> FloatArray:
        """``[B, T]`` log-probabilities of the action tokens, 0 off the mask."""
        return _logp_alone(self.lm, rollout, self.plan)

    def digest(self) -> str:
        """sha256 of its weights."""
        return digest_tensors(self.lm.model.named_parameters())


class StartingReference:
    """A reference that shares the policy's weights: the policy with its training undone.

    Fresh adapters are switched off; a policy that started from an adapter is read with that starting adapter.
    """

    def __init__(self, policy: CausalPolicy) -> None:
        if policy.lm.adapters is None:
            raise ModelError("a policy that trains all its weights needs a reference of its own: load it a second time")
        self._policy = policy

    def logp(self, rollout: Rollout) -> FloatArray:
        """``[B, T]`` log-probabilities of the action tokens, 0 off the mask."""
        with starting_policy(self._policy.lm.adapters):
            return _logp_alone(self._policy.lm, rollout, self._policy.plan)

    def digest(self) -> str:
        """sha256 of the frozen weights."""
        module = self._policy.module
        return digest_tensors((name, p) for name, p in module.named_parameters() if not p.requires_grad)


def _logp_alone(lm: CausalLM, rollout: Rollout, plan: BatchPlan) -> FloatArray:
    scores = score_rollout(lm.trunk, rollout, plan, head=lm.head, want_entropy=False)
    assert scores.logp is not None
    return scores.logp


def load_policy(
    path: str | Path,
    *,
    temperature: float = 1.0,
    dtype: str = "float32",
    device: str = "cpu",
    lora: Lora | None = None,
    plan: BatchPlan | None = None,
    **options: Any,
) -> CausalPolicy:
    """Load a policy from a Hugging Face folder, hub id or adapter folder; a tokenizer need not be there.

    Args:
        path: the folder or id.
        temperature: that log-probabilities are under, above 0.
        dtype: ``float32``, ``float64``, ``bfloat16`` or ``float16``.
        device: where to put it.
        lora: train adapters of this shape; None: all weights, or the adapter that ``path`` holds.
        plan: how forward passes are cut.
        options: ``seed`` (of fresh adapters), ``trust_remote_code``, ``gradient_checkpointing``, ``quantize`` (``int8``
            or ``nf4``: store the linear layers' weights so, and train nothing but adapters), ``rows_needed`` and
            ``banned`` (see :func:`surefoot.models.load.load_causal_lm`; read off the tokenizer when left out).
    Raises:
        ModelError: it cannot be loaded, or its numbers do not agree with the library's.
        MissingExtra: ``quantize`` needs a package that is not installed.
    """
    folder = os.path.expanduser(path)  # noqa: PTH111 - Path would drop a leading "./"
    seed = int(options.pop("seed", 0))
    checkpointing = bool(options.pop("gradient_checkpointing", False))
    kind: str | None = options.pop("quantize", None)
    remote = bool(options.pop("trust_remote_code", False))
    check_temperature(temperature)
    if kind is not None:
        require_codec(kind)
    adapter = folder if is_adapter(folder) else None
    base = base_of_adapter(folder) if adapter else folder
    if "banned" not in options:
        options |= vocabulary_limits(base, folder if has_tokenizer(folder) else base, trust_remote_code=remote)
    rows = options.pop("rows_needed", None)
    model = read_causal_lm(base, dtype=dtype, rows_needed=rows, trust_remote_code=remote)
    folded = adapter if lora is not None else None
    if folded is not None:
        # Part of the frozen weights from here on, so that fresh adapters can be trained on top of it.
        model = merge_adapter(model, folded)
    if kind is not None:
        quantise(model, kind, torch.device(device))
    lm = ready_lm(model, base, device=device, temperature=temperature, **options)
    lm.folder, lm.folded = folder, folded
    if lora is not None:
        lm.adapters = add_adapter(lm.model, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
    elif adapter:
        load_adapter(lm, adapter)
    elif kind is None:
        lm.model.requires_grad_(True)
    if checkpointing:
        enable_checkpointing(lm.model)
    return CausalPolicy(lm, plan or BatchPlan())


def vocabulary_limits(model: str, tokenizer: str, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """What a tokenizer asks of a model's vocabulary: ``rows_needed`` and ``banned`` of :func:`load_causal_lm`.

    Args:
        model, tokenizer: folders or hub ids; a folder without a tokenizer asks nothing.
        trust_remote_code: run code that comes with them.
    """
    config = load_model_config(model, trust_remote_code=trust_remote_code)
    if Path(tokenizer).is_dir() and not has_tokenizer(tokenizer):
        return {}
    codec = load_codec(tokenizer, trust_remote_code=trust_remote_code)
    plan = codec.check_vocabulary(int(config.get_text_config().vocab_size))
    return {"rows_needed": plan.rows_needed, "banned": plan.banned_ids}


def has_tokenizer(folder: str) -> bool:
    """Whether a folder holds a tokenizer."""
    return any((Path(folder) / name).exists() for name in TOKENIZER_FILES)


def enable_checkpointing(model: Any) -> None:
    """Recompute each layer in the backward pass.

    transformers' own switch works on layers in training mode only, and that mode turns on whatever dropout a layer
    applies by itself.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ModelError("this architecture has no layers to checkpoint", got=type(model).__name__)
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
