"""The environment of plain alignment: one response, then the episode is over."""

from __future__ import annotations

from collections.abc import Sequence

from surefoot.protocols import Turn
from surefoot.records import Prompt


class SingleTurn:
    """Ends every episode after the first response."""

    def respond(self, prompt: Prompt, tokens: Sequence[int], mask: Sequence[bool]) -> Turn:
        """Nothing is given back."""
        return Turn(done=True)
