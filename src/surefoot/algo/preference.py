"""The loss that turns comparisons into a reward model."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from surefoot.algo.inputs import check_number, check_same_shape, widen
from surefoot.errors import DataError


def preference_loss(
    chosen: Tensor, rejected: Tensor, *, margin: Tensor | float | None = None, centering: float = 0.0
) -> Tensor:
    """Negative log-likelihood of the comparisons under the Bradley-Terry model.

    ::

        L = mean(−log σ(s_chosen − s_rejected − m)) + c·mean((s_chosen + s_rejected)²)

    The first term fixes differences only; the second keeps the scores near 0.

    Source: Bradley and Terry 1952; Ouyang et al. 2022 (arXiv:2203.02155), eq. 1; margin, Touvron et al. 2023
    (arXiv:2307.09288), eq. 2; centering, Eisenstein et al. 2023 (arXiv:2312.09244).

    Args:
        chosen, rejected: ``[N]`` scores of the preferred and of the other answer; gradients flow into both.
        margin: ``[N]`` or one number, by how much the preferred answer should lead. None: 0.
        centering: c ≥ 0.
    Returns:
        Scalar; for N = 0 it is 0, still connected.
    Raises:
        DataError: shapes do not fit. ConfigError: ``centering`` negative.
    """
    if chosen.ndim != 1:
        raise DataError("scores of answers must be [N]", got=tuple(chosen.shape))
    check_same_shape(chosen=chosen, rejected=rejected)
    check_number("centering", centering, low=0.0)
    chosen, rejected = widen(chosen, rejected)
    lead = chosen - rejected
    if isinstance(margin, Tensor):
        check_same_shape(chosen=chosen, margin=margin)
        margin = margin.detach().to(lead.dtype)
    if margin is not None:
        lead = lead - margin
    loss = -logsigmoid(lead) + centering * (chosen + rejected).square()
    return loss.sum() / max(lead.numel(), 1)
