"""From hidden states to the log-probability and entropy of one token each, never holding ``[B, T, V]``.

Logits exist for a few rows at a time, and their gradient is formed and used up chunk by chunk. Who can say beforehand
how the loss depends on each number (:data:`Slopes`) gets all gradients made with the numbers, from the same logits;
otherwise logits are made a second time in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Slopes = Callable[[slice, Tensor], tuple[Tensor, Tensor | None]]
"""Given rows and their log-probabilities ``[k]``: the loss's derivatives ``[k]`` by these, and by the entropies of the
same rows (None: the loss does not use them)."""
# Share of the largest slope by which the loss may differ from what was said of it: both are sums of few numbers.
SLOPES_MAY_DIFFER = 1e-3


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
                entropy[rows] = _entropy(log_p, settings)
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
        sums = _Gradients(hidden, weight, bias, ctx.needs_input_grad, lse.dtype)
        for rows in _chunks(tokens, weight, lse.dtype):
            z = settings.logits(torch.nn.functional.linear(hidden[rows], weight, bias))
            # What is still needed afterwards must not be written over.
            log_p = z - lse[rows, None] if settings.softcap is not None else z.sub_(lse[rows, None])
            by_logp, by_entropy = (None if g is None else g[rows] for g in (grad_logp, grad_entropy))
            of_rows = None if entropy is None else entropy[rows]
            grad = _by_logits(log_p, tokens[rows], by_logp, of_rows, by_entropy)
            sums.add(rows, settings.raw_gradient(grad, z), hidden[rows], weight)
        return (*sums.finished(weight, bias), None, None, None)


@dataclass(frozen=True)
class _KnownLoss:
    """What a loss uses, and how it depends on that."""

    entropy: bool
    slopes: Slopes


class _KnownLossLogp(torch.autograd.Function):
    """As :class:`_TokenLogp` for a loss whose slopes are known: its gradients are made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        settings: HeadSettings,
        loss: _KnownLoss,
    ) -> tuple[Tensor, Tensor | None]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        logp = hidden.new_empty(len(tokens), dtype=wide)
        entropy = torch.empty_like(logp) if loss.entropy else None
        said_logp, said_entropy = torch.zeros_like(logp), torch.zeros_like(logp)
        sums = _Gradients(hidden, weight, bias, ctx.needs_input_grad, wide)

        def gradient(rows: slice) -> Tensor:
            z = settings.logits(torch.nn.functional.linear(hidden[rows], weight, bias))
            log_p = torch.log_softmax(z, dim=-1)
            logp[rows] = log_p.gather(1, tokens[rows, None])[:, 0]
            of_rows = None
            if entropy is not None:
                of_rows = entropy[rows] = _entropy(log_p, settings)
            by_logp, by_entropy = loss.slopes(rows, logp[rows])
            said_logp[rows] = by_logp
            if by_entropy is not None:
                said_entropy[rows] = by_entropy
            return settings.raw_gradient(_by_logits(log_p, tokens[rows], by_logp, of_rows, by_entropy), z)

        for rows in _chunks(tokens, weight, wide):
            sums.add(rows, gradient(rows), hidden[rows], weight)
        ctx.save_for_backward(said_logp, said_entropy, *sums.finished(weight, bias))
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp: Tensor, grad_entropy: Tensor | None) -> tuple[Any, ...]:
        said_logp, said_entropy, *gradients = ctx.saved_tensors
        for given, said in ((grad_logp, said_logp), (grad_entropy, said_entropy)):
            # Numbers that are not finite compare as kept: the optimizer deals with those.
            if given is not None and len(given) and (given - said).abs().max() > SLOPES_MAY_DIFFER * said.abs().max():
                raise ModelError(
                    "a loss depends on its log-probabilities in another way than was said beforehand",
                    hint="give no slopes, or those of this very loss",
                )
        return (*gradients, None, None, None)


def _entropy(log_p: Tensor, settings: HeadSettings) -> Tensor:
    """``[k]`` entropies of ``[k, V]`` log-probabilities; may write over those of banned ids."""
    p = torch.exp(log_p)
    if settings.banned:
        # Probability 0 times -inf must be 0.
        log_p.index_fill_(-1, _index(settings.banned, log_p.device), 0.0)
    entropy: Tensor = -torch.linalg.vecdot(p, log_p)
    return entropy


