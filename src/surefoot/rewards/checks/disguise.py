"""Words found in a text although they are disguised: other letters, signs between them, letters said twice. Torch-free.

Whole words only: ``class`` and ``Scunthorpe`` hold nothing. Undone are look-alike letters of other scripts, accents,
zero-width and full-width characters, digits and signs for letters (``1d10t``), signs or spaces between single letters
(``i.d.i.o.t``, ``i d i o t``), stars over letters (``id**t``), and letters repeated three times or more (``idiooot``).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import regex

_ALIKE: Final = str.maketrans("аеорсухіѕјԁһԛѡкмтнвαειοτυνκρχ", "aeopcyxisjdhqwkmthbaeiotuvkpx")
_SIGNS: Final = str.maketrans("013457$@!€", "oieastsaie")
_OTHER_SIGNS: Final = str.maketrans("01345798$@!|+€()", "olaesttbsalltecd")
_DROPPED: Final = regex.compile(r"[\p{Mn}\p{Cf}]+")
_REPEATED: Final = re.compile(r"(.)\1{2,}")
_INSIDE: Final = re.compile(r"[.\-_,/\\'’·~^]+")
_HIDDEN: Final = re.compile(r"[*#]")
_EDGES: Final = ".,;:?\"'’“”‘()[]{}<>«»…—–-_/\\~^!|*#"
# A run of single letters with space between them.
_SPELLED: Final = re.compile(r"(?<!\S)(?:[^\W_][.,\-_*]?[ \t]{1,2}){2,30}[^\W_](?=[.,!?;:]?(?:\s|$))")
LONGEST: Final = 60
"""Characters of a word at most; a longer one is no word."""


class Lexicon:
    """Words and phrases to look for.

    Args:
        entries: words, or phrases of several words with spaces.
    """

    def __init__(self, entries: Iterable[str]) -> None:
        phrases = {tuple(_plain(word) for word in entry.split()) for entry in entries if entry.strip()}
        self._words = {phrase[0] for phrase in phrases if len(phrase) == 1}
        self._phrases: dict[str, list[tuple[str, ...]]] = {}
        for phrase in sorted(phrase for phrase in phrases if len(phrase) > 1):
            self._phrases.setdefault(phrase[0], []).append(phrase)
        self._by_length: dict[int, list[str]] = {}
        for word in sorted(self._words):
            self._by_length.setdefault(len(word), []).append(word)

    def find(self, text: str) -> Counter[str]:
        """How often each entry occurs, in time linear in the text."""
        plain = _plain_text(text)
        found: Counter[str] = Counter()
        tokens = plain.split()
        for token, count in Counter(tokens).items():
            if (word := self._match(token)) is not None:
                found[word] += count
        for run, count in Counter(run[0] for run in _SPELLED.finditer(plain)).items():
            letters = "".join(c for c in run if c.isalnum())
            # A spelled word may have a neighbour of one letter: "a" or "i".
            matches = map(self._match, (letters, letters[1:], letters[:-1], letters[1:-1]))
            if (word := next((match for match in matches if match is not None), None)) is not None:
                found[word] += count
        if self._phrases:
            found.update(self._find_phrases([_plain(token.strip(_EDGES)) for token in tokens]))
        return found

    def _match(self, token: str) -> str | None:
        if len(token) > LONGEST:
            return None
        for form in _forms(token):
            if form in self._words:
                return form
        inner = token.strip(".,;:?!\"'()")
        if _HIDDEN.search(inner[1:]):
            return self._behind_stars(inner)
        return None

    def _behind_stars(self, token: str) -> str | None:
        """A word of the length with the same letters where they are shown; half of them, and the first, must be."""
        plain = _plain(token)
        seen = len(_HIDDEN.sub("", plain))
        if seen < 2 or 2 * seen < len(plain):
            return None
        pairs = ((word, zip(word, plain, strict=True)) for word in self._by_length.get(len(plain), ()))
        return next((word for word, both in pairs if all(a == b or b in "*#" for a, b in both)), None)

    def _find_phrases(self, tokens: list[str]) -> Iterator[str]:
        for place, token in enumerate(tokens):
            for phrase in self._phrases.get(token, ()):
                if tuple(tokens[place : place + len(phrase)]) == phrase:
                    yield " ".join(phrase)


def _forms(token: str) -> Iterator[str]:
    """What a token may stand for, the plainest reading first. A number is a number, whatever its digits look like."""
    bare = token.strip(_EDGES)
    if bare.isdigit() or not bare:
        return
    yield bare
    found = [bare]
    if not bare.isalpha():
        found += [form.translate(signs) for form in {bare, token.strip(".,;:?\"'")} for signs in (_SIGNS, _OTHER_SIGNS)]
        found += [_INSIDE.sub("", form) for form in found if _INSIDE.search(form)]
        yield from (form.strip(_EDGES) for form in found[1:])
    for form in found:
        if _REPEATED.search(form):
            yield _REPEATED.sub(r"\1", form).strip(_EDGES)
            yield _REPEATED.sub(r"\1\1", form).strip(_EDGES)


def _plain_text(text: str) -> str:
    if text.isascii():
        return text.casefold()
    kept: str = _DROPPED.sub("", unicodedata.normalize("NFKD", text))
    return kept.casefold().translate(_ALIKE)


def _plain(word: str) -> str:
    return _plain_text(word).strip()
