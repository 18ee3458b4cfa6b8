"""``surefoot eval reward-model`` as it is used, on models whose scores are known functions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from surefoot.models.reward_model import RewardModel
from tests.cli.conftest import Outcome, Workspace
from tests.cli.test_real_command import surefoot
from tests.known_reward_model import known_reward_model
from tests.stage_builders import FILMS, preferences, write_rows

PAIRS = len(preferences())
PROBES = 12
TEXTS = (2 + 2 * 11 + 4) * PAIRS


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tone/model`` reads the tone alone, ``long/model`` likes long texts as well."""
    folder = tmp_path_factory.mktemp("reward-models")
    known_reward_model(folder / "tone" / "model")
    known_reward_model(folder / "long" / "model", length=4.0)
    write_rows(folder / "pairs.jsonl", [{**row, "kind": i % 2} for i, row in enumerate(preferences())])
    return folder


def evaluated(space: Workspace, model: Path, pairs: Path, *arguments: str) -> Outcome:
    return space.run("eval", "reward-model", str(model), "--pairs", str(pairs), "--json", *arguments)


def test_a_model_that_reads_the_tone_alone_passes(models: Path, bare: Workspace) -> None:
    outcome = evaluated(bare, models / "tone" / "model", models / "pairs.jsonl", "--out", "report", "segment=kind")
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert (report["verdict"], report["findings"]) == ("pass", [])
    assert report["order"]["accuracy"]["share"] == 1.0 and report["order"]["accuracy"]["groups"] == len(FILMS)
    assert {k: v["count"] for k, v in report["order"]["by_segment"].items()} == {"0": PAIRS // 2, "1": PAIRS // 2}
    assert report["roles"]["chats"] == 32 and report["roles"]["broken"] == [] and report["roles"]["unguarded"] == 0
    assert len(report["probes"]) == PROBES
    assert all(abs(probe["shift"]["mean"]) < 0.1 for probe in report["probes"].values()), report["probes"]
    assert report["pairs"]["used"] == PAIRS and report["pairs"]["sha256"] and report["options"]["segment"] == "kind"
    assert report["model"]["identity"]["weights"] == report["model"]["sha256"]
    assert {"surefoot", "torch", "transformers"} <= report["versions"].keys()
    names = [c["name"] for c in report["criteria"]]
    assert {"accuracy", "segment 0", "length", "stated_view", "roles"} <= set(names)
    assert all(c["passed"] and c["asked"] and c["bound"] is not None for c in report["criteria"])


def test_a_model_that_likes_length_is_found(models: Path, bare: Workspace) -> None:
    run = models / "long"
    outcome = evaluated(bare, run / "model", models / "pairs.jsonl")
    assert outcome.code == 1, outcome
    report = json.loads(outcome.out)
    assert report == json.loads((run / "reward-model-tests" / "report.json").read_text(encoding="utf-8"))
    errors = {f["name"] for f in report["findings"] if f["severity"] == "error"}
    assert {"reward_model/length", "reward_model/repetition"} <= errors
    assert "reward_model/stated_view" not in errors and "reward_model/bold" not in errors
    length = report["probes"]["length"]
    assert length["shift"]["low"] > 0.25 and length["raised"] == 1.0 and length["flips"] > 0.1
    text = bare.run("eval", "reward-model", str(run / "model"), "--pairs", str(models / "pairs.jsonl"))
    assert text.code == 1 and text.out.splitlines()[-2:] == [
        "verdict: fail",
        f"report: {run / 'reward-model-tests' / 'report.json'}",
    ]
    lines = [line.split() for line in text.out.splitlines()]
    assert next(line for line in lines if line[:1] == ["length"])[-1] == "FAIL"
    assert next(line for line in lines if line[:1] == ["all"])[1:3] == [str(PAIRS), "1"]
    assert not any(mark in text.out + text.err for mark in ("\x1b", "\r"))
    generous = [f"shift.{name.removeprefix('reward_model/')}=9" for name in errors]
    assert evaluated(bare, run / "model", models / "pairs.jsonl", *generous).code == 0


def test_scores_are_kept_and_not_computed_again(models: Path, bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = models / "tone" / "model", models / "pairs.jsonl"
    first = evaluated(bare, model, pairs, "--out", "report")
    scores = bare.path / "report" / "scores.jsonl"
    lines = scores.read_bytes().splitlines(keepends=True)
    assert len(lines) < TEXTS, "a text that stands twice is scored once"
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
    # Of another model nothing is taken, nor of the same in another precision.
    for again in ((models / "long" / "model",), (model, "dtype=float64")):
        computed.clear()
        evaluated(bare, again[0], pairs, "--out", "report", *map(str, again[1:]))
        assert sum(computed) == len(lines)


def test_few_pairs_are_changed_if_asked(models: Path, bare: Workspace) -> None:
    model, pairs = models / "tone" / "model", models / "pairs.jsonl"
    report = json.loads(evaluated(bare, model, pairs, "--out", "report", "max_pairs=40", "probe_pairs=16").out)
    assert report["pairs"]["used"] == 40 and report["order"]["accuracy"]["count"] == 40
    assert {probe["answers"] for probe in report["probes"].values()} == {32}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--pairs"),
        (("--pairs", "gone.jsonl"), "gone.jsonl"),
        (("--pairs", "bad.jsonl"), "bad.jsonl line 2: no column"),
        (("--pairs", "torn.jsonl"), "torn.jsonl line 2"),
        (("--pairs", "roles.jsonl"), "roles.jsonl:2: "),
        (("--pairs", "pairs.jsonl", "segmnt=a"), "segmnt"),
        (("--pairs", "pairs.jsonl", "shift=much"), "shift cannot be read"),
        (("--pairs", "pairs.jsonl", "shift.lenght=1"), "no such change of the surface; got: shift.lenght"),
        (("--pairs", "pairs.jsonl", "max_pairs=0"), "max_pairs counts from 1"),
        (("--pairs", "pairs.jsonl", "segment=colour"), "no row has the column"),
        (("--pairs", "pairs.jsonl", "ensemble=min"), "has one score head"),
    ],
)
def test_mistakes_end_in_a_paragraph(arguments: tuple[str, ...], says: str, models: Path, bare: Workspace) -> None:
    model = shutil.copytree(models / "tone" / "model", bare.path / "model")
    refusing = "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    _change_template(model, lambda template: template.replace("{% for m in messages %}", refusing, 1))
    write_rows(bare.path / "pairs.jsonl", preferences())
    write_rows(bare.path / "bad.jsonl", [preferences()[0], {"chosen": "it is good"}])
    write_rows(bare.path / "roles.jsonl", [preferences()[0], _with_tool(preferences()[1])])
    bare.write("torn.jsonl", json.dumps(preferences()[0]) + '\n{"chosen": "it')
    outcome = bare.run("eval", "reward-model", "model", "--out", "report", *arguments)
    assert outcome.code == 2
    assert says in outcome.err and "Traceback" not in outcome.err
    assert not (bare.path / "report" / "report.json").exists()


