"""Frozen linear layers that store their weight in 8 or 4 bits.

``int8``: whole numbers of -127 to 127 and a scale for every 64 weights of a row. ``nf4``: the 16 levels of a normal
distribution with a scale for every 64 weights, the scales themselves in 8 bits (Dettmers et al. 2023, QLoRA), made and
read by bitsandbytes' own functions: the weights are those of its ``Linear4bit``.

Inputs are never quantised. Whoever computes with a layer makes its weight first (:meth:`QuantisedLinear.dense`), so
training, reading, decoding and saving all see one model, on a CPU and on a GPU. The layers that come with bitsandbytes
do not give that: on a CPU they compute in bfloat16 outside of training, and with 8 bits they round what they read.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from surefoot.errors import ModelError, missing_extra
from surefoot.models.frozen_maps import FrozenMap, frozen_linears
from surefoot.parallel.allocator import MappedFiles

BLOCK: Final = 64
"""Weights that share a scale."""
SCALES: Final = 256
"""Scales that share a scale (``nf4``)."""
KINDS: Final = ("int8", "nf4")


class QuantisedLinear(nn.Linear, ABC):
    """A frozen linear layer; its parameters are what is stored, ``weight`` the codes, as peft expects to find them.

    Args:
        weight: ``[out, in]``, in the type that is computed in, on its device.
        bias: ``[out]``, kept as it is.
        transposed: whether the layer's weight is ``[in, out]`` in files (GPT-2).

    Attributes:
        compute_dtype: of the weight that :meth:`dense` makes; adapters are put in this type.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, transposed: bool = False) -> None:
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.compute_dtype, self.transposed = weight.dtype, transposed
        kept = None if bias is None else nn.Parameter(bias.detach().to(weight.device), requires_grad=False)
        self.register_parameter("bias", kept)
        # Parameters, not buffers: digests and memory reports go over parameters.
        for name, tensor in self._stored(weight.detach().float()).items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    @abstractmethod
    def _stored(self, weight: Tensor) -> dict[str, Tensor]:
        """What is kept of a ``[out, in]`` weight in float32, by name."""

    @abstractmethod
    def dense(self) -> Tensor:
        """``[out, in]``: the weight that the layer computes with, made now."""

    def in_file(self, change: Tensor | None = None) -> Tensor:
        """The weight as a plain layer's file holds it, an adapter's ``[out, in]`` change added."""
        weight = self.dense() if change is None else self.dense() + change
        return weight.t().contiguous() if self.transposed else weight

    def forward(self, input: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``."""
        return frozen_linears(input, (FrozenMap(self),))[0]


class Int8Linear(QuantisedLinear):
    """Rounded to the nearest of 255 multiples of each block's scale."""

    weight: nn.Parameter
    scales: nn.Parameter

    def _stored(self, weight: Tensor) -> dict[str, Tensor]:
        blocks = weight.view(len(weight), -1, int8_block(weight.shape[1]))
        # A block of zeros stays one, whatever its scale.
        scales = (blocks.abs().amax(dim=2, keepdim=True) / 127).clamp_(min=torch.finfo(torch.float32).tiny)
        return {"weight": (blocks / scales).round_().to(torch.int8), "scales": scales}

    def dense(self) -> Tensor:
        """``[out, in]``: the weight that the layer computes with, made now."""
        # In float32 whatever the type: scales would lose digits in half precision.
        weight = self.weight.to(torch.float32).mul_(self.scales)
        return weight.view(self.out_features, self.in_features).to(self.compute_dtype)


class Nf4Linear(QuantisedLinear):
    """4-bit NormalFloat with quantised scales."""

    weight: nn.Parameter
    scales: nn.Parameter
    scales_of_scales: nn.Parameter
    offset: nn.Parameter

    def _stored(self, weight: Tensor) -> dict[str, Tensor]:
        codes, state = codec().quantize_4bit(weight, blocksize=BLOCK, compress_statistics=True, quant_type="nf4")
        return {
            "weight": codes,
            "scales": state.absmax,
            "scales_of_scales": state.state2.absmax,
            "offset": state.offset.reshape(1),
        }

    def dense(self) -> Tensor:
        """``[out, in]``: the weight that the layer computes with, made now."""
        functions, dtype = codec(), self.compute_dtype
        outer = functions.QuantState(
            absmax=self.scales_of_scales.data,
            code=_scale_levels(self.weight.device),
            blocksize=SCALES,
            dtype=torch.float32,
        )
        # Blocks run on from row to row, which bitsandbytes 0.50 gets wrong on a CPU where rows are no whole blocks.
        whole = self.in_features % BLOCK == 0
        shape = (self.out_features, self.in_features) if whole else (1, self.out_features * self.in_features)
        state = functions.QuantState(
            absmax=self.scales.data,
            shape=torch.Size(shape),
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=torch.float32 if dtype == torch.float64 else dtype,
            offset=self.offset.data,
            state2=outer,
        )
        weight: Tensor = functions.dequantize_4bit(self.weight.data, state)
        return weight.view(self.out_features, self.in_features).to(dtype)


LAYERS: Final[dict[str, type[QuantisedLinear]]] = {"int8": Int8Linear, "nf4": Nf4Linear}


def quantise(model: Any, kind: str, device: torch.device) -> None:
    """Replace a model's linear layers; the output layer and all that is not linear stay as they are.

    Each layer is quantised on the device, one after the other, so that the whole model need never be there.

    Args:
        model: a transformers model or trunk that is not computed with yet.
        kind: one of KINDS.
        device: where the layers go; the rest of the model is not moved.
    Raises:
        MissingExtra: ``nf4`` without bitsandbytes.
        ModelError: there is nothing to quantise.
    """
    require_codec(kind)
    layers = linear_layers(model)
    names = [name for name, layer in layers.items() if _evenly(sizes_of(layer)[1])]
    if not names:
        raise ModelError("the model has no linear layers to quantise", got=type(model).__name__)
    files = MappedFiles()
    for name in names:
        layer: Any = layers.pop(name)
        transposed = isinstance(layer, Conv1D)
        stored = layer.weight.detach()
        weight = stored.to(device)
        parent, _, own = name.rpartition(".")
        new = LAYERS[kind](weight.t().contiguous() if transposed else weight, layer.bias, transposed=transposed)
        setattr(model.get_submodule(parent), own, new)
        if stored.device.type == "cpu":
            # The weights that stay keep the whole file in place.
            files.hand_back(stored.data_ptr(), stored.nbytes)


def linear_layers(model: Any) -> dict[str, nn.Module]:
    """A model's linear layers by name, the output layer left out."""
    output = model.get_output_embeddings()
    named = model.named_modules()
    return {name: m for name, m in named if isinstance(m, nn.Linear | Conv1D) and m is not output}


def sizes_of(layer: Any) -> tuple[int, int]:
    """Outputs and inputs of a linear layer."""
    if isinstance(layer, Conv1D):
        return int(layer.weight.shape[1]), int(layer.weight.shape[0])
    return int(layer.out_features), int(layer.in_features)


def stored_bytes(kind: str, outputs: int, inputs: int, width: int) -> int:
    """Bytes of a weight.

    Args:
        kind: one of KINDS.
        outputs, inputs: its size.
        width: bytes of a number where it is not quantised.
    """
    count = outputs * inputs
    if not _evenly(inputs):
        return count * width
    if kind == "int8":
        return count + 4 * (count // int8_block(inputs))
    blocks = -(-count // BLOCK)
    return count // 2 + blocks + 4 * (-(-blocks // SCALES)) + 4


def int8_block(inputs: int) -> int:
    """Weights of a row that share a scale: 64, fewer where that does not divide the row, or all of it."""
    block = math.gcd(inputs, BLOCK)
    return block if block >= 16 else inputs


def _evenly(inputs: int) -> bool:
    """Two weights share a byte; bitsandbytes has no kernel for rows that end in half a byte."""
    return inputs % 2 == 0


def require_codec(kind: str) -> None:
    """Find out that a package is missing before a model is read.

    Raises:
        MissingExtra: ``nf4`` without bitsandbytes.
    """
    if kind == "nf4":
        codec()


@cache
def codec() -> Any:
    """bitsandbytes' functions.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module("bitsandbytes.functional")
    except ImportError as error:
        raise missing_extra("bitsandbytes", "quantize", "model.quantize: nf4") from error


@cache
def _scale_levels(device: torch.device) -> Tensor:
    """The 256 values that a scale of ``nf4`` can have, before its own scale."""
    levels: Tensor = codec().create_dynamic_map().to(device)
    return levels
