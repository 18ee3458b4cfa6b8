"""Check reasoning_gym: the package's own entries are scored by its own rules."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from surefoot.errors import ConfigError, MissingExtra
from surefoot.rewards.checks import make_check
from tests.rewards.checks.judged import judge, the_gym

INSTALLED = importlib.util.find_spec("reasoning_gym") is not None


@pytest.fixture(scope="module")
def entry() -> dict[str, Any]:
    gym = the_gym()
    # As it comes back from a JSONL file.
    return json.loads(json.dumps(gym.create_dataset("leg_counting", size=1, seed=3)[0]))


@pytest.mark.skipif(INSTALLED, reason="reasoning-gym is installed")
def test_the_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(MissingExtra, match=r"reasoning-gym, which is not installed.*surefoot\[tasks\]"):
        make_check("reasoning_gym")


@pytest.mark.parametrize(
    ("response", "where", "value"),
    [
        ("{answer}", "whole", 1.0),
        (" {answer}\n", "whole", 1.0),
        ("I count.\n{answer}", "last_line", 1.0),
        (r"So \boxed{{{answer}}}.", "boxed", 1.0),
        ("<answer>0</answer> no, <answer> {answer} </answer>", "tag", 1.0),
        ("-1", "whole", 0.0),
        ("", "whole", 0.0),
        ("{answer}", "boxed", 0.0),
        ("{answer}", "tag", 0.0),
        ("<answer>{answer}", "tag", 0.0),
    ],
)
def test_the_answer_is_looked_for_where_it_should_be(
    entry: dict[str, Any], response: str, where: str, value: float
) -> None:
    judged = judge("reasoning_gym", response.format(answer=entry["answer"]), {"where": where}, entry=entry)
    assert judged.value == value
    assert (judged.note is None) == (value == 1.0)


def test_the_task_may_stand_in_the_config_a_column_or_the_entry(entry: dict[str, Any]) -> None:
    bare = {**entry, "metadata": {k: v for k, v in entry["metadata"].items() if k != "source_dataset"}}
    answer = entry["answer"]
    assert judge("reasoning_gym", answer, {"task": "leg_counting"}, entry=json.dumps(bare)).value == 1.0
    assert judge("reasoning_gym", answer, {"task_column": "t"}, entry=bare, t="leg_counting").value == 1.0
    assert judge("reasoning_gym", answer, {}, entry=entry).value == 1.0
    judged = judge("reasoning_gym", answer, {}, entry=bare)
    assert judged.value is None and "no task" in str(judged.note)


@pytest.mark.parametrize(
    ("value", "reason", "missing"),
    [
        (None, "nothing in column 'entry'", True),
        ("{", "no JSON", False),
        ({"answer": "1"}, "no entry with metadata", False),
        ({"metadata": {"source_dataset": "gone"}}, "no task 'gone'", False),
        ({"metadata": {"source_dataset": "n_queens"}, "answer": "1"}, "n_queens cannot score it: KeyError", False),
    ],
)
def test_an_entry_that_cannot_be_scored_is_no_zero(value: Any, reason: str, missing: bool) -> None:
    the_gym()
    judged = judge("reasoning_gym", "7 + 1", {}, entry=value)
    assert (judged.value, judged.missing) == (None, missing)
    assert reason in str(judged.note)


def test_part_of_the_score_only_where_it_is_asked_for(entry: dict[str, Any]) -> None:
    response = f"It is {entry['answer']}"
    own = judge("reasoning_gym", response, {}, entry=entry).value
    assert own is not None and 0.0 < own < 1.0
    assert judge("reasoning_gym", response, {"score": "full"}, entry=entry).value == 0.0
    assert judge("reasoning_gym", entry["answer"], {"score": "full"}, entry=entry).value == 1.0


def test_an_unknown_task_is_refused_with_the_nearest() -> None:
    the_gym()
    with pytest.raises(ConfigError, match="did you mean leg_counting"):
        make_check("reasoning_gym", {"task": "leg_count"})
