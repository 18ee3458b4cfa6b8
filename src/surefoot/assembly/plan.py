"""``plan(config)``: whether a run fits this machine, and what would make it fit. No weights are loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from surefoot.assembly.memory import Estimate, memory_for, memory_of
from surefoot.assembly.models import choose_device
from surefoot.assembly.step_sizes import even_prompts
from surefoot.config import Config, LoraSection
from surefoot.data.prompts import prepare_prompts
from surefoot.data.reading import read_rows
from surefoot.models.load import context_length, load_model_config
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.tokenizer import load_codec
from surefoot.records import Prompt

logger = logging.getLogger("surefoot")

MOST_ROWS: Final = 4000
"""Prompts that are encoded: of more, as many spread over all."""


@dataclass(frozen=True)
class Advice:
    """A setting that would lower the peak.

    Attributes:
        settings: as overrides of the command line.
        peak: bytes with them.
    """

    settings: tuple[str, ...]
    peak: int


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs, and what there is.

    Attributes:
        estimate: of the run.
        device: where it runs.
        free, machine: bytes free there now, and in all.
        notes: what had to be assumed.
        advice: what would lower the peak, what helps most first and all together last; empty where the run fits.
    """

    estimate: Estimate
    device: torch.device
    free: int
    machine: int
    notes: tuple[str, ...]
    advice: tuple[Advice, ...]

    @property
    def fits(self) -> bool:
        """Whether the peak is within what is free."""
        return self.estimate.total <= self.free


def plan(config: Config) -> MemoryPlan:
    """Plan a run's memory.

    Args:
        config: complete for ``train``.
    Raises:
        UserError: the config of a model cannot be read, prompts that are there cannot be used, or there is no such
            device.
    """
    assert config.model.policy is not None and config.data.prompts is not None
    device = choose_device(config.run.device)
    policy = config.model.policy
    base = base_of_adapter(policy) if is_adapter(policy) else policy
    model_config = load_model_config(base, trust_remote_code=config.model.trust_remote_code)
    notes: list[str] = []
    prompts = _read(config, config.data.prompts, model_config, config.rollout.max_new_tokens)
    if prompts is None:
        length = config.data.max_prompt_tokens
        prompts = even_prompts(config, length)
        notes.append(f"{config.data.prompts} is not here: prompts of data.max_prompt_tokens, {length}, are assumed")
    held_out: Sequence[Sequence[int]] = ()
    if config.evaluate.prompts is not None:
        new = config.evaluate.max_new_tokens or config.rollout.max_new_tokens
        found = _read(config, config.evaluate.prompts, model_config, new)
        held_out = (found or [])[: config.evaluate.max_prompts]
        if not found:
            notes.append(f"{config.evaluate.prompts} is not here: evaluations are left out")
    estimate = memory_for(config, model_config, prompts, held_out)
    free, machine = memory_of(device)
    advice: list[Advice] = []
    if estimate.total > free:
        advice = _advice(config, estimate, lambda other: memory_for(other, model_config, prompts, held_out).total)
    return MemoryPlan(estimate, device, free, machine, tuple(notes), tuple(advice))


def predicted(
    config: Config, model_config: Any, prompts: Sequence[Prompt], held_out: Sequence[Prompt] = ()
) -> Mapping[str, Any] | None:
    """The estimate for the record of a run; None where it cannot be made.

    Args:
        config: the run.
        model_config: the policy's transformers config.
        prompts, held_out: those that are trained on, and those that are evaluated.
    """
    try:
        found = memory_for(config, model_config, [p.tokens for p in prompts], [p.tokens for p in held_out])
        return found.as_json()
    except Exception as error:  # a run must not end for want of an estimate
        logger.warning("the memory of this run could not be estimated: %s", error)
        return None


def _read(config: Config, source: str, model_config: Any, new_tokens: int) -> Sequence[Sequence[int]] | None:
    """Token ids of prompts; None where they are not on this machine."""
    if not Path(source).expanduser().exists():
        return None
    rows = read_rows(source, column=config.data.column, bad_rows=config.data.bad_rows).rows
    codec = load_codec(
        str(config.model.policy),
        chat_template=config.model.chat_template,
        trust_remote_code=config.model.trust_remote_code,
    )
    found = prepare_prompts(
        rows[:: -(-len(rows) // MOST_ROWS)],
        codec,
        config.data,
        context=context_length(model_config),
        max_new_tokens=new_tokens,
    )
    return [prompt.tokens for prompt in found.prompts]


# ---------------------------------------------------------------------------------------------------------- advice


def _advice(config: Config, estimate: Estimate, total: Callable[[Config], int]) -> list[Advice]:
    """Each setting by itself, the best first, and all that help together."""
    changes = list(_changes(config, estimate))
    alone = [Advice((name,), total(_changed(config, [(name, section)]))) for name, section in changes]
    helping = sorted((advice for advice in alone if advice.peak < estimate.total), key=lambda advice: advice.peak)
    if len(helping) > 1:
        names = [advice.settings[0] for advice in helping]
        chosen = [change for change in changes if change[0] in names]
        helping.append(Advice(tuple(names), total(_changed(config, chosen))))
    return helping


Change = tuple[str, tuple[str, dict[str, Any]]]


def _changes(config: Config, estimate: Estimate) -> Iterator[Change]:
    """Settings that take less memory than those of the config: as an override, and as the section's new values."""
    sizes = estimate.sizes
    tokens = max(sizes.longest + config.rollout.max_new_tokens, sizes.training.tokens // 4)
    rows = max(1, sizes.rows // 4)
    if tokens < sizes.training.tokens:
        yield f"batch.tokens={tokens}", ("batch", {"tokens": tokens})
    if not config.model.gradient_checkpointing:
        yield "model.gradient_checkpointing=true", ("model", {"gradient_checkpointing": True})
    if config.model.lora is None:
        lora = LoraSection()
        yield f"model.lora.rank={lora.rank}", ("model", {"lora": lora})
    if config.model.lora is not None and config.model.quantize is None:
        yield "model.quantize=int8", ("model", {"quantize": "int8"})
    if config.rollout.decode_weights != "stored":
        yield "rollout.decode_weights=stored", ("rollout", {"decode_weights": "stored"})
    if config.critic.kind != "shared":
        yield "critic.kind=shared", ("critic", {"kind": "shared", "init": "policy"})
    if rows < sizes.rows:
        yield f"rollout.max_rows={rows}", ("rollout", {"max_rows": rows})


def _changed(config: Config, changes: Sequence[Change]) -> Config:
    for _, (section, values) in changes:
        config = config.model_copy(update={section: getattr(config, section).model_copy(update=values)})
    return config
