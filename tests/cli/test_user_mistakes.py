"""A user's mistake is one paragraph with a hint and exit code 2; nothing is written, and there is no traceback."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import REWARD, Outcome, Workspace, chats

PARAGRAPH = re.compile(r"error: [^\n]+\nhint: [^\n]+\n")


def refused(space: Workspace, *arguments: str) -> str:
    """Run the command, check all that holds for every mistake, and return what was said."""
    before = space.contents()
    outcome = space.run(*(arguments or ("train", "c.yaml")))
    check_refusal(outcome)
    assert space.contents() == before, "something was written"
    return outcome.err


def check_refusal(outcome: Outcome) -> None:
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert "Traceback" not in outcome.err
    assert PARAGRAPH.fullmatch(outcome.err), outcome.err
    assert "hint:" not in outcome.err.splitlines()[0], "the hint stands twice"


# ------------------------------------------------------------------------------------------- found in the config


def test_a_config_that_does_not_exist(bare: Workspace) -> None:
    assert "the config file does not exist; got: gone.yaml" in refused(bare, "train", "gone.yaml")
    assert "the config is a folder" in refused(bare, "train", ".")


def test_a_fault_in_the_yaml(bare: Workspace) -> None:
    bare.write("c.yaml", "run:\n  steps: [1\nmodel: {}\n")
    assert "is not valid YAML" in refused(bare)


def test_ux_01_unknown_keys(bare: Workspace) -> None:
    bare.write("c.yaml", "ppo:\n  clip_rang: 0.1\nlearning_rate: 1e-6\n")
    said = refused(bare)
    assert "2 faults" in said
    assert "ppo.clip_low" in said
    assert "optim.policy_lr" in said


def test_required_keys_that_are_missing(bare: Workspace) -> None:
    bare.write("c.yaml", "ppo: {epochs: 1}\n")
    said = refused(bare)
    assert all(key in said for key in ("run.steps", "model.policy", "reward.terms", "data.prompts"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("ppo.clip_lwo=0.1", "did you mean ppo.clip_low?"),
        ("ppo.kl", "an override must look like section.key=value"),
        ("rollout.top_p=0.9", "top-k and top-p make the sampled distribution another than the trained one"),
        ("rollout.top_k=5", "top-k and top-p"),
        ("rollout.temperature=0", "rollout.temperature: must be greater than 0"),
        ("ppo.kl.estimator=k3", "k3 as a reward is biased"),
        ("ppo.kl.controller=adaptive", "an adaptive controller needs target and horizon"),
        ("ppo.minibatches=5", "more minibatches than trajectories in a step"),
        ("critic.init=elsewhere", "critic.init has no effect with kind: shared"),
        ("rollout.engine=vllm", "not available in this version"),
        ("stop.patience=2", "there are none during the run"),
        ("critic.warmup_explained_variance=0.5", "ends a warm-up that"),
        ("run.device=gpu", "run.device"),
        (
            "reward.terms=[{name: a, target: 'x.py:f'}, {name: a, target: 'x.py:f'}]",
            "two reward terms have the same name",
        ),
    ],
)
def test_a_combination_that_cannot_work(override: str, words: str, bare: Workspace) -> None:
    assert words in refused(bare, "train", "c.yaml", override)


def test_a_run_folder_in_the_way(bare: Workspace) -> None:
    bare.write("runs/c/config.yaml", "kept\n")
    said = refused(bare)
    assert "the run folder runs/c exists" in said
    assert "--resume" in said


@pytest.mark.parametrize("key", ["data.prompts", "evaluate.prompts"])
def test_prompts_that_do_not_exist(key: str, bare: Workspace) -> None:
    said = refused(bare, "train", "c.yaml", f"{key}=promts.jsonl")
    assert f"the data file does not exist; got: {bare.path / 'promts.jsonl'}" in said
    assert f"did you mean {bare.path / 'prompts.jsonl'}?" in said


def test_config_errors_come_before_heavy_imports(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands import before they look at the config; that nothing heavy is behind it is tested in
    test_real_command."""
    monkeypatch.setitem(sys.modules, "surefoot.assembly.train", None)
    monkeypatch.setitem(sys.modules, "surefoot.assembly.preflight", None)
    refused(bare, "train", "c.yaml", "ppo.lamda=1")
    refused(bare, "check", "c.yaml", "ppo.lamda=1")
    refused(bare, "train", "c.yaml", "data.prompts=gone.jsonl")


