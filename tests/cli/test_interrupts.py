"""Ctrl-C ends every command with one line and exit code 130: real processes, and a real SIGINT in the midst of each."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import Outcome, Workspace
from tests.stage_builders import demonstrations, preferences, write_rows

STEPS = ("training.trainer.ppo_step", "assembly.sft.sft_step", "assembly.reward_model.preference_step")
"""What is called when the run folder is there."""
BEGUN = "before the first checkpoint: the same command with --resume starts at step 1"
SFT = ("sft", "c.yaml", "sft.data=demonstrations.jsonl")
REWARD_MODEL = ("reward-model", "c.yaml", "reward_model.data=preferences.jsonl")
MOMENTS = [
    (("train", "c.yaml"), "cli.train.load_config", "run the same command again"),
    (("train", "c.yaml"), STEPS[0], BEGUN),
    (SFT, "cli.sft.load_config", "run the same command again"),
    (SFT, "assembly.sft.read_demonstrations", "before anything was written"),
    (SFT, STEPS[1], BEGUN),
    (REWARD_MODEL, STEPS[2], BEGUN),
    (("sample", "c.yaml"), "assembly.sample.read_prompts", "nothing was written"),
    (("data", "audit", "prompts.jsonl"), "cli.data_audit.audit", "nothing was written"),
    (("check", "c.yaml"), "assembly.preflight.check_identities", "nothing was written"),
    (("plan", "c.yaml"), "assembly.plan.memory_for", "nothing was written"),
    (("quickstart", "--size", "tiny"), "cli.quickstart._toy_inputs", "the same command goes on from there"),
    (("runs", "list"), "cli.runs.run_folders", "nothing was written"),
    (("runs", "compare", "a", "b"), "cli.runs.comparison", "nothing was written"),
]


def interrupted(space: Workspace, function: str, *arguments: str) -> Outcome:
    """A command that gets a SIGINT when it calls a function, and a second one, since a run waits for its step's end."""
    module, _, name = f"surefoot.{function}".rpartition(".")
    code = (
        "import importlib, os, signal, sys, time\n"
        f"module = importlib.import_module({module!r})\n"
        "def stopped(*args, **options):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.1)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(900)\n"
        f"assert hasattr(module, {name!r})\n"
        f"module.{name} = stopped\n"
        "from surefoot.cli.main import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=space.path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(("arguments", "moment", "words"), MOMENTS, ids=[f"{a[0]} {m}" for a, m, _ in MOMENTS])
def test_ctrl_c_ends_a_command_with_one_line(
    arguments: tuple[str, ...], moment: str, words: str, space: Workspace
) -> None:
    write_rows(space.path / "demonstrations.jsonl", demonstrations())
    write_rows(space.path / "preferences.jsonl", preferences())
    outcome = interrupted(space, moment, *arguments)
    assert outcome.code == 130, outcome
    last = outcome.err.splitlines()[-1]
    assert last.startswith("stopped at once")
    assert words in last
    assert outcome.err.count("stopped") == 1
    assert not any(word in outcome.err for word in ("Traceback", "Aborted", "KeyboardInterrupt"))
    assert (space.path / "runs" / "c").exists() == (moment in STEPS)


def test_an_interrupt_that_comes_without_the_signal(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """As libraries raise it that have a handler of their own."""

    def stopped(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surefoot.cli.runs.run_folders", stopped)
    outcome = bare.run("runs", "list")
    assert (outcome.code, outcome.err, outcome.out) == (130, "stopped at once; nothing was written\n", "")


def test_an_error_that_a_library_made_of_the_signal(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("could not be imported") from None

    monkeypatch.setattr("surefoot.cli.runs.run_folders", stopped)
    outcome = bare.run("runs", "list")
    assert (outcome.code, outcome.err) == (130, "stopped at once; nothing was written\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