def _by_logits(
    log_p: Tensor, tokens: Tensor, by_logp: Tensor | None, entropy: Tensor | None, by_entropy: Tensor | None
) -> Tensor:
    """``[k, V]`` gradient by the finished logits, anything for banned ids; writes over ``log_p``."""
    if entropy is not None and by_entropy is not None:
        # dH / dz = -p (log p + H)
        grad = torch.exp(log_p)
        factor = log_p.add_(entropy[:, None]).mul_(-by_entropy[:, None])
        grad.mul_(factor if by_logp is None else factor.sub_(by_logp[:, None]))
    else:
        assert by_logp is not None
        grad = log_p.exp_().mul_(-by_logp[:, None])
    if by_logp is not None:
        # d logp / dz = onehot - p
        grad.scatter_add_(1, tokens[:, None], by_logp[:, None])
    return grad


class _Gradients:
    """Of ``hidden @ weight^T + bias``, added up chunk by chunk.

    Args:
        hidden, weight, bias: of the map.
        wants: which of them need a gradient; more may follow.
        wide: the type that those of weight and bias are added up in: float32 at least, since in half precision the sum
            over many chunks would stop growing.
    """

    def __init__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, wants: Sequence[bool], wide: torch.dtype
    ) -> None:
        self.hidden = torch.empty_like(hidden) if wants[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if wants[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide) if bias is not None and wants[2] else None

    def add(self, rows: slice, grad: Tensor, hidden: Tensor, weight: Tensor) -> None:
        """Count in the gradient ``[k, V]`` of some rows, whose states are ``[k, H]``."""
        if self.bias is not None:
            self.bias += grad.sum(0)
        grad = grad.to(hidden.dtype)
        if self.hidden is not None:
            torch.mm(grad, weight, out=self.hidden[rows])
        if self.weight is not None:
            _add_product(self.weight, grad.T, hidden)

    def finished(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """In the types of what they belong to."""
        of_weight = None if self.weight is None else self.weight.to(weight.dtype)
        return self.hidden, of_weight, None if self.bias is None or bias is None else self.bias.to(bias.dtype)


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """``total += a @ b``, without a temporary where the types allow it."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b


def _chunks(tokens: Tensor, weight: Tensor, dtype: torch.dtype) -> list[slice]:
    rows, size = len(tokens), max(1, CHUNK_BYTES // (dtype.itemsize * weight.shape[0]))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


class OutputHead:
    """A causal LM's output layer.

    Args:
        layer: the ``lm_head`` module; its weight may be shared with the input embedding.
        settings: what happens to the logits.
    """

    def __init__(self, layer: torch.nn.Module, settings: HeadSettings) -> None:
        self.layer, self.settings = layer, settings

    def logp(
        self, hidden: Tensor, tokens: Tensor, *, entropy: bool = False, slopes: Slopes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probability of each token, and the entropy of its distribution if asked for.

        Args:
            hidden: ``[n, H]`` states in which the tokens were chosen.
            tokens: ``[n]`` ids.
            entropy: also compute entropies (in nats).
            slopes: of the loss that will be made of these numbers and of nothing else; saves a third of the work on the
                logits.
        Returns:
            ``[n]`` log-probabilities and ``[n]`` entropies or None, in float32 at least.
        Raises:
            ModelError: a banned token; in the backward pass, a loss that does not have these slopes.
        """
        weight, bias = self.parameters()
        banned = self.settings.banned
        if banned and len(tokens) and torch.isin(tokens, _index(banned, tokens.device)).any():
            raise ModelError("an action token is an id that no token of the vocabulary has", hint="check the tokenizer")
        known = None if slopes is None or not torch.is_grad_enabled() else _KnownLoss(entropy, slopes)
        apply: Any = _TokenLogp.apply if known is None else _KnownLossLogp.apply
        asked = entropy if known is None else known
        out: tuple[Tensor, Tensor | None] = apply(hidden, weight, bias, tokens, self.settings, asked)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Finished logits ``[n, V]`` of a few states, for sampling; no gradient is meant to flow."""
        weight, bias = self.parameters()
        return self.settings.logits(torch.nn.functional.linear(hidden, weight, bias))

    def parameters(self) -> tuple[Tensor, Tensor | None]:
        """``[V, H]`` weight and ``[V]`` bias, if any."""
        layer: Any = self.layer
        return layer.weight, getattr(layer, "bias", None)
