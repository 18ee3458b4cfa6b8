"""The elementwise parts of a layer and its linear maps with hand-written gradients.

Written out operation by operation, training spends almost half of its time on passes over memory and on temporaries.
These functions give the same numbers with fewer of both: they save less, work in place on what is their own, and add
gradients up inside matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class LinearWeights:
    """A linear map ``x W^T + b + scale (x A^T) B^T``; adapters and bias may be missing.

    Attributes:
        weight: ``[out, in]``.
        bias: ``[out]``.
        down, up: ``[rank, in]`` and ``[out, rank]``, the adapter's A and B.
        scale: of the adapter's part.
    """

    weight: Tensor
    bias: Tensor | None = None
    down: Tensor | None = None
    up: Tensor | None = None
    scale: float = 1.0


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, scales: tuple[float, ...], *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, x.shape[-1])
        outputs: list[Tensor] = []
        hidden: list[Tensor | None] = []
        for i, scale in enumerate(scales):
            weight, bias, down, up = tensors[4 * i : 4 * i + 4]
            assert weight is not None
            if residual is not None:
                y = torch.addmm(residual.reshape(-1, residual.shape[-1]), flat, weight.t())
                if bias is not None:
                    y.add_(bias)
            else:
                y = flat @ weight.t() if bias is None else torch.addmm(bias, flat, weight.t())
            h = None
            if down is not None and up is not None:
                h = (flat @ down.t()).mul_(scale)
                y.addmm_(h, up.t())
            hidden.append(h)
            outputs.append(y.view(*x.shape[:-1], weight.shape[0]))
        ctx.save_for_backward(flat, *tensors, *hidden)
        ctx.scales, ctx.shape, ctx.has_residual = scales, x.shape, residual is not None
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        count = len(ctx.scales)
        flat, *rest = ctx.saved_tensors
        tensors, hidden = rest[: 4 * count], rest[4 * count :]
        wants = ctx.needs_input_grad
        dx: Tensor | None = None
        out: list[Tensor | None] = []
        for i, scale in enumerate(ctx.scales):
            weight, _, down, up = tensors[4 * i : 4 * i + 4]
            want_weight, want_bias, want_down, want_up = wants[3 + 4 * i : 7 + 4 * i]
            dy = grads[i].reshape(-1, weight.shape[0])
            if wants[0]:
                dx = dy @ weight if dx is None else dx.addmm_(dy, weight)
            d_down = d_up = None
            if down is not None:
                dh = (dy @ up).mul_(scale)
                if want_down:
                    d_down = dh.t() @ flat
                if want_up:
                    d_up = dy.t() @ hidden[i]
                if dx is not None:
                    dx.addmm_(dh, down)
            out += [dy.t() @ flat if want_weight else None, dy.sum(0) if want_bias else None, d_down, d_up]
        return (None if dx is None else dx.view(ctx.shape), grads[0] if ctx.has_residual else None, None, *out)


def linears(x: Tensor, maps: tuple[LinearWeights, ...]) -> tuple[Tensor, ...]:
    """Several linear maps of the same ``[..., in]`` states; ``[..., out]`` each."""
    flat = [t for m in maps for t in (m.weight, m.bias, m.down, m.up)]
    apply: Any = _Linears.apply
    out: tuple[Tensor, ...] = apply(x, None, tuple(m.scale for m in maps), *flat)
    return out


def linear_onto(residual: Tensor, x: Tensor, m: LinearWeights) -> Tensor:
    """``residual`` plus a linear map of ``x``."""
    apply: Any = _Linears.apply
    out: Tensor = apply(x, residual, (m.scale,), m.weight, m.bias, m.down, m.up)[0]
    return out


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        width = x.shape[-1]
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = norm.square_().mul_(1.0 / width).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        out: Tensor = (x * inverse).mul_(weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, inverse = ctx.saved_tensors
        width = x.shape[-1]
        product = dy * x
        flat, scale = product.reshape(-1, width), inverse.reshape(-1)
        d_weight = scale @ flat if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, d_weight, None
        # y = w x r, r = (mean x^2 + eps)^-1/2:  dx = r (w dy) - x r^3 / H * sum(w dy x)
        along = (flat @ weight).mul_(scale**3).mul_(-1.0 / width)
        dx = torch.mul(dy, weight, out=product).mul_(inverse)
        dx.addcmul_(x, along.view_as(inverse))
        return dx, d_weight, None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last dimension (Zhang and Sennrich 2019, equation 4)."""
    apply: Any = _RmsNorm.apply
    out: Tensor = apply(x, weight, eps)
    return out


class _GatedSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        d_up = F.silu(gate).mul_(grad)
        d_gate = torch.ops.aten.silu_backward(grad * up, gate)
        return d_gate, d_up


def gated_silu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` (Shazeer 2020, SwiGLU), which saves its inputs only."""
    apply: Any = _GatedSilu.apply
    out: Tensor = apply(gate, up)
    return out


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotated(x, cos, sin, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotated(grad, cos, sin, -1.0), None, None


def rotated(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    """As :func:`rotary`, without gradients; the other way round with ``sign`` -1."""
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-sign)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:], value=sign)
    return out


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + D/2) of ``[..., C, H, D]`` heads by their positions' angles (Su et al. 2021).

    Args:
        x: queries or keys.
        cos, sin: ``[..., C, 1, D]``, both halves of D alike.
    """
    apply: Any = _Rotary.apply
    out: Tensor = apply(x, cos, sin)
    return out
