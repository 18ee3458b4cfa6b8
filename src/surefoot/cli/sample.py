"""``surefoot sample``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from surefoot.config import load_config, require
from surefoot.data.formats import raw_rows
from surefoot.errors import RunFolderError


def run_sample(config: Path, overrides: Sequence[str], *, as_json: bool) -> int:
    """Make judging tasks; prints where they lie. Returns the exit code."""
    cfg = load_config(config, overrides)
    require(cfg, "sample")
    file = Path(cfg.sample.file).expanduser()
    if os.path.lexists(file):
        raise RunFolderError(f"{file} exists", hint="choose another sample.file, or remove it")
    raw_rows(str(cfg.sample.prompts or cfg.data.prompts))
    # Importing torch and transformers takes seconds; a mistake in the config has been found by now.
    from surefoot.assembly.sample import sample

    found = sample(cfg)
    if as_json:
        sys.stdout.write(json.dumps(found.as_json()) + "\n")
        return 0
    alike = f", {found.alike} prompts without two different answers left out" if found.alike else ""
    sys.stdout.write(f"{found.tasks} judging tasks of {found.answers} answers{alike}\ntasks: {found.file}\n")
    return 0
