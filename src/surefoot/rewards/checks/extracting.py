"""Where in a response the answer stands: a box, the last line, a fence. All in time linear in the text. Torch-free."""

from __future__ import annotations

import re
from typing import Final

BOX: Final = re.compile(r"\\f?boxed\s{0,3}\{")
FENCE: Final = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[ \t]*([^\n`]{0,80})$", re.MULTILINE)


def last_box(text: str) -> str | None:
    r"""What the last ``\boxed{...}`` holds, braces inside it balanced; None without one that is closed."""
    starts = [found.end() for found in BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for place in re.finditer(r"\\?[{}]", text[starts[-1] :]):
        depth += {"{": 1, "}": -1}.get(place[0], 0)
        if depth == 0:
            return text[starts[-1] : starts[-1] + place.start()]
    return None


def last_line(text: str) -> str:
    """The last line that holds more than space; empty without one."""
    stripped = text.rstrip()
    return stripped[stripped.rfind("\n") + 1 :].strip()


def fenced(text: str) -> list[str]:
    """What stands in fenced blocks, outermost ones only.

    A block ends at a fence of the same character that is at least as long and has no word behind it; one that is
    never closed reaches to the end of the text.
    """
    blocks: list[str] = []
    opened: re.Match[str] | None = None
    for fence in FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1][0] == opened[1][0] and len(fence[1]) >= len(opened[1]) and not fence[2].strip():
            blocks.append(text[opened.end() + 1 : fence.start()])
            opened = None
    if opened is not None:
        blocks.append(text[opened.end() + 1 :])
    return blocks
