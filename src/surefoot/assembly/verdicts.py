"""What the checks of ``surefoot check`` have to say: one Finding per check, named ``group/check``. Torch-free.

Severity ``info`` is in order (with advice: worth knowing all the same), ``warning`` may be meant, ``error`` is
a problem: training would fail, or learn nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from surefoot.errors import SurefootError
from surefoot.records import Finding

T = TypeVar("T")


class Verdicts:
    """Findings in the order they are made.

    Attributes:
        findings: so far.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def ok(self, name: str, message: str, **evidence: Any) -> None:
        """In order."""
        self.findings.append(Finding(name, "info", message, evidence))

    def note(self, name: str, message: str, advice: str, **evidence: Any) -> None:
        """In order, and worth knowing."""
        self.findings.append(Finding(name, "info", message, evidence, advice))

    def warn(self, name: str, message: str, advice: str, **evidence: Any) -> None:
        """May be meant, and is often a mistake."""
        self.findings.append(Finding(name, "warning", message, evidence, advice))

    def problem(self, name: str, message: str, advice: str, **evidence: Any) -> None:
        """Must be put right before training."""
        self.findings.append(Finding(name, "error", message, evidence, advice))

    def attempt(self, name: str, make: Callable[[], T]) -> T | None:
        """What ``make`` gives; None, and a problem, when it raises an error for users."""
        try:
            return make()
        except SurefootError as error:
            message = str(error).removesuffix(f"; hint: {error.hint}")
            self.problem(name, " ".join(message.split()), error.hint or "")
            return None

    @property
    def failed(self) -> bool:
        """Whether there is a problem."""
        return any(finding.severity == "error" for finding in self.findings)
