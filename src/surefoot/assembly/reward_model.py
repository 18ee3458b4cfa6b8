"""``reward_model(config)``: from preferences to a calibrated reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefoot.assembly.models import batch_plan, choose_device, lora_of_config
from surefoot.assembly.reward_findings import calibration_of, near_chance, shared
from surefoot.assembly.stage import Stage, describe_model, pace, run_stage, stage_run, token_limit
from surefoot.assembly.stage_cards import reward_model_card
from surefoot.config import Config, require
from surefoot.data.cards import check_cards
from surefoot.data.held_out import shared_prompts, split_by_prompt
from surefoot.data.pair_tokens import EncodedPairs, encode_pairs
from surefoot.data.preferences import Pair, PairSet, read_preferences
from surefoot.models.load import context_length, load_model_config
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.reward_model import cut_beginning, encode_item
from surefoot.models.save_score_model import save_score_model
from surefoot.models.score_model import ScoreModel, load_score_model
from surefoot.models.tokenizer import TextCodec, load_codec
from surefoot.parallel.rng import derive_seed
from surefoot.records import Finding, Lineage, StepReport
from surefoot.training.clock import StepClock
from surefoot.training.display import Columns, Display, choose_display
from surefoot.training.lineage import describe_input
from surefoot.training.reward_model import PreferenceParts, bootstrap, held_out_order, pair_scores, preference_step
from surefoot.training.run_folder import RunFolder
from surefoot.training.trainer import RunResult

COLUMNS: Columns = (
    ("loss", "pairs/loss", "{:.4f}"),
    ("accuracy", "pairs/accuracy", "{:.2f}"),
    ("lead", "pairs/lead_mean", "{:+.3f}"),
    ("grad", "pairs/grad_norm", "{:.2g}"),
    ("epoch", "pairs/epoch", "{:.2f}"),
)


@dataclass(frozen=True)
class PreferenceInputs:
    """What is read before any weights are.

    Attributes:
        start: what the reward model starts from.
        codec, model_config: its tokenizer and config.
        found: the pairs of ``reward_model.data`` as read.
        train, held_out: encoded; ``held_out`` is None without any.
        shared: held-out pairs whose prompt is trained on too.
    """

    start: str
    codec: TextCodec
    model_config: Any
    found: PairSet
    train: EncodedPairs
    held_out: EncodedPairs | None
    shared: int


def reward_model(config: Config, *, resume: bool = False, display: Display | None = None) -> RunResult:
    """Train a reward model on preferences.

    Args:
        config: the run, from :func:`surefoot.load_config`.
        resume: go on from the run folder's last checkpoint; without one, start.
        display: where progress is shown; a live bar on a terminal and plain lines elsewhere when left out.
    Returns:
        how the run ended, and where everything lies; ``model/`` is a standard sequence classifier with one label, and
        holds ``surefoot_reward.json``.
    Raises:
        UserError: something in config, data or models is wrong; nothing was written.
        RunError: trouble after the start; the last checkpoint is whole.
    """
    require(config, "reward-model")
    with stage_run(config, resume=resume) as earlier:
        inputs = read_preference_inputs(config)
        return _run(config, inputs, earlier, resume=resume, display=display or choose_display(COLUMNS))


def read_preference_inputs(config: Config) -> PreferenceInputs:
    """Everything that can be wrong without loading weights.

    Raises:
        UserError: the first thing that cannot be used.
    """
    section, start = config.reward_model, config.reward_model.init or config.model.policy
    assert start is not None and section.data is not None
    check_cards([section.data, section.held_out], config.data.allow, require=config.data.require_card)
    trust = config.model.trust_remote_code
    model_config = load_model_config(base_of_adapter(start) if is_adapter(start) else start, trust_remote_code=trust)
    codec = load_codec(start, chat_template=config.model.chat_template, trust_remote_code=trust)
    limit = token_limit(section, context_length(model_config), "reward_model")

    def read(source: str) -> PairSet:
        chats = codec.has_chat_template or section.transcripts == "chat"
        return read_preferences(source, section, chats=chats, seed=config.run.seed)

    def encode(pairs: Sequence[Pair]) -> EncodedPairs:
        return encode_pairs(
            pairs,
            lambda item: encode_item(codec, item),
            lambda ids, most: cut_beginning(ids, most, codec),
            section,
            limit=limit,
        )

    found = read(section.data)
    train: Sequence[Pair] = found.pairs
    if section.held_out is not None:
        held_out: Sequence[Pair] = read(section.held_out).pairs
    else:
        train, held_out = split_by_prompt(train, section.held_out_share, seed=config.run.seed, section="reward_model")
    return PreferenceInputs(
        start,
        codec,
        model_config,
        found,
        encode(train),
        encode(held_out) if held_out else None,
        shared_prompts(train, held_out),
    )


def build_score_model(config: Config, inputs: PreferenceInputs) -> ScoreModel:
    """The trunk with its heads."""
    vocabulary = inputs.codec.check_vocabulary(int(inputs.model_config.get_text_config().vocab_size))
    return load_score_model(
        inputs.start,
        heads=config.reward_model.heads,
        seed=derive_seed(config.run.seed, "init", index=2),
        dtype=config.model.dtype,
        device=str(choose_device(config.run.device)),
        lora=lora_of_config(config),
        plan=batch_plan(config),
        trust_remote_code=config.model.trust_remote_code,
        gradient_checkpointing=config.model.gradient_checkpointing,
        rows_needed=vocabulary.rows_needed,
    )


def _run(
    config: Config, inputs: PreferenceInputs, earlier: Lineage | None, *, resume: bool, display: Display
) -> RunResult:
    section, pairs = config.reward_model, inputs.train.pairs
    model = build_score_model(config, inputs)
    trunk_rate, head_rate = section.rates(lora=model.adapters is not None)
    groups = [(trunk_rate, model.trunk_parameters()), (head_rate, model.head_parameters())]
    order, steps, optimizer = pace(config, section, len(pairs), section.pairs_per_step, groups)
    parts = PreferenceParts(model, optimizer, bootstrap(section.heads, len(pairs), config.run.seed))
    held_out = inputs.held_out
    judged = inputs.train.pairs if held_out is None else held_out.pairs
    places = _lineage(config, inputs)
    known: dict[int, dict[str, Any]] = {}

    def step_of(step: int, numbers: Sequence[int]) -> StepReport:
        return preference_step(step, numbers, pairs, parts, section, StepClock())

    def calibrated(step: int) -> dict[str, Any]:
        if step not in known:
            scores = pair_scores(model, judged)
            source = "training pairs" if held_out is None else "held-out pairs"
            known[step] = calibration_of(scores, judged, source=source, step=step, places=places)
        return known[step]

    def save(target: Path, folder: RunFolder, step: int) -> None:
        rows = [text for pair in (*judged, *pairs) for text in (pair.chosen, pair.rejected)]
        card = reward_model_card(config, folder, inputs.start, calibrated(step))
        save_score_model(model, target, inputs.codec, calibration=calibrated(step), card=card, rows=rows)

    def conclude(folder: RunFolder, step: int) -> list[Finding]:
        return near_chance(calibrated(step), step)

    stage = Stage(
        cfg=config,
        section=section,
        group="pairs",
        model=model,
        order=order,
        steps=steps,
        optimizer=optimizer,
        step_of=step_of,
        held_out=None if held_out is None else lambda step: held_out_order(step, held_out.pairs, model),
        inputs=places,
        save=save,
        notes=_notes(inputs, steps),
        findings=[] if held_out is None else shared(inputs.shared, len(held_out.pairs)),
        conclude=conclude,
    )
    return run_stage(stage, earlier, resume=resume, display=display)


def _lineage(config: Config, inputs: PreferenceInputs) -> dict[str, dict[str, Any]]:
    section = config.reward_model
    assert section.data is not None
    places: dict[str, dict[str, Any]] = {name: dict(found) for name, found in describe_model(inputs.start).items()}
    places["tokenizer"] = {"kind": "model", "path": inputs.start, "sha256": inputs.codec.fingerprint()}
    counts = {**inputs.found.counts, **inputs.train.counts}
    places["preferences"] = describe_input(section.data, "data") | {"counts": counts}
    if section.tasks is not None:
        places["tasks"] = describe_input(section.tasks, "data")
    if section.held_out is not None:
        places["held_out"] = describe_input(section.held_out, "data")
    if inputs.held_out is not None:
        found = places.get("held_out") or {"kind": "data", "path": section.data, "sha256": None}
        places["held_out"] = found | {"counts": inputs.held_out.counts, "shared_prompts": inputs.shared}
    return places


def _notes(inputs: PreferenceInputs, steps: int) -> list[str]:
    """What the data came to."""
    found, counts = inputs.found.counts, inputs.train.counts
    gone = {
        "ties": found["ties"],
        "spared by pairs_per_prompt": found["spared"],
        "dropped as too long": counts["dropped"],
        "alike": counts["alike"],
        "not usable": found["skipped"] + counts["refused"],
        "cut": counts["cut"],
    }
    rest = "".join(f", {count} {what}" for what, count in gone.items() if count)
    held = "none held out" if inputs.held_out is None else f"{len(inputs.held_out.pairs)} held out"
    return [f"{counts['kept']} pairs from {found['rows']} rows ({held}{rest}); {steps} steps"]
