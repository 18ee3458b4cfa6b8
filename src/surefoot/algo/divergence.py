"""Per-token estimates of the KL divergence between the policy and its reference."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from surefoot.algo.inputs import check_same_shape, widen
from surefoot.errors import ConfigError

ESTIMATORS: Final = ("k1", "k2", "k3")


def _k1(difference: Tensor) -> Tensor:
    return difference


def _k2(difference: Tensor) -> Tensor:
    return difference.square() / 2


def _k3(difference: Tensor) -> Tensor:
    # expm1 keeps the digits that exp(−d) − 1 loses for small d, and the sum from going below 0.
    return torch.expm1(-difference) + difference


_FORMULAS: Final = {"k1": _k1, "k2": _k2, "k3": _k3}


def kl(logp: Tensor, ref_logp: Tensor, estimator: str = "k1") -> Tensor:
    """Single-sample estimate of KL(π ‖ π_ref) for each token, the tokens drawn from π.

    With d = log π(token) − log π_ref(token)::

        k1 = d                 unbiased; may be negative, and that alone is no fault
        k2 = d²/2              biased, never negative
        k3 = e⁻ᵈ − 1 + d       unbiased (E[e⁻ᵈ] = 1), never negative

    As a reward only k1 leads to the right optimum. As a loss term, k3's gradient is that of KL(π_ref ‖ π) in
    expectation, k1's is 0. Nothing is clamped: what is logged is what trains. Where k2 or k3 leaves the range of the
    dtype (k3 in float32: d < −88) the value is infinite, so that it is seen, and the gradient is 0.

    Source: Schulman 2020, Approximating KL divergence (joschu.net/blog/kl-approx.html); as a reward, Ziegler et al.
    2019 (arXiv:1909.08593), eq. 2; k3 as a loss, Shao et al. 2024 (arXiv:2402.03300), eq. 4.

    Args:
        logp: ``[B, T]`` log-probabilities of the policy, in nats; gradients flow into them.
        ref_logp: ``[B, T]`` log-probabilities of the reference; no gradient.
        estimator: ``k1``, ``k2`` or ``k3``.
    Returns:
        ``[B, T]`` in nats. There is no mask here: a token that no loss reads sends exactly 0 back.
    Raises:
        ConfigError: unknown estimator. DataError: shapes differ.
    """
    if estimator not in _FORMULAS:
        raise ConfigError("unknown KL estimator", got=estimator, allowed=ESTIMATORS)
    check_same_shape(logp=logp, ref_logp=ref_logp)
    logp, ref_logp = widen(logp, ref_logp.detach())
    formula, difference = _FORMULAS[estimator], logp - ref_logp
    with torch.no_grad():
        plain = formula(difference)
        finite = plain.isfinite()
    # Two selections, before and after: with one alone, garbage gives 0·∞ = NaN on the way back.
    return torch.where(finite, formula(torch.where(finite, difference, 0.0)), plain)