# --------------------------------------------------------------------------------------------- found in the data


ROWS: list[tuple[str, str, str]] = [
    ("", "prompts.jsonl has no rows", "one JSON object a line"),
    ("\n\n", "prompts.jsonl has no rows", "one JSON object a line"),
    ('{"text": "a"}\n', "has the column 'prompt'", "data.column"),
    ('{"prompt": "a"}\n{"prompt": \n', "prompts.jsonl line 2: not JSON", "data.bad_rows"),
    ('{"prompt": "a"}\n[]\n{"prompt": ""}\n', "line 2: an array", "data.bad_rows"),
    ('{"prompt": [{"role": "assistant", "content": "x"}]}\n', "no user turn", "correct them"),
    ('[{"prompt": "a"}]\n', "an array", "one JSON object a line"),
    (chats(["a " * 30]), "every prompt is longer than data.max_prompt_tokens", "data.overlong"),
    (chats(["a " * 20, "a"]).replace("a " * 20, "a " * 15), "do not fit the model's context", "data.max_prompt_tokens"),
]


@pytest.mark.parametrize(("text", "words", "hint"), ROWS, ids=[words for _, words, _ in ROWS])
def test_prompts_that_cannot_be_used(text: str, words: str, hint: str, space: Workspace) -> None:
    space.write("prompts.jsonl", text)
    space.set({"data": {"prompts": "prompts.jsonl", "max_prompt_tokens": 24}, "rollout": {"max_new_tokens": 110}})
    said = refused(space)
    assert words in said
    assert hint in said


def test_a_column_that_is_not_there(space: Workspace) -> None:
    said = refused(space, "train", "c.yaml", "data.column=promt")
    assert "no row of" in said
    assert "set data.column: prompt" in said


def test_long_prompts_that_are_refused(space: Workspace) -> None:
    said = refused(space, "train", "c.yaml", "data.max_prompt_tokens=3", "data.overlong=error")
    assert "4 prompts are longer than data.max_prompt_tokens" in said


def test_dropping_the_only_batch(space: Workspace) -> None:
    assert "drop_last leaves nothing" in refused(
        space, "train", "c.yaml", "data.drop_last=true", "rollout.prompts_per_step=8"
    )


# ------------------------------------------------------------------------------------------- found in the models


@pytest.mark.parametrize("policy", ["./gone", "empty", "org/no-such-model"])
def test_a_model_that_does_not_exist(policy: str, bare: Workspace) -> None:
    (bare.path / "empty").mkdir()
    said = refused(bare, "train", "c.yaml", f"model.policy={policy}")
    assert "model" in said
    assert policy.strip("./") in said


def test_tok_09_messages_for_a_model_without_a_chat_template(space: Workspace, toy: Path) -> None:
    (space.path / "toy").unlink()
    shutil.copytree(toy, space.path / "toy")
    (space.path / "toy" / "chat_template.jinja").unlink(missing_ok=True)
    settings = space.path / "toy" / "tokenizer_config.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "chat_template"}))
    (space.path / "toy" / "model.safetensors").unlink()  # found before weights are looked at
    said = refused(space)
    assert f"{space.path / 'toy'} has no chat template" in said
    assert "set model.chat_template" in said
    assert "plain string needs none" in said


def test_weights_that_are_missing(space: Workspace, toy: Path) -> None:
    (space.path / "toy").unlink()
    shutil.copytree(toy, space.path / "toy")
    (space.path / "toy" / "model.safetensors").unlink()
    assert "the model could not be loaded" in refused(space)


def test_lora_targets_that_match_nothing(space: Workspace) -> None:
    said = refused(space, "train", "c.yaml", "model.lora.targets=[qq_proj]")
    assert "qq_proj" in said


@pytest.mark.parametrize(
    ("init", "words"),
    [("tone", "critic.init names a reward term that is not a model"), ("./gone", "the model folder does not exist")],
)
def test_a_critic_that_starts_from_nothing(init: str, words: str, space: Workspace) -> None:
    said = refused(space, "train", "c.yaml", "critic.kind=separate", f"critic.init={init}")
    assert words in said


def test_a_chat_template_that_is_no_file(space: Workspace) -> None:
    said = refused(space, "train", "c.yaml", "model.chat_template=gone.jinja")
    assert "neither a Jinja template nor a readable file; got: gone.jinja" in said


