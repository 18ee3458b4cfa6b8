"""Data cards: who owns a data set, where it came from, how private it is, and who approved it. Torch-free.

The card of ``prompts.jsonl`` is ``prompts.jsonl.card.yaml`` beside it, that of a folder ``FOLDER.card.yaml``. It names
the data's sha256: data that changed has no card until somebody looks at it again.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from surefoot.config.yaml_text import read_yaml, write_yaml
from surefoot.data.fingerprint import fingerprint_source
from surefoot.data.formats import prompt_files
from surefoot.errors import ConfigError, DataError

SUFFIX: Final = ".card.yaml"
AUDIT_SUFFIX: Final = ".audit.yaml"
Privacy = Literal["public", "internal", "restricted", "personal"]
Status = Literal["approved", "pending", "rejected"]
Consent = Literal["pending", "rejected", "restricted", "personal"]
"""What has to be allowed before data is trained on: a status other than approved, or a class that not all may see."""

Filled = Annotated[str, Field(min_length=1, pattern=r"\S")]
PLAIN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class Approval(BaseModel):
    """Whether the data may be used, who said so and when."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Status
    by: str = ""
    date: datetime.date | None = None

    @model_validator(mode="after")
    def _signed(self) -> Approval:
        if self.status != "pending" and not (self.by.strip() and self.date):
            raise ValueError(f"{self.status} needs `by` (who) and `date` (when)")
        return self


class Card(BaseModel):
    """What is known of a data set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=PLAIN)
    version: str = Field(pattern=PLAIN)
    owner: Filled
    source: Filled
    annotation_source: Filled
    privacy: Privacy
    licence: Filled
    approval: Approval
    created: datetime.date
    notes: str = ""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    @field_validator("version", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            raise ValueError(f'is the number {value}, and 1.10 would be 1.1: put it in quotes, as "{value}"')
        return value

    @property
    def needs(self) -> list[Consent]:
        """What has to be allowed before this data is trained on."""
        found: list[Consent] = []
        if self.approval.status != "approved":
            found.append(self.approval.status)
        if self.privacy in ("restricted", "personal"):
            found.append(self.privacy)
        return found


HINTS: Final = {
    "privacy": "privacy is public, internal, restricted or personal",
    "approval": "approval is {status: approved, by: NAME, date: 2026-01-31}, or {status: pending}",
    "version": "a version is letters, digits, dots, dashes and underscores in quotes",
    "name": "a name is letters, digits, dots, dashes and underscores",
    "created": "a date is written 2026-01-31",
    "annotation_source": "say who labelled the data: `raters of ...`, `a model: ...`, or `none`",
    "sha256": "`surefoot data card FILE` writes a card with the digest filled in",
}


def card_path(data: str | os.PathLike[str]) -> Path:
    """Where the card of a data file or folder lies."""
    place = Path(data).expanduser().resolve()
    return place.with_name(place.name + SUFFIX)


def audit_path(data: str | os.PathLike[str]) -> Path:
    """Where the summary of its last audit lies."""
    place = Path(data).expanduser().resolve()
    return place.with_name(place.name + AUDIT_SUFFIX)


def read_card(path: Path) -> Card:
    """A card from its file.

    Raises:
        DataError: it cannot be read, or a field is missing or wrong; all of them are named.
    """
    try:
        tree = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError("the data card cannot be read", got=f"{path} ({' '.join(str(error).split())})") from error
    try:
        return Card.model_validate(tree)
    except ValidationError as error:
        faults = [(".".join(map(str, e["loc"])) or "card", _worded(e["msg"], e["type"])) for e in error.errors()]
    hints = [HINTS[field] for field in dict.fromkeys(place.split(".")[0] for place, _ in faults) if field in HINTS]
    raise DataError(
        f"the data card {path} has {len(faults)} fault(s): "
        + "; ".join(f"{place}: {fault}" for place, fault in faults),
        hint="; ".join(hints) or "fill in every field",
    )


def _worded(message: str, kind: str) -> str:
    if kind == "extra_forbidden":
        return "unknown field"
    if kind in ("string_too_short", "string_pattern_mismatch"):
        return "is empty or not of the right form"
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


def card_of(data: str | os.PathLike[str], *, check: bool = True) -> Card | None:
    """The card of a data file or folder; None when it has none, or is a hub id.

    Args:
        data: the file or folder.
        check: compare the digests.
    Raises:
        DataError: the card is wrong, or it is another version's: the data's sha256 is not the card's.
    """
    path = card_path(data)
    if not Path(data).expanduser().exists() or not path.is_file():
        return None
    card = read_card(path)
    digest = fingerprint_source(data) if check else card.sha256
    if digest != card.sha256:
        raise DataError(
            f"the data changed after its card was written: {data}",
            got=f"sha256 {digest}",
            allowed=f"sha256 {card.sha256}, as {path.name} says",
            hint="put the data back; or raise the card's version, run `surefoot data card FILE --renew` and have the "
            "data approved again",
        )
    return card


def template(data: str | os.PathLike[str], *, today: datetime.date) -> str:
    """A card to be filled in: the digest is there, approval is pending.

    Raises:
        DataError: there is no such data.
    """
    digest = fingerprint_source(data)
    if digest is None:
        raise DataError("cards are for data files and folders", got=str(data), hint="check the path")
    name = Path(data).name.split(".")[0]
    return f"""\
