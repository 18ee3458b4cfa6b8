"""What ``surefoot sft`` and ``surefoot reward-model`` have in common: rows to look at, settings without effect."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from surefoot.config import Config
from surefoot.errors import ConfigError
from surefoot.training.durable import plain

if TYPE_CHECKING:
    from surefoot.assembly.shown import Shown

logger = logging.getLogger("surefoot")


def check_count(show: int) -> None:
    """Refuse to show fewer rows than one.

    Raises:
        ConfigError: saying so.
    """
    if show < 1:
        raise ConfigError("--show takes a number of rows", got=show, allowed="at least 1", hint="--show 3")


def print_rows(rows: Sequence[Shown], *, as_json: bool) -> int:
    """Rows in parts, one a line, line breaks written out. Returns the exit code."""
    if as_json:
        sys.stdout.write(json.dumps(plain([asdict(row) for row in rows])) + "\n")
        return 0
    for row in rows:
        total = sum(part.tokens for part in row.parts)
        sys.stdout.write(f"{row.id}  {total} tokens\n")
        for part in row.parts:
            sys.stdout.write(f"  {part.role:<8} {part.tokens:>5}  {json.dumps(part.text, ensure_ascii=False)}\n")
    return 0


def warn_of_idle(cfg: Config) -> None:
    """Settings of PPO that a stage does not look at, where a user may expect it to."""
    idle = {
        "run.steps": cfg.run.steps is not None,
        "stop.kl_budget": cfg.stop.kl_budget is not None,
        "stop.score": cfg.stop.score is not None,
    }
    for key, given in idle.items():
        if given:
            logger.info("%s is PPO's and has no effect here", key)
