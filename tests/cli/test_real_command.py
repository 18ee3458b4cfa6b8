"""The command as users start it: in a process of its own, with its output in a pipe."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.cli.conftest import Outcome, Workspace
from tests.cli.test_user_mistakes import check_refusal

OF_TORCH = 0.5
"""Processor time for help and for what is found in the config, as a share of what loading torch takes (seen: 0.2)."""


def surefoot(space: Workspace, *arguments: str, wrapper: Sequence[str] = ("-m", "surefoot.cli.main")) -> Outcome:
    done = subprocess.run(
        [sys.executable, *wrapper, *arguments], cwd=space.path, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def seconds_of(call: object) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    call()  # type: ignore[operator]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize(
    "arguments", [("train", "c.yaml", "ppo.lamda=1"), ("check", "c.yaml", "rollout.top_p=0.5"), ("train", "--help")]
)
def test_what_is_in_the_config_is_found_at_once(arguments: tuple[str, ...], bare: Workspace) -> None:
    """Processor time, best of three by turns: seconds alone would say how fast and how busy the machine is."""
    outcomes: list[Outcome] = []
    taken, torch = [], []
    for _ in range(3):
        torch.append(seconds_of(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True)))
        taken.append(seconds_of(lambda: outcomes.append(surefoot(bare, *arguments))))
    assert min(taken) < OF_TORCH * min(torch), (taken, torch)
    if "--help" not in arguments:
        check_refusal(outcomes[0])


def test_no_torch_before_the_config_is_sound(bare: Workspace) -> None:
    code = (
        "import sys\nfrom surefoot.cli.main import main\ntry:\n    main()\nfinally:\n"
        "    print([m for m in ('torch', 'transformers', 'peft', 'datasets') if m in sys.modules])"
    )
    for arguments in (("train", "c.yaml", "ppo.kl.estimator=k3"), ("train", "c.yaml", "data.prompts=gone.jsonl")):
        outcome = surefoot(bare, *arguments, wrapper=("-c", code))
        assert outcome.code == 2
        assert outcome.out == "[]\n"


def test_a_pipe_gets_data_alone(space: Workspace) -> None:
    """What libraries print while they load would break every program that reads the findings."""
    checked = surefoot(space, "check", "c.yaml", "--json")
    assert checked.code == 0, checked
    assert len(checked.findings) > 35
    assert checked.err == ""
    assert not (space.path / "runs").exists()


def test_train_says_where_everything_lies(space: Workspace) -> None:
    """Data alone on stdout, the log on stderr, no colours and no bars where there is no terminal."""
    trained = space.run("train", "c.yaml", "--json")
    assert trained.code == 0, trained
    result = json.loads(trained.out)
    assert (result["status"], result["step"]) == ("FINISHED", 2)
    assert (space.path / result["model"]).is_dir()
    assert not any(mark in trained.err + trained.out for mark in ("\x1b", "\r", "Traceback"))
    check_refusal(space.run("train", "c.yaml"))
    text = space.run("train", "c.yaml", "run.name=other")
    assert text.code == 0
    assert text.out.splitlines()[-2:] == ["run folder: runs/other", "model: runs/other/model"]


@pytest.mark.parametrize(
    "arguments", [(), ("train",), ("check",), ("quickstart",), ("runs",), ("runs", "list"), ("runs", "compare")]
)
def test_help_names_the_exit_codes(arguments: tuple[str, ...], bare: Workspace) -> None:
    outcome = bare.run(*arguments, "--help")
    assert outcome.code == 0
    said = " ".join(outcome.out.split())
    assert "Exit codes: 0 " in said
    assert "2 " in said.partition("Exit codes")[2]
    assert "\x1b" not in outcome.out
