"""Check language: sentences of each language are told, and what cannot be told is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.errors import ConfigError
from surefoot.rewards.checks.languages import LANGUAGES, PROFILES, UNKNOWN, detect
from tests.rewards.checks.judged import judge

# Two or more sentences of each, none of which the lists were made from.
SENTENCES = {
    "en": ["Where did you put the keys that were on this table?", "She has never been to the sea, but he has."],
    "de": ["Wo hast du die Schlüssel hingelegt, die auf dem Tisch waren?", "Sie war noch nie am Meer, aber er schon."],
    "fr": ["Où as-tu mis les clés qui étaient sur la table ?", "Elle n'a jamais vu la mer, mais lui l'a vue."],
    "es": ["¿Dónde has puesto las llaves que estaban en la mesa?", "Ella nunca ha visto el mar, pero él sí."],
    "it": ["Dove hai messo le chiavi che erano sul tavolo della cucina?", "Lei non ha mai visto il mare, ma lui sì."],
    "pt": ["Onde você colocou as chaves que estavam na mesa?", "Ela nunca viu o mar, mas ele já viu."],
    "nl": ["Waar heb je de sleutels gelegd die op de tafel lagen?", "Zij is nog nooit aan zee geweest, maar hij wel."],
    "sv": ["Var har du lagt nycklarna som låg på bordet?", "Hon har aldrig sett havet, men det har han."],
    "pl": ["Gdzie są klucze, które były na stole?", "Ona nigdy nie była nad morzem, ale on tak."],
    "tr": ["Masanın üzerinde olan anahtarları nereye koydun?", "O hiç denizi görmedi ama biz gördük."],
    "ru": ["Куда ты положил ключи, которые были на столе?", "Она никогда не была на море, а он был."],
    "uk": ["Куди ти поклав ключі, які були на столі?", "Вона ніколи не була на морі, а він був."],
    "ar": ["أين وضعت المفاتيح التي كانت على الطاولة؟", "هي لم تر البحر من قبل لكن هو رآه."],
    "fa": ["کلیدهایی را که روی میز بود کجا گذاشتی؟", "او هرگز دریا را ندیده است اما من دیده ام."],
    "hi": ["मेज पर जो चाबियाँ थीं वह कहाँ हैं?", "उसने कभी समुद्र नहीं देखा है और मैं भी नहीं।"],
    "mr": ["ती समुद्र पाहिली नाही पण मी पाहिला आहे.", "टेबलावर होते ते काय आहे आणि ते की नाही?"],
    "ja": ["机の上にあった鍵をどこに置きましたか。"],
    "zh": ["你把桌子上的钥匙放在哪里了？"],
    "ko": ["탁자 위에 있던 열쇠를 어디에 두었니?"],
    "el": ["Πού έβαλες τα κλειδιά που ήταν στο τραπέζι;"],
    "he": ["איפה שמת את המפתחות שהיו על השולחן?"],
    "th": ["คุณวางกุญแจไว้ที่ไหน"],
    UNKNOWN: ["", "12 34 !", "Paris", "Lorem ipsum dolor sit amet", "qwer asdf zxcv", "Anna Berg", "the", "Hi Привет",
              "the and of und die der",
              "the of zorp blik fnord grak mip tolk wug plin drab snarf quib frell bloop mork snip trell",
              "ᐊᐃᓐᖓᐃ"],
}  # fmt: skip
CASES = [(code, sentence) for code, found in SENTENCES.items() for sentence in found]


@pytest.mark.parametrize(("code", "sentence"), CASES)
def test_languages_are_told(code: str, sentence: str) -> None:
    found = detect(sentence)
    assert found.code == code, found.reason
    assert found.reason


def test_every_language_with_small_words_is_in_the_table() -> None:
    assert set(PROFILES) <= set(SENTENCES)
    assert set(PROFILES) <= set(LANGUAGES)


EN, RU = SENTENCES["en"][0], SENTENCES["ru"][0]
TABLE: list[tuple[str, dict[str, Any], float | None, str | None]] = [
    (EN, {"language": "en"}, 1.0, None),
    (EN, {"language": "de"}, 0.0, "language en, not de"),
    (RU, {"language": "en"}, 0.0, "language ru, not en"),
    ("Привет", {"language": "en", "unknown": None}, 0.0, "not en"),  # a single word, but never English
    ("Paris.", {"language": "en"}, 0.0, "language unknown"),
    ("Paris.", {"language": "en", "unknown": 0.5}, 0.5, "language unknown"),
    ("Paris.", {"language": "en", "unknown": None}, None, "language unknown"),
    ("", {"language": "en", "unknown": None}, 0.0, "empty"),
    (f"{EN} {EN} 今天天气很好今天天气很好今天", {"language": "en"}, 0.0, "of the letters are cjk"),
    (f"{EN} {EN} 今天天气很好今天天气很好今天", {"language": "en", "max_foreign": 0.5}, 1.0, None),
    ("東京は日本の首都です。東京都庁", {"language": "ja"}, 1.0, None),  # Chinese characters are Japanese too
]


@pytest.mark.parametrize(("response", "options", "value", "note"), TABLE)
def test_by_hand(response: str, options: dict[str, Any], value: float | None, note: str | None) -> None:
    judged = judge("language", response, options)
    assert judged.value == value, judged.note
    assert (note in str(judged.note)) if note else judged.note is None


def test_the_language_of_the_row() -> None:
    options = {"column": "lang"}
    assert judge("language", EN, options, lang="en").value == 1.0
    assert judge("language", EN, options, lang="fr").value == 0.0
    assert judge("language", EN, options).missing
    assert "cannot be told here" in str(judge("language", EN, options, lang="tlh").note)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a language or a column"),
        ({"language": "en", "column": "x"}, "not both"),
        ({"language": "eng"}, "did you mean en"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        judge("language", "", options)
