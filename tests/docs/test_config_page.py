"""docs/config.md is what the code says, and every key of the config is explained there."""

from __future__ import annotations

import re

from scripts.config_page import PAGE, page
from surefoot.config import known_keys

ROW = re.compile(r"^\| `([a-z_.0-9]+)` \| `.+?` \| `.*?` \| (.*) \|$", re.MULTILINE)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_every_key_is_on_the_page() -> None:
    text = page()
    rows, sections = set(dict(ROW.findall(text))), set(re.findall(r"^## `(.+)`$", text, re.MULTILINE))
    assert set(known_keys()) <= rows | sections
    assert {"ppo.kl.coef", "model.lora", "model.lora.rank", "reward.terms", "reward.terms.weight"} <= rows


def test_every_key_says_what_it_does() -> None:
    assert [key for key, meaning in ROW.findall(page()) if len(meaning) < 10] == []
