"""Scores of pairs, as they are and with each change: every text once, written down at once, read again after a kill."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from surefoot.data.parsing import listed
from surefoot.data.preferences import Pair
from surefoot.data.transcripts import Text
from surefoot.errors import DataError, ModelError
from surefoot.evals.changed_pairs import Changed, changed_pairs
from surefoot.evals.reward_report import ProbedPairs, ScoredPairs
from surefoot.evals.surface import Change
from surefoot.models.packing import shared_length
from surefoot.models.reward_identity import reward_identity
from surefoot.models.reward_model import RewardModel
from surefoot.training.durable import append_line, json_bytes, read_records, writing

logger = logging.getLogger("surefoot")

SCORES_FILE: Final = "scores.jsonl"
BLOCK: Final = 8
"""Pairs scored together: their texts begin alike, so that what they share is read once."""

Progress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and how much there is."""


class KeptScores:
    """Scores of token rows, kept in a file.

    Args:
        model: the reward model.
        dtype: that it computes in.
        file: a line a score, by the digest of the tokens; those of another model are left aside.
    """

    def __init__(self, model: RewardModel, dtype: str, file: Path) -> None:
        self._model, self._file = model, file
        who = reward_identity(model) | {"dtype": dtype}
        del who["tokenizer"]  # the tokens themselves are in each key
        self._of = hashlib.sha256(json_bytes(who)).hexdigest()[:32]
        records = read_records(file)
        self._known = {r["text"]: float(r["score"]) for r in records if r.get("model") == self._of}

    def __call__(self, rows: Sequence[Sequence[int]], names: Sequence[str]) -> list[float]:
        """One score per row, in order.

        Args:
            rows: ids.
            names: what each is called in messages.
        Raises:
            ModelError: a score is not finite.
            RunError: scores could not be written.
        """
        keys = [hashlib.sha256(np.asarray(row, dtype=np.int64).tobytes()).hexdigest()[:32] for row in rows]
        new = {key: i for i, key in enumerate(keys) if key not in self._known}
        if not new:
            return [self._known[key] for key in keys]
        scores = self._model.score_tokens([rows[i] for i in new.values()])
        for i, score in zip(new.values(), scores, strict=True):
            if not math.isfinite(score):
                raise ModelError(
                    "the reward model's score is not a number", got=f"{score} for {names[i]}", hint="train it again"
                )
        self._known |= dict(zip(new, scores, strict=True))
        with writing(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            records = ({"model": self._of, "text": key, "score": self._known[key]} for key in new)
            append_line(self._file, b"".join(map(json_bytes, records)))
        return [self._known[key] for key in keys]


@dataclass
class PairScores:
    """What was scored so far.

    Attributes:
        pairs: that could be encoded, in the order of their prompts.
        scores, tokens: of chosen and rejected, of each.
        probed: by change: the pair's place, scores before and after.
        refused: pairs that could not be encoded, with the reason.
    """

    pairs: list[Pair] = field(default_factory=list)
    scores: list[tuple[float, float]] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    probed: dict[str, list[tuple[int, tuple[float, float], tuple[float, float]]]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def as_they_are(self, segments: Mapping[str, str]) -> ScoredPairs:
        """Pairs without any change; segments by the id of a pair or of its row."""
        return ScoredPairs(
            chosen=[chosen for chosen, _ in self.scores],
            rejected=[rejected for _, rejected in self.scores],
            chosen_tokens=[chosen for chosen, _ in self.tokens],
            rejected_tokens=[rejected for _, rejected in self.tokens],
            prompts=[pair.prompt_key for pair in self.pairs],
            margins=[pair.margin for pair in self.pairs],
            segments=[segments.get(pair.id) or segments.get(pair.id.rpartition(" ")[0]) for pair in self.pairs],
        )

    def with_change(self, name: str) -> ProbedPairs:
        """Pairs with and without a change."""
        found = self.probed.get(name, [])
        return ProbedPairs(
            chosen=[self.scores[place][0] for place, _, _ in found],
            rejected=[self.scores[place][1] for place, _, _ in found],
            before_chosen=[before[0] for _, before, _ in found],
            before_rejected=[before[1] for _, before, _ in found],
            after_chosen=[after[0] for _, _, after in found],
            after_rejected=[after[1] for _, _, after in found],
            prompts=[self.pairs[place].prompt_key for place, _, _ in found],
        )


@dataclass(frozen=True)
class _Encoded:
    """A pair with its changes, as ids: chosen, rejected, then of each change what it is compared with, and itself."""

    pair: Pair
    changes: Sequence[Changed]
    rows: Sequence[list[int]]
    names: Sequence[str]


def drawn(pairs: Sequence[Pair], most: int | None) -> list[int]:
    """Places of at most so many pairs: whole prompts by their digest, which knows nothing of the file's order."""
    order = sorted(range(len(pairs)), key=lambda i: (pairs[i].prompt_key, i))
    return order if most is None else order[:most]


def score_pairs(
    pairs: Sequence[Pair],
    changes: Mapping[str, Change],
    model: RewardModel,
    kept: KeptScores,
    *,
    probe_pairs: int | None,
    skip: bool,
    progress: Progress,
) -> PairScores:
    """Score pairs, and some of them with every change; memory holds the tokens of a block at a time.

    Args:
        pairs: at least one.
        changes: of the surface.
        model: encodes.
        kept: scores.
        probe_pairs: pairs that are changed at most; None: all.
        skip: leave out pairs that cannot be encoded, instead of refusing them.
        progress: told of texts.
    Raises:
        DataError: a pair cannot be encoded, or none can.
        ModelError, RunError: as for :class:`KeptScores`.
    """
    found = PairScores()
    order, probed = drawn(pairs, None), set(drawn(pairs, probe_pairs))
    costs = [2 + (2 * len(changes) + 4) * (i in probed) for i in order]
    for start in range(0, len(order), BLOCK):
        block = list(_encoded(order[start : start + BLOCK], pairs, changes, model, probed, found))
        if found.refused and not skip:
            break
        scores = iter(kept([row for one in block for row in one.rows], [name for one in block for name in one.names]))
        for one in block:
            _add(found, one, scores)
        progress("texts", sum(costs[: start + BLOCK]), sum(costs))
    _tell_refused(found, skip=skip)
    return found


def _encoded(
    places: Sequence[int],
    pairs: Sequence[Pair],
    changes: Mapping[str, Change],
    model: RewardModel,
    probed: set[int],
    found: PairScores,
) -> Iterator[_Encoded]:
    for place in places:
        pair = pairs[place]
        changed = changed_pairs(pair, changes) if place in probed else []
        texts: list[tuple[str, Text]] = [("chosen", pair.chosen), ("rejected", pair.rejected)]
        for change in changed:
            for both in (change.before, change.after):
                if both is not None:
                    texts += [(f"chosen with {change.name}", both[0]), (f"rejected with {change.name}", both[1])]
        names = [f"{pair.id}, {name}" for name, _ in texts]
        try:
            rows = [model.encode(text) for _, text in texts]
        except DataError as error:
            found.refused.append(f"{pair.id}: {error}")
            continue
        yield _Encoded(pair, changed, rows, names)


def _add(found: PairScores, one: _Encoded, scores: Iterator[float]) -> None:
    place = len(found.pairs)
    plain = next(scores), next(scores)
    chosen, rejected = one.rows[:2]
    same = shared_length(np.asarray(chosen), np.asarray(rejected))
    found.pairs.append(one.pair)
    found.scores.append(plain)
    found.tokens.append((len(chosen) - same, len(rejected) - same))
    for change in one.changes:
        before = plain if change.before is None else (next(scores), next(scores))
        found.probed.setdefault(change.name, []).append((place, before, (next(scores), next(scores))))


def _tell_refused(found: PairScores, *, skip: bool) -> None:
    if not found.refused:
        return
    reasons = listed(found.refused, most=5)
    if not skip or not found.pairs:
        hint = "correct them, or leave them out: bad_rows=skip" if not skip else "correct them"
        raise DataError(f"pairs cannot be encoded: {reasons}", hint=hint)
    logger.warning("%d pairs cannot be encoded, left out: %s", len(found.refused), reasons)
