"""Quantiles of Student's t. Torch-free."""

from __future__ import annotations

import math
from statistics import NormalDist


def student_t_975(degrees: int) -> float:
    """97.5 % quantile of Student's t, from its expansion around the normal (Abramowitz and Stegun 26.7.5).

    Within 0.2 % from 3 degrees of freedom on; 1 and 2 are exact.
    """
    if degrees < 3:
        return {1: 12.706204736, 2: 4.302652730}[degrees]
    z = NormalDist().inv_cdf(0.975)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**i for i, term in enumerate(terms))
