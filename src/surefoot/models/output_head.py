"""From hidden states to the log-probability and entropy of one token each, never holding ``[B, T, V]``.

Logits exist for a few rows at a time. Where the output layer is trained they are made again in the backward pass, and
their gradient is formed and used up chunk by chunk. Where it is frozen, the gradient of a token's log-probability with
respect to its state is made together with the log-probability, so that nothing is made twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from surefoot.errors import ModelError

# Logits at a time: large enough for full-speed matrix products, small beside the weights. Smaller chunks stay in a
# CPU's cache, but the gradient of the weights is read and written once a chunk, which costs more.
CHUNK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class HeadSettings:
    """How a model turns ``hidden @ weight`` into logits, and the temperature they are read at.

    Attributes:
        temperature: logits are divided by it, last.
        scale: logits are multiplied by it, first (Cohere's ``logit_scale``, Granite's ``1 / logits_scaling``).
        softcap: logits become ``softcap * tanh(logits / softcap)`` (Gemma 2).
        banned: ids that no token has; they are left out of the distribution.
    """

    temperature: float = 1.0
    scale: float = 1.0
    softcap: float | None = None
    banned: tuple[int, ...] = ()

    def logits(self, raw: Tensor) -> Tensor:
        """Finished logits in float32 at least, ``[n, V]``; may write into ``raw``."""
        z = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if self.scale != 1.0:
            z = z * self.scale
        if self.softcap is not None:
            z = self.softcap * torch.tanh(z / self.softcap)
        if self.temperature != 1.0:
            z = z / self.temperature
        if self.banned:
            z.index_fill_(-1, _index(self.banned, z.device), -torch.inf)
        return z

    def raw_gradient(self, grad: Tensor, logits: Tensor) -> Tensor:
        """Gradient with respect to ``hidden @ weight`` from that with respect to the finished logits."""
        if self.softcap is not None:
            # d (c tanh(x / c)) / dx = 1 - tanh^2
            ratio = logits * (self.temperature / self.softcap)
            grad = grad * (1 - ratio * ratio)
        if self.banned:
            grad.index_fill_(-1, _index(self.banned, grad.device), 0.0)
        factor = self.scale / self.temperature
        return grad if factor == 1.0 else grad.mul_(factor)


@lru_cache(maxsize=8)
def _index(ids: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(ids, device=device)


class _TokenLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        settings: HeadSettings,
        want_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logp = hidden.new_empty(len(tokens), dtype=wide)
        lse = torch.empty_like(logp)
        entropy = torch.empty_like(logp) if want_entropy else None
        for rows in _chunks(tokens, weight, wide):
            z = settings.logits(torch.nn.functional.linear(hidden[rows], weight, bias))
            log_p, chosen = torch.log_softmax(z, dim=-1), tokens[rows, None]
            logp[rows] = log_p.gather(1, chosen)[:, 0]
            lse[rows] = z.gather(1, chosen)[:, 0] - logp[rows]
            if entropy is not None:
                p = torch.exp(log_p)
                if settings.banned:
                    # Probability 0 times -inf must be 0.
                    log_p.index_fill_(-1, _index(settings.banned, z.device), 0.0)
                entropy[rows] = -torch.linalg.vecdot(p, log_p)
        ctx.save_for_backward(hidden, weight, bias, tokens, lse, entropy)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor | None, grad_entropy: Tensor | None) -> tuple[Any, ...]:
        hidden, weight, bias, tokens, lse, entropy = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        if grad_logp is None and grad_entropy is None:
            return (None,) * 6
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Added up in float32 at least: in half precision the sum over many chunks would stop growing.
        grad_weight = torch.zeros_like(weight, dtype=lse.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=lse.dtype) if bias is not None and ctx.needs_input_grad[2] else None
        for rows in _chunks(tokens, weight, lse.dtype):
            z = settings.logits(torch.nn.functional.linear(hidden[rows], weight, bias))
            # What is still needed afterwards must not be written over.
            log_p = z - lse[rows, None] if settings.softcap is not None else z.sub_(lse[rows, None])
            grad = log_p.exp_() if grad_entropy is None else torch.exp(log_p)
            if grad_entropy is not None:
                # dH / dz = -p (log p + H)
                factor = log_p.add_(entropy[rows, None]).mul_(-grad_entropy[rows, None])
                grad.mul_(factor if grad_logp is None else factor.sub_(grad_logp[rows, None]))
            if grad_logp is not None:
                # d logp / dz = onehot - p
                if grad_entropy is None:
                    grad.mul_(-grad_logp[rows, None])
                grad.scatter_add_(1, tokens[rows, None], grad_logp[rows, None])
            grad = settings.raw_gradient(grad, z)
            if grad_bias is not None:
                grad_bias += grad.sum(0)
            grad = grad.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = grad @ weight
            if grad_weight is not None:
                _add_product(grad_weight, grad.T, hidden[rows])
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, without a temporary where the types allow it."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _chunks(tokens: Tensor, weight: Tensor, dtype: torch.dtype) -> list[slice]:
    rows, size = len(tokens), max(1, CHUNK_BYTES // (dtype.itemsize * weight.shape[0]))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


class _FrozenTokenLogp(torch.autograd.Function):
    """As :class:`_TokenLogp` for an output layer that is not trained, without entropies."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, settings: HeadSettings
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logp = hidden.new_empty(len(tokens), dtype=wide)
        # d logp / d hidden; a loss only scales its rows.
        direction = torch.empty_like(hidden)
        for rows in _chunks(tokens, weight, wide):
            z = settings.logits(torch.nn.functional.linear(hidden[rows], weight, bias))
            log_p, chosen = torch.log_softmax(z, dim=-1), tokens[rows, None]
            logp[rows] = log_p.gather(1, chosen)[:, 0]
            grad = log_p.exp_().neg_()
            grad.scatter_add_(1, chosen, torch.ones_like(grad[:, :1]))
            torch.mm(settings.raw_gradient(grad, z).to(hidden.dtype), weight, out=direction[rows])
        ctx.save_for_backward(direction)
        return logp

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (direction,) = ctx.saved_tensors
        return (direction * grad[:, None]).to(direction.dtype), None, None, None, None


