"""Rollout records: a trajectory a line, complete enough to recompute its advantages from the line alone. Torch-free.

Per-token arrays have as many entries as the trajectory has tokens, in the one layout: entry t speaks about token t, and
off the mask it is 0. Numbers are written so that reading gives back exactly what was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from surefoot.errors import DataError
from surefoot.records import BoolArray, FloatArray, Rollout, Score
from surefoot.training.durable import json_bytes, read_records, write_file, writing

COLUMNS: Final = ("logp", "ref_logp", "values", "rewards", "advantages", "returns")
"""Per-token arrays of every record, null where the run has none; ``engine_logp`` and ``step_rewards`` come from the
rollout, and more may be handed in."""


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """What the estimate of a step rests on besides the arrays.

    Attributes:
        step: the step.
        gamma, lam: of GAE.
        kl_coef: coefficient of the KL penalty in the rewards; None when it is not in the rewards.
        whiten: (count, mean, population variance) that advantages were whitened with; None when they were not.
        bootstrap: ``[B]`` value after the last token that GAE was given, 0 for rows that ended; None: 0 for all.
        shaped_scores: ``[B]`` the score that was put on the last action token, after normalising, clipping and
            penalties; None: the score as it is.
        mask: ``[B, T]`` the mask the losses used (cleared in rows whose score failed); None: the rollout's.
        more: further facts, the same on each line.
    """

    step: int
    gamma: float
    lam: float
    kl_coef: float | None = None
    whiten: tuple[int, float, float] | None = None
    bootstrap: FloatArray | None = None
    shaped_scores: FloatArray | None = None
    mask: BoolArray | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def write_samples(
    path: Path,
    rollout: Rollout,
    columns: Mapping[str, FloatArray | None],
    scores: Sequence[Score],
    settings: SampleSettings,
) -> None:
    """Write the records of a step, whole or not at all; the folder is made when missing.

    Args:
        path: the file, ``samples/step-N.jsonl``.
        rollout: B trajectories; its ``logp`` becomes ``engine_logp``.
        columns: ``[B, T]`` arrays by name, see COLUMNS. Values off the mask are not read and become 0.
        scores: B scores.
        settings: the rest.
    Raises:
        DataError: an array or the scores do not fit the rollout.
        RunError: the file could not be written.
    """
    arrays: dict[str, FloatArray | None] = dict.fromkeys(COLUMNS)
    arrays |= {"engine_logp": rollout.logp, "step_rewards": rollout.step_rewards, **columns}
    _check(rollout, arrays, scores, settings)
    mask = rollout.mask if settings.mask is None else settings.mask
    lines = [json_bytes(_record(b, rollout, arrays, mask, scores[b], settings)) for b in range(rollout.num_rows)]
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, b"".join(lines))


def read_samples(path: Path) -> list[dict[str, Any]]:
    """The records of a file.

    Raises:
        DataError: there is no such file.
        RunFolderError: a line is damaged.
    """
    if not path.is_file():
        raise DataError("there is no such rollout record", got=str(path), hint="see track.samples_every")
    return read_records(path)


def _check(
    rollout: Rollout, arrays: Mapping[str, FloatArray | None], scores: Sequence[Score], settings: SampleSettings
) -> None:
    rows = {"bootstrap": settings.bootstrap, "shaped_scores": settings.shaped_scores}
    shapes = {name: (array, rollout.tokens.shape) for name, array in {**arrays, "mask": settings.mask}.items()}
    shapes |= {name: (array, (rollout.num_rows,)) for name, array in rows.items()}
    for name, (array, shape) in shapes.items():
        if array is not None and array.shape != shape:
            raise DataError(f"the column {name} does not fit the rollout", got=array.shape, allowed=shape)
    if len(scores) != rollout.num_rows:
        raise DataError("there must be one score a trajectory", got=len(scores), allowed=rollout.num_rows)


def _record(
    b: int,
    rollout: Rollout,
    arrays: Mapping[str, FloatArray | None],
    mask: BoolArray,
    score: Score,
    settings: SampleSettings,
) -> dict[str, Any]:
    trajectory, length = rollout.trajectories[b], int(rollout.lengths[b])
    prompt, chosen = trajectory.prompt, mask[b, :length]
    tokens = {
        name: None if array is None else np.where(chosen, array[b, :length], 0.0).tolist()
        for name, array in arrays.items()
    }
    return {
        "step": settings.step,
        "prompt_id": prompt.id if prompt else None,
        "group": trajectory.group,
        "prompt": prompt.text if prompt else None,
        "response": trajectory.response,
        "stop_reason": str(rollout.stop_reasons[b]),
        "score": score.value,
        "score_failure": score.reason,
        "score_note": score.note,
        "score_terms": dict(score.terms),
        "score_shaped": score.value if settings.shaped_scores is None else settings.shaped_scores[b],
        "token_rewards": score.token_rewards,
        "kl_coef": settings.kl_coef,
        "gamma": settings.gamma,
        "lam": settings.lam,
        "bootstrap": 0.0 if settings.bootstrap is None else settings.bootstrap[b],
        "whiten": None
        if settings.whiten is None
        else dict(zip(("count", "mean", "variance"), settings.whiten, strict=True)),
        **settings.more,
        "tokens": rollout.tokens[b, :length].tolist(),
        "mask": chosen.tolist(),
        **tokens,
    }
