"""What a stage would train, for people: demonstrations with their trained tokens, pairs as the model reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from surefoot.assembly.reward_model import PreferenceInputs
from surefoot.assembly.sft import SFTInputs
from surefoot.models.tokenizer import TextCodec
from surefoot.records import IntArray


@dataclass(frozen=True)
class Part:
    """Tokens in a row with one role.

    Attributes:
        role: ``given`` or ``trained``; of pairs ``prompt``, ``chosen`` or ``rejected``.
        tokens: how many.
        text: of them, special tokens included.
    """

    role: str
    tokens: int
    text: str


@dataclass(frozen=True)
class Shown:
    """A row by its id, in parts."""

    id: str
    parts: tuple[Part, ...]


def shown_demonstrations(inputs: SFTInputs, count: int) -> list[Shown]:
    """The first demonstrations that would be trained."""
    found = []
    for row in inputs.train.rows[:count]:
        parts, start = [], 0
        for trained, run in groupby(row.mask.tolist()):
            length = len(list(run))
            text = inputs.codec.decode(row.tokens[start : start + length].tolist())
            parts.append(Part("trained" if trained else "given", length, text))
            start += length
        found.append(Shown(row.id, tuple(parts)))
    return found


def shown_pairs(inputs: PreferenceInputs, count: int) -> list[Shown]:
    """The first pairs that would be trained: what both begin with, and how each goes on."""
    return [
        Shown(pair.id, tuple(_pair_parts(inputs.codec, pair.chosen, pair.rejected)))
        for pair in inputs.train.pairs[:count]
    ]


def _pair_parts(codec: TextCodec, chosen: IntArray, rejected: IntArray) -> Sequence[Part]:
    size = min(len(chosen), len(rejected))
    differ = (chosen[:size] != rejected[:size]).nonzero()[0]
    common = int(differ[0]) if len(differ) else size
    texts = {"prompt": chosen[:common], "chosen": chosen[common:], "rejected": rejected[common:]}
    return [Part(role, len(ids), codec.decode(ids.tolist())) for role, ids in texts.items()]
