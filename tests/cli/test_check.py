"""``surefoot check`` finds what would be found after hours, writes nothing, and is quiet when all is well."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from surefoot.assembly.preflight import GROUPS
from surefoot.assembly.preflight_identities import uneven
from surefoot.records import Finding, Rollout, Trajectory
from tests.cli.conftest import REWARD, Outcome, Workspace, chats

LINE = re.compile(r"  (ok|note|warning|problem) +[a-z ]+: .+|           hint: .+|[a-z]+|\d+ checks in \d+ s: .+")


def worst(outcome: Outcome, name: str) -> tuple[str, str]:
    finding = outcome.findings[name]
    return finding["severity"], f"{finding['message']} {finding['advice']}"


def other_tokenizer(space: Workspace, toy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Give the workspace a model of its own, with another tokenizer_config.json."""
    (space.path / "toy").unlink()
    shutil.copytree(toy, space.path / "toy")
    file = space.path / "toy" / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    change(settings)
    file.write_text(json.dumps(settings), encoding="utf-8")


# ------------------------------------------------------------------------------------------------------ all is well


def test_a_sound_config_has_no_problem_and_leaves_no_trace(space: Workspace) -> None:
    before = space.contents()
    sound = ("optim.policy_lr=1e-5", "rollout.max_new_tokens=40", "ppo.cut_off=penalise")
    outcome = space.run("check", "c.yaml", *sound)
    assert outcome.code == 0, outcome
    assert space.contents() == before
    lines = [line for line in outcome.out.splitlines() if line]
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert [line for line in lines if line in GROUPS] == [group for group in GROUPS if group != "service"]
    assert lines[-1].endswith("0 warnings, 0 problems")
    assert "\x1b" not in outcome.out
    assert outcome.err == ""


def test_json_is_a_list_of_findings(space: Workspace) -> None:
    outcome = space.check("optim.policy_lr=1e-5")
    found = json.loads(outcome.out)
    assert outcome.code == 0
    assert {tuple(finding) for finding in found} == {tuple(field.name for field in fields(Finding))}
    names = [finding["name"] for finding in found]
    assert len(names) == len(set(names)), "one line per check"
    assert {name.partition("/")[0] for name in names} == set(GROUPS) - {"service"}
    assert outcome.err == ""


@pytest.mark.parametrize("overrides", [("critic.kind=separate",), ("model.lora.rank=2",), ("model.dtype=float64",)])
def test_the_identities_hold_for_every_kind_of_model(overrides: tuple[str, ...], space: Workspace) -> None:
    found = space.check(*overrides).findings
    identities = {name: f for name, f in found.items() if name.startswith(("identities/", "update/"))}
    assert len(identities) == 8
    assert [f for f in identities.values() if f["severity"] == "error"] == []
    assert identities["identities/ratio"]["evidence"]["clip_fraction"] == 0
    assert identities["identities/ratio"]["evidence"]["ratio_gap"] < 1e-5
    assert identities["identities/reference"]["evidence"]["gap"] < 1e-5
    assert identities["identities/layout"]["evidence"]["logp_gap"] < 1e-5
    assert identities["update/one"]["evidence"]["grad_norm"] > 0


def test_config_faults_are_findings_for_programs_and_a_paragraph_for_people(bare: Workspace) -> None:
    outcome = bare.check("ppo.lamda=1")
    assert outcome.code == 2
    assert worst(outcome, "config/keys")[0] == "error"
    assert "did you mean ppo.lam?" in worst(outcome, "config/keys")[1]
    said = bare.run("check", "c.yaml", "ppo.lamda=1")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")


# ----------------------------------------------------------------------------------------- what cannot go on at all


def test_one_call_names_all_that_is_wrong(bare: Workspace) -> None:
    outcome = bare.check("model.policy=./gone", "reward.terms.0.target=gone.py:f", "critic.warmup_steps=2")
    problems = {name for name, finding in outcome.findings.items() if finding["severity"] == "error"}
    assert problems == {"tokenizer/load", "reward/load", "config/warmup"}
    assert outcome.code == 2
    text = bare.run("check", "c.yaml", "model.policy=./gone")
    assert text.code == 2
    assert re.search(r"^  problem  load: the model folder does not exist.*\n +hint: \S", text.out, re.MULTILINE)


def test_a_reward_that_is_missing_does_not_hide_the_rest(space: Workspace) -> None:
    found = space.check("reward.terms.0.target=reward.py:gone").findings
    assert found["reward/load"]["severity"] == "error"
    assert found["identities/ratio"]["severity"] == "info"
    assert found["update/one"]["evidence"]["grad_norm"] > 0


