"""Which language a text is written in, by its script and its most frequent small words. Torch-free.

No model and no data: a script that one language uses decides by itself, and where several share one, the words that
hold a sentence together do. Short or mixed texts are ``unknown``, and said to be.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from surefoot.rewards.checks.segments import words

UNKNOWN: Final = "unknown"

PROFILES: Final = {
    "en": "the of and to a in is that it was for on with as are this be at by from or an have not you he she they we "
    "his her but had which were their has been will would there what when who if can all one my your its i do more "
    "about into than them these so how no out up please thank very could should may",
    "de": "der die das und ist nicht ein eine zu den von mit auf für im dem es sich auch als wie an werden aus er sie "
    "wir ich hat dass nach bei um noch wird einen einem einer oder aber war haben nur zum zur sind kann mehr über "
    "diese vor durch man sehr ihr mein kein wenn bitte",
    "fr": "le la les de des et est un une du en que qui dans pour pas sur il elle au ne se ce plus par avec sont nous "
    "vous je mais ou cette être aux son sa ses ont été comme fait tout leur y très bien aussi même sans peut c l d n "
    "j s qu",
    "es": "el la los las de que y en un una es por con no se para del al lo como más pero su sus le ya o este está "
    "son fue ha muy también me hay sobre ser si cuando todo esta entre sin hasta donde quien desde nos yo porque",
    "it": "il lo la gli le di che e è un una per non in con si del della dei delle da al come più ma sono nel alla "
    "questo anche ha se ci suo io molto essere era dal questa dello ed tutto hanno cosa perché loro l d c nella",
    "pt": "o a os as de que e em um uma é do da dos das não para com por se no na mais como mas foi ao ele ela seu "
    "sua ou quando muito nos já eu também só pelo pela até isso entre depois sem mesmo aos tem são você está",
    "nl": "de het een van en in is dat op te zijn met voor niet aan er om ook als dan maar bij door naar uit nog wel "
    "hij ze zij wij wordt worden heeft hebben deze dit die over tot kan geen ik je was meer zo zeer veel",
    "sv": "och att det som en på är av för med den till i inte har de om ett var jag men sig så från vi kan när han "
    "hon man nu ska eller mycket vara hade där alla blir detta också efter över mot utan ni du oss mer",
    "pl": "i w na z że się do nie jest to o jak co ale po za od tak przez dla czy już tylko jego są ma było być może "
    "które który oraz ze bardzo tym tego także też jej ich przy gdy lub pod nad jako mnie my wy",
    "tr": "ve bir bu da de için ile çok daha ne gibi o olarak olan var en kadar sonra ama ben sen biz değil mi mı ki "
    "her şey veya ya olduğu ise bunu şu hem diye iyi göre tarafından yok onun bana",
    "ru": "и в не на что я с он как это по но из у за то все она так его от же для мы вы бы к о до или если уже "
    "только ещё еще было был быть когда который они при их нет очень может есть",
    "uk": "і в не на що я з він як це по але із у за то всі вона так його від же для ми ви б до або якщо вже тільки "
    "ще було був бути коли який вони при їх немає дуже може є та й його цей ця",
    "ar": "في من على إلى أن هذا هذه التي الذي ما لا كان عن مع هو هي كل بعد قد لم بين أو ثم حتى إن ذلك كما لكن عند "
    "و يا أنا نحن هل",
    "fa": "و در به از که این را با است برای آن یک تا بر هم خود شد می ها من او ما یا اگر نیست بود های دارد کرد چه همه",
    "hi": "है के में की का और को से एक यह नहीं पर हैं ने भी इस कि तो हो था लिए ही कर थे वह जो या मैं आप हम क्या",
    "mr": "आहे आणि या हे तो ती की नाही मी आम्ही ते होते होता होती करून च्या चा ची चे मध्ये पण का साठी आहेत",
}
"""The small words of each language that shares its script with another."""

BY_SCRIPT: Final = {
    "GREEK": ("el",),
    "HEBREW": ("he",),
    "THAI": ("th",),
    "HANGUL": ("ko",),
    "KANA": ("ja",),
    "CJK": ("zh",),
    "BENGALI": ("bn",),
    "TAMIL": ("ta",),
    "TELUGU": ("te",),
    "KANNADA": ("kn",),
    "GUJARATI": ("gu",),
    "MALAYALAM": ("ml",),
    "GURMUKHI": ("pa",),
    "GEORGIAN": ("ka",),
    "ARMENIAN": ("hy",),
    "ARABIC": ("ar", "fa"),
    "DEVANAGARI": ("hi", "mr"),
    "CYRILLIC": ("ru", "uk"),
    "LATIN": ("en", "de", "fr", "es", "it", "pt", "nl", "sv", "pl", "tr"),
}
LANGUAGES: Final = tuple(sorted({code for codes in BY_SCRIPT.values() for code in codes}))

_LETTERS: Final = {
    "de": "ß", "es": "ñ¿¡", "pt": "ãõ", "sv": "å", "pl": "łąęśźżćń", "tr": "ğış", "fr": "œùêîû", "it": "ìò",
    "ru": "ыэёъ", "uk": "іїєґ", "fa": "پچژگی", "mr": "ळ",
}  # fmt: skip
_SMALL: Final = {code: frozenset(text.split()) for code, text in PROFILES.items()}
_APOSTROPHES: Final = re.compile(r"['’\-]")

FEWEST_HITS: Final = 2
LOWEST_SHARE: Final = 0.12
LEAD: Final = 1.25
"""By how much the best language must be ahead of the next."""


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found.

    Attributes:
        code: ISO 639-1, or ``unknown``.
        reason: what it rests on, or why it is unknown.
        scripts: share of letters by script.
    """

    code: str
    reason: str
    scripts: dict[str, float]