def _with_tool(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "prompt": [*row["prompt"], {"role": "tool", "content": "a film"}]}


def _change_template(model: Path, change: Any) -> None:
    file = model / "chat_template.jinja"
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")


def test_a_pair_that_cannot_be_encoded_may_be_left_out(models: Path, bare: Workspace) -> None:
    model = shutil.copytree(models / "tone" / "model", bare.path / "model")
    refusing = "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    _change_template(model, lambda template: template.replace("{% for m in messages %}", refusing, 1))
    rows = preferences()
    write_rows(bare.path / "roles.jsonl", [*rows[:-1], _with_tool(rows[-1])])
    outcome = evaluated(bare, model, bare.path / "roles.jsonl", "--out", "report", "bad_rows=skip")
    assert outcome.code == 0, outcome
    report = json.loads(outcome.out)
    assert report["pairs"]["used"] == PAIRS - 1
    assert len(report["pairs"]["refused"]) == 1 and f"roles.jsonl:{PAIRS}: " in report["pairs"]["refused"][0]


def test_scores_that_are_no_numbers_are_named(models: Path, bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RewardModel, "score_tokens", lambda self, rows: [float("nan")] * len(rows))
    outcome = evaluated(bare, models / "tone" / "model", models / "pairs.jsonl", "--out", "report")
    assert outcome.code == 2 and "nan for " in outcome.err and "pairs.jsonl:" in outcome.err
    assert not (bare.path / "report" / "scores.jsonl").exists()


def test_a_pipe_gets_the_report_alone(models: Path, bare: Workspace) -> None:
    """The command as users start it: JSON on stdout, progress in lines on stderr."""
    arguments = (str(models / "tone" / "model"), "--pairs", str(models / "pairs.jsonl"), "--out", "report", "--json")
    outcome = surefoot(bare, "eval", "reward-model", *arguments, "probe_pairs=8", "max_pairs=16", "accuracy=0.99")
    assert outcome.code == 1, outcome
    assert json.loads(outcome.out)["verdict"] == "fail"
    assert outcome.err.splitlines()[-1].startswith("texts: ") and "\r" not in outcome.err


def test_training_asks_for_the_report(models: Path, space: Workspace) -> None:
    model, pairs = shutil.copytree(models / "tone" / "model", space.path / "rm"), models / "pairs.jsonl"
    term = {"name": "quality", "kind": "model", "target": "rm", "report": "report"}
    space.set({"reward": {"terms": [term]}})
    assert "there is no report" in space.run("train", "c.yaml").err
    assert evaluated(space, model, pairs, "--out", "report", "accuracy=1.0").code == 1
    refused = space.run("train", "c.yaml")
    assert refused.code == 2 and "did not pass its tests" in refused.err
    assert evaluated(space, model, pairs, "--out", "report").code == 0
    # The same weights behind another template give other scores.
    _change_template(model, lambda template: template.replace("m['role']", "'user'"))
    other = space.run("train", "c.yaml")
    assert other.code == 2 and "the report is on another reward model" in other.err and "tokenizer" in other.err
    assert evaluated(space, model, pairs, "--out", "report").code == 0
    trained = space.run("train", "c.yaml")
    assert trained.code == 0, trained
    lineage = json.loads((space.path / "runs" / "c" / "lineage.json").read_text(encoding="utf-8"))
    assert lineage["inputs"]["reward/quality"]["report"]["sha256"]
