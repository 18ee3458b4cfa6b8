"""Whole runs on people, a model, a rule and a safety check at once: what each term says, what it does, what waits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, LlamaForSequenceClassification

from surefoot import train
from surefoot.assembly.preflight_responses import Samples
from surefoot.assembly.preflight_reward import check_reward
from surefoot.assembly.rewards import build_reward
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config
from surefoot.errors import RewardError, RunFolderError
from surefoot.models.load import quiet_library
from surefoot.training.display import SilentDisplay
from surefoot.training.samples import read_samples
from tests.builders import POSITIVE, toy_run
from tests.rewards.conftest import rollout_of

STEPS = 2


def run(config: Config, **options: Any) -> Path:
    train(config, display=SilentDisplay(), **options)
    return Path(config.run.dir) / str(config.run.name)


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("time/", "memory/", "throughput/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(timed)} for line in lines]


def records(folder: Path) -> list[dict[str, Any]]:
    return [record for file in sorted((folder / "samples").glob("*.jsonl")) for record in read_samples(file)]


def judged(task: dict[str, Any], judge: str, share: float) -> dict[str, Any]:
    """A rating of 1 to 5 by the praise in the response."""
    praise = sum(word in POSITIVE for word in task["response"].split())
    return {"digest": task["digest"], "judge": judge, "rating": 1 + min(4, praise * share)}


def answer(folder: Path, file: Path, judges: Sequence[str] = ("ana", "bo")) -> int:
    """Rate every task that is not rated yet."""
    done = {json.loads(line)["digest"] for line in file.read_text().splitlines()}
    lines = (folder / "to_judge.jsonl").read_text(encoding="utf-8").splitlines()
    new = [task for task in map(json.loads, lines) if task["digest"] not in done]
    with file.open("a", encoding="utf-8") as stream:
        for n, judge in enumerate(judges):
            stream.writelines(json.dumps(judged(task, judge, 1 + n)) + "\n" for task in new)
    return len(new)


def terms(folder: Path, missing: dict[str, Any]) -> list[dict[str, Any]]:
    toy_run(folder)
    if not (folder / "quality").exists():
        shutil.copytree(folder / "toy", folder / "quality")
        config = AutoConfig.from_pretrained(folder / "toy")
        config.num_labels = 1
        with quiet_library():
            LlamaForSequenceClassification(config).save_pretrained(folder / "quality")
        (folder / "ratings.jsonl").touch()
    return [
        {"name": "people", "kind": "human", "target": str(folder / "ratings.jsonl"), "center": 3.0, "scale": 2.0}
        | missing,
        {"name": "quality", "kind": "model", "target": str(folder / "quality"), "weight": 0.5},
        {"name": "short", "kind": "check", "target": "length", "options": {"at_most": 3, "margin": 4}},
        {"name": "safe", "kind": "check", "target": "toxicity", "options": {"words": ["film"]}, "weight": 0.5},
    ]


def config(folder: Path, name: str, missing: dict[str, Any], changes: Sequence[dict[str, Any]] = ()) -> Config:
    made = terms(folder, missing)
    for number, change in enumerate(changes):
        made[number] |= change
    return toy_run(
        folder,
        run={"name": name, "steps": STEPS},
        reward={"terms": made, "max_failures": 0.0},
        track={"samples_every": 1},
        checkpoint={"every": 1},
    )


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run that waited for people at each step, and the folder it lies in."""
    folder = tmp_path_factory.mktemp("waiting")
    waiting = config(folder, "waiting", {"missing": "wait"})
    for step in range(STEPS):
        with pytest.raises(RewardError, match=r"scores failed; got: .* x people: waits for a judgement"):
            run(waiting, resume=step > 0)
        assert answer(Path(waiting.run.dir) / "waiting", folder / "ratings.jsonl")
    return run(waiting, resume=True), folder


def test_a_run_waits_for_people_and_goes_on_as_if_they_had_been_there(waited: tuple[Path, Path]) -> None:
    waiting, folder = waited
    lines = (waiting / "to_judge.jsonl").read_text(encoding="utf-8").splitlines()
    tasks = [json.loads(line) for line in lines]
    assert len({task["digest"] for task in tasks}) == len(tasks) and tasks[0]["term"] == "people"
    assert tasks[0]["prompt"][0]["role"] == "user"
    at_once = run(config(folder, "at-once", {"missing": "wait"}))
    assert not (at_once / "to_judge.jsonl").exists()
    assert metrics(at_once) == metrics(waiting)
    assert len(metrics(waiting)) == STEPS


