"""``sft(config)``: from demonstrations to a fine-tuned model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.assembly.models import build_policy, choose_device
from surefoot.assembly.stage import Stage, describe_model, pace, run_stage, stage_run, token_limit
from surefoot.assembly.stage_cards import sft_card
from surefoot.config import Config, require
from surefoot.data.cards import check_cards
from surefoot.data.demonstrations import Demonstration, DemonstrationSet, prepare_demonstrations, read_demonstrations
from surefoot.data.held_out import shared_prompts, split_by_prompt
from surefoot.models.answers import AnswerEncoder
from surefoot.models.load import context_length, load_model_config
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.policy import CausalPolicy
from surefoot.models.save import save_policy
from surefoot.models.tokenizer import TextCodec, load_codec
from surefoot.records import Finding, Lineage, StepReport
from surefoot.training.clock import StepClock
from surefoot.training.display import Columns, Display, choose_display
from surefoot.training.durable import read_records
from surefoot.training.lineage import describe_input
from surefoot.training.run_folder import RunFolder
from surefoot.training.sft import SFTParts, held_out_loss, sft_step
from surefoot.training.stage import LOSS
from surefoot.training.trainer import RunResult

logger = logging.getLogger("surefoot")

COLUMNS: Columns = (
    ("loss", "sft/loss", "{:.4f}"),
    ("grad", "sft/grad_norm", "{:.2g}"),
    ("lr", "sft/lr", "{:.2g}"),
    ("tokens", "sft/tokens", "{:.0f}"),
    ("epoch", "sft/epoch", "{:.2f}"),
)


@dataclass(frozen=True)
class SFTInputs:
    """What is read before any weights are.

    Attributes:
        codec, model_config: the model's tokenizer and config.
        train, held_out: encoded; ``held_out`` is None without any.
        read, skipped: rows of ``sft.data``, and those that cannot be used.
        shared: held-out rows whose prompt is trained on too.
    """

    codec: TextCodec
    model_config: Any
    train: DemonstrationSet
    held_out: DemonstrationSet | None
    read: int
    skipped: int
    shared: int


def sft(config: Config, *, resume: bool = False, display: Display | None = None) -> RunResult:
    """Fine-tune a model on demonstrations.

    Args:
        config: the run, from :func:`surefoot.load_config`.
        resume: go on from the run folder's last checkpoint; without one, start.
        display: where progress is shown; a live bar on a terminal and plain lines elsewhere when left out.
    Returns:
        how the run ended, and where everything lies.
    Raises:
        UserError: something in config, data or models is wrong; nothing was written.
        RunError: trouble after the start; the last checkpoint is whole.
    """
    require(config, "sft")
    with stage_run(config, resume=resume) as earlier:
        inputs = read_sft_inputs(config)
        return _run(config, inputs, earlier, resume=resume, display=display or choose_display(COLUMNS))


def read_sft_inputs(config: Config) -> SFTInputs:
    """Everything that can be wrong without loading weights.

    Raises:
        UserError: the first thing that cannot be used.
    """
    section, policy = config.sft, config.model.policy
    assert policy is not None and section.data is not None
    check_cards([section.data, section.held_out], config.data.allow, require=config.data.require_card)
    trust = config.model.trust_remote_code
    model_config = load_model_config(base_of_adapter(policy) if is_adapter(policy) else policy, trust_remote_code=trust)
    codec = load_codec(policy, chat_template=config.model.chat_template, trust_remote_code=trust)
    limit = token_limit(section, context_length(model_config), "sft")
    parsed = read_demonstrations(section.data, section)
    train: Sequence[Demonstration] = parsed.rows
    if section.held_out is not None:
        held_out: Sequence[Demonstration] = read_demonstrations(section.held_out, section).rows
    else:
        train, held_out = split_by_prompt(train, section.held_out_share, seed=config.run.seed, section="sft")
    encoder = AnswerEncoder(codec, turns=section.turns)
    return SFTInputs(
        codec,
        model_config,
        prepare_demonstrations(train, encoder, section, limit=limit),
        prepare_demonstrations(held_out, encoder, section, limit=limit) if held_out else None,
        parsed.read,
        len(parsed.skipped),
        shared_prompts(train, held_out),
    )


def _run(config: Config, inputs: SFTInputs, earlier: Lineage | None, *, resume: bool, display: Display) -> RunResult:
    section, rows = config.sft, inputs.train.rows
    vocabulary = inputs.codec.check_vocabulary(int(inputs.model_config.get_text_config().vocab_size))
    plain = config.model_copy(update={"rollout": config.rollout.model_copy(update={"temperature": 1.0})})
    policy = build_policy(plain, vocabulary, choose_device(config.run.device))
    ends = _end_turns(policy, inputs)
    rate = section.learning_rate(lora=policy.lm.adapters is not None)
    order, steps, optimizer = pace(config, section, len(rows), section.rows_per_step, [(rate, policy.trainable())])
    parts = SFTParts(policy, optimizer)
    held_out = inputs.held_out

    def step_of(step: int, numbers: Sequence[int]) -> StepReport:
        return sft_step(step, [rows[i] for i in numbers], parts, StepClock())

    def save(target: Path, folder: RunFolder, step: int) -> None:
        card = sft_card(config, folder, step, inputs.train.counts)
        save_policy(policy, target, save_tokenizer=inputs.codec.save, card=card)

    stage = Stage(
        cfg=config,
        section=section,
        group="sft",
        model=policy,
        order=order,
        steps=steps,
        optimizer=optimizer,
        step_of=step_of,
        held_out=None if held_out is None else lambda step: held_out_loss(step, held_out.rows, policy),
        inputs=_lineage(config, inputs),
        save=save,
        notes=[*_notes(inputs, steps), *ends],
        findings=_findings(inputs),
        conclude=_no_gain,
    )
    return run_stage(stage, earlier, resume=resume, display=display)


def _end_turns(policy: CausalPolicy, inputs: SFTInputs) -> list[str]:
    """Let whoever samples from the saved model stop at what closes a turn in the template."""
    new = inputs.train.ends - inputs.codec.stop_ids
    generation = getattr(policy.lm.model, "generation_config", None)
    if not new or generation is None:
        return []
    generation.eos_token_id = sorted(inputs.codec.stop_ids | new)
    shown = ", ".join(repr(inputs.codec.decode([i])) for i in sorted(new))
    return [f"answers end with {shown}, which is no end of sequence of the model: it becomes one of model/"]


def _lineage(config: Config, inputs: SFTInputs) -> dict[str, dict[str, Any]]:
    section = config.sft
    assert config.model.policy is not None and section.data is not None
    counts = {"rows": inputs.read, "skipped": inputs.skipped, **inputs.train.counts}
    places: dict[str, dict[str, Any]] = {
        name: dict(found) for name, found in describe_model(config.model.policy).items()
    }
    places["tokenizer"] = {"kind": "model", "path": config.model.policy, "sha256": inputs.codec.fingerprint()}
    places["demonstrations"] = describe_input(section.data, "data") | {"counts": counts}
    if section.held_out is not None:
        places["held_out"] = describe_input(section.held_out, "data")
    if inputs.held_out is not None:
        found = places.get("held_out") or {"kind": "data", "path": section.data, "sha256": None}
        places["held_out"] = found | {"counts": inputs.held_out.counts, "shared_prompts": inputs.shared}
    return places


def _notes(inputs: SFTInputs, steps: int) -> list[str]:
    """What the data came to."""
    counts = inputs.train.counts
    left_out = {"dropped as too long": counts["dropped"], "not usable": counts["refused"] + inputs.skipped}
    gone = "".join(f", {count} {what}" for what, count in left_out.items() if count)
    cut = f", {counts['cut']} cut" if counts["cut"] else ""
    held = "none held out" if inputs.held_out is None else f"{len(inputs.held_out.rows)} held out"
    trained = counts["trained_tokens"] / max(1, counts["tokens"])
    return [
        f"{counts['kept']} demonstrations of {inputs.read} rows ({held}{gone}{cut}); {counts['trained_tokens']} of"
        f" {counts['tokens']} tokens are trained ({trained:.0%}); {steps} steps"
    ]


def _findings(inputs: SFTInputs) -> list[Finding]:
    if inputs.held_out is None or not inputs.shared:
        return []
    return [
        Finding(
            "data/shared_prompts",
            "warning",
            f"{inputs.shared} of {len(inputs.held_out.rows)} held-out rows have a prompt that is trained on",
            {"shared": inputs.shared, "held_out": len(inputs.held_out.rows)},
            "take these prompts out of one of the two, or let sft.held_out_share part the data by prompt",
        )
    ]


def _no_gain(folder: RunFolder, step: int) -> list[Finding]:
    """Whether the held-out loss ever fell below its start."""
    losses = {
        int(r["step"]): r[LOSS] for r in read_records(folder.path / "evaluations.jsonl") if r.get(LOSS) is not None
    }
    if 0 not in losses or step not in losses or losses[step] < losses[0]:
        return []
    return [
        Finding(
            "sft/no_gain",
            "warning",
            f"the held-out loss never fell: {losses[step]:.4f} after step {step}, {losses[0]:.4f} before the first",
            {"before": losses[0], "after": losses[step]},
            "lower sft.lr, train on more or other demonstrations, or for fewer epochs",
            step=step,
        )
    ]
