"""Bytes that come and go while a model is sampled from, read and trained.

The counts follow the code that runs: what the kernels of :mod:`surefoot.models.kernels` save for their backward pass,
which keys and values attention copies, how many chunks of logits live at a time. Layers that the kernels do not run
are counted by a rule of thumb.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from surefoot.assembly.model_shape import ModelShape
from surefoot.models.decoder import FEW_ROWS, MANY_OUTPUTS, has_mkl
from surefoot.models.output_head import CHUNK_BYTES

DRAWING: Final = 5
"""Arrays of [rows, vocabulary] while a token is drawn: logits, log-probabilities, probabilities, and two in passing."""
ROUGH: Final = (12, 4)
"""Per token and layer a transformer of widths H and F keeps about 12 H + 4 F numbers, written out by a library."""


@dataclass(frozen=True)
class LaidSizes:
    """A micro-batch in numbers.

    Attributes:
        tokens: positions that are laid down; common beginnings once, padding included.
        actions: action tokens.
        joined: keys that are copied to stand before those that continue them, own ones included.
        masked: entries of the masks of pieces that continue others.
        packed: whether rows lie end to end.
        weights: attention weights of a head, padding included, where short pieces are attended to together, which
            then need neither copies of keys nor such masks; else 0.
    """

    tokens: int
    actions: int
    joined: int
    masked: int
    packed: bool
    weights: int = 0


@dataclass(frozen=True)
class TrainedModel:
    """How a model is trained.

    Attributes:
        shape: of it.
        width: bytes of a number.
        ranks, inputs: sums over its adapters of their ranks and of what they read; 0 when all weights are trained.
        checkpointing: whether layers are computed again in the backward pass.
        readers: heads that read its states: output layer, value head.
    """

    shape: ModelShape
    width: int
    ranks: int
    inputs: int
    checkpointing: bool
    readers: int

    @property
    def kernels(self) -> bool:
        """Whether our kernels run its layers."""
        return self.shape.kernels and self.width >= 4


def kept_by_a_layer(model: TrainedModel, laid: LaidSizes) -> int:
    """Bytes that one layer keeps for its backward pass, adapters left out."""
    shape = model.shape
    hidden, inner, queries, keys = shape.hidden, shape.inner, shape.queries, shape.keys
    if not model.kernels:
        return laid.tokens * (ROUGH[0] * hidden + ROUGH[1] * inner) * model.width
    # The layer's input and the states after attention, both once more normed, and the norms' factors; the MLP's two
    # halves and their product.
    per_token = 4 * hidden + 2 + 3 * inner
    if shape.normed_heads:
        per_token += queries + keys + shape.heads + shape.key_heads
    # Turned queries and keys, values, and what attention found.
    per_token += 2 * queries + 2 * keys
    if laid.weights:
        return (laid.tokens * per_token + laid.weights * shape.heads) * model.width
    # Log-sums of attention, and what it found once more: of each piece, and end to end.
    per_token += shape.heads + (queries if laid.packed else 0)
    return (laid.tokens * per_token + laid.joined * 2 * keys) * model.width


def kept_for_backward(model: TrainedModel, laid: LaidSizes) -> int:
    """Bytes that a forward pass of a micro-batch keeps; with checkpointing also one layer in full, computed again."""
    shape, layer = model.shape, kept_by_a_layer(model, laid)
    # In half precision adapters compute in float32, and keep what they read as such.
    per_token = model.ranks if model.width >= 4 else 2 * model.ranks + model.inputs
    adapters = laid.tokens * per_token * model.width
    states = laid.tokens * shape.hidden * model.width
    if model.checkpointing:
        layers = shape.layers * states + layer + adapters // shape.layers
    else:
        layers = shape.layers * layer + adapters
        if model.ranks and model.kernels:
            # Before the first adapter nothing needs a gradient.
            layers -= states
    # One for all layers.
    angles = 2 * laid.tokens * shape.per_head * model.width
    masks = (laid.weights * shape.heads if laid.weights else laid.masked) * model.width
    # For the states that action tokens were chosen in: their gradient of the policy's loss, and a value head's own.
    return layers + states + angles + masks + model.readers * laid.actions * shape.hidden * model.width


def backward_of_a_layer(model: TrainedModel, laid: LaidSizes) -> int:
    """Bytes of the gradients that pass through a layer: of the states, and of the MLP's halves."""
    return laid.tokens * (2 * model.shape.hidden + 3 * model.shape.inner) * model.width


def layer_in_passing(shape: ModelShape, tokens: int, width: int) -> int:
    """Bytes of one layer at a time, without gradients."""
    return tokens * (5 * shape.hidden + 2 * shape.queries + 2 * shape.keys + 3 * shape.inner) * width


def logits_at_a_time(shape: ModelShape, actions: int, width: int, *, scaled: bool, entropy: bool) -> int:
    """Bytes of the chunks of logits that live at a time in a forward pass.

    Args:
        shape: of the model.
        actions: tokens whose log-probabilities are read.
        width: bytes of a number of the model.
        scaled: whether logits are divided by a temperature, which makes one more.
        entropy: whether entropies are read as well.
    """
    row = shape.vocabulary * max(width, 4)
    rows = max(1, CHUNK_BYTES // row)
    # Logits, log-probabilities and perhaps probabilities: of one chunk, and still there while the next one is made.
    chunk = (2 + entropy) * min(actions, rows)
    following = (1 + scaled) * min(rows, max(0, actions - rows))
    return (chunk + following) * row


def cache_bytes(shape: ModelShape, rows: int, length: int, width: int) -> int:
    """Bytes of the KV cache of rows of at most ``length`` tokens; the last one drawn is never read."""
    return rows * (length - 1) * shape.layers * 2 * shape.keys * width


def drawing_bytes(shape: ModelShape, rows: int, width: int) -> int:
    """Bytes while one token of each row is drawn."""
    return DRAWING * rows * shape.vocabulary * max(width, 4)


def decoding_weights(shape: ModelShape, rows: int, width: int, device: torch.device, *, adapted: bool) -> int:
    """Bytes of the weights that are laid out anew for a rollout (:mod:`surefoot.models.decoder`)."""
    if not shape.kernels or width < 4:
        return 0
    packs = device.type == "cpu" and width == 4 and has_mkl()
    groups = (
        (shape.queries + 2 * shape.keys, shape.hidden, True),
        (shape.hidden, shape.queries, adapted),
        (2 * shape.inner, shape.hidden, True),
        (shape.hidden, shape.inner, adapted),
    )

    def copies(outputs: int, inputs: int, joined: bool) -> int:
        packed = packs and (rows >= FEW_ROWS or outputs >= MANY_OUTPUTS)
        return (joined + packed) * outputs * inputs

    layer = sum(copies(*group) for group in groups)
    return (shape.layers * layer + copies(shape.vocabulary, shape.hidden, False)) * width
