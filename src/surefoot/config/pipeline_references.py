"""References in a pipeline file: what an earlier stage left, and what another pipeline made. Torch-free."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from surefoot.errors import ConfigError

REFERENCE: Final = "stage:"
ANOTHER: Final = "pipeline:"


def replaced_by_path(
    text: str, own: str, folder: Path, earlier: Mapping[str, Sequence[str]], taken: set[str], borrowed: set[Path]
) -> str:
    """A reference as the path it stands for; other texts as they are."""
    file, colon, function = text.rpartition(":")
    if file.startswith((REFERENCE, ANOTHER)) and colon:  # stage:NAME/reward.py:function
        return f"{replaced_by_path(file, own, folder, earlier, taken, borrowed)}:{function}"
    if text.startswith(ANOTHER):
        return str(_made_by_another(text, own, folder, borrowed))
    if not text.startswith(REFERENCE):
        return text
    name, _, rest = text.removeprefix(REFERENCE).partition("/")
    if name not in (*earlier, own):
        raise ConfigError(
            f"stage {own} takes something from a stage that does not come before it",
            got=text,
            allowed=", ".join(earlier) or "nothing: it is the first",
            hint=nearest_of(name, list(earlier)),
        )
    if ".." in Path(rest).parts:
        raise ConfigError("a reference stays inside the stage's folder", got=text, hint="leave .. out")
    leaves = earlier.get(name, ())
    if name != own and rest and not any(Path(rest).is_relative_to(one) for one in leaves):
        raise ConfigError(
            f"stage {own} takes what {name} does not leave",
            got=text,
            allowed=", ".join(f"{REFERENCE}{name}/{one}" for one in leaves),
            hint=nearest_of(rest, leaves),
        )
    if name != own:
        taken.add(name)
    return str(folder / name / rest)


def _made_by_another(text: str, own: str, folder: Path, borrowed: set[Path]) -> Path:
    """What a finished pipeline beside this one left."""
    rest = Path(text.removeprefix(ANOTHER))
    if ".." in rest.parts or rest.is_absolute() or not rest.parts:
        raise ConfigError("a reference stays inside the other pipeline's folder", got=text, hint="leave .. out")
    found = folder.parent / rest
    if rest.parts[0] == folder.name:
        raise ConfigError(f"stage {own} names its own pipeline as another one", got=text, hint=f"{REFERENCE}NAME/PATH")
    if not found.exists():
        raise ConfigError(
            f"stage {own} takes what another pipeline has not made",
            got=f"{text} ({found})",
            hint=f"run the pipeline {rest.parts[0]} first, with the same pipeline.dir",
        )
    borrowed.add(folder.parent.joinpath(*rest.parts[:2]))
    return found


def nearest_of(name: str, known: Sequence[str]) -> str | None:
    """A hint at what was meant, if anything is near."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {found[0]}?" if found else None
