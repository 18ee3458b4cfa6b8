"""Running a stage before PPO: what supervised fine-tuning and reward models share of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from surefoot.assembly.models import choose_device
from surefoot.assembly.resuming import earlier_lineage, resume_run, threads_of
from surefoot.assembly.train import exact_arithmetic, folder_of, refuse_float16, run_name
from surefoot.config import Config, StageSection, dump_config
from surefoot.data.order import PromptOrder
from surefoot.errors import ConfigError
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.monitor.sinks import TensorBoardTracker
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.protocols import Tracker
from surefoot.records import Finding, Lineage, StepReport
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.display import Display
from surefoot.training.lineage import build_lineage, describe_input, lineage_warnings, write_lineage
from surefoot.training.optimizer import Optimizer
from surefoot.training.run_folder import RunFolder
from surefoot.training.stage import LOSS, HeldOutLoss, StageJob, Trained, total_steps
from surefoot.training.trainer import RunResult, Trainer

logger = logging.getLogger("surefoot")


@dataclass
class Stage:
    """A stage with everything but its run folder.

    Attributes:
        cfg, section: the run, and the stage's section of it.
        group: of its metrics.
        model: what is trained.
        order, steps, optimizer: from :func:`pace`.
        step_of, held_out: as in :class:`surefoot.training.stage.StageJob`.
        inputs: of the lineage.
        save: writes the model into a folder, given the run folder and the step whose weights it has.
        notes: lines about the data, shown before the first step.
        findings: known before the first step.
        conclude: findings about the finished model, given the run folder and its step.
    """

    cfg: Config
    section: StageSection
    group: str
    model: Trained
    order: PromptOrder
    steps: int
    optimizer: Optimizer
    step_of: Callable[[int, Sequence[int]], StepReport]
    held_out: Callable[[int], HeldOutLoss] | None
    inputs: Mapping[str, Mapping[str, Any]]
    save: Callable[[Path, RunFolder, int], None]
    notes: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    conclude: Callable[[RunFolder, int], Sequence[Finding]] = field(default=lambda folder, step: ())


@contextmanager
def stage_run(config: Config, *, resume: bool) -> Iterator[Lineage | None]:
    """Exact arithmetic with the threads of an earlier part of the run, whose lineage it gives."""
    refuse_float16(config)
    keep_freed_memory()
    earlier = earlier_lineage(folder_of(config)) if resume else None
    with exact_arithmetic(config.run.threads or threads_of(earlier)):
        yield earlier


def token_limit(section: StageSection, context: int | None, name: str) -> int | None:
    """Longest row in tokens.

    Raises:
        ConfigError: more is asked for than the model takes.
    """
    if section.max_tokens is not None and context is not None and section.max_tokens > context:
        raise ConfigError(
            f"{name}.max_tokens is more than the model's context",
            got=section.max_tokens,
            allowed=f"at most {context}",
            hint=f"set {name}.max_tokens: {context}, or leave it out",
        )
    return section.max_tokens or context


Groups = Sequence[tuple[float, Mapping[str, nn.Parameter]]]


def pace(
    config: Config, section: StageSection, rows: int, batch: int, groups: Groups
) -> tuple[PromptOrder, int, Optimizer]:
    """Which rows a step takes, how many steps there are, and the optimizer with its schedule over them."""
    order = PromptOrder(rows, batch=batch, seed=config.run.seed)
    steps = total_steps(section, order)
    return order, steps, Optimizer(groups, config.optim, total_steps=steps, max_skipped=config.guard.max_skipped)


def describe_model(place: str) -> dict[str, Mapping[str, Any]]:
    """A model, and the base of an adapter, as inputs of the lineage."""
    found: dict[str, Mapping[str, Any]] = {"init": describe_input(place, "model")}
    if is_adapter(place):
        found["base"] = describe_input(base_of_adapter(place), "model")
    return found


def run_stage(stage: Stage, earlier: Lineage | None, *, resume: bool, display: Display) -> RunResult:
    """Make or take up the run folder, and run the stage in it.

    Args:
        stage: built.
        earlier: the lineage of the part of the run that was made before.
        resume: go on in an existing folder.
        display: where progress is shown.
    """
    config, place = stage.cfg, folder_of(stage.cfg)
    boards = [TensorBoardTracker(place.tensorboard)] if config.track.tensorboard else []
    trackers: list[Tracker] = [*boards]
    lineage = build_lineage(
        config, inputs=stage.inputs, threads=torch.get_num_threads(), device=str(choose_device(config.run.device))
    )
    warnings = lineage_warnings(earlier, lineage) if earlier is not None else []
    for warning in warnings:
        logger.warning("the resumed run may differ from an uninterrupted one: %s", warning)
    begun = place.path.exists()
    with RunFolder.create(config.run.dir, run_name(config), resume=resume, config_text=dump_config(config)) as folder:
        if earlier is None:
            write_lineage(folder.lineage, lineage)
        trainer = Trainer(_job(stage, folder, display, trackers))
        if resume:
            display.note(resume_run(trainer, boards, begun=begun))
        for note in stage.notes:
            display.note(note)
        return trainer.run(warnings=warnings)


def _job(stage: Stage, folder: RunFolder, display: Display, trackers: Sequence[Tracker]) -> StageJob:
    config = stage.cfg
    best = stage.section.publish == "best" and stage.held_out is not None
    published = [0]

    def ending(step: int) -> None:
        published[0] = step
        _write_findings(folder, [*stage.findings, *stage.conclude(folder, step)])

    return StageJob(
        cfg=config,
        section=stage.section,
        group=stage.group,
        model=stage.model,
        optimizer=stage.optimizer,
        order=stage.order,
        steps=stage.steps,
        step_of=stage.step_of,
        held_out=stage.held_out,
        folder=folder,
        store=CheckpointStore(
            folder.checkpoints,
            keep=config.checkpoint.keep,
            best_by=LOSS if best else config.checkpoint.best_by,
            lowest=best,
        ),
        save_model=lambda target: stage.save(target, folder, published[0]),
        display=display,
        trackers=trackers,
        facts={"threads": torch.get_num_threads()},
        ending=ending,
    )


def _write_findings(folder: RunFolder, findings: Sequence[Finding]) -> None:
    """A run that ends once more, resumed, finds the same things."""
    known = {(record["name"], record["step"]) for record in folder.read_findings()}
    for finding in findings:
        if (finding.name, finding.step) not in known:
            folder.append_finding(finding)
        if finding.severity != "info":
            logger.warning("%s; hint: %s", finding.message, finding.advice)
