"""The section of a config that ``surefoot sft`` reads. Torch-free.

Both stages before PPO share their keys about data and steps; ``StageSection`` holds them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from surefoot.config.sections import Positive, PositiveFloat, Section

FULL_LR: Final = 2.0e-5
ADAPTER_LR: Final = 2.0e-4


class StageSection(Section):
    """What supervised fine-tuning and reward models have in common."""

    data: str | None = None
    """A JSONL or Parquet file, a folder of them, or a hub id (`NAME` or `NAME:SPLIT`). Required by the command."""
    held_out: str | None = None
    """Rows that are not trained on, in the same form; evaluated before the first step, every `evaluate.every` steps and
    after the last."""
    held_out_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Hold this share of `data` out, by prompt: rows with one prompt stay on one side. Not used with `held_out`."""
    epochs: PositiveFloat = 1.0
    """Passes over the data."""
    steps: Positive | None = None
    """Optimizer steps, in place of `epochs`."""
    lr: PositiveFloat | None = None
    """Learning rate; null: what suits all weights, or adapters with `model.lora`. Schedule, clipping and the rest are
    `optim`'s."""
    max_tokens: Positive | None = None
    """Longest row in tokens; null: the model's context."""
    overlong: Literal["drop", "cut", "error"] = "drop"
    """Longer rows: drop (counted and listed), cut, or refuse."""
    bad_rows: Literal["error", "skip"] = "error"
    """Rows that cannot be used: refuse the file, or skip and report them."""
    publish: Literal["best", "last"] = "best"
    """Which weights become `model/`: those with the lowest held-out loss (its checkpoint is kept), or the last ones.
    Without held-out rows always the last."""


class SFTSection(StageSection):
    """Supervised fine-tuning on demonstrations: `surefoot sft`. It trains `model.policy`; `run.steps` is not used.

    A row is a chat (`messages`), a prompt with its completion, or a text alone, which is trained whole.
    """

    lr: PositiveFloat | None = None
    """Learning rate; null: 2e-5, with `model.lora` 2e-4. Schedule, clipping and the rest are `optim`'s."""
    rows_per_step: Positive = 16
    """Demonstrations per optimizer step; the loss is the mean over all their trained tokens."""
    overlong: Literal["drop", "cut", "error"] = "drop"
    """Longer rows: drop (counted and listed), cut the right end off (with it goes the end of the turn), or refuse."""
    turns: Literal["all", "last"] = "all"
    """Which of the assistant's turns in a chat are trained."""
    messages_column: str = "messages"
    """Column with a chat: messages of which at least one is the assistant's."""
    prompt_column: str = "prompt"
    """Column with a prompt: a text, or chat messages."""
    completion_column: str = "completion"
    """Column with the answer to the prompt."""
    text_column: str = "text"
    """Column with a text that is trained whole."""

    def learning_rate(self, *, lora: bool) -> float:
        """The rate in use."""
        return self.lr or (ADAPTER_LR if lora else FULL_LR)
