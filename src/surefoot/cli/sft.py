"""``surefoot sft``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefoot.cli.stage import check_count, print_rows, warn_of_idle
from surefoot.cli.train import finish, refuse_early
from surefoot.config import load_config, require

if TYPE_CHECKING:
    from surefoot.training.trainer import RunResult


def run_sft(config: Path, overrides: Sequence[str], *, resume: bool, show: int | None, as_json: bool) -> int:
    """Fine-tune, or show what would be trained. Returns the exit code."""
    cfg = load_config(config, overrides)
    require(cfg, "sft")
    sources = (cfg.sft.data, cfg.sft.held_out)
    if show is not None:
        check_count(show)
        refuse_early(cfg, sources, resume=True)
        from surefoot.assembly.sft import read_sft_inputs
        from surefoot.assembly.shown import shown_demonstrations

        return print_rows(shown_demonstrations(read_sft_inputs(cfg), show), as_json=as_json)
    refuse_early(cfg, sources, resume=resume)
    warn_of_idle(cfg)

    def run() -> RunResult:
        from surefoot.assembly.sft import sft

        return sft(cfg, resume=resume)

    return finish(run, cfg, line=_line, as_json=as_json)


def _line(record: Mapping[str, Any]) -> str:
    loss, perplexity = record["evaluate/loss"], record["evaluate/perplexity"]
    if loss is None or perplexity is None:
        return "not finite"
    return f"loss {loss:.4f}, perplexity {perplexity:.3f}"
