"""Special tokens and chat-template markup written out inside texts, where they can end a turn or begin another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from surefoot.data.audit.characters import Hit, has_any
from surefoot.data.audit.findings import Severity, excerpt
from surefoot.data.audit.passages import Passage
from surefoot.errors import DataError

WELL_KNOWN: Final = (
    r"<\|[^|<>\s]{1,40}\|>"  # <|im_end|>, <|eot_id|>, <|endoftext|> and their kind
    r"|<｜[^｜<>]{1,40}｜>"
    r"|\[/?(?:INST|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>"
    r"|</?s>|<(?:start|end)_of_turn>|<(?:bos|eos|pad|unk|mask|sep|cls)>"
    r"|\[(?:PAD|CLS|SEP|MASK|UNK|BOS|EOS)\]"
    r"|</?tool_(?:call|response)>|<unused\d+>"
)
"""Control tokens of the model families in use, as one pattern."""

_STRUCK = re.compile(r"<s>[^<\n]{1,200}</s>")  # HTML's element for what no longer holds
_USER_MARK = re.compile(r"^(?:#{2,3} )?(?:Human|User|Instruction|Input|USER|HUMAN)\s*:", re.MULTILINE)
_MODEL_MARK = re.compile(r"^(?:#{2,3} )?(?:Assistant|AI|Bot|Response|Output|ASSISTANT)\s*:", re.MULTILINE)
_MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)
_SIGNS: Final = "<["


def known_tokens() -> re.Pattern[str]:
    """The pattern of the well-known control tokens."""
    return re.compile(WELL_KNOWN)


def tokens_of(folder: str | Path) -> re.Pattern[str]:
    """The pattern of a tokenizer's own control tokens: special ones, and added ones that its template writes.

    Args:
        folder: a folder with ``tokenizer.json`` or ``tokenizer_config.json``.
    Raises:
        DataError: it has neither, or they cannot be read.
    """
    place = Path(folder)
    files = [place / name for name in ("tokenizer.json", "tokenizer_config.json") if (place / name).is_file()]
    if not files:
        raise DataError(
            "the tokenizer's folder has no tokenizer.json",
            got=str(folder),
            hint="name a model's folder, or leave --tokenizer out to look for the well-known control tokens",
        )
    trees = [_read(file) for file in files]
    template = "".join(str(tree.get("chat_template") or "") for tree in trees)
    if (place / "chat_template.jinja").is_file():
        template += (place / "chat_template.jinja").read_text(encoding="utf-8")
    spellings = {
        str(entry["content"])
        for tree in trees
        for entry in _added(tree)
        if entry.get("special") or (_MARKUP.fullmatch(str(entry["content"])) and str(entry["content"]) in template)
    }
    longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _read(file: Path) -> Mapping[str, Any]:
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError("a file of the tokenizer could not be read", got=f"{file} ({error})") from error
    return tree if isinstance(tree, dict) else {}


def _added(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    listed = tree.get("added_tokens") or []
    decoder = tree.get("added_tokens_decoder") or {}
    for entry in (*listed, *(decoder.values() if isinstance(decoder, dict) else ())):
        if isinstance(entry, dict) and entry.get("content"):
            yield entry


def control_tokens(passage: Passage, tokens: re.Pattern[str]) -> Iterator[Hit]:
    """Control tokens and marks of turns in one text.

    In a text that is read as it stands they act (``error``), unless the whole of it is written with a template already;
    in a chat Surefoot keeps them apart from the template's, which not every program does (``warning``).
    """
    text = passage.text
    if has_any(text, _SIGNS):
        found = [one for one in tokens.finditer(text) if not _is_struck(text, one)]
        if found:
            rendered = passage.role == "prompt" and not text[: found[0].start()].strip()
            severity: Severity = "info" if rendered else "warning" if passage.chat else "error"
            said = "the text is written with a template" if rendered else "control token"
            evidence = f"{said}: {found[0][0][:40]} in {excerpt(text, found[0].start())}"
            yield Hit("tokens/special", severity, evidence, len(found))
    if passage.role == "prompt":
        return  # a prompt that is a string may be a conversation by hand
    user, model = _USER_MARK.search(text), _MODEL_MARK.search(text)
    if user and model:
        evidence = f"turns of a conversation inside one turn: {excerpt(text, min(user.start(), model.start()))}"
        yield Hit("tokens/template", "warning", evidence)


def _is_struck(text: str, token: re.Match[str]) -> bool:
    if token[0] not in ("<s>", "</s>"):
        return False
    return any(one.start() <= token.start() < one.end() for one in _STRUCK.finditer(text))
