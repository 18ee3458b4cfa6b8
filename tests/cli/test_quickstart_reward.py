"""The quickstart's reward file, loaded as the product would load it: by path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[2] / "src" / "surefoot" / "cli" / "quickstart_files" / "reward.py"


@pytest.fixture(scope="module")
def reward() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quickstart_reward", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_scores_keep_the_order_and_the_sign_of_what_is_said(reward: ModuleType) -> None:
    texts = ["A wonderful, moving film.", "A dull and horrible mess.", "It is 90 minutes long.", ""]
    praise, blame, neutral, empty = reward.sentiment([None] * 4, texts, film=["a", "b", "c", "d"])
    assert praise > 0.5
    assert blame < -0.5
    assert neutral == empty == 0.0


def test_chat_completions_score_as_their_text(reward: ModuleType) -> None:
    chat = [[{"role": "assistant", "content": "A wonderful, moving film."}]]
    assert reward.sentiment([None], chat) == reward.sentiment([None], ["A wonderful, moving film."])
