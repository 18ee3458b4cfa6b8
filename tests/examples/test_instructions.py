"""The example on instructions: its prompts can be met, its comparison is paired."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from surefoot.config import load_config, require
from surefoot.rewards.checks import make_check
from surefoot.rewards.checks.check import Answer
from surefoot.training.durable import json_bytes
from tests.examples.example_scripts import EXAMPLES, script

prepare, evaluate = script("instructions", "prepare"), script("instructions", "evaluate")


def test_no_topic_and_no_new_kind_is_on_two_sides() -> None:
    files = prepare.prompts()
    train, held_out = files["train.jsonl"], files["held-out.jsonl"]
    assert not {row["topic"] for row in train} & {row["topic"] for row in held_out}
    assert {kind for row in train for kind in row["kinds"]} == set(prepare.TRAINED)
    new = [row for row in held_out if row["group"] == "new kinds"]
    assert {kind for row in new for kind in row["kinds"]} == set(prepare.NEW)
    assert not set(prepare.NEW) & set(prepare.TRAINED)
    assert prepare.prompts() == files, "the same prompts each time"


WORDS = " ".join(f"word{n}" for n in range(40))
MET = {
    "lower": ("all of it is small.", "Not All."),
    "no_commas": ("none here.", "one, here"),
    "words_at_most": ("four words are few.", WORDS),
    "sentences": (None, "One here. Two here. Three here. Four here. Five here."),
    "keyword": (None, "nothing of it"),
    "bullets": (None, "no points at all"),
    "quoted": ('"All of it."', "None of it."),
    "upper": ("ALL OF IT.", "Not all."),
    "words_at_least": (WORDS, "too few."),
    "ends_with": ("So it is. That is all.", "So it is."),
    "numbered": (None, "no items at all"),
    "starts_with": ("In short, so it is.", "At length, so it is."),
}


def follows(kind: str, constraint: dict[str, Any]) -> str:
    """A text that does what a drawn constraint asks for."""
    if kind == "keyword":
        return f"It holds {constraint['present'][0]} somewhere."
    count = range(constraint["exactly"])
    line = {"sentences": "One more here. ", "bullets": "- a point\n", "numbered": "{}. an item\n"}[kind]
    return "".join(line.format(n + 1) for n in count).strip()


@pytest.mark.parametrize("kind", [*prepare.TRAINED, *prepare.NEW])
def test_every_constraint_can_be_met_and_missed(kind: str) -> None:
    row = prepare.row(random.Random(3), "tea", "training", [kind])
    check = make_check("instructions", {"column": "constraints", "score": "share"})
    met, missed = MET[kind]
    for text, value in ((met or follows(kind, row["constraints"][0]), 1.0), (missed, 0.0)):
        assert check(Answer(text, columns=row)).value == value, text
    about = make_check("instructions", {"column": "about"})
    assert about(Answer("Tea is hot.", columns=row)).value == 1 and about(Answer("Hot.", columns=row)).value == 0


def test_the_config_trains() -> None:
    require(load_config(EXAMPLES / "instructions" / "ppo.yaml", ["model.policy=toy"]), "train")


def test_the_comparison_is_of_the_same_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"group": group, "kinds": [kind], "topic": topic, "prompt": [{"role": "user", "content": f"{kind} {topic}"}]}
        for group, kind in (("seen kinds", "lower"), ("new kinds", "upper"))
        for topic in ("a", "b", "c")
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(map(json_bytes, rows)))
    run = tmp_path / "run"
    (run / "evaluations").mkdir(parents=True)
    (run / "evaluations.jsonl").write_bytes(json_bytes({"step": 0}) + json_bytes({"step": 5}))
    for step, scores in ((0, (0, 0, 1, 0, 0, 0)), (5, (1, 1, 1, 0, 0, 0))):
        lines = [
            json_bytes({"prompt": f"<u>{row['kinds'][0]} {row['topic']}</u>", "score_terms": {"followed": score}})
            for row, score in zip(rows, scores, strict=True)
        ]
        (run / "evaluations" / f"step-{step}.jsonl").write_bytes(b"".join(lines))
    assert evaluate.main(run, tmp_path / "rows.jsonl", tmp_path / "out.json") == 0
    found = json.loads((tmp_path / "out.json").read_bytes())
    assert found["seen kinds"]["gain"] == pytest.approx(2 / 3) and found["seen kinds: lower"]["after"] == 1
    assert found["new kinds"]["gain"] == 0 and "new kinds: upper" in capsys.readouterr().out
    (tmp_path / "rows.jsonl").write_bytes(b"".join(map(json_bytes, reversed(rows))))
    assert evaluate.main(run, tmp_path / "rows.jsonl") == 2
