"""A whole run of supervised fine-tuning: what it leaves behind, repeats, refuses and publishes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from surefoot.assembly.sft import sft
from surefoot.config import Config
from surefoot.errors import ConfigError, RunFolderError
from surefoot.models.policy import load_policy
from surefoot.models.tokenizer import load_codec
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.display import SilentDisplay
from surefoot.training.durable import read_records
from surefoot.training.run_folder import RunFolder
from surefoot.training.trainer import RunResult
from tests.builders import save_llama
from tests.models.made_tokenizers import byte_level
from tests.stage_builders import BLAME, asked, demonstrations, toy_sft, write_rows

VOLATILE = ("time/", "memory/", "throughput/")


class Notes(SilentDisplay):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def run(cfg: Config, **options: Any) -> RunResult:
    return sft(cfg, display=SilentDisplay(), **options)


def folder_of(cfg: Config) -> RunFolder:
    return RunFolder.open(Path(cfg.run.dir) / str(cfg.run.name))


def comparable(cfg: Config) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if not k.startswith(VOLATILE)} for line in folder_of(cfg).read_metrics()]


def weights(cfg: Config) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_file(folder_of(cfg).model / "model.safetensors")
    return tensors


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def findings(cfg: Config) -> list[str]:
    return [record["name"] for record in folder_of(cfg).read_findings()]


# ---------------------------------------------------------------------------------------------------- what is left


def test_a_run_leaves_everything_there_is_to_know(tmp_path: Path) -> None:
    cfg = toy_sft(tmp_path)
    notes = Notes()
    result = sft(cfg, display=notes)
    assert (str(result.status), result.step, result.reason) == ("FINISHED", 6, "all 6 steps are done")
    folder = folder_of(cfg)
    assert {p.name for p in folder.path.iterdir()} >= {
        "config.yaml",
        "lineage.json",
        "status.json",
        "metrics.jsonl",
        "evaluations.jsonl",
        "evaluations",
        "checkpoints",
        "model",
    }
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 3, 4, 5, 6]
    assert folder.read_metrics()[-1]["sft/epoch"] == 2.0 and folder.read_metrics()[0]["sft/rows"] == 8
    losses = [record["evaluate/loss"] for record in result.evaluations]
    assert [record["step"] for record in result.evaluations] == [0, 2, 4, 6]
    assert losses[-1] < 0.8 * losses[0] and folder.read_metrics()[-1]["evaluate/loss"] == losses[-1]
    rows = read_records(folder.evaluations / "step-6.jsonl")
    assert len(rows) == 8 and {"id", "tokens", "loss"} <= set(rows[0])
    assert any("24 demonstrations of 32 rows (8 held out)" in text and "6 steps" in text for text in notes.said)
    card = (folder.model / "README.md").read_text()
    assert "Fine-tuned on demonstrations" in card and "| 6 |" in card and "24," in card


def test_the_lineage_names_model_and_data_by_digest(tmp_path: Path) -> None:
    cfg = toy_sft(tmp_path)
    run(cfg)
    inputs = json.loads(folder_of(cfg).lineage.read_text())["inputs"]
    digest = hashlib.sha256((tmp_path / "demonstrations.jsonl").read_bytes()).hexdigest()
    assert inputs["demonstrations"]["sha256"] == digest and inputs["init"]["sha256"]
    assert inputs["demonstrations"]["counts"] == {
        "rows": 32,
        "skipped": 0,
        "kept": 24,
        "dropped": 0,
        "cut": 0,
        "refused": 0,
        "tokens": 24 * 17,
        "trained_tokens": 24 * 6,
        "longest": 17,
    }
    assert inputs["held_out"]["counts"]["kept"] == 8 and inputs["held_out"]["shared_prompts"] == 0


def test_the_published_model_is_the_trained_one_and_loads_anywhere(tmp_path: Path) -> None:
    cfg = toy_sft(tmp_path, sft={"publish": "last"})
    run(cfg)
    model = folder_of(cfg).model
    store = CheckpointStore(folder_of(cfg).checkpoints, keep=9)
    newest = store.latest()
    assert newest is not None and newest.step == 6
    trained = load_file(newest.path / "weights.safetensors")
    live = load_policy(str(model)).module.state_dict()
    assert all(torch.equal(live[name], tensor) for name, tensor in trained.items())
    codec = load_codec(str(model))
    ids, _ = codec.encode_prompt([{"role": "user", "content": "Write one sentence about a film"}])
    assert codec.has_chat_template and len(ids) > 5


def test_adapters_are_published_merged_and_apart(tmp_path: Path) -> None:
    cfg = toy_sft(tmp_path, model={"lora": {"rank": 2}})
    result = run(cfg)
    assert (result.folder / "model" / "adapter" / "adapter_model.safetensors").is_file()
    before, after = load_file(tmp_path / "toy" / "model.safetensors"), weights(cfg)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved and "model.embed_tokens.weight" not in moved
    again = toy_sft(tmp_path, run={"name": "more"}, model={"policy": str(result.folder / "model" / "adapter")})
    assert run(again).evaluations[0]["evaluate/loss"] == pytest.approx(result.evaluations[-1]["evaluate/loss"], 1e-4)


def test_the_end_of_a_turn_becomes_an_end_of_sequence_of_the_model(tmp_path: Path) -> None:
    """A base model with a chat template: who samples from it must know where an answer ends."""
    save_llama(tmp_path / "base", vocabulary=333)
    byte_level(eos_token="<|endoftext|>").save_pretrained(tmp_path / "base")
    cfg = toy_sft(tmp_path, model={"policy": str(tmp_path / "base")}, sft={"steps": 1, "max_tokens": 64})
    notes = Notes()
    short = [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": a}]} for a in "abcd"]
    write_rows(tmp_path / "demonstrations.jsonl", [*short, {"text": "hello there"}, {"text": "the film"}])
    sft(cfg, display=notes)
    assert any("'<|im_end|>'" in text and "becomes one of model/" in text for text in notes.said)
    codec = load_codec(str(folder_of(cfg).model))
    assert {codec.decode([i]) for i in codec.stop_ids} == {"<|endoftext|>", "<|im_end|>"}


# ------------------------------------------------------------------------------------------------ repeat and go on


def test_a_run_repeats_itself_and_another_seed_does_not(tmp_path: Path) -> None:
    one, two = (toy_sft(tmp_path, run={"name": name}) for name in ("one", "two"))
    other = toy_sft(tmp_path, run={"name": "other", "seed": 1})
    for cfg in (one, two, other):
        run(cfg)
    assert comparable(one) == comparable(two) != comparable(other)
    assert same(weights(one), weights(two)) and not same(weights(one), weights(other))


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["full", "lora"])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, lora: dict[str, int] | None) -> None:
    model = {"lora": lora}
    whole = toy_sft(tmp_path, run={"name": "whole"}, model=model, sft={"steps": 5})
    run(whole)
    parts = {"name": "parts"}
    run(toy_sft(tmp_path, run=parts, model=model, sft={"steps": 3}))
    cfg = toy_sft(tmp_path, run=parts, model=model, sft={"steps": 5})
    # The end of the shorter run was evaluated besides.
    assert run(cfg, resume=True).step == 5
    loss = [{k: v for k, v in line.items() if not k.startswith("evaluate/")} for line in comparable(cfg)]
    assert loss == [{k: v for k, v in line.items() if not k.startswith("evaluate/")} for line in comparable(whole)]
    assert same(weights(cfg), weights(whole))


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    cfg = toy_sft(tmp_path, sft={"lr": 3.0})  # diverges: there is a finding, and the best weights are not the last
    run(cfg)
    path = folder_of(cfg).path
    before = {p.relative_to(path): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    assert run(cfg, resume=True).step == 6
    after = {p.relative_to(path): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    assert {str(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {
        "status.json"
    }
    assert findings(cfg) == ["sft/no_gain"]


def test_what_must_not_change_is_refused(tmp_path: Path) -> None:
    cfg = toy_sft(tmp_path, optim={"schedule": "linear"})
    run(cfg)
    with pytest.raises(RunFolderError, match=r"the run folder .* exists"):
        run(cfg)
    with pytest.raises(RunFolderError, match=r"sft\.epochs was 2"):
        run(toy_sft(tmp_path, optim={"schedule": "linear"}, sft={"epochs": 3}), resume=True)
    with pytest.raises(RunFolderError, match=r"sft\.lr was 0\.01"):
        run(toy_sft(tmp_path, optim={"schedule": "linear"}, sft={"lr": 0.1}), resume=True)
    write_rows(tmp_path / "demonstrations.jsonl", demonstrations()[::-1])
    with pytest.raises(RunFolderError, match="the run began with other inputs: demonstrations"):
        run(cfg, resume=True)


# ------------------------------------------------------------------------------------------------- best and early


def test_the_best_weights_are_kept_and_published(tmp_path: Path) -> None:
    """Held-out answers blame: their form is learned at first, then they become ever less likely."""
    blame = [{"messages": [*asked("a film"), {"role": "assistant", "content": f"this is a {w} film"}]} for w in BLAME]
    held_out = write_rows(tmp_path / "blame.jsonl", blame)
    sections: dict[str, Any] = {
        "sft": {"steps": 16, "lr": 0.05, "held_out": str(held_out)},
        "checkpoint": {"every": 2, "keep": 1},
        "evaluate": {"every": 1},
    }
    cfg, notes = toy_sft(tmp_path, **sections), Notes()
    result = sft(cfg, display=notes)
    losses = {r["step"]: r["evaluate/loss"] for r in result.evaluations if r["step"]}
    best = min(losses, key=lambda step: (losses[step], -step))
    assert 1 < best < 16, "the best step must lie in between"
    assert f"the held-out loss was lowest after step {best}: its weights become the model" in notes.said
    kept = {p.name for p in folder_of(cfg).checkpoints.iterdir()}
    assert kept == {f"step-{best}", "step-16"}
    stored = load_file(folder_of(cfg).checkpoints / f"step-{best}" / "weights.safetensors")
    live = load_policy(str(folder_of(cfg).model)).module.state_dict()
    assert all(torch.equal(live[name], tensor) for name, tensor in stored.items())
    assert f"| optimizer steps | {best}," in (folder_of(cfg).model / "README.md").read_text()
    last = toy_sft(tmp_path, run={"name": "last"}, **{**sections, "sft": {**sections["sft"], "publish": "last"}})
    run(last)
    assert comparable(last) == comparable(cfg) and not same(weights(last), weights(cfg))


def test_patience_and_the_time_budget_end_a_run_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = toy_sft(tmp_path, sft={"lr": 3.0, "steps": 20}, evaluate={"every": 1}, stop={"patience": 2})
    result = run(patient)
    assert "no better held-out loss in 2 evaluations (best " in result.reason and result.step < 20
    assert "best -" not in result.reason, "a loss is shown as it is"
    # A clock that goes two seconds a look.
    monkeypatch.setattr("surefoot.training.trainer.time", SimpleNamespace(monotonic=iter(range(0, 100, 2)).__next__))
    result = run(toy_sft(tmp_path, run={"name": "hurried", "time_budget_s": 7.5}))
    assert "the time budget of 7.5 s" in result.reason and result.step == 1
    assert (result.folder / "model").is_dir() and result.evaluations[-1]["step"] == result.step


def test_without_held_out_rows_the_last_weights_are_published(tmp_path: Path) -> None:
    cfg = toy_sft(tmp_path, sft={"held_out_share": 0.0, "epochs": 1})
    result = run(cfg)
    assert result.evaluations == [] and result.step == 4 and (result.folder / "model" / "model.safetensors").is_file()
    with pytest.raises(ConfigError, match=r"stop\.patience looks at the held-out loss"):
        run(toy_sft(tmp_path, run={"name": "x"}, sft={"held_out_share": 0.0}, stop={"patience": 1}))


# -------------------------------------------------------------------------------------------------------- findings


def test_held_out_prompts_that_are_trained_on_are_found(tmp_path: Path) -> None:
    held_out = write_rows(tmp_path / "held.jsonl", demonstrations()[:4])
    cfg = toy_sft(tmp_path, sft={"held_out": str(held_out), "steps": 2})
    run(cfg)
    (finding,) = folder_of(cfg).read_findings()
    assert finding["name"] == "data/shared_prompts" and finding["evidence"] == {"shared": 4, "held_out": 4}


def test_a_limit_beyond_the_models_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sft\.max_tokens is more than the model's context; got: 129"):
        run(toy_sft(tmp_path, sft={"max_tokens": 129}))
    with pytest.raises(ConfigError, match="float16 weights cannot be trained"):
        run(toy_sft(tmp_path, model={"dtype": "float16"}))
    assert not (tmp_path / "runs").exists()
