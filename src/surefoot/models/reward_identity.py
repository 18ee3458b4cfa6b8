"""Which reward model this is: everything that decides what it makes of a text, as digests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from surefoot.models.reward_model import RewardModel


def reward_identity(model: RewardModel) -> dict[str, str]:
    """``weights``, ``config`` and ``tokenizer`` (chat template included) as sha256, and ``ensemble`` in words.

    Two models with the same identity give the same text the same score, up to rounding.
    """
    how = model.ensemble
    ensemble = f"lower by {how.c:g} deviations" if how.how == "lower" else how.how
    return {
        "weights": model.digest,
        "config": hashlib.sha256((Path(model.folder) / "config.json").read_bytes()).hexdigest(),
        "tokenizer": model.codec.fingerprint(),
        "ensemble": "one head" if model.num_heads == 1 else ensemble,
    }