name: {write_yaml(name).splitlines()[0]}
version: "1"
owner: ""              # a person or a team that answers for the data
source: ""             # where it came from: a link, a system, a query
annotation_source: ""  # who labelled it: people (which), a model (which), or none
privacy: restricted    # public, internal, restricted (named people only), personal (about people)
licence: ""
approval: {{status: pending}}   # {{status: approved, by: NAME, date: {today}}}
created: {today}
notes: ""
sha256: {digest}
"""


def renewed(card: Card, data: str | os.PathLike[str]) -> Card:
    """The card of data that changed: the digest of now, and approval pending, since nobody approved what is there."""
    update = {"sha256": fingerprint_source(data), "approval": Approval(status="pending")}
    return card.model_copy(update=update)


def as_yaml(card: Card) -> str:
    """A card as its file has it."""
    return write_yaml(card.model_dump(mode="json"))


def governing(data: str | os.PathLike[str]) -> list[Card]:
    """All cards that have a say: its own, those of the files in a folder, and those of the folders around it.

    Raises:
        DataError: a card is wrong, or its own or a file's is of other data.
    """
    place = Path(data).expanduser().resolve()
    if not place.exists():
        return []
    inside = [card_of(file) for file in prompt_files(place)] if place.is_dir() else []
    around = [card_of(folder, check=False) for folder in place.parents if folder.name]
    return [card for card in (card_of(place), *inside, *around) if card is not None]


def check_cards(paths: Iterable[str | None], allow: Sequence[str] = (), *, require: bool = False) -> list[Card]:
    """Refuse data that a card does not release for training.

    Args:
        paths: data files and folders; None and hub ids are passed over, unless a card is required.
        allow: what may be trained on all the same: ``pending``, ``rejected``, ``restricted``, ``personal``.
        require: data without a card is refused as well.
    Returns:
        the cards that have a say.
    Raises:
        ConfigError: naming each data set and what is against it.
        DataError: a card is wrong, or is of other data.
    """
    cards: list[Card] = []
    against: list[str] = []
    words: dict[str, None] = {}
    bare: list[str] = []
    for path in dict.fromkeys(path for path in paths if path is not None):
        found = governing(path)
        cards += found
        if not found:
            bare.append(path)
        for card in found:
            needed = [need for need in card.needs if need not in allow]
            words |= dict.fromkeys(needed)
            if needed:
                against.append(f"{path} ({card.name} {card.version}): {' and '.join(needed)}")
    if against:
        raise ConfigError(
            "the data may not be trained on as its card stands",
            got="; ".join(against),
            hint=f"have it approved for this use, or say in the config that you may: data.allow: [{', '.join(words)}]",
        )
    if require and bare:
        raise ConfigError(
            "data.require_card: true, and there is data without a card",
            got=", ".join(bare),
            hint="`surefoot data card FILE` writes one to be filled in; data of a hub id has none: save it as a file",
        )
    return cards
