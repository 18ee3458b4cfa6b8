"""The trainer's checkpoint and the service's are one: a run goes on from both, or says why it cannot."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.builders import merged
from tests.serving.parts import make_toy_reward
from tests.serving.processes import Process
from tests.serving.whole_runs import ONE_BY_ONE, Outcome, Trial, differences, digest, mine, paragraph

CLIENT = "surefoot.serving.client:ServiceClient"
STORE = "surefoot.training.checkpoint:CheckpointStore"
KILLS = [
    mine(CLIENT, "infer", 2),
    mine(CLIENT, "train", 1),
    mine(CLIENT, "train", 2, after=True),
    # Whole at the service, and nothing here: between the two checkpoints, in the middle of the second, and behind it.
    mine(CLIENT, "checkpoint", 1, after=True),
    mine(STORE, "save", 1, call=2),
    mine(STORE, "save", 1, call=9),
    mine(STORE, "save", 1, after=True),
    # Goes on from step 2, and dies while and after it does.
    mine(CLIENT, "restore", 1),
    mine(CLIENT, "restore", 1, after=True),
    mine(CLIENT, "train", 2, after=True),
    mine(CLIENT, "checkpoint", 1, after=True),
    mine(STORE, "save", 2),
]


def test_a_trainer_killed_around_its_checkpoints_repeats_the_untouched_run(trial: Trial, untouched: Outcome) -> None:
    service = trial.serve()
    for die in KILLS:
        process = trial.train("killed", service.address(), die=die, **ONE_BY_ONE)
        assert process.wait() == -signal.SIGKILL, (die, process.stderr.read_text()[-2000:])
    found = trial.finish("killed", service.address(), **ONE_BY_ONE)
    assert differences(found, untouched) == []
    assert service.end() == 0
    steps = trial.checkpoints("killed").steps()
    assert steps == [2, 4, 6]
    for step in steps:
        manifest = json.loads((trial.checkpoints("killed").folder / f"step-{step}" / "manifest.json").read_text())
        named = manifest["meta"]["critic_service"]
        there = trial.service_checkpoints("killed").folder / f"step-{step}" / "manifest.json"
        assert named["step"] == step and named["name"] == f"step-{step}"
        assert named["digest"] == digest(there)
        assert named["updated"] is True


def stopped(trial: Trial, url: str) -> Process:
    """A run that was killed in its fifth step, after a checkpoint of step 4."""
    process = trial.train("stopped", url, die=mine(CLIENT, "train", 5, after=True), **ONE_BY_ONE)
    assert process.wait() == -signal.SIGKILL, process.stderr.read_text()[-2000:]
    return process


def test_what_a_run_cannot_go_on_from_is_refused_and_harms_nothing(trial: Trial, untouched: Outcome) -> None:
    service = trial.serve()
    stopped(trial, service.address())
    assert trial.checkpoints("stopped").steps() == [2, 4]
    home = trial.service_checkpoints("stopped").folder

    def refused(says: str, *, url: str | None = None, code: int = 3, **changes: Any) -> None:
        process = trial.train("stopped", url or service.address(), **merged(ONE_BY_ONE, changes))
        assert process.wait() == code, process.stderr.read_text()
        text = " ".join(paragraph(process).split())
        assert says in text and "hint: " in text, text
        assert trial.checkpoints("stopped").steps() == [2, 4]

    with moved(home / "step-4"):
        refused("the checkpoint that the trainer's belongs to is not here; got: run ")
    with changed(home / "step-4" / "manifest.json", b'"meta": {', b'"meta": { '):
        refused("the checkpoint that the trainer's belongs to is not here; got: run ")
    with changed(home / "step-4" / "critic.safetensors", b"", b"x"):
        refused("the checkpoint that the trainer's belongs to is not here; got: run ")
    says = "the service's critic is not the one this run needs; got: optim.critic_lr: 0.003, not 0.004"
    refused(says, optim={"critic_lr": 0.004})
    assert service.end() == 0
    # The same critic in another folder, and then another critic at the run's own address.
    other = trial.serve(serve={"dir": str(trial.folder / "elsewhere")})
    refused("no checkpoint of that run", url=other.address())
    assert other.end() == 0
    make_toy_reward(trial.folder / "judge", like=trial.toy / "toy", seed=5)
    other = trial.serve(serve={"dir": str(trial.folder / "judged")}, critic={"init": str(trial.folder / "judge")})
    refused("the run began with other inputs: critic (http://", url=other.address(), code=2)
    assert other.end() == 0
    # At last the service as it was, on another port.
    service = trial.serve()
    found = trial.finish("stopped", service.address(), **ONE_BY_ONE)
    assert differences(found, untouched) == []
    assert service.end() == 0


class moved:
    """Something is elsewhere for a while."""

    def __init__(self, path: Path) -> None:
        self.path, self.aside = path, path.with_name(f"aside-{path.name}")

    def __enter__(self) -> None:
        self.path.rename(self.aside)

    def __exit__(self, *raised: object) -> None:
        self.aside.rename(self.path)


class changed:
    """A file holds something else for a while: ``old`` replaced once, or ``new`` behind its end."""

    def __init__(self, path: Path, old: bytes, new: bytes) -> None:
        self.path, self.before = path, path.read_bytes()
        assert old in self.before
        self.after = self.before.replace(old, new, 1) if old else self.before + new

    def __enter__(self) -> None:
        self.path.write_bytes(self.after)

    def __exit__(self, *raised: object) -> None:
        self.path.write_bytes(self.before)


def test_the_critic_stays_where_it_was_when_the_run_began(trial: Trial) -> None:
    trial = replace(trial, sections={"run": {"steps": 2}, "checkpoint": {"every": 1}})
    service = trial.serve()
    trial.finish("local")
    trial.finish("served", service.address())
    for name, url in (("served", None), ("local", service.address())):
        process = trial.train(name, url)
        assert process.wait() == 2, process.stderr.read_text()
        assert "the run began with other inputs: critic (" in paragraph(process)
    assert service.end() == 0