def detect(text: str) -> Detected:
    """Find the language of a text, in time linear in it."""
    counts = _scripts(text)
    total = sum(counts.values())
    if not total:
        return Detected(UNKNOWN, "no letters", {})
    shares = {script: count / total for script, count in counts.most_common()}
    script = next(iter(shares))
    # Japanese is written in both: a fifth of kana makes it so.
    if script == "CJK" and shares.get("KANA", 0.0) >= 0.2 * (shares["CJK"] + shares.get("KANA", 0.0)):
        script = "KANA"
    codes = BY_SCRIPT.get(script, ())
    if shares[script] < 0.5 and script not in ("KANA", "CJK"):
        return Detected(UNKNOWN, "no script has half of the letters", shares)
    if len(codes) == 1:
        return Detected(codes[0], f"{shares[script]:.0%} of the letters are {script.lower()}", shares)
    if not codes:
        return Detected(UNKNOWN, f"no language is known here for {script.lower()} letters", shares)
    return _by_words(text, codes, shares)


def _by_words(text: str, codes: tuple[str, ...], shares: dict[str, float]) -> Detected:
    counted = Counter(part for word in words(text.casefold()) for part in _APOSTROPHES.split(word))
    total = sum(counted.values())
    hits = {code: sum(counted[word] for word in _SMALL[code]) for code in codes}
    letters = Counter(text.casefold())
    # A letter of its own counts as half a small word: names travel with their letters.
    marks = {code: 0.5 * min(total, sum(letters[c] for c in _LETTERS.get(code, ""))) for code in codes}
    score = {code: (hits[code] + marks[code]) / total for code in codes}
    best, next_best = sorted(score, key=lambda code: -score[code])[:2]
    if hits[best] + marks[best] < FEWEST_HITS or score[best] < LOWEST_SHARE:
        return Detected(UNKNOWN, f"only {hits[best]} of {total} words are known small words", shares)
    if score[best] < LEAD * score[next_best]:
        return Detected(UNKNOWN, f"{best} or {next_best}: too close to tell", shares)
    return Detected(best, f"{hits[best]} of {total} words are small words of {best}", shares)


def _scripts(text: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for char, count in Counter(text).items():
        if char.isalpha():
            found[_script(char)] += count
    return found


@lru_cache(maxsize=4096)
def _script(char: str) -> str:
    name = unicodedata.name(char, "OTHER")
    if name.startswith(("HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA")):
        return "KANA"
    return "LATIN" if name.startswith("FULLWIDTH LATIN") else name.split(" ")[0].split("-")[0]
