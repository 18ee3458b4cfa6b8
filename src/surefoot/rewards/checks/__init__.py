"""Verifiable rewards: rules that can be looked up, each with its options and the reason of every score. Torch-free.

``docs/checks.md`` has an entry for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from surefoot.errors import ConfigError
from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options
from surefoot.rewards.checks.citations import CitationCheck
from surefoot.rewards.checks.exact import ExactCheck
from surefoot.rewards.checks.groundedness import GroundednessCheck
from surefoot.rewards.checks.gym import GymCheck
from surefoot.rewards.checks.instructions import InstructionCheck
from surefoot.rewards.checks.json_schema import JsonSchemaCheck
from surefoot.rewards.checks.language import LanguageCheck
from surefoot.rewards.checks.length import LengthCheck, RepetitionCheck
from surefoot.rewards.checks.numeric import NumericCheck
from surefoot.rewards.checks.options import Unreadable, nearest, read_options
from surefoot.rewards.checks.pattern import RegexCheck
from surefoot.rewards.checks.readability import ReadabilityCheck
from surefoot.rewards.checks.toxicity import ToxicityCheck

__all__ = ["CHECKS", "Answer", "CannotJudge", "Check", "Judgement", "Options", "check_type", "make_check"]

_TYPES: Final[tuple[type[Check[Any]], ...]] = (
    ExactCheck,
    NumericCheck,
    RegexCheck,
    JsonSchemaCheck,
    InstructionCheck,
    CitationCheck,
    GroundednessCheck,
    LanguageCheck,
    ReadabilityCheck,
    ToxicityCheck,
    LengthCheck,
    RepetitionCheck,
    GymCheck,
)
CHECKS: Final = {kind.name: kind for kind in _TYPES}
"""Every check by its name."""


def check_type(name: str) -> type[Check[Any]]:
    """The check of a name.

    Raises:
        ConfigError: there is none, with the nearest one.
    """
    if name not in CHECKS:
        raise ConfigError("there is no such check", got=name, hint=nearest(name, sorted(CHECKS)))
    return CHECKS[name]


def make_check(name: str, options: Mapping[str, Any] | None = None) -> Check[Any]:
    """A check ready to judge.

    Args:
        name: one of CHECKS.
        options: as ``docs/checks.md`` lists them.
    Raises:
        ConfigError: no such check, an unknown option, or a value that cannot be used.
        MissingExtra: it needs a package that is not installed.
    """
    kind = check_type(name)
    try:
        return kind(read_options(kind.options_type, options or {}))
    except Unreadable as error:
        raise ConfigError(
            f"the options of check {name} cannot be used", got=str(error), hint="see docs/checks.md"
        ) from None
