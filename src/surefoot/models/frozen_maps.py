"""Linear maps with a frozen weight that is stored in few bits and made anew for each use.

No graph holds what the weight was: the backward pass makes it once more. So one matrix exists at a time, and the
numbers are those of :mod:`surefoot.models.kernels` with that matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Stored(Protocol):
    """A layer that can make its weight."""

    @property
    def bias(self) -> Tensor | None:
        """``[out]``."""
        ...

    def dense(self) -> Tensor:
        """``[out, in]``: the weight, made now."""
        ...


@dataclass(frozen=True, eq=False)
class FrozenMap:
    """A linear map ``x W^T + b + scale (x A^T) B^T`` whose W and b are frozen.

    Attributes:
        layer: makes W.
        down, up: ``[rank, in]`` and ``[out, rank]``, the adapter's A and B.
        scale: of the adapter's part.
    """

    layer: Stored
    down: Tensor | None = None
    up: Tensor | None = None
    scale: float = 1.0

    @property
    def weight(self) -> Tensor:
        """``[out, in]``, made anew each time it is asked for."""
        return self.layer.dense()

    @property
    def bias(self) -> Tensor | None:
        """``[out]``."""
        return self.layer.bias


class _FrozenMaps(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, maps: tuple[FrozenMap, ...], *adapters: Tensor | None
    ) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, x.shape[-1])
        outputs: list[Tensor] = []
        hidden: list[Tensor | None] = []
        for i, m in enumerate(maps):
            down, up = adapters[2 * i : 2 * i + 2]
            y = _product(flat, m.layer, residual)
            h = None
            if down is not None and up is not None:
                h = (flat @ down.t()).mul_(m.scale)
                y.addmm_(h, up.t())
            hidden.append(h)
            outputs.append(y.view(*x.shape[:-1], y.shape[1]))
        adapted = any(tensor is not None for tensor in adapters)
        ctx.save_for_backward(flat if adapted else None, *adapters, *hidden)
        ctx.layers, ctx.scales = tuple(m.layer for m in maps), tuple(m.scale for m in maps)
        ctx.shape, ctx.has_residual = x.shape, residual is not None
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        count = len(ctx.layers)
        flat, *rest = ctx.saved_tensors
        adapters, hidden = rest[: 2 * count], rest[2 * count :]
        wants = ctx.needs_input_grad
        dx: Tensor | None = None
        out: list[Tensor | None] = []
        for i, scale in enumerate(ctx.scales):
            down, up = adapters[2 * i : 2 * i + 2]
            dy = grads[i].reshape(-1, grads[i].shape[-1])
            if wants[0]:
                dx = _gradient_onto(dx, dy, ctx.layers[i])
            d_down = d_up = None
            if down is not None:
                dh = (dy @ up).mul_(scale)
                if wants[3 + 2 * i]:
                    d_down = dh.t() @ flat
                if wants[4 + 2 * i]:
                    d_up = dy.t() @ hidden[i]
                if dx is not None:
                    dx.addmm_(dh, down)
            out += [d_down, d_up]
        return (None if dx is None else dx.view(ctx.shape), grads[0] if ctx.has_residual else None, None, *out)


def _product(flat: Tensor, layer: Stored, residual: Tensor | None) -> Tensor:
    """``[n, out]``; the weight is gone when this returns."""
    weight, bias = layer.dense(), layer.bias
    if residual is None:
        return flat @ weight.t() if bias is None else torch.addmm(bias, flat, weight.t())
    y = torch.addmm(residual.reshape(-1, residual.shape[-1]), flat, weight.t())
    return y if bias is None else y.add_(bias)


def _gradient_onto(dx: Tensor | None, dy: Tensor, layer: Stored) -> Tensor:
    weight = layer.dense()
    return dy @ weight if dx is None else dx.addmm_(dy, weight)


def frozen_linears(x: Tensor, maps: tuple[FrozenMap, ...]) -> tuple[Tensor, ...]:
    """Several linear maps of the same ``[..., in]`` states; ``[..., out]`` each."""
    apply: Any = _FrozenMaps.apply
    out: tuple[Tensor, ...] = apply(x, None, maps, *(t for m in maps for t in (m.down, m.up)))
    return out


def frozen_linear_onto(residual: Tensor, x: Tensor, m: FrozenMap) -> Tensor:
    """``residual`` plus a linear map of ``x``."""
    apply: Any = _FrozenMaps.apply
    out: Tensor = apply(x, residual, (m,), m.down, m.up)[0]
    return out
