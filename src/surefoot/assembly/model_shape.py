"""A model in numbers, from its config alone: it is made without storage, nothing is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from surefoot.models.layers import is_known, window_of
from surefoot.models.load import library_faults
from surefoot.models.quantise import linear_layers, sizes_of


@dataclass(frozen=True)
class ModelShape:
    """A causal LM in numbers.

    Attributes:
        layers, hidden, inner, vocabulary: number of layers; widths of states, of the MLP, and of the logits.
        heads, key_heads, per_head: heads of queries, heads of keys, and the width of one.
        parameters: of the model, tied ones once.
        trunk: of it without an output layer of its own.
        maps: each linear layer's outputs and inputs by name, the output layer left out.
        kernels: whether our kernels run all of its layers, in float32 and float64.
        normed_heads: whether queries and keys are normed (Qwen 3).
    """

    layers: int
    hidden: int
    inner: int
    vocabulary: int
    heads: int
    key_heads: int
    per_head: int
    parameters: int
    trunk: int
    maps: Mapping[str, tuple[int, int]]
    kernels: bool
    normed_heads: bool

    @property
    def queries(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.per_head

    @property
    def keys(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.key_heads * self.per_head

    def adapted(self, targets: str | list[str]) -> list[tuple[int, int]]:
        """Outputs and inputs of the layers that LoRA adapts with these targets."""
        return [size for name, size in self.maps.items() if _targeted(name, targets)]


def _targeted(name: str, targets: str | list[str]) -> bool:
    if targets == "all-linear":
        return True
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == target or name.endswith(f".{target}") for target in targets)


def shape_of(model_config: Any, *, trust_remote_code: bool = False) -> ModelShape:
    """Measure the model that a transformers config describes.

    Raises:
        ModelError: it describes none.
    """
    folder = str(getattr(model_config, "name_or_path", "") or "the model's config")
    hint = "config.json must be that of a causal language model that transformers knows"
    with library_faults("the config describes no model that could be built", folder, hint), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, trust_remote_code=trust_remote_code)
    text = model_config.get_text_config()
    hidden, heads = int(text.hidden_size), int(text.num_attention_heads)
    layers = int(text.num_hidden_layers)
    known: list[Any] = [module for module in model.modules() if is_known(module)]
    return ModelShape(
        layers=layers,
        hidden=hidden,
        inner=int(getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden),
        vocabulary=int(text.vocab_size),
        heads=heads,
        key_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        per_head=int(getattr(text, "head_dim", None) or hidden // heads),
        parameters=_count(model),
        trunk=_count(model.base_model),
        maps={name: sizes_of(layer) for name, layer in linear_layers(model).items()},
        kernels=len(known) == layers and all(window_of(layer.self_attn) is None for layer in known),
        normed_heads=bool(known) and hasattr(known[0].self_attn, "q_norm"),
    )


def _count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
