"""A whole run of a reward model: what it leaves behind, repeats and refuses, and what PPO makes of it."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from surefoot.assembly.reward_model import reward_model
from surefoot.assembly.sample import sample
from surefoot.assembly.sft import sft
from surefoot.assembly.train import train
from surefoot.config import Config
from surefoot.data.judging import task_id
from surefoot.errors import ConfigError, DataError, RunFolderError
from surefoot.models.reward_model import RewardModel
from surefoot.records import digest_of
from surefoot.training.display import SilentDisplay
from surefoot.training.durable import read_records
from surefoot.training.run_folder import RunFolder
from surefoot.training.trainer import RunResult
from tests.builders import toy_run
from tests.stage_builders import PRAISE, asked, preferences, toy_reward_model, toy_sft, write_rows

VOLATILE = ("time/", "memory/", "throughput/")


def run(cfg: Config, **options: Any) -> RunResult:
    return reward_model(cfg, display=SilentDisplay(), **options)


def folder_of(cfg: Config) -> RunFolder:
    return RunFolder.open(Path(cfg.run.dir) / str(cfg.run.name))


def comparable(cfg: Config) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith(VOLATILE)} for line in folder_of(cfg).read_metrics()]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


# ---------------------------------------------------------------------------------------------------- what is left


def test_a_run_leaves_a_standard_model_with_its_calibration(tmp_path: Path) -> None:
    cfg = toy_reward_model(tmp_path)
    result = run(cfg)
    assert (str(result.status), result.step) == ("FINISHED", 6)
    first, last = result.evaluations[0], result.evaluations[-1]
    assert first["evaluate/accuracy"] == 0.0 and first["evaluate/loss"] == pytest.approx(np.log(2)), "a zero head"
    assert last["evaluate/accuracy"] > 0.9 and last["evaluate/accuracy_low"] > 0.5
    facts = json.loads((folder_of(cfg).model / "surefoot_reward.json").read_text())
    assert (facts["pairs"], facts["accuracy"], facts["source"]) == (16, last["evaluate/accuracy"], "held-out pairs")
    assert facts["log_loss"] == pytest.approx(last["evaluate/loss"], abs=1e-6)
    assert (facts["by_margin"][0]["from"], facts["by_margin"][-1]["to"]) == (1.0, 3.0)
    assert sum(part["pairs"] for part in facts["by_margin"]) == 16
    digest = hashlib.sha256((tmp_path / "preferences.jsonl").read_bytes()).hexdigest()
    assert facts["data"]["preferences"]["sha256"] == digest and facts["data"]["preferences"]["counts"]["pairs"] == 64
    assert str(tmp_path) not in json.dumps(facts), "a published file names no folder of this machine"
    inputs = json.loads(folder_of(cfg).lineage.read_text())["inputs"]
    assert inputs["preferences"]["counts"]["kept"] == 48 and inputs["held_out"]["counts"]["kept"] == 16
    card = (folder_of(cfg).model / "README.md").read_text()
    assert "accuracy on 16 held-out pairs" in card and "95 % interval" in card
    rows = read_records(folder_of(cfg).evaluations / "step-6.jsonl")
    right = sum(row["chosen"] > row["rejected"] for row in rows)
    assert len(rows) == 16 and right / 16 == facts["accuracy"]
    mean = np.mean([[row["chosen"], row["rejected"]] for row in rows])
    assert facts["mean"] == pytest.approx(mean, abs=1e-5) and folder_of(cfg).read_findings() == []


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["full", "lora"])
def test_transformers_gives_the_same_scores(tmp_path: Path, lora: dict[str, int] | None) -> None:
    cfg = toy_reward_model(tmp_path, model={"lora": lora}, reward_model={"lr": 1e-2})
    run(cfg)
    folder = folder_of(cfg).model
    library, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    items = [[*row["prompt"], said(row[side])] for row in preferences()[::5] for side in ("chosen", "rejected")]
    batch = tokenizer(
        [tokenizer.apply_chat_template(item, tokenize=False) for item in items],
        return_tensors="pt",
        padding=True,
        add_special_tokens=False,
    )
    with torch.no_grad():
        theirs = library.eval()(**batch).logits[:, 0].numpy()
    ours = RewardModel(str(folder)).score_texts(items)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.ptp(ours) > 0.3 and not (folder / "adapter").exists()


def test_it_starts_from_what_fine_tuning_left_and_from_another_reward_model(tmp_path: Path) -> None:
    tuned = sft(toy_sft(tmp_path, model={"lora": {"rank": 2}}), display=SilentDisplay()).folder / "model"
    for name, start in (("whole", tuned), ("adapter", tuned / "adapter")):
        run(toy_reward_model(tmp_path, run={"name": name}, reward_model={"init": str(start)}))
    whole, adapter = (
        [line["pairs/loss"] for line in folder_of(toy_reward_model(tmp_path, run={"name": n})).read_metrics()]
        for n in ("whole", "adapter")
    )
    assert whole == pytest.approx(adapter, abs=1e-4)
    first = folder_of(toy_reward_model(tmp_path, run={"name": "whole"})).model
    more = run(toy_reward_model(tmp_path, run={"name": "more"}, reward_model={"init": str(first)}))
    assert more.evaluations[0]["evaluate/accuracy"] > 0.9, "the head comes along"


# ------------------------------------------------------------------------------------------------ repeat and go on


@pytest.mark.parametrize("heads", [1, 3])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, heads: int) -> None:
    def section(steps: int) -> dict[str, Any]:
        return {"steps": steps, "heads": heads, "margin_scale": 0.1}

    whole = toy_reward_model(tmp_path, run={"name": "whole"}, reward_model=section(5), evaluate={"every": 1})
    run(whole)
    parts = {"run": {"name": "parts"}, "evaluate": {"every": 1}}
    run(toy_reward_model(tmp_path, **parts, reward_model=section(3)))
    cfg = toy_reward_model(tmp_path, **parts, reward_model=section(5))
    assert run(cfg, resume=True).step == 5
    assert comparable(cfg) == comparable(whole)
    one, other = bytes_of(folder_of(cfg).model), bytes_of(folder_of(whole).model)
    names = {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    assert names == {"README.md"}, "only the name of the run differs"
    with pytest.raises(RunFolderError, match=r"reward_model\.heads was"):
        run(toy_reward_model(tmp_path, **parts, reward_model={**section(5), "heads": heads + 1}), resume=True)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    cfg = toy_reward_model(tmp_path, reward_model={"heads": 2})
    run(cfg)
    before = bytes_of(folder_of(cfg).path)
    run(cfg, resume=True)
    after = bytes_of(folder_of(cfg).path)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {"status.json"}


# --------------------------------------------------------------------------------------------------------- findings


def test_a_model_near_chance_is_found(tmp_path: Path) -> None:
    """Labels without a rule: held-out accuracy is that of a coin, and the finding says so with its numbers."""
    dice = random.Random(0)
    rows = [
        {**row, "chosen": row["rejected"], "rejected": row["chosen"]} if dice.random() < 0.5 else row
        for row in preferences()
    ]
    cfg = toy_reward_model(tmp_path, reward_model={"data": str(write_rows(tmp_path / "noise.jsonl", rows))})
    run(cfg)
    (finding,) = folder_of(cfg).read_findings()
    assert finding["name"] == "reward_model/near_chance" and finding["evidence"]["low"] < 0.5
    assert "do not use it as a reward" in finding["advice"]


def test_without_held_out_pairs_the_calibration_says_so(tmp_path: Path) -> None:
    cfg = toy_reward_model(tmp_path, reward_model={"held_out_share": 0.0, "epochs": 1})
    run(cfg)
    facts = json.loads((folder_of(cfg).model / "surefoot_reward.json").read_text())
    assert (facts["source"], facts["pairs"]) == ("training pairs", 64)


def test_what_cannot_be_trained_on_is_refused(tmp_path: Path) -> None:
    ties = write_rows(tmp_path / "ties.jsonl", [{"prompt": "a film", "responses": ["x", "y"], "ratings": [1, 1.5]}])
    with pytest.raises(DataError, match=r"every comparison is a tie.*hint: lower reward_model\.min_gap"):
        run(toy_reward_model(tmp_path, reward_model={"data": str(ties)}))
    with pytest.raises(DataError, match=r"1 of 64 pairs .* longer than 15 tokens"):
        rows = preferences()
        rows[7]["chosen"] += " and loud and long"
        long = write_rows(tmp_path / "long.jsonl", rows)
        changes = {"data": str(long), "max_tokens": 15, "overlong": "error", "held_out_share": 0.0}
        run(toy_reward_model(tmp_path, reward_model=changes))
    with pytest.raises(ConfigError, match=r"reward_model\.max_tokens is more than the model's context"):
        run(toy_reward_model(tmp_path, reward_model={"max_tokens": 1000}))
    assert not (tmp_path / "runs").exists()


# -------------------------------------------------------------------------------------------------------- the loop


def sampled(tmp_path: Path, **sections: Any) -> tuple[Config, list[dict[str, Any]]]:
    """Tasks from the toy policy."""
    prompts = write_rows(
        tmp_path / "prompts.jsonl", [{"prompt": asked(f"{w} film")} for w in ("a", "the", "old", "new")]
    )
    section = {"prompts": str(prompts), "answers": 3, "max_new_tokens": 5, "file": str(tmp_path / "tasks.jsonl")}
    cfg = toy_reward_model(tmp_path, sample={**section, **sections})
    made = sample(cfg)
    tasks = read_records(Path(made.file))
    assert made.tasks == len(tasks) and made.answers == sum(len(task["responses"]) for task in tasks)
    return cfg, tasks


def test_judgements_of_sampled_answers_train_a_reward_model(tmp_path: Path) -> None:
    cfg, tasks = sampled(tmp_path)
    assert len(tasks) == 4
    for task in tasks:
        assert task["id"] == task_id(task["prompt"], task["responses"]) and task["prompt"][0]["role"] == "user"
        assert task["digests"] == [digest_of(task["prompt"], response) for response in task["responses"]]
        assert task["policy"]["path"] == cfg.model.policy and task["policy"]["sha256"] and task["seed"] == 0
        assert len(set(task["responses"])) == len(task["responses"]) >= 2
    judgements = [
        {"task": task["id"], "ratings": [float(len(text.split()) + 2 * i) for i, text in enumerate(task["responses"])]}
        for task in tasks
    ]
    data = write_rows(tmp_path / "judgements.jsonl", judgements)
    changes = {"data": str(data), "tasks": str(tmp_path / "tasks.jsonl"), "epochs": 1}
    result = run(toy_reward_model(tmp_path, reward_model=changes))
    assert str(result.status) == "FINISHED"
    inputs = json.loads((result.folder / "lineage.json").read_text())["inputs"]
    assert inputs["tasks"]["sha256"] and inputs["preferences"]["counts"]["rows"] == 4


def test_the_same_seed_samples_the_same_tasks(tmp_path: Path) -> None:
    _, tasks = sampled(tmp_path)
    _, again = sampled(tmp_path, file=str(tmp_path / "again.jsonl"))
    assert tasks == again
    # Nearly greedy: all answers are alike, and such a prompt makes no task.
    cfg = toy_reward_model(tmp_path)
    section = {"prompts": str(tmp_path / "prompts.jsonl"), "temperature": 1e-4, "max_new_tokens": 3}
    made = sample(
        cfg.model_copy(update={"sample": cfg.sample.model_copy(update={**section, "file": str(tmp_path / "x")})})
    )
    assert (made.tasks, made.alike) == (0, 4)


def test_ppo_climbs_an_ensemble_and_logs_its_disagreement(tmp_path: Path) -> None:
    rewarded = run(toy_reward_model(tmp_path, reward_model={"heads": 3, "epochs": 3})).folder / "model"
    term = {"name": "quality", "kind": "model", "target": str(rewarded), "ensemble": "lower", "ensemble_c": 0.5}
    cfg = toy_run(
        tmp_path / "ppo", run={"name": "ppo", "steps": 2}, reward={"terms": [term]}, critic={"kind": "shared"}
    )
    result = train(cfg, display=SilentDisplay())
    lines = RunFolder.open(result.folder).read_metrics()
    assert all(line["score/quality_spread"] > 0 and line["score/failed_share"] == 0 for line in lines)
    (record, *_) = read_records(result.folder / "samples" / "step-1.jsonl")
    rm = RewardModel(str(rewarded))
    row = rm.encode(
        [
            {"role": "user", "content": record["prompt"].split("user ")[1].split(" <|im_end|>")[0]},
            said(record["response"]),
        ]
    )
    (mean,), spread = rm.score_with_spread([row])
    assert spread is not None and record["score_terms"]["quality"] == pytest.approx(mean - 0.5 * spread[0], abs=1e-4)
    lineage = json.loads((result.folder / "lineage.json").read_text())["inputs"]["reward/quality"]
    assert lineage["files"]["surefoot_reward.json"], "the heads' digest stands in this file"
    heads = load_file(rewarded / "ensemble" / "heads.safetensors")["weight"]
    facts = json.loads((rewarded / "surefoot_reward.json").read_text())
    assert heads.shape[0] == 3 and len(facts["by_head"]) == 3 and facts["spread"] > 0
    stored = hashlib.sha256((rewarded / "ensemble" / "heads.safetensors").read_bytes()).hexdigest()
    assert facts["heads"]["sha256"] == stored
    praised = [[*asked("a film"), said(f"it is {word}")] for word in PRAISE]
    assert min(rm.score_texts(praised)) > rm.score_texts([[*asked("a film"), said("it is awful")]])[0]
