"""What both sides are given: prompts, the yardstick's versions, sizes and jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import run, yardstick_env
from benchmarks.parts import Rules
from benchmarks.prompts import chats
from benchmarks.work import CONFIGS, TUNED_ALLOCATOR

ROOT = Path(__file__).resolve().parents[2]


def test_prompts_differ_and_system_messages_alternate() -> None:
    assert len({str(chat) for chat in chats(64)}) == 64
    systems = [chat[0]["content"] for chat in chats(16)]
    assert len(set(systems[0::2])) == len(set(systems[1::2])) == 1
    assert systems[0] != systems[1]
    assert chats(64)[:16] == chats(16)
    with pytest.raises(ValueError, match="from 1 to 64"):
        chats(65)


def pins(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_the_yardstick_is_pinned_and_stands_on_the_same_libraries_as_surefoot() -> None:
    theirs, ours = pins(yardstick_env.CONSTRAINTS), pins(ROOT / "constraints.txt")
    assert set(yardstick_env.PACKAGES) <= set(theirs)
    assert theirs["trl"] == "1.12.0"
    for name in ("torch", "transformers", "peft", "numpy", "safetensors"):
        assert theirs[name] == ours[name]


def plan(*arguments: str) -> run.Plan:
    options = run.parse_arguments(arguments)
    inputs = dict.fromkeys(("model", "reward", "prompts", "decoding_prompts"), "somewhere")
    return run.Plan(run.SIZES[options.size], options, inputs, Rules(ROOT / "nowhere"))


def test_both_sides_get_the_same_work() -> None:
    quick = plan("--size", "quick")
    trl = run.yardstick_job(quick, Path("python"), "default", 1)
    for config in CONFIGS:
        ours = run.surefoot_job(quick, config, 1)
        shared = len(quick.step_arguments())
        assert ours.arguments[:shared] == trl.arguments[:shared] == quick.step_arguments()
        # TRL's environment is its own: none of our folders leads into it.
        assert trl.environment == {**ours.environment, "PYTHONPATH": ""}


def test_allocator_settings_are_those_that_the_part_names() -> None:
    quick = plan("--size", "quick")
    trl = run.yardstick_job(quick, Path("python"), "tuned", 1)
    assert (trl.allocator, trl.environment["GLIBC_TUNABLES"]) == ("tuned", TUNED_ALLOCATOR)
    assert run.surefoot_job(quick, "full-shared", 1).allocator == "own"
    plain = run.surefoot_job(plan("--size", "quick", "--allocator", "default"), "full-shared", 1)
    assert (plain.allocator, plain.environment["SUREFOOT_ALLOCATOR"]) == ("default", "system")


def test_a_change_of_surefoot_leaves_the_yardsticks_part_valid() -> None:
    quick = plan("--size", "quick")
    source = ROOT / "src" / "surefoot"
    assert source in run.surefoot_job(quick, "full-separate", 1).sources
    assert source in run.decoding_job(quick, Path("python"), "decoding").sources
    for other in (run.yardstick_job(quick, Path("python"), "default", 1), run.roofline_job(quick, 100)):
        assert source not in other.sources


def test_the_size_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIZE", "quick")
    assert run.parse_arguments([]).size == "quick"
    monkeypatch.setenv("SIZE", "huge")
    with pytest.raises(SystemExit):
        run.parse_arguments([])
    assert "invalid choice: 'huge'" in capsys.readouterr().err
    monkeypatch.delenv("SIZE")
    assert run.parse_arguments([]).size == "full"
