"""Holding rows out by their prompts, so that nothing is judged on what was trained. Torch-free."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol, TypeVar

from surefoot.errors import DataError


class Keyed(Protocol):
    """A row that knows its prompt."""

    @property
    def prompt_key(self) -> str:
        """The same for rows with one prompt."""
        ...


K = TypeVar("K", bound=Keyed)


def split_by_prompt(rows: Sequence[K], share: float, *, seed: int, section: str) -> tuple[tuple[K, ...], tuple[K, ...]]:
    """Part rows into those to train on and those held out; rows with one prompt stay together.

    Which prompts are held out depends on seed and prompts alone, not on the order of the rows.

    Args:
        rows: in order; both parts keep it.
        share: of the rows to hold out, as nearly as whole prompts allow, at least one prompt.
        seed: the run's seed.
        section: of the config, for hints.
    Raises:
        DataError: there is one prompt only, so nothing would be left.
    """
    if not share:
        return tuple(rows), ()
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row.prompt_key] = sizes.get(row.prompt_key, 0) + 1
    if len(sizes) < 2:
        raise DataError(
            "rows are held out by prompt, and there is only one prompt",
            got=f"{len(rows)} rows",
            hint=f"set {section}.held_out_share: 0, or name other rows in {section}.held_out",
        )
    order = sorted(sizes, key=lambda key: hashlib.sha256(f"{seed}/{key}".encode()).digest())
    held: set[str] = set()
    count, wanted = 0, share * len(rows)
    for key in order[:-1]:
        if held and count + sizes[key] / 2 > wanted:
            break
        held.add(key)
        count += sizes[key]
    return tuple(r for r in rows if r.prompt_key not in held), tuple(r for r in rows if r.prompt_key in held)


def shared_prompts(trained: Sequence[Keyed], held_out: Sequence[Keyed]) -> int:
    """Held-out rows whose prompt is trained on as well."""
    prompts = {row.prompt_key for row in trained}
    return sum(row.prompt_key in prompts for row in held_out)
