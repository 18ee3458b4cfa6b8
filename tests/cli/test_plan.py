"""``surefoot plan``: what a run would need, from configs and prompts alone, and what helps where it is too much."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from surefoot.assembly import plan as planning
from surefoot.config import build_config, load_config
from tests.cli.conftest import Outcome, Workspace
from tests.cli.test_user_mistakes import refused

SEPARATE = "critic.kind=separate"


def planned(outcome: Outcome, code: int = 0) -> dict[str, Any]:
    assert (outcome.code, outcome.err) == (code, ""), outcome
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def room(monkeypatch: pytest.MonkeyPatch, free: int, total: int) -> None:
    monkeypatch.setattr(planning, "memory_of", lambda device: (free, total))


def without_weights(space: Workspace, toy: Path) -> None:
    (space.path / "toy").unlink()
    shutil.copytree(toy, space.path / "toy")
    (space.path / "toy" / "model.safetensors").unlink()


# ---------------------------------------------------------------------------------------------------------- it fits


def test_a_run_that_fits(space: Workspace, toy: Path) -> None:
    """Nothing is loaded, for there is nothing to load, and nothing is written."""
    without_weights(space, toy)
    before = space.contents()
    outcome = space.run("plan", "c.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert space.contents() == before
    assert outcome.out.splitlines()[-1].startswith("It fits: 0.43 GB at most, in the phase '")
    for words in (
        r"policy +-",
        r"value head +-",
        r"rollout: prompts +0\.43",
        r"update: policy +0\.43",
        r"save: \w+ +0\.43",
    ):
        assert re.search(rf"^{words}", outcome.out, re.MULTILINE), words
    assert "\x1b" not in outcome.out


def test_json_says_the_same_in_bytes(space: Workspace) -> None:
    found = planned(
        space.run("plan", "c.yaml", SEPARATE, "reward.terms.0.kind=model", "reward.terms.0.target=toy", "--json")
    )
    assert found["fits"] is True
    assert found["advice"] == found["notes"] == []
    assert list(found["roles"]) == ["policy", "critic", "reference", "reward tone"]
    assert all(list(role) == ["parameters", "gradients", "optimizer"] for role in found["roles"].values())
    assert [role["gradients"] > 0 for role in found["roles"].values()] == [True, True, False, False]
    always = found["process"] + sum(role["parameters"] + role["optimizer"] for role in found["roles"].values())
    assert list(found["phases"]) == ["rollout", "score", "update", "evaluate", "save"]
    for phase in found["phases"].values():
        assert phase["peak"] == always + sum(phase["parts"].values())
    assert found["peak"] == found["phases"][found["phase"]]["peak"]
    assert found["peak"] == max(phase["peak"] for phase in found["phases"].values())
    assert found["training_peak"] == max(phase["peak"] for name, phase in found["phases"].items() if name != "save")
    assert 0 < found["free"] <= found["machine"]


def test_the_prompts_are_read(space: Workspace) -> None:
    """Four prompts that begin alike: what they share is laid down once."""
    sizes = planned(space.run("plan", "c.yaml", "ppo.minibatches=1", "--json"))["sizes"]
    longest = sizes["longest_prompt"]
    assert sizes["rows"] == 4
    assert longest + 3 < sizes["training_tokens"] < 4 * (longest + 8)
    padded = planned(space.run("plan", "c.yaml", "ppo.minibatches=1", "batch.packing=off", "--json"))["sizes"]
    assert padded["training_tokens"] == 4 * (longest + 8 - 1)


def test_prompts_that_are_elsewhere_are_assumed(space: Workspace, toy: Path) -> None:
    (space.path / "prompts.jsonl").unlink()
    (space.path / "held-out.jsonl").unlink()
    found = planned(space.run("plan", "c.yaml", "data.max_prompt_tokens=50", "--json"))
    assert found["sizes"]["longest_prompt"] == 50
    assert "evaluate" not in found["phases"]
    assert [note.rpartition("/")[2] for note in found["notes"]] == [
        "prompts.jsonl is not here: prompts of data.max_prompt_tokens, 50, are assumed",
        "held-out.jsonl is not here: evaluations are left out",
    ]
    assert "note: " in space.run("plan", "c.yaml").out


def test_evaluations_count(space: Workspace) -> None:
    few = planned(space.run("plan", "c.yaml", "--json"))["phases"]["evaluate"]["parts"]
    many = planned(space.run("plan", "c.yaml", "evaluate.samples_per_prompt=10", "--json"))["phases"]["evaluate"][
        "parts"
    ]
    assert many["cache"] == 10 * few["cache"]


# -------------------------------------------------------------------------------------------------- it does not fit


def test_a_run_that_does_not_fit(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 10**8, 2 * 10**8)
    outcome = space.run("plan", "c.yaml", SEPARATE)
    assert (outcome.code, outcome.err) == (1, "")
    verdict = outcome.out[outcome.out.index("It does not fit: ") :]
    assert "0.10 of 0.20 GB are free on cpu.\n" in verdict
    assert re.search(r"^hint: helps most: \S+, 0\.43 GB, which does not fit yet$", verdict, re.MULTILINE)
    assert re.search(r"^hint: together: \S+ \S+ \S+", verdict, re.MULTILINE)


def test_the_advice_is_true(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting by itself gives the peak that it promises, the best comes first, and all together give least."""
    room(monkeypatch, 10**8, 2 * 10**8)
    found = planned(space.run("plan", "c.yaml", SEPARATE, "--json"), code=1)
    *alone, together = found["advice"]
    peaks = [advice["peak"] for advice in alone]
    assert peaks == sorted(peaks) and found["peak"] > peaks[-1]
    assert together["peak"] <= peaks[0]
    assert {setting for advice in alone for setting in advice["settings"]} == set(together["settings"])
    assert "model.lora.rank=16" in together["settings"] and "critic.kind=shared" in together["settings"]
    for advice in found["advice"]:
        again = planned(space.run("plan", "c.yaml", SEPARATE, *advice["settings"], "--json"), code=1)
        assert again["peak"] == advice["peak"], advice


