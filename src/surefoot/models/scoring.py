"""One pass over a rollout: log-probabilities, entropies and values of its tokens, with or without gradients.

Policy, reference and critic all read a rollout through here, so they agree on layout, temperature and masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefoot.errors import ConfigError, DataError
from surefoot.models.batching import micro_batches
from surefoot.models.load import hidden_states
from surefoot.models.output_head import OutputHead
from surefoot.records import FloatArray, Rollout


@dataclass(frozen=True)
class BatchPlan:
    """How forward passes are cut.

    Attributes:
        tokens: tokens per micro-batch at most.
        packing: ``on``, ``off`` or ``auto`` (on for a CPU; on a GPU a loop over rows is slower than some padding).
    """

    tokens: int = 8192
    packing: str = "auto"

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.packing not in ("auto", "on", "off"):
            raise ConfigError("a batch plan needs tokens of at least 1 and a known packing", got=repr(self))

    def packed(self, device: torch.device) -> bool:
        """Whether to pack on this device."""
        return self.packing == "on" or (self.packing == "auto" and device.type == "cpu")


@dataclass(frozen=True)
class TokenScores:
    """What one pass found; numpy ``[B, T]``, 0 off the mask; ``after`` is ``[B]``. None where not asked for."""

    logp: FloatArray | None
    entropy: FloatArray | None
    values: FloatArray | None
    after: FloatArray | None


class ValueHead(nn.Module):
    """A linear map from a hidden state to a value, in float32 at least.

    Args:
        hidden_size: width of the states.
        bias: whether it has a bias.
    """

    def __init__(self, hidden_size: int, *, bias: bool = False) -> None:
        super().__init__()
        # Zero: before any training a critic that says 0 everywhere is neutral, a random one is noise
        # (OpenAI's lm-human-preferences initialises it so).
        self.weight = nn.Parameter(torch.zeros(1, hidden_size))
        self.bias = nn.Parameter(torch.zeros(1)) if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """``[n, H]`` states to ``[n]`` values."""
        wide = torch.promote_types(hidden.dtype, torch.float32)
        values = nn.functional.linear(hidden.to(wide), self.weight.to(wide), self.bias)
        return values[:, 0]


@torch.no_grad()
def score_rollout(
    trunk: Any,
    rollout: Rollout,
    plan: BatchPlan,
    *,
    head: OutputHead | None = None,
    value_head: ValueHead | None = None,
    rows: Sequence[int] | None = None,
    want_entropy: bool = True,
) -> TokenScores:
    """Read a rollout without gradients.

    Args:
        trunk: makes hidden states.
        rollout: B trajectories.
        plan: how to cut it.
        head: gives log-probabilities, and entropies unless ``want_entropy`` is off.
        value_head: gives values.
        rows: only these rows are read, the others stay 0.
    Raises:
        DataError: a token id that the model has no embedding for.
        ModelError: a trajectory longer than the model's context.
    """
    device = next(trunk.parameters()).device
    check_ids(rollout, int(trunk.get_input_embeddings().weight.shape[0]))
    out: dict[str, Any] = dict.fromkeys(("logp", "entropy", "values", "after"))
    chosen = range(rollout.num_rows) if rows is None else rows

    def put(name: str, where: Any, values: Tensor, shape: tuple[int, ...]) -> None:
        array = values.cpu().numpy()
        if out[name] is None:
            out[name] = np.zeros(shape, dtype=array.dtype)
        out[name][where] = array

    shape = rollout.tokens.shape
    after = value_head is not None
    cut = micro_batches(rollout, chosen, tokens=plan.tokens, packed=plan.packed(device), device=device, after=after)
    for batch in cut:
        flat = hidden_states(trunk, batch)
        states = flat.index_select(0, batch.states)
        if head is not None:
            logp, entropy = head.logp(states, batch.tokens, entropy=want_entropy)
            put("logp", batch.where, logp, shape)
            if entropy is not None:
                put("entropy", batch.where, entropy, shape)
        if value_head is not None:
            put("values", batch.where, value_head(states), shape)
            put("after", batch.rows, value_head(flat.index_select(0, batch.last)), shape[:1])
    return TokenScores(**out)


def check_ids(rollout: Rollout, rows: int) -> None:
    """Refuse token ids without an embedding, which some devices answer with garbage or a dead process."""
    real = np.arange(rollout.tokens.shape[1]) < rollout.lengths[:, None]
    odd = np.unique(rollout.tokens[real & ((rollout.tokens < 0) | (rollout.tokens >= rows))])
    if len(odd):
        raise DataError(
            "a trajectory holds token ids that the model has no embedding for",
            got=odd[:5].tolist(),
            allowed=f"0 to {rows - 1}",
            hint="tokens must come from the model's own tokenizer",
        )
