"""The sections of a config that ``surefoot reward-model`` and ``surefoot sample`` read. Torch-free."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from surefoot.config.sections import Natural, Positive, PositiveFloat, Section
from surefoot.config.sft import StageSection

FULL_LR: Final = 1.0e-5
ADAPTER_LR: Final = 1.0e-4
HEAD_FACTOR: Final = 10.0


class RewardModelSection(StageSection):
    """A reward model from preferences: `surefoot reward-model`. `run.steps` is not used.

    A row is a pair (`chosen` and `rejected`, with or without a `prompt`), a prompt with several rated or judged
    `responses`, one rated `response`, or, with `tasks`, a judgement of one of them.
    """

    init: str | None = None
    """What it starts from: a causal LM, a reward model, or an adapter of either; null: `model.policy`."""
    held_out_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Hold this share of `data` out, by prompt, for the calibration. Not used with `held_out`."""
    lr: PositiveFloat | None = None
    """Learning rate of the trunk; null: 1e-5, with `model.lora` 1e-4. Schedule, clipping and the rest are `optim`'s."""
    head_lr: PositiveFloat | None = None
    """Learning rate of the score heads; null: ten times that of the trunk."""
    pairs_per_step: Positive = 16
    """Pairs per optimizer step."""
    overlong: Literal["drop", "cut", "error"] = "drop"
    """Pairs with a longer text: drop (counted and listed), cut the text's beginning off, or refuse."""
    tasks: str | None = None
    """The judging tasks (`surefoot sample`) that the rows of `data` are judgements of."""
    min_gap: Annotated[float, Field(ge=0)] = 1.0
    """Ratings make a pair when they are at least this far apart; nearer ones are ties, which are dropped and counted.
    Equal ratings are always a tie."""
    pairs_per_prompt: Positive | None = None
    """At most this many pairs from the rated responses of one prompt, drawn by seed; null: all."""
    transcripts: Literal["auto", "chat", "text"] = "auto"
    """Texts of the form `\\n\\nHuman: ... \\n\\nAssistant: ...`: `chat` reads them as messages, `text` as they stand,
    `auto` as messages where the model has a chat template."""
    margin_scale: Annotated[float, Field(ge=0)] = 0.0
    """Times the pair's margin (its column `margin`, or the gap of its ratings): the lead that the loss asks for. 0:
    plain Bradley-Terry."""
    centering: Annotated[float, Field(ge=0)] = 0.01
    """Coefficient of the squared sum of a pair's scores, which keeps scores near 0."""
    heads: Positive = 1
    """Score heads on one trunk, each with a start of its own and a bootstrap of the pairs: an ensemble whose
    disagreement a reward term can use (`reward.terms.ensemble`)."""

    def rates(self, *, lora: bool) -> tuple[float, float]:
        """Of the trunk and of the heads."""
        trunk = self.lr or (ADAPTER_LR if lora else FULL_LR)
        return trunk, self.head_lr or HEAD_FACTOR * trunk


class SampleSection(Section):
    """Answers of `model.policy` as judging tasks: `surefoot sample`."""

    prompts: str | None = None
    """Prompts to answer, as `data.prompts`; null: `data.prompts`."""
    max_prompts: Positive | None = None
    """Use at most this many, the first ones."""
    answers: Annotated[int, Field(ge=2)] = 2
    """Answers to each prompt; equal ones are merged, and a prompt with fewer than two left makes no task (counted)."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_k: Natural = 0
    """Sample from the k most likely tokens; 0: off."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this probability; 1: off."""
    max_new_tokens: Positive | None = None
    """Null: `rollout.max_new_tokens`."""
    file: str = "tasks.jsonl"
    """Where the tasks go; refused when it exists. Relative to the current folder."""
