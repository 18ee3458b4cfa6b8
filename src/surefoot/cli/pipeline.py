"""``surefoot pipeline``: stages in one file, what is done already left out. Loads no torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from surefoot.assembly.pipeline import Decision, StageFailed, Stopped, check_inputs, decide, run_pipeline
from surefoot.assembly.pipeline_state import State
from surefoot.cli.eval_reward_model import read_settings
from surefoot.cli.table import aligned
from surefoot.config.pipeline import Pipeline, load_pipeline
from surefoot.errors import ConfigError


def run_pipeline_file(file: Path, overrides: Sequence[str], *, start: str | None, dry_run: bool, as_json: bool) -> int:
    """Run a pipeline, or say what would be run. Returns the exit code: that of a stage that failed.

    Raises:
        UserError: something in the file, its configs or its inputs is wrong; nothing was run.
    """
    pipeline = load_pipeline(file, overrides)
    names = [stage.name for stage in pipeline.stages]
    if start is not None and start not in names:
        raise ConfigError("no stage has this name", got=start, allowed=", ".join(names))
    for stage in pipeline.stages:
        read_settings(stage.entry.settings)
    if dry_run:
        return _print(planned(pipeline, start), pipeline, as_json=as_json)
    try:
        done = run_pipeline(pipeline, start=start, say=_say)
    except StageFailed as error:
        sys.stderr.write(f"error: {error.what}\nhint: {error.hint}\n")
        return error.code
    except Stopped as error:
        sys.stderr.write(f"{error.what}\n")
        return error.code
    return _print(done, pipeline, as_json=as_json)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def planned(pipeline: Pipeline, start: str | None) -> list[Decision]:
    """What would be done about each stage, as far as can be known before the stages in front of it have run."""
    state = State(pipeline.folder, pipeline.name)
    check_inputs(pipeline)
    found: list[Decision] = []
    running: set[str] = set()
    for stage, known in decide(pipeline, state, start=start):
        before = sorted(stage.takes & running)
        unsure = Decision(stage.name, "run", f"if what {', '.join(before)} makes is another one than before")
        decision = unsure if known.action == "skip" and before else known
        if decision.action != "skip":
            running.add(stage.name)
        found.append(decision)
    return found


def _print(decisions: Sequence[Decision], pipeline: Pipeline, *, as_json: bool) -> int:
    if as_json:
        stages = [asdict(decision) | {"folder": str(pipeline.folder / decision.stage)} for decision in decisions]
        sys.stdout.write(
            json.dumps({"pipeline": pipeline.name, "folder": str(pipeline.folder), "stages": stages}) + "\n"
        )
        return 0
    rows = [(d.stage, d.action, d.reason) for d in decisions]
    sys.stdout.write(aligned(("stage", "what", "why"), rows) + f"folder: {pipeline.folder}\n")
    return 0
