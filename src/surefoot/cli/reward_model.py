"""``surefoot reward-model``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.cli.stage import check_count, print_rows, warn_of_idle
from surefoot.cli.train import finish, refuse_early
from surefoot.config import load_config, require

if TYPE_CHECKING:
    from surefoot.training.trainer import RunResult


def run_reward_model(config: Path, overrides: Sequence[str], *, resume: bool, show: int | None, as_json: bool) -> int:
    """Train a reward model, or show what it would be trained on. Returns the exit code."""
    cfg = load_config(config, overrides)
    require(cfg, "reward-model")
    section = cfg.reward_model
    sources = (section.data, section.held_out, section.tasks)
    if show is not None:
        check_count(show)
        refuse_early(cfg, sources, resume=True)
        from surefoot.assembly.reward_model import read_preference_inputs
        from surefoot.assembly.shown import shown_pairs

        return print_rows(shown_pairs(read_preference_inputs(cfg), show), as_json=as_json)
    refuse_early(cfg, sources, resume=resume)
    warn_of_idle(cfg)

    def run() -> RunResult:
        from surefoot.assembly.reward_model import reward_model

        return reward_model(cfg, resume=resume)

    return finish(run, cfg, line=_line, as_json=as_json)


def _line(record: Mapping[str, Any]) -> str:
    share, low, high = (record[f"evaluate/accuracy{end}"] for end in ("", "_low", "_high"))
    return f"accuracy {share:.3f}, 95 % interval {low:.3f} to {high:.3f}, {record['evaluate/pairs']} pairs"
