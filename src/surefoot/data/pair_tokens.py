"""Pairs as tokens of the reward model's vocabulary: the one place where a pair is dropped or cut. Torch-free."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from surefoot.config import RewardModelSection
from surefoot.data.parsing import listed
from surefoot.data.preferences import Pair
from surefoot.data.transcripts import Text
from surefoot.errors import DataError
from surefoot.records import IntArray

logger = logging.getLogger("surefoot")


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """A pair as tokens.

    Attributes:
        id: of the pair.
        chosen, rejected: int64 token rows.
        margin: by how much the chosen one is better, where the data says it.
        prompt_key: sha256 of the prompt.
    """

    id: str
    chosen: IntArray
    rejected: IntArray
    margin: float | None
    prompt_key: str


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """Pairs, ready to be trained on.

    Attributes:
        pairs: in order.
        dropped, cut: ids of pairs left out, or with a text cut, because they are too long.
        refused: ids of pairs that could not be encoded, with the reason; empty unless bad rows are skipped.
        alike: ids of pairs whose texts are the same tokens, so that there is nothing to learn; left out.
    """

    pairs: tuple[EncodedPair, ...]
    dropped: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    alike: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """What became of the pairs, and tokens of those that are left."""
        lengths = [len(text) for pair in self.pairs for text in (pair.chosen, pair.rejected)]
        return {
            "kept": len(self.pairs),
            "dropped": len(self.dropped),
            "cut": len(self.cut),
            "refused": len(self.refused),
            "alike": len(self.alike),
            "tokens": sum(lengths),
            "longest": max(lengths, default=0),
        }


def encode_pairs(
    pairs: Sequence[Pair],
    encode: Callable[[Text], list[int]],
    cut: Callable[[list[int], int], list[int]],
    section: RewardModelSection,
    *,
    limit: int | None,
) -> EncodedPairs:
    """Encode pairs and apply the rule for long ones.

    Args:
        pairs: as read.
        encode: from a text or a conversation to ids, as the finished reward model will read it.
        cut: from ids to the last that fit.
        section: ``overlong`` and ``bad_rows``.
        limit: longest text in tokens; None: any.
    Raises:
        DataError: a pair cannot be encoded, is too long where that is refused, or none is left.
        ModelError: there are conversations and the model has no chat template.
    """
    kept: list[EncodedPair] = []
    dropped: list[str] = []
    shortened: list[str] = []
    refused: list[tuple[str, str]] = []
    alike: list[str] = []
    for pair in pairs:
        try:
            texts = [encode(pair.chosen), encode(pair.rejected)]
        except DataError as error:
            refused.append((pair.id, str(error)))
            continue
        if not all(texts):
            refused.append((pair.id, "a text has no tokens"))
            continue
        longest = max(map(len, texts))
        if limit is not None and longest > limit:
            if section.overlong != "cut":
                dropped.append(f"{pair.id} ({longest})")
                continue
            texts = [ids if len(ids) <= limit else cut(ids, limit) for ids in texts]
            shortened.append(pair.id)
        if texts[0] == texts[1]:
            alike.append(pair.id)
            continue
        chosen, rejected = (np.array(ids, dtype=np.int64) for ids in texts)
        kept.append(EncodedPair(pair.id, chosen, rejected, pair.margin, pair.prompt_key))
    found = EncodedPairs(tuple(kept), tuple(dropped), tuple(shortened), tuple(refused), tuple(alike))
    _refuse(len(pairs), found, section, limit)
    _report(found, limit)
    return found


def _refuse(count: int, found: EncodedPairs, section: RewardModelSection, limit: int | None) -> None:
    if found.refused and (section.bad_rows == "error" or not found.pairs):
        reasons = listed([f"{row}: {reason}" for row, reason in found.refused], most=5)
        hint = "correct them, or set reward_model.bad_rows: skip" if found.pairs else "correct them"
        raise DataError(f"{len(found.refused)} of {count} pairs cannot be encoded: {reasons}", hint=hint)
    if found.dropped and (section.overlong == "error" or not found.pairs):
        raise DataError(
            f"{len(found.dropped)} of {count} pairs have a text longer than {limit} tokens",
            got=listed(found.dropped),
            hint="raise reward_model.max_tokens, if the model's context allows it, or set reward_model.overlong: cut",
        )
    if not found.pairs:
        raise DataError("no pair is left", got=f"{count} pairs whose two texts are the same tokens")


def _report(found: EncodedPairs, limit: int | None) -> None:
    if found.dropped:
        shown = listed(found.dropped)
        logger.warning("%d pairs with a text of more than %s tokens dropped: %s", len(found.dropped), limit, shown)
    if found.cut:
        logger.warning("%d pairs had the beginning of a text cut off: %s", len(found.cut), listed(found.cut))
    if found.alike:
        logger.warning("%d pairs whose texts are the same tokens left out: %s", len(found.alike), listed(found.alike))
    if found.refused:
        reasons = listed([f"{row}: {reason}" for row, reason in found.refused], most=5)
        logger.warning("%d pairs cannot be encoded, skipped: %s", len(found.refused), reasons)