class OutputHead:
    """A causal LM's output layer.

    Args:
        layer: the ``lm_head`` module; its weight may be shared with the input embedding.
        settings: what happens to the logits.
    """

    def __init__(self, layer: torch.nn.Module, settings: HeadSettings) -> None:
        self.layer, self.settings = layer, settings

    def logp(self, hidden: Tensor, tokens: Tensor, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probability of each token, and the entropy of its distribution if asked for.

        Args:
            hidden: ``[n, H]`` states in which the tokens were chosen.
            tokens: ``[n]`` ids.
            entropy: also compute entropies (in nats).
        Returns:
            ``[n]`` log-probabilities and ``[n]`` entropies or None, in float32 at least.
        """
        weight, bias = self.parameters()
        banned = self.settings.banned
        if banned and len(tokens) and torch.isin(tokens, _index(banned, tokens.device)).any():
            raise ModelError("an action token is an id that no token of the vocabulary has", hint="check the tokenizer")
        trained = weight.requires_grad or (bias is not None and bias.requires_grad)
        if hidden.requires_grad and not trained and not entropy:
            only: Any = _FrozenTokenLogp.apply
            return only(hidden, weight, bias, tokens, self.settings), None
        apply: Any = _TokenLogp.apply
        out: tuple[Tensor, Tensor | None] = apply(hidden, weight, bias, tokens, self.settings, entropy)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Finished logits ``[n, V]`` of a few states, for sampling; no gradient is meant to flow."""
        weight, bias = self.parameters()
        return self.settings.logits(torch.nn.functional.linear(hidden, weight, bias))

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """``[V, H]`` weight and ``[V]`` bias, if any."""
        layer: Any = self.layer
        return layer.weight, getattr(layer, "bias", None)