def test_bad_rows_a_missing_column_and_no_room(space: Workspace) -> None:
    space.write("reward.py", REWARD + "\n\ndef graded(prompts, completions, answer):\n    return [0.0] * len(answer)\n")
    outcome = space.check("reward.terms.0.target=reward.py:graded", "rollout.max_new_tokens=126")
    assert worst(outcome, "prompts/rows")[0] == "error"
    assert "context of 128 tokens" in worst(outcome, "prompts/rows")[1]
    outcome = space.check("reward.terms.0.target=reward.py:graded")
    assert worst(outcome, "reward/columns")[0] == "error"
    assert "answer" in worst(outcome, "reward/columns")[1]


# -------------------------------------------------------------------------------------------- tokenizer and prompts


def test_a_template_that_closes_turns_with_a_token_that_ends_nothing(space: Workspace, toy: Path) -> None:
    other_tokenizer(space, toy, lambda settings: settings.update(eos_token="<unk>"))
    for name in ("config.json", "generation_config.json"):
        file = space.path / "toy" / name
        settings = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**settings, "eos_token_id": None}), encoding="utf-8")
    severity, said = worst(space.check(), "tokenizer/end")
    assert severity == "warning"
    assert "<|im_end|>" in said
    assert 'set rollout.stop: ["<|im_end|>"]' in said
    assert worst(space.check("rollout.stop=['<|im_end|>']"), "tokenizer/end")[0] == "info"


def test_a_tokenizer_without_an_end(space: Workspace, toy: Path) -> None:
    other_tokenizer(space, toy, lambda settings: settings.pop("eos_token"))
    for name in ("config.json", "generation_config.json"):
        file = space.path / "toy" / name
        settings = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**settings, "eos_token_id": None}), encoding="utf-8")
    outcome = space.check()
    assert worst(outcome, "tokenizer/end")[0] == "warning"
    assert "no end-of-sequence token" in worst(outcome, "tokenizer/end")[1]
    assert outcome.findings["responses/end"]["evidence"]["ended"] == 0


def test_alg_15_settings_of_the_model_folder_are_named_and_not_followed(space: Workspace, toy: Path) -> None:
    other_tokenizer(space, toy, lambda settings: None)
    asked = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    space.write("toy/generation_config.json", json.dumps(asked))
    finding = space.check().findings["tokenizer/generation_config"]
    assert finding["evidence"]["settings"] == asked
    assert "not followed" in finding["message"]
    assert finding["advice"]


def test_prompts_that_are_dropped_repeated_or_too_few(space: Workspace) -> None:
    space.write("prompts.jsonl", chats(["a film .", "A  film .", "a film", "a " * 60]))
    outcome = space.check("data.max_prompt_tokens=40")
    assert worst(outcome, "prompts/rows")[0] == "warning"
    assert outcome.findings["prompts/rows"]["evidence"]["dropped"] == 1
    assert worst(outcome, "prompts/duplicates")[0] == "warning"
    assert outcome.findings["prompts/duplicates"]["evidence"]["repeated"] == 1
    outcome = space.check("rollout.prompts_per_step=16")
    assert worst(outcome, "prompts/step")[0] == "warning"
    assert "there are 4" in worst(outcome, "prompts/step")[1]


def test_plain_prompts_for_a_chat_model_and_typed_control_tokens(space: Workspace) -> None:
    space.write("prompts.jsonl", '{"prompt": "Write a review <|im_end|>"}\n{"prompt": "Write a story"}\n')
    outcome = space.check()
    assert worst(outcome, "tokenizer/template")[0] == "warning"
    assert "2 of 2 prompts are plain text" in worst(outcome, "tokenizer/template")[1]
    assert "1 plain prompts spell special tokens (<|im_end|>)" in worst(outcome, "tokenizer/typed")[1]
    space.write("prompts.jsonl", chats(["a film <|im_end|> , a story", "a film"]))
    outcome = space.check()
    assert worst(outcome, "tokenizer/template")[0] == "info"
    severity, said = worst(outcome, "tokenizer/typed")
    assert "kept as text" in said if severity == "info" else "can end a turn" in said


# --------------------------------------------------------------------------------------------------------- reward


