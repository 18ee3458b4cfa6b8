"""Asking a check about one response."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot.rewards.checks import Answer, Judgement, make_check


def judge(check: str, response: str, options: dict[str, Any] | None = None, **columns: Any) -> Judgement:
    """What a check says; ``prompt`` and ``tokens`` are no columns."""
    prompt, tokens = columns.pop("prompt", ""), columns.pop("tokens", 0)
    return make_check(check, options)(Answer(response, prompt, columns, tokens))


def the_gym() -> Any:
    """The package reasoning_gym, or a skip: it builds C, so setting up for development does not install it."""
    return pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: pip install 'surefoot[tasks]', builds C")
