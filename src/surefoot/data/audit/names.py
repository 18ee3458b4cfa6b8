"""Names of people, found by a spaCy pipeline that the user names. Informational: such models miss and invent names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from surefoot.data.audit.characters import Hit
from surefoot.errors import DataError, MissingExtra

LABELS: Final = ("PERSON", "PER")
NameFinder = Callable[[str], Iterator[Hit]]


def name_finder(model: str) -> NameFinder:
    """A check for names of people.

    Args:
        model: a spaCy pipeline with named entities: an installed package as ``en_core_web_sm``, or a folder.
    Raises:
        MissingExtra: spaCy is not installed.
        DataError: there is no such pipeline.
    """
    try:
        spacy: Any = importlib.import_module("spacy")
    except ImportError as error:
        # No extra of Surefoot: it brings 300 MB, and only informs.
        raise MissingExtra(
            "finding names of people needs the package 'spacy', which is not installed",
            hint="pip install 'spacy>=3.8,<4', and a pipeline: python -m spacy download en_core_web_sm",
        ) from error
    try:
        pipeline = spacy.load(model)
    except OSError as error:
        raise DataError(
            "there is no such spaCy pipeline", got=model, hint=f"python -m spacy download {model}, or name a folder"
        ) from error

    def find(text: str) -> Iterator[Hit]:
        names = [entity.text for entity in pipeline(text).ents if entity.label_ in LABELS]
        if names:
            yield Hit("personal/name", "info", f"{names[0][:1]}... ({len(names[0].split())} words)", len(names))

    return find