@pytest.mark.parametrize(
    ("body", "name", "severity", "words"),
    [
        ("[1.0] * len(completions)", "reward/values", "error", "there is nothing to learn from"),
        ("[float('nan')] * len(completions)", "reward/failures", "error", "16 of 16 scores failed"),
        ("[None, *[1.0, 0.0] * 7, 2.0]", "reward/failures", "error", "1 of 16 scores failed"),
        ("[1.0]", "reward/values", "error", "16"),
        ("1 / 0", "reward/failures", "error", "ZeroDivisionError"),
        ("[float(len(c)) for c in columns['completion_ids']]", "reward/length", "warning", "longer pays"),
        ("[{'a': float(i), 'b': 2.0} for i in range(len(completions))]", "reward/terms", "info", "b 2"),
    ],
)
def test_the_reward_is_tried(body: str, name: str, severity: str, words: str, space: Workspace) -> None:
    space.write("reward.py", f"def tone(prompts, completions, **columns):\n    return {body}\n")
    outcome = space.check("rollout.max_new_tokens=40")
    found = worst(outcome, name)
    assert found[0] == severity, outcome.findings
    assert words in found[1]
    assert outcome.code == (2 if severity == "error" else 0)


def test_failures_that_the_config_allows_are_a_warning(space: Workspace) -> None:
    space.write("reward.py", "def tone(prompts, completions):\n    return [None, *[1.0, 0.0] * 7, 2.0]\n")
    assert worst(space.check("reward.max_failures=0.5"), "reward/failures")[0] == "warning"


def test_a_slow_reward_is_measured(space: Workspace) -> None:
    space.write(
        "reward.py",
        "import time\ndef tone(prompts, completions):\n    time.sleep(0.2)\n    return [float(i) for i in range(16)]\n",
    )
    finding = space.check("reward.timeout_s=0.9", "rollout.prompts_per_step=40").findings["reward/time"]
    assert finding["severity"] == "warning"
    assert finding["evidence"]["seconds"] > 0.2
    assert finding["evidence"]["step_seconds"] == pytest.approx(finding["evidence"]["seconds"] * 2.5)


def test_the_best_and_the_worst_response_are_shown(space: Workspace) -> None:
    found = space.check().findings
    assert found["reward/highest"]["evidence"]["score"] == found["reward/values"]["evidence"]["max"]
    assert found["reward/lowest"]["evidence"]["score"] == found["reward/values"]["evidence"]["min"]
    assert found["reward/values"]["evidence"]["count"] == 16


# --------------------------------------------------------------------------------------------- that it can find them


def test_layouts_are_compared_on_rows_of_different_lengths() -> None:
    """Rows of one length need no padding, and would agree in a model that cannot tell padding from text."""
    rows = [Trajectory(range(5, 10), [False, False, True, True, True]) for _ in range(4)]
    lengths = uneven(Rollout.of(rows)).lengths.tolist()
    assert lengths == [5, 4, 3, 3]
    assert uneven(Rollout.of(rows)).mask.any(axis=1).all()


Break = Callable[[Any], object]


def sabotaged(space: Workspace, monkeypatch: pytest.MonkeyPatch, breakage: Break, *overrides: str) -> Outcome:
    """Check with the real parts, one of which is broken after it was built."""
    from surefoot.assembly import preflight

    build = preflight.build_parts

    def broken(config: Any, inputs: Any) -> Any:
        parts = build(config, inputs)
        breakage(parts)
        return parts

    monkeypatch.setattr(preflight, "build_parts", broken)
    return space.check(*overrides)


def _layer(parts: Any) -> Any:
    return parts.learner.policy.lm.model.model.layers[0]


def noise(parts: Any) -> None:
    import torch

    _layer(parts).register_forward_hook(lambda module, args, out: out + 0.01 * torch.randn_like(out))


def leak_between_rows(parts: Any) -> None:
    _layer(parts).register_forward_hook(lambda module, args, out: out + 0.1 * out.mean(dim=(0, 1), keepdim=True))


def other_reference(parts: Any) -> None:
    import torch

    with torch.no_grad():
        parts.reference.lm.model.model.layers[0].mlp.up_proj.weight.mul_(1.5)


def blind_critic(parts: Any) -> None:
    import torch

    with torch.no_grad():
        parts.learner.critic.head.weight.fill_(float("nan"))


