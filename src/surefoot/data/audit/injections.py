"""Instructions to the model that were put into data: in the open, or where no reader sees them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from surefoot.data.audit.characters import Hit, hidden_tags, without_invisible
from surefoot.data.audit.findings import excerpt
from surefoot.data.audit.phrases import order_in

_COMMENT = re.compile(r"<!--(.*?)(?:-->|\Z)|^\[//\]:\s*#\s*\((.*?)\)", re.DOTALL | re.MULTILINE)
_UNSEEN = re.compile(
    r"<(\w+)[^>]*(?:display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0|opacity\s*:\s*0)[^>]*>"
    r"(.*?)(?:</\1>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{24,}={0,2}")


def injections(text: str) -> Iterator[Hit]:
    """The first instruction in a text: ``injection/hidden`` where it is concealed, else ``injection/instruction``."""
    for where, said in _concealed(text):
        found = order_in(without_invisible(said))
        if found is not None:
            yield Hit("injection/hidden", "error", f"{where}, {found[0]}: {excerpt(said, found[1])}")
            return
    found = order_in(text)
    if found is not None:
        yield Hit("injection/instruction", "warning", f"{found[0]}: {excerpt(text, found[1])}")
        return
    visible = without_invisible(text)
    found = order_in(visible) if visible != text else None
    if found is not None:
        evidence = f"split by invisible characters, {found[0]}: {excerpt(visible, found[1])}"
        yield Hit("injection/hidden", "error", evidence)


def _concealed(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a text that people do not see or cannot read, and what they say."""
    if "<!--" in text or "[//]:" in text:
        yield from (("in a comment", found[1] or found[2] or "") for found in _COMMENT.finditer(text))
    if "<" in text and "style" in text:
        yield from (("in an element that is not shown", found[2]) for found in _UNSEEN.finditer(text))
    tags = hidden_tags(text)
    if tags:
        yield "in invisible tag characters", tags
    for found in _BASE64.finditer(text):
        decoded = _decoded(found[0])
        if decoded is not None:
            yield "in base64", decoded


def _decoded(run: str) -> str | None:
    """What a run of base64 says, None where that is no text."""
    run = run.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(run + "=" * (-len(run) % 4), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
