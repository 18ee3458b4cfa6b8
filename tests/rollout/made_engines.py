"""What the engine tests share: an alphabet for a tokenizer, environments, and decoding the slow, obvious way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from surefoot.models.attention import Padded
from surefoot.models.load import CausalLM
from surefoot.protocols import Turn
from surefoot.records import Prompt, StopReason
from surefoot.rollout.sampling import sample_tokens

PROMPTS = [Prompt(str(i), tokens) for i, tokens in enumerate([(9,), (3, 70, 114, 5, 60, 2, 88), (71, 0), (25, 87, 87)])]


class Alphabet:
    """Token i is a letter; 0 is nothing at all, 1 the end, and every seventh token two letters."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of ids."""
        return "".join("" if t == 0 else "<end>" if t == 1 else chr(96 + t % 26) * (1 + (t % 7 == 0)) for t in tokens)

    def response_text(self, tokens: Sequence[int], stop_reason: StopReason) -> str:
        """Text of a response without its closing stop token."""
        return self.decode(tokens[:-1] if stop_reason is StopReason.EOS else tokens)


@dataclass
class Script:
    """Answers each response with the next of some turns, and keeps what it was asked."""

    turns: list[Turn]
    asked: list[tuple[str, list[int], list[bool]]] = field(default_factory=list)

    def respond(self, prompt: Prompt, tokens: Sequence[int], mask: Sequence[bool]) -> Turn:
        """The next turn for this prompt."""
        number = sum(1 for p, *_ in self.asked if p == prompt.id)
        self.asked.append((prompt.id, list(tokens), list(mask)))
        return self.turns[number]


@torch.no_grad()
def slow_decode(
    lm: CausalLM, sequence: Sequence[int], uniform: np.ndarray, stop_ids: frozenset[int] = frozenset()
) -> tuple[list[int], list[float]]:
    """One row, no cache, no batch: the whole sequence is read again for each token."""
    tokens: list[int] = []
    logps: list[float] = []
    for draw in uniform:
        ids = torch.tensor([[*sequence, *tokens]])
        positions = torch.arange(ids.shape[1])[None]
        out = lm.trunk(input_ids=ids, position_ids=positions, use_cache=False, attention_layout=Padded())
        logits = lm.head.logits(out.last_hidden_state[:, -1])
        token, logp, _ = sample_tokens(logits, torch.tensor([draw], dtype=torch.float64))
        tokens.append(int(token))
        logps.append(float(logp))
        if tokens[-1] in stop_ids:
            break
    return tokens, logps
