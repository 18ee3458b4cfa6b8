"""What a run has recorded is not written over, its weights are sound or not saved, and it says what it goes on from."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.assembly.train import train
from surefoot.cli.train import stopped_at_once
from surefoot.config import Config, load_config
from surefoot.errors import ConfigError, ModelError, RunFolderError, TrainingError
from surefoot.models.lora import add_adapter
from surefoot.models.policy import load_policy
from surefoot.models.toy import make_toy_model
from surefoot.training.display import PlainDisplay
from surefoot.training.optimizer import Optimizer
from surefoot.training.run_folder import RunFolder
from surefoot.training.signals import GracefulStop
from tests.builders import toy_run


class Notes(PlainDisplay):
    """Keeps the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)


def folder_of(cfg: Config) -> Path:
    return Path(cfg.run.dir) / str(cfg.run.name)


def records(cfg: Config) -> dict[str, bytes]:
    folder = folder_of(cfg)
    return {p.name: p.read_bytes() for p in (folder / "metrics.jsonl", folder / "status.json")}


def flip(folder: Path) -> None:
    for file in folder.glob("step-*/policy.safetensors"):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))


@pytest.mark.parametrize("loss", ["removed", "damaged"])
def test_a_run_without_a_readable_checkpoint_is_not_started_over(tmp_path: Path, loss: str) -> None:
    cfg = toy_run(tmp_path, run={"steps": 4})
    train(cfg)
    checkpoints = folder_of(cfg) / "checkpoints"
    shutil.rmtree(checkpoints) if loss == "removed" else flip(checkpoints)
    before = records(cfg)
    with pytest.raises(RunFolderError, match="are gone" if loss == "removed" else "can be read"):
        train(toy_run(tmp_path, run={"steps": 6}), resume=True)
    assert records(cfg) == before


def test_a_resume_that_is_refused_leaves_the_status_alone(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 2})
    train(cfg)
    metrics = folder_of(cfg) / "metrics.jsonl"
    metrics.write_bytes(b"garbage\n" + metrics.read_bytes())
    before = records(cfg)
    with pytest.raises(RunFolderError):
        train(toy_run(tmp_path, run={"steps": 3}), resume=True)
    assert records(cfg) == before


def test_broken_weights_are_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = toy_run(tmp_path, run={"steps": 6}, checkpoint={"every": 1}, critic={"kind": "shared"})
    step = Optimizer.step

    def breaking(self: Optimizer, loss: float) -> Any:
        outcome = step(self, loss)
        if self.steps_taken == 10:  # in the third step
            with torch.no_grad():
                next(iter(self.named.values())).view(-1)[0] = torch.nan
        return outcome

    monkeypatch.setattr(Optimizer, "step", breaking)
    with pytest.raises(TrainingError):
        train(cfg)
    saved = sorted(p.name for p in (folder_of(cfg) / "checkpoints").iterdir())
    assert saved == ["step-1", "step-2"]
    monkeypatch.setattr(Optimizer, "step", step)
    assert train(cfg, resume=True).step == 6


def test_a_resume_says_what_it_found(tmp_path: Path) -> None:
    fresh, again = Notes(), Notes()
    cfg = toy_run(tmp_path, run={"steps": 3}, checkpoint={"every": 2})
    train(cfg, resume=True, display=fresh)
    assert fresh.lines[0] == f"there is no run folder {folder_of(cfg).absolute()} yet: starting at step 1"
    shutil.rmtree(folder_of(cfg) / "checkpoints" / "step-3")
    train(cfg, resume=True, display=again)
    checkpoint = folder_of(cfg).absolute() / "checkpoints" / "step-2"
    assert again.lines[0] == f"resumed from {checkpoint}; steps 3 to 3 are done again"


def test_what_is_left_when_a_run_is_stopped_at_once(tmp_path: Path) -> None:
    assert "before anything was written" in stopped_at_once(tmp_path / "none")
    (tmp_path / "run").mkdir()
    assert "before the first checkpoint" in stopped_at_once(tmp_path / "run")
    for name in ("step-2", "step-10", ".step-11.new"):
        (tmp_path / "run" / "checkpoints" / name).mkdir(parents=True)
    assert "the last checkpoint is of step 10" in stopped_at_once(tmp_path / "run")


def test_an_interrupted_extension_is_not_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from surefoot.cli.train import run_train

    cfg = toy_run(tmp_path, run={"steps": 2})
    train(cfg)
    file = tmp_path / "c.yaml"
    file.write_text(RunFolder.open(folder_of(cfg)).config.read_text())
    (tmp_path / "reward.py").write_text(
        (tmp_path / "reward.py").read_text()
        + "\nimport os, signal\nplain = positive\ndef positive(prompts, completions, **_):\n"
        + "    os.kill(os.getppid(), signal.SIGINT)\n    return plain(completions=completions)\n"
    )
    code = run_train(file, ["run.steps=200"], resume=True, as_json=True)
    said = json.loads(capsys.readouterr().out)
    assert (code, said["status"], said["model"]) == (130, "KILLED", None)


def test_a_reader_that_has_gone_away_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

    cfg = toy_run(tmp_path, run={"steps": 2})
    monkeypatch.setattr(sys, "stderr", Gone())
    assert train(cfg, display=PlainDisplay()).step == 2


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no terminals to close")
def test_a_closed_terminal_ends_a_run_like_a_request_to_end() -> None:
    with GracefulStop() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.received is signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with GracefulStop() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.received is None, "nohup means it"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_reference_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 2})
    other = make_toy_model(tmp_path / "other", hidden_size=16, layers=1)
    file = other / "tokenizer.json"
    tree = json.loads(file.read_text())
    words = tree["model"]["vocab"]
    words["film"], words["movie"] = words["movie"], words["film"]
    file.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="reference would read the policy's token ids with another vocabulary"):
        train(toy_run(tmp_path, run={"steps": 2}, model={"reference": str(other)}))
    assert not folder_of(cfg).exists()


def test_a_misspelt_lora_target_is_refused(tmp_path: Path) -> None:
    model = load_policy(make_toy_model(tmp_path / "toy", hidden_size=16, layers=1)).lm.model
    with pytest.raises(ModelError, match=r"v_porj.*did you mean v_proj"):
        add_adapter(model, rank=2, alpha=4.0, targets=["q_proj", "v_porj"], seed=0)


def test_a_config_files_name_becomes_a_run_name(tmp_path: Path) -> None:
    for name in ("été.yaml", "a b.yaml", ".x.yaml"):
        (tmp_path / name).write_text("run: {steps: 1}\n")
        found = load_config(tmp_path / name).run.name
        assert found is not None and found.isascii() and found[0].isalnum()
