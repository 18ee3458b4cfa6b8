"""The example with people, a model, a rule and a safety term."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.config.pipeline import load_pipeline
from surefoot.records import digest_of
from surefoot.training.durable import json_bytes
from tests.examples.example_scripts import EXAMPLES, script

prepare = script("four-terms", "prepare")
table = script("four-terms", "table")
REVIEWS = [prepare.Rated(f"F{n // 4}", f"review {n}", True, 2.0, (2.0, 4.0, 0.0)) for n in range(40)]


def test_agreement_by_hand() -> None:
    assert prepare.agreement((4, 4), "5") == 1 and prepare.agreement((4, 4), "1") == 0
    assert prepare.agreement((2, 4, 0), "4") == pytest.approx(1 - (0 + 1 + 1) / 12)


def test_ratings_are_filed_under_what_people_would_be_shown() -> None:
    rows = {row["digest"]: row["rating"] for row in prepare.ratings(REVIEWS)}
    prompts = prepare.prompts(REVIEWS)
    known = [row for row in prompts if digest_of(row["prompt"], "4") in rows]
    assert 8 <= len(known) <= 32 and len(rows) == 5 * len(known), "about half of the reviews, five answers each"
    for row in known:
        assert {d: rows[digest_of(row["prompt"], d)] for d in prepare.DIGITS} == row["agreement"]


def test_pairs_are_far_apart() -> None:
    for row in prepare.pairs(REVIEWS):
        assert row["chosen"] == "4" and row["rejected"] in ("1", "2") and row["margin"] > 0.3


def test_each_run_lacks_one_term() -> None:
    stages = load_pipeline(EXAMPLES / "four-terms" / "four-terms.yaml", ["defaults.model.policy=toy"]).stages
    weights = {
        stage.name: {term.name: term.weight for term in stage.config.reward.terms}
        for stage in stages
        if stage.entry.kind == "train" and stage.config is not None
    }
    whole = weights.pop("all")
    assert all(whole.values()) and set(weights) == {f"without-{name}" for name in whole}
    for name, own in weights.items():
        assert own == whole | {name.removeprefix("without-"): 0.0}


def test_answers_that_read_the_reviews_are_told_from_those_that_do_not() -> None:
    rows = [{"agreement": {"1": 0.9, "5": 0.1} if n % 2 else {"1": 0.1, "5": 0.9}} for n in range(40)]
    assert table.shuffled(rows, ["1" if n % 2 else "5" for n in range(40)]) < 0.001
    assert table.shuffled(rows, ["1"] * 40) == 1
    assert table.shuffled(rows, ["1" if n < 20 else "5" for n in range(40)]) > 0.3


def test_the_table_is_paired_with_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"film": f"F{n}", "agreement": {"4": 0.9, "1": 0.2}, "prompt": [{"role": "user", "content": f"rate {n}"}]}
        for n in range(6)
    ]
    (tmp_path / "rows.jsonl").write_bytes(b"".join(map(json_bytes, rows)))

    def run(name: str, answer: str) -> Path:
        folder = tmp_path / name
        (folder / "evaluations").mkdir(parents=True)
        (folder / "evaluations.jsonl").write_bytes(json_bytes({"step": 0}) + json_bytes({"step": 9}))
        for step, text in ((0, "a digit"), (9, answer)):
            line = {"response": text, "score_terms": {"one_digit": float(text in "12345"), "clean": 1.0}}
            lines = [json_bytes({"prompt": f"<u>rate {n}</u>"} | line) for n in range(6)]
            (folder / "evaluations" / f"step-{step}.jsonl").write_bytes(b"".join(lines))
        return folder

    runs = [run("all", "4"), run("without-people", "1")]
    assert table.main(tmp_path / "rows.jsonl", tmp_path / "out.json", *runs) == 0
    found = json.loads((tmp_path / "out.json").read_bytes())
    assert found["before"]["agreement"]["mean"] == 0 and found["all"]["agreement"]["mean"] == pytest.approx(0.9)
    assert found["without-people"]["agreement"]["difference"]["high"] == pytest.approx(-0.7)
    assert found["all"]["shuffled"] == 1
    assert "without-people" in capsys.readouterr().out
    (tmp_path / "rows.jsonl").write_bytes(b"".join(map(json_bytes, reversed(rows))))
    assert table.main(tmp_path / "rows.jsonl", tmp_path / "out.json", *runs) == 2
