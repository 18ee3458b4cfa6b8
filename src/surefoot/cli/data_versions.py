"""``surefoot data card``, ``register`` and ``diff``. Loads no torch."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from surefoot.cli.table import aligned
from surefoot.data.cards import as_yaml, card_of, card_path, read_card, renewed, template
from surefoot.data.catalogue import data_of, find_versions, register
from surefoot.data.difference import SHOWN, Difference, card_changes, difference, read_digests
from surefoot.data.fingerprint import fingerprint_source
from surefoot.errors import DataError


def run_card(file: str, *, renew: bool, as_json: bool) -> int:
    """Write a card to be filled in, renew one, or check and print the one that is there. Returns the exit code.

    Raises:
        DataError: there is no such data, or the card is wrong or does not fit the data.
    """
    path = card_path(file)
    if not Path(file).expanduser().exists():
        raise DataError("there is no such data", got=file, hint="name a data file, or a folder of them")
    if not path.exists():
        if renew:
            raise DataError("there is no card to renew", got=str(path), hint="leave --renew out to write one")
        _write(path, template(file, today=datetime.datetime.now(datetime.UTC).date()))
        sys.stderr.write(f"{path} is written: fill it in\n")
        sys.stdout.write(json.dumps({"card": str(path), "status": "template"}) + "\n" if as_json else f"{path}\n")
        return 0
    old = read_card(path)
    if renew and old.sha256 != fingerprint_source(file):  # an approval of what is there now stays
        _write(path, as_yaml(renewed(old, file)))
    card = card_of(file)
    assert card is not None
    tree = card.model_dump(mode="json")
    sys.stdout.write(json.dumps({"card": str(path), **tree}) + "\n" if as_json else as_yaml(card))
    if card.needs and not as_json:
        sys.stderr.write(f"it is not trained on unless data.allow has: {', '.join(card.needs)}\n")
    return 0


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise DataError("the card cannot be written", got=str(error), hint="check the folder's permissions") from error


def run_register(file: str, catalogue: Path, *, keep_copy: bool, as_json: bool) -> int:
    """Register a version. Returns the exit code.

    Raises:
        DataError: see :func:`surefoot.data.catalogue.register`.
    """
    version, new = register(file, catalogue, keep_copy=keep_copy)
    if as_json:
        sys.stdout.write(json.dumps({**asdict(version), "new": new}) + "\n")
    else:
        sys.stdout.write(f"{version}  sha256 {version.sha256}  {'registered' if new else 'was registered already'}\n")
    return 0


def run_diff(first: str, second: str, *, key: str | None, catalogue: Path, as_json: bool) -> int:
    """Compare two versions. Returns the exit code.

    Raises:
        DataError: one of them is not there, or the key tells no rows apart.
    """
    (one, card), (other, other_card) = _resolved(first, catalogue), _resolved(second, catalogue)
    found = difference(read_digests(str(one)), read_digests(str(other)), key=key)
    cards = card_changes(card, other_card)
    if as_json:
        sys.stdout.write(json.dumps({**asdict(found), "card": cards}) + "\n")
    else:
        sys.stdout.write(render_difference(found, cards))
    return 0


def _resolved(reference: str, catalogue: Path) -> tuple[Path, Mapping[str, Any]]:
    """Where the data of a path, ``NAME@VERSION`` or ``NAME`` (its newest version) is, and its card."""
    path = Path(reference).expanduser()
    if path.exists():
        own = card_of(reference, check=False)
        return path, own.model_dump(mode="json") if own is not None else {}
    version = find_versions(reference, catalogue)[-1]
    return data_of(version, catalogue), version.card


def render_difference(found: Difference, cards: Mapping[str, tuple[Any, Any]]) -> str:
    """A difference as text."""
    told = "the whole row" if found.key is None else f"the column {found.key!r}"
    table = [
        (what, str(len(places)), _first(list(places)))
        for what, places in (("added", found.added), ("removed", found.removed), ("changed", found.changed))
    ]
    lines = [f"{found.rows[0]} rows, then {found.rows[1]}; rows are told by {told}\n"]
    lines.append(aligned(("rows", "number", "where"), table, right=(1,)))
    columns: dict[str, int] = {}
    for differing in found.changed.values():
        for column in differing:
            columns[column] = columns.get(column, 0) + 1
    if columns:
        lines.append(
            f"changed columns: {', '.join(f'{name} ({number})' for name, number in sorted(columns.items()))}\n"
        )
    for what, names in (("new", found.new_columns), ("lost", found.lost_columns)):
        if names:
            lines.append(f"{what} columns: {', '.join(names)}\n")
    lines += [f"card, {name}: {was!r} -> {now!r}\n" for name, (was, now) in cards.items()]
    return "".join(lines)


def _first(places: Sequence[str]) -> str:
    return ", ".join(places[:SHOWN]) + (", ..." if len(places) > SHOWN else "")