@pytest.mark.parametrize(
    ("breakage", "name"),
    [
        (noise, "identities/repeat"),
        (noise, "identities/ratio"),
        (noise, "identities/engine"),
        (leak_between_rows, "identities/layout"),
        (other_reference, "identities/reference"),
        (blind_critic, "identities/critic"),
    ],
)
def test_a_broken_part_is_seen(breakage: Break, name: str, space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = sabotaged(space, monkeypatch, breakage)
    assert worst(outcome, name)[0] == "error", outcome.findings[name]
    assert outcome.code == 2


def test_another_reference_is_said_and_is_no_problem(space: Workspace) -> None:
    from surefoot.models.toy import make_toy_model

    make_toy_model(space.path / "other", seed=1)
    finding = space.check("model.reference=other").findings["identities/reference"]
    assert finding["severity"] == "info"
    assert "another model" in finding["message"]
    assert finding["evidence"]["gap"] > 0.1


def test_an_update_that_takes_the_policy_apart_is_seen(space: Workspace) -> None:
    assert worst(space.check("optim.policy_lr=1e-5"), "update/one")[0] == "info"
    severity, said = worst(space.check("optim.policy_lr=0.1"), "update/one")
    assert severity == "warning"
    assert "lower optim.policy_lr" in said


def test_a_gradient_that_is_not_finite_is_seen(space: Workspace) -> None:
    space.write("reward.py", "def tone(prompts, completions):\n    return [1e38 * (-1) ** i for i in range(16)]\n")
    assert worst(space.check("ppo.whiten=false"), "update/one")[0] == "error"


def test_weights_that_cannot_hold_an_update(space: Workspace) -> None:
    """Adam's epsilon is 0 in float16, and a bfloat16 weight has 8 bits: both train nothing, for hours."""
    outcome = space.check("model.dtype=float16")
    assert outcome.code == 2
    assert worst(outcome, "update/one")[0] == "error"
    assert "float16" in worst(outcome, "update/one")[1]
    severity, said = worst(space.check("model.dtype=bfloat16", "optim.policy_lr=1e-9"), "update/one")
    assert severity == "warning"
    assert "lost in rounding" in said


def test_a_best_checkpoint_by_a_metric_that_is_none(space: Workspace) -> None:
    severity, said = worst(space.check("checkpoint.best_by=score/meen"), "config/best_by")
    assert severity == "error"
    assert "score/mean" in said
    for metric in ("score/mean", "score/tone", "evaluate/score_mean"):
        assert worst(space.check(f"checkpoint.best_by={metric}"), "config/best_by")[0] == "info"


# ---------------------------------------------------------------------------------------------------------- machine


def test_a_model_that_does_not_fit_is_not_loaded(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.assembly import preflight

    monkeypatch.setattr(preflight, "memory_of", lambda device: (10**8, 2 * 10**8))
    outcome = space.check()
    assert worst(outcome, "machine/memory")[0] == "error"
    assert "an estimate" in worst(outcome, "machine/memory")[1]
    assert "not loaded" in worst(outcome, "model/load")[1]
    assert not any(name.startswith("identities/") for name in outcome.findings)


def test_memory_is_that_of_the_plan(space: Workspace) -> None:
    """Of the prompts as they are: one long one among short ones, and held-out ones that take most of all."""
    overrides = ("rollout.prompts_per_step=20", "rollout.max_new_tokens=3", "evaluate.max_new_tokens=40")
    texts = [f"Write one review about {n} ." for n in ("good " * 60, *"abcdefghijklmnopqrs")]
    space.write("prompts.jsonl", chats(texts))
    space.write("held-out.jsonl", chats(texts))
    found = space.check(*overrides).findings["machine/memory"]["evidence"]
    planned = json.loads(space.run("plan", "c.yaml", *overrides, "--json").out)
    assert found["total"] == planned["peak"]
    passing = {name: sum(phase["parts"].values()) for name, phase in planned["phases"].items()}
    assert {name: found[name] for name in passing} == passing
    short = space.check(*overrides, "data.max_prompt_tokens=50").findings["machine/memory"]["evidence"]
    assert short["update"] < 0.9 * found["update"]


def test_memory_that_runs_out_is_a_problem_and_no_traceback(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(parts: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nand more lines")

    outcome = sabotaged(space, monkeypatch, full)
    assert outcome.code == 2
    assert "Tried to allocate 20 GiB. it does not fit" in worst(outcome, "machine/room")[1]


def test_a_disk_without_room_for_checkpoints(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from surefoot.assembly import preflight

    monkeypatch.setattr(preflight, "free_disk", lambda folder: 1000)
    assert worst(space.check(), "machine/disk")[0] == "error"


def test_a_run_folder_in_the_way_is_said(space: Workspace) -> None:
    space.write("runs/c/config.yaml", "")
    assert "--resume" in worst(space.check(), "machine/run_folder")[1]


def test_a_gpu_that_is_not_there(space: Workspace) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    outcome = space.check("run.device=cuda")
    assert worst(outcome, "machine/device")[0] == "error"
    assert "identities/ratio" in outcome.findings, "the rest is checked on the CPU"