def test_each_setting_lowers_what_it_is_for(space: Workspace) -> None:
    config = load_config(space.config, [SEPARATE, "rollout.max_new_tokens=60"])
    estimate = planning.plan(config).estimate
    for name, change in planning._changes(config, estimate):
        other = planning.plan(planning._changed(config, [(name, change)])).estimate
        phase = "rollout" if name.startswith("rollout.") else "update"
        if name == "rollout.decode_weights=stored":
            assert "decoding_weights" in estimate.largest and "decoding_weights" not in other.largest
            continue
        fixed = sum(other.fixed.values()) < sum(estimate.fixed.values())
        assert fixed or other.phases[phase].total < estimate.phases[phase].total, name


def test_room_that_others_take(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 10**8, 10**12)
    outcome = space.run("plan", "c.yaml")
    assert outcome.code == 1
    assert "ending what else runs here would make room" in outcome.out


def test_help_names_the_exit_codes(bare: Workspace) -> None:
    outcome = bare.run("plan", "--help")
    assert outcome.code == 0
    exits = "Exit codes: 0 it fits; 1 it does not; 2 something to put right; 130 Ctrl-C."
    assert exits in " ".join(outcome.out.split())


# ----------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("ppo.lamda=1", "did you mean ppo.lam?"),
        ("model.policy=./gone", "the model folder does not exist"),
        ("critic.kind=separate critic.init=./gone", "the model folder does not exist"),
        ("reward.terms.0.kind=model reward.terms.0.target=./gone", "the model folder does not exist"),
        ("data.column=text", "no row of"),
        ("run.steps=null", "train needs 1 more key(s): run.steps"),
    ],
)
def test_mistakes_are_one_paragraph(override: str, words: str, space: Workspace) -> None:
    assert words in refused(space, "plan", "c.yaml", *override.split())
    assert words in refused(space, "plan", "c.yaml", *override.split(), "--json")


def test_a_run_does_not_end_for_want_of_an_estimate(caplog: pytest.LogCaptureFixture) -> None:
    config = build_config({"model": {"policy": "gone"}})
    assert planning.predicted(config, object(), []) is None
    assert "could not be estimated" in caplog.text