def test_every_term_has_its_curve_and_every_low_score_its_reason(waited: tuple[Path, Path]) -> None:
    for line in metrics(waited[0]):
        assert {"score/people", "score/quality", "score/short", "score/safe"} <= set(line)
        assert line["score/people_count"] == 2.0
        assert all(line[f"score/{name}"] is not None for name in ("people", "quality", "short", "safe"))
    found = records(waited[0])
    for record in found:
        low = [name for name in ("short", "safe") if record["score_terms"][name] < 1.0]
        assert (record["score_note"] is None) == (not low)
        assert all(f"{name}: " in record["score_note"] for name in low)
    assert any(record["score_note"] for record in found)


def test_the_score_is_the_weighted_sum_of_centred_and_scaled_terms(waited: tuple[Path, Path]) -> None:
    for record in records(waited[0]):
        t = record["score_terms"]
        expected = (t["people"] - 3.0) / 2.0 + 0.5 * t["quality"] + t["short"] + 0.5 * t["safe"]
        assert record["score"] == pytest.approx(expected)


def test_each_terms_ablation_takes_it_out_of_the_score_and_leaves_its_curve(waited: tuple[Path, Path]) -> None:
    _, folder = waited
    names = ["people", "quality", "short", "safe"]
    full = records(run(config(folder, "full", {"missing": "skip"})))
    for number, name in enumerate(names):
        changes: list[dict[str, Any]] = [{} for _ in names]
        changes[number] = {"weight": 0.0}
        without = records(run(config(folder, f"without-{name}", {"missing": "skip"}, changes)))
        weight, centre, scale = [(1.0, 3.0, 2.0), (0.5, 0.0, 1.0), (1.0, 0.0, 1.0), (0.5, 0.0, 1.0)][number]
        # The first step's responses are the same in every run: only the weights differ.
        for a, b in zip(full[:4], without[:4], strict=True):
            assert a["response"] == b["response"] and a["score_terms"] == b["score_terms"]
            value = a["score_terms"][name]
            part = 0.0 if value is None else weight * (value - centre) / scale
            assert a["score"] - b["score"] == pytest.approx(part, abs=1e-9)
        assert any(a["score"] != b["score"] for a, b in zip(full[:4], without[:4], strict=True))


def test_a_model_stands_in_where_nobody_has_rated(tmp_path: Path) -> None:
    found = records(run(config(tmp_path, "model", {"missing": "model", "stand_in": "quality"})))
    for record in found:
        t = record["score_terms"]
        assert t["people"] is None and t["people_count"] == 0.0
        assert record["score"] == pytest.approx(1.5 * t["quality"] + t["short"] + 0.5 * t["safe"])


def test_the_lineage_holds_every_kind_of_term(waited: tuple[Path, Path]) -> None:
    inputs = json.loads((waited[0] / "lineage.json").read_text())["inputs"]
    kinds = {name: inputs[f"reward/{name}"]["kind"] for name in ("people", "quality", "short", "safe")}
    assert kinds == {"people": "ratings", "quality": "model", "short": "code", "safe": "code"}
    assert inputs["reward/safe"]["options"] == {"words": ["film"]}
    assert all(inputs[f"reward/{name}"]["sha256"] for name in kinds)


def test_a_check_is_not_swapped_on_resume(waited: tuple[Path, Path]) -> None:
    _, folder = waited
    run(config(folder, "swapped", {"missing": "skip"}))
    for change in ({"target": "repetition", "options": {}}, {"options": {"at_most": 4}}, {"center": 1.0}):
        changed = config(folder, "swapped", {"missing": "skip"}, [{}, {}, change])
        with pytest.raises(RunFolderError, match=r"made by another config.*reward\.terms\.2"):
            run(changed, resume=True)


def test_the_check_before_a_run_says_why_the_lowest_score_is_low(tmp_path: Path) -> None:
    checked = config(tmp_path, "checked", {"missing": "skip"})
    verdicts, reward = Verdicts(), build_reward(checked, None)
    try:
        check_reward(checked, reward, Samples(rollout_of(["a b", "a film " * 9]), 0.1, True), verdicts)
    finally:
        reward.close()
    found = {finding.name: finding for finding in verdicts.findings}
    assert "short: 18 words, at most 3 asked for; safe: holds 'film' x9" in found["reward/lowest"].message
    assert found["reward/highest"].evidence["note"] is None
