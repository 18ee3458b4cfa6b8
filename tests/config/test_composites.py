"""Reward terms that come with Surefoot, and the keys of terms: what fits together is taken, the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surefoot.config import Config, build_config, dump_config, load_config
from surefoot.config.composites import composite_names, with_composite
from surefoot.errors import ConfigError
from surefoot.rewards import CheckReward

HANDBOOK = [
    "task_success",
    "correctness",
    "groundedness",
    "policy_compliance",
    "unnecessary_tool_calls",
    "unsafe_actions",
]


def built(reward: dict[str, Any]) -> Config:
    return build_config({"reward": reward})


def test_the_handbooks_terms_are_there_with_its_signs_and_can_be_used() -> None:
    terms = built({"composite": "handbook"}).reward.terms
    assert [term.name for term in terms] == HANDBOOK
    assert [term.weight > 0 for term in terms] == [True] * 4 + [False] * 2
    for term in terms:
        CheckReward(term)


def test_every_shipped_composite_can_be_named() -> None:
    for name in composite_names():
        assert built({"composite": name}).reward.terms
    with pytest.raises(ConfigError, match="composite: must be 'handbook'"):
        built({"composite": "handbok"})


def test_given_terms_change_the_shipped_ones_by_name_and_follow_them() -> None:
    given = [{"name": "mine", "target": "r.py:f"}, {"name": "correctness", "target": "numeric", "options": {}}]
    terms = {t.name: t for t in built({"composite": "handbook", "terms": given}).reward.terms}
    assert list(terms) == [*HANDBOOK, "mine"]
    changed = terms["correctness"]
    assert (changed.target, changed.options, changed.missing, changed.weight) == ("numeric", {}, "skip", 1.0)


def test_a_config_written_out_says_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    given = [{"name": "groundedness", "weight": 0.0}, {"name": "mine", "target": "r.py:f"}]
    config = built({"composite": "handbook", "terms": given})
    (tmp_path / "c.yaml").write_text(dump_config(config))
    again = load_config(tmp_path / "c.yaml")
    assert [t.model_dump(exclude={"target"}) for t in again.reward.terms] == [
        t.model_dump(exclude={"target"}) for t in config.reward.terms
    ]
    tree = {"composite": "handbook", "terms": given}
    assert with_composite(with_composite(tree)) == with_composite(tree)


@pytest.mark.parametrize(
    "overrides",
    [
        ["reward.composite=handbook", "reward.terms.2.weight=0"],
        ["reward.terms.groundedness.weight=0", "reward.composite=handbook"],
        ["reward.terms.groundedness.options.numbers=count", "reward.composite=handbook", "reward.terms.2.weight=0"],
    ],
)
def test_overrides_find_shipped_terms_by_number_and_by_name(tmp_path: Path, overrides: list[str]) -> None:
    (tmp_path / "c.yaml").write_text("run: {steps: 1}\n")
    weights = {t.name: t.weight for t in load_config(tmp_path / "c.yaml", overrides).reward.terms}
    assert weights["groundedness"] == 0.0
    assert weights["correctness"] == 1.0


def test_an_override_of_an_unknown_term_names_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("reward: {terms: [{name: a, target: 'r.py:f'}]}\n")
    assert load_config(tmp_path / "c.yaml", ["reward.terms.a.weight=3"]).reward.terms[0].weight == 3.0
    with pytest.raises(ConfigError, match="allowed: 0 to 0, or a name: a"):
        load_config(tmp_path / "c.yaml", ["reward.terms.b.weight=3"])


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([{"name": "a", "target": "r.py:f", "options": {"x": 1}}], "options are for terms of kind check"),
        ([{"name": "a", "target": "r.py:f", "missing": "skip"}], "missing is for terms of kind check and human"),
        ([{"name": "a", "kind": "check", "target": "exact", "missing": "wait"}], "only people's judgements"),
        ([{"name": "a", "kind": "human", "target": "r.jsonl", "missing": "model"}], "go together"),
        ([{"name": "a", "kind": "human", "target": "r.jsonl", "stand_in": "b"}], "go together"),
        ([{"name": "a", "kind": "human", "target": "r.jsonl", "missing": "model", "stand_in": "b"}], "not 'b'"),
        ([{"name": "a", "kind": "human", "target": "r.jsonl", "missing": "model", "stand_in": "a"}], "not 'a'"),
        ([{"name": "a", "target": "r.py:f", "scale": 0}], "scale: must be greater than 0"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(terms: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built({"terms": terms})


@pytest.mark.parametrize(("kind", "missing"), [("human", "wait"), ("check", "fail"), ("function", "fail")])
def test_what_a_missing_term_does_unless_it_is_said(kind: str, missing: str) -> None:
    (term,) = built({"terms": [{"name": "a", "kind": kind, "target": "exact"}]}).reward.terms
    assert term.when_missing == missing


def test_files_of_a_check_and_of_ratings_are_found_beside_the_config_and_a_checks_name_is_no_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "exact").mkdir()
    for name in ("words.txt", "ratings.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "c.yaml").write_text(
        "reward:\n  terms:\n"
        "    - {name: a, kind: check, target: exact}\n"
        "    - {name: b, kind: check, target: toxicity, options: {words_file: words.txt, words: [words.txt]}}\n"
        "    - {name: c, kind: human, target: ratings.jsonl}\n"
    )
    exact, toxicity, human = load_config(tmp_path / "c.yaml").reward.terms
    assert exact.target == "exact"
    assert toxicity.options == {"words_file": str(tmp_path / "words.txt"), "words": ["words.txt"]}
    assert human.target == str(tmp_path / "ratings.jsonl")