def test_a_gpu_that_is_not_there(space: Workspace) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert "run.device asks for a GPU and torch sees none" in refused(space, "train", "c.yaml", "run.device=cuda")


def test_an_optional_package_that_is_missing(space: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    said = refused(space, "train", "c.yaml", "track.tensorboard=true")
    assert "needs the package 'tensorboard'" in said
    assert "pip install 'surefoot[track]'" in said


# ------------------------------------------------------------------------------------------- found in the reward


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("gone.py:tone", "gone.py cannot be read"),
        ("reward.py:tune", "has no 'tune'"),
        ("reward.py", "a reward function's target must name a function"),
        ("no_such_package.module:f", "there is no module 'no_such_package.module'"),
        ("reward.py:GOOD", "is not a function"),
        ("broken.py:f", "does not load"),
        ("narrow.py:f", "no place for the completions"),
    ],
)
def test_a_reward_that_cannot_be_called(target: str, words: str, space: Workspace) -> None:
    space.write("broken.py", "import nothing_of_that_name\n")
    space.write("narrow.py", "def f(prompts):\n    return prompts\n")
    said = refused(space, "train", "c.yaml", f"reward.terms.0.target={target}")
    assert words in said


def test_a_column_that_the_reward_needs(space: Workspace) -> None:
    space.write("reward.py", REWARD + "\n\ndef graded(prompts, completions, answer):\n    return [0.0] * len(answer)\n")
    said = refused(space, "train", "c.yaml", "reward.terms.0.target=reward.py:graded")
    assert "reward tone needs the column(s) answer" in said
    assert f"{space.path / 'prompts.jsonl'} does not have" in said
    space.write("prompts.jsonl", '{"prompt": "a film", "answer": "good"}\n')
    said = refused(space, "train", "c.yaml", "reward.terms.0.target=reward.py:graded")
    assert "held-out.jsonl does not have" in said, "held-out prompts are scored as well"


def test_a_reward_model_that_is_none(space: Workspace) -> None:
    said = refused(space, "train", "c.yaml", "reward.terms=[{name: quality, kind: model, target: toy}]")
    assert "is not a reward model" in said


# -------------------------------------------------------------------------------------------------- other commands


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs", "list", "gone"),
        ("runs", "compare", "gone", "gone"),
        ("quickstart", "--size", "huge"),
        ("check", "gone.yaml"),
    ],
)
def test_the_other_commands_say_so_too(arguments: tuple[str, ...], bare: Workspace) -> None:
    refused(bare, *arguments)


def test_columns_of_any_type_go_through_a_whole_run(space: Workspace) -> None:
    """Bytes and dates reach the reward; nothing that a run writes needs them to be JSON."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [f"Write one review about a {a} film ." for a in ("new", "old", "slow", "loud")]
    columns = {"prompt": texts, "day": [datetime.date(2024, 1, 1)] * 4, "raw": [b"\xff"] * 4, "no": [None] * 4}
    pq.write_table(pa.table(columns), space.path / "p.parquet")
    space.write(
        "reward.py",
        "def tone(completions, day, raw, **columns):\n    return [float(d.year + r[0]) for d, r in zip(day, raw)]",
    )
    outcome = space.run("train", "c.yaml", "data.prompts=p.parquet", "evaluate.prompts=p.parquet", "run.steps=1")
    assert outcome.code == 0, outcome
    assert json.loads((space.path / "runs/c/metrics.jsonl").read_text())["score/mean"] == 2024 + 255


@pytest.mark.parametrize(
    "arguments", [("train",), ("trian", "c.yaml"), ("train", "c.yaml", "--resum"), ("runs", "lst")]
)
def test_a_command_line_that_is_wrong(arguments: tuple[str, ...], bare: Workspace) -> None:
    outcome = bare.run(*arguments)
    assert outcome.code == 2
    assert "Error: " in outcome.err
    assert "--help" in outcome.err
    assert outcome.out == ""


def test_a_setting_without_effect_is_said(bare: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted, since nothing is wrong with it, and said, since the user expects it to act."""

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("surefoot.assembly.train.train", stop)
    outcome = bare.run("train", "c.yaml", "ppo.missing_eos_penalty=3")
    assert outcome.code == 130
    assert "ppo.missing_eos_penalty: 3.0 has no effect: ppo.cut_off is not penalise" in outcome.err
    assert "has no effect" not in bare.run("train", "c.yaml").err
