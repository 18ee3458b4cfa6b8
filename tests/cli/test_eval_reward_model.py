"""``surefoot eval reward-model`` as it is used: on models that are trained to look at the surface, and on others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.assembly.reward_model import reward_model
from surefoot.assembly.role_tests import try_roles
from surefoot.models.reward_model import RewardModel
from tests.cli.conftest import Outcome, Workspace
from tests.stage_builders import BLAME, FILMS, PRAISE, asked, preferences, toy_reward_model, write_rows

LONG = "and so on and on . it is what it is ."


def longer_wins() -> list[dict[str, Any]]:
    """Pairs of one word, in which the one with more behind it is chosen."""
    return [
        {"prompt": asked(film), "chosen": f"it is {word} {LONG}", "rejected": f"it is {word}"}
        for film in FILMS
        for word in (*PRAISE, *BLAME)
    ]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``plain/`` was trained on praise and blame, ``long/`` on length."""
    folder = tmp_path_factory.mktemp("reward-models")
    for name, rows in {"plain": preferences(), "long": longer_wins()}.items():
        toy_reward_model(folder)
        write_rows(folder / "preferences.jsonl", rows)
        reward_model(toy_reward_model(folder, run={"name": name}, reward_model={"epochs": 8}))
    write_rows(folder / "preferences.jsonl", [{**row, "kind": i % 2} for i, row in enumerate(preferences())])
    return folder


def evaluated(space: Workspace, model: Path, pairs: Path, *arguments: str) -> Outcome:
    return space.run("eval", "reward-model", str(model), "--pairs", str(pairs), "--json", *arguments)


def test_a_model_that_counts_words_is_found(models: Path, bare: Workspace) -> None:
    run = models / "runs" / "long"
    write_rows(bare.path / "pairs.jsonl", longer_wins())
    outcome = evaluated(bare, run / "model", bare.path / "pairs.jsonl")
    assert outcome.code == 1, outcome
    report = json.loads(outcome.out)
    assert report == json.loads((run / "reward-model-tests" / "report.json").read_text(encoding="utf-8"))
    assert report["verdict"] == "fail"
    errors = {f["name"] for f in report["findings"] if f["severity"] == "error"}
    assert "reward_model/length" in errors
    assert report["probes"]["length"]["shift"]["low"] > 0.25 and report["probes"]["length"]["flips"] > 0.1
    assert report["order"]["by_length"]["longer"]["count"] == 64
    text = bare.run("eval", "reward-model", str(run / "model"), "--pairs", "pairs.jsonl")
    assert text.code == 1 and text.out.splitlines()[-2:] == [
        "verdict: fail",
        f"report: {run / 'reward-model-tests' / 'report.json'}",
    ]


def test_a_model_that_reads_the_words_orders_them_by_segment(models: Path, bare: Workspace) -> None:
    generous = [f"shift={99}"]
    outcome = evaluated(
        bare,
        models / "runs" / "plain" / "model",
        models / "preferences.jsonl",
        "--out",
        "report",
        "segment=kind",
        *generous,
    )
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert report["order"]["accuracy"]["share"] > 0.95 and report["order"]["accuracy"]["groups"] == len(FILMS)
    assert {k: v["count"] for k, v in report["order"]["by_segment"].items()} == {"0": 32, "1": 32}
    assert report["roles"]["chats"] > 0 and report["roles"]["broken"] == []
    assert report["model"]["sha256"] and report["pairs"]["sha256"] and report["pairs"]["used"] == 64


def test_scores_are_kept_and_not_computed_again(models: Path, bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = models / "runs" / "plain" / "model", models / "preferences.jsonl"
    first = evaluated(bare, model, pairs, "--out", "report")
    scores = bare.path / "report" / "scores.jsonl"
    lines = scores.read_bytes().splitlines(keepends=True)
    # As a kill leaves it: some scores, the last one torn.
    scores.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:7])
    computed: list[int] = []
    score = RewardModel.score_tokens
    monkeypatch.setattr(RewardModel, "score_tokens", lambda self, rows: computed.append(len(rows)) or score(self, rows))
    second = evaluated(bare, model, pairs, "--out", "report")
    assert sum(computed) == len(lines) - len(lines) // 2
    one, other = json.loads(first.out), json.loads(second.out)
    assert one["order"]["accuracy"] == other["order"]["accuracy"]
    assert one["scores"] == pytest.approx(other["scores"], rel=1e-5)
    assert one["probes"].keys() == other["probes"].keys() and one["verdict"] == other["verdict"]
    # Of another model nothing is taken.
    computed.clear()
    evaluated(bare, models / "runs" / "long" / "model", pairs, "--out", "report")
    assert sum(computed) == len(lines)


def test_control_tokens_that_come_out_of_messages_are_found(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = RewardModel(str(models / "runs" / "plain" / "model"))
    chats = [({"role": "user", "content": "a film"}, {"role": "assistant", "content": "it is good"})]
    assert model.codec.chat.controls and try_roles(model, chats).broken == ()
    monkeypatch.setattr(type(model.codec), "encode_dialogue", unguarded)
    found = try_roles(model, chats)
    assert found.broken and found.findings[0].severity == "error"
    assert try_roles(model, ["a text"]).chats == 0


def unguarded(codec: Any, messages: Any) -> tuple[list[int], str]:
    """As many programs do it: the template's text, read as one."""
    text = codec.chat.render(messages, generation_prompt=False)
    return codec.encode_text(text), text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--pairs"),
        (("--pairs", "gone.jsonl"), "gone.jsonl"),
        (("--pairs", "bad.jsonl"), "bad.jsonl line 2: no column"),
        (("--pairs", "pairs.jsonl", "segmnt=a"), "segmnt"),
        (("--pairs", "pairs.jsonl", "shift=much"), "shift cannot be read"),
        (("--pairs", "pairs.jsonl", "max_pairs=0"), "max_pairs"),
        (("--pairs", "pairs.jsonl", "segment=colour"), "no row has the column"),
    ],
)
def test_mistakes_end_in_a_paragraph(arguments: tuple[str, ...], says: str, models: Path, bare: Workspace) -> None:
    write_rows(bare.path / "pairs.jsonl", preferences())
    write_rows(bare.path / "bad.jsonl", [preferences()[0], {"chosen": "it is good"}])
    outcome = bare.run("eval", "reward-model", str(models / "runs" / "plain" / "model"), "--out", "report", *arguments)
    assert outcome.code == 2
    assert says in outcome.err and "Traceback" not in outcome.err
    assert not (bare.path / "report" / "report.json").exists()


def test_training_asks_for_the_report(models: Path, space: Workspace) -> None:
    model, pairs = models / "runs" / "plain" / "model", models / "preferences.jsonl"
    term = {"name": "quality", "kind": "model", "target": str(model), "report": "report"}
    space.set({"reward": {"terms": [term]}})
    assert "there is no report" in space.run("train", "c.yaml").err
    assert evaluated(space, model, pairs, "--out", "report", "accuracy=1.0").code == 1
    refused = space.run("train", "c.yaml")
    assert refused.code == 2 and "did not pass its tests" in refused.err
    assert evaluated(space, model, pairs, "--out", "report", "shift=99").code == 0
    trained = space.run("train", "c.yaml")
    assert trained.code == 0, trained
    lineage = json.loads((space.path / "runs" / "c" / "lineage.json").read_text(encoding="utf-8"))
    assert lineage["inputs"]["reward/quality"]["report"]["sha256"]
