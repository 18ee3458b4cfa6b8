"""What is found out about a reward model when it is finished: its calibration, and what speaks against using it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import surefoot
from surefoot.data.pair_tokens import EncodedPair
from surefoot.evals.calibration import accuracy, calibrate
from surefoot.records import Finding, FloatArray

FORMAT = 1


def calibration_of(
    scores: FloatArray,
    pairs: Sequence[EncodedPair],
    *,
    source: str,
    step: int,
    places: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Content of ``surefoot_reward.json``.

    Args:
        scores: ``[n, 2, k]`` of the pairs' texts by each head.
        pairs: that it is calibrated on.
        source: what pairs those are.
        step: whose weights the model has.
        places: inputs of the lineage; files go by name and digest.
    """
    mean = scores.mean(axis=2)
    found = calibrate(mean[:, 0].tolist(), mean[:, 1].tolist(), [pair.margin for pair in pairs])
    out: dict[str, Any] = {"format": FORMAT, "surefoot": surefoot.__version__, "step": step, "source": source, **found}
    if scores.shape[2] > 1:
        leads = scores[:, 0] - scores[:, 1]
        out["by_head"] = [accuracy(leads[:, head]) for head in range(scores.shape[2])]
        out["spread"] = float(scores.std(axis=2).mean())
    out["data"] = {
        name: {"file": Path(str(place["path"])).name, "sha256": place["sha256"], "counts": place.get("counts")}
        for name, place in places.items()
        if place["kind"] == "data"
    }
    return out


def near_chance(calibration: Mapping[str, Any], step: int) -> list[Finding]:
    """A model whose accuracy may be that of a coin."""
    low, high = calibration["low"], calibration["high"]
    if low > 0.5:
        return []
    return [
        Finding(
            "reward_model/near_chance",
            "warning",
            f"the order of {calibration['pairs']} {calibration['source']} is right in {calibration['accuracy']:.1%},"
            f" 95 % interval {low:.1%} to {high:.1%}: it may be chance",
            {"accuracy": calibration["accuracy"], "low": low, "high": high, "pairs": calibration["pairs"]},
            "do not use it as a reward; more pairs, a larger model or another learning rate may help",
            step=step,
        )
    ]


def shared(count: int, held_out: int) -> list[Finding]:
    """Held-out pairs whose prompts are trained on."""
    if not count:
        return []
    return [
        Finding(
            "data/shared_prompts",
            "warning",
            f"{count} of {held_out} held-out pairs have a prompt that is trained on",
            {"shared": count, "held_out": held_out},
            "take these prompts out of one of the two, or let reward_model.held_out_share part the data by prompt",
        )
    ]
