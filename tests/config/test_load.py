"""What a config file says is what a run uses: precedence, paths, and a config that was written out and read again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from surefoot.config import Config, build_config, dump_config, known_keys, load_config, require
from surefoot.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "src" / "surefoot").rglob("quickstart_files/*.yaml"))

REMOTE = {
    "token_env": "REWARD_TOKEN",
    "timeout_s": 1.5,
    "patience_s": 20.0,
    "rows": 3,
    "concurrency": 2,
    "overlap": False,
}
# Another value than the default for every key there is.
OTHER: dict[str, Any] = {
    "run": {
        "name": "no",  # a word that YAML 1.1 reads as a boolean unless it is quoted
        "dir": "elsewhere",
        "seed": 7,
        "steps": 3,
        "device": "cpu",
        "threads": 1,
        "time_budget_s": 1e-6,  # without a dot this is a text to YAML 1.1
    },
    "model": {
        "policy": "some/model",
        "reference": "some/other",
        "dtype": "float64",
        "lora": {"rank": 2, "alpha": 3.0, "targets": ["q_proj", "v_proj"]},
        "quantize": "int8",
        "chat_template": "{{ messages }}\n",
        "trust_remote_code": True,
        "gradient_checkpointing": True,
    },
    "critic": {
        "kind": "shared",
        "init": "quality",
        "url": "http://x",
        "token_env": "CRITIC_TOKEN",
        "timeout_s": 2.5,
        "patience_s": 30.0,
        "overlap": False,
        "warmup_steps": 2,
        "warmup_explained_variance": 0.5,
    },
    "reward": {
        "composite": "handbook",
        "terms": [
            {"name": "quality", "kind": "model", "target": "some/reward", "weight": -2.0, "clip": 3.0}
            | {"ensemble": "lower", "ensemble_c": 2.0, "center": 0.5, "scale": 2.0}
            | {"options": {}, "missing": None, "stand_in": None, "report": "some/report"},
            {"name": "people", "kind": "human", "target": "some", "missing": "model", "stand_in": "quality"},
            {"name": "exact", "kind": "check", "target": "exact", "options": {"column": "gold", "after": "no"}},
            {"name": "short", "kind": "function", "target": "pack.module:name", "weight": 1.0, "clip": [-1.0, 2.0]},
            {"name": "far", "kind": "remote", "target": ["http://a:1/score.py", "https://[::1]:2"]} | REMOTE,
        ],
        "on_failure": "stop",
        "max_failures": 0.5,
        "timeout_s": 1.5,
        "clip": 4.0,
        "normalise": "reference",
    },
    "data": {
        "prompts": "some/data:train",
        "column": "question",
        "max_prompt_tokens": 9,
        "overlong": "left",
        "bad_rows": "skip",
        "shuffle": False,
        "drop_last": True,
        "allow": ["pending", "personal"],
        "require_card": True,
    },
    "rollout": {
        "engine": "vllm",
        "prompts_per_step": 3,
        "samples_per_prompt": 2,
        "max_new_tokens": 5,
        "temperature": 0.7,
        "top_k": 4,
        "top_p": 0.9,
        "stop": ["\n", "null", "é"],
        "max_rows": 2,
        "decode_weights": "stored",
    },
    "ppo": {
        "epochs": 3,
        "minibatches": 4,
        "gamma": 0.9,
        "lam": 0.5,
        "surrogate": "kl",
        "surrogate_kl": {"coef": 2.0, "target": 0.5},
        "clip_low": 0.1,
        "clip_high": 0.3,
        "dual_clip": 3.0,
        "value_clip": None,
        "value_coef": 0.1,
        "entropy_coef": 0.01,
        "cut_off": "bootstrap",
        "missing_eos_penalty": 2.0,
        "old_logp": "read",
        "whiten": False,
        "aggregate": "sequence-sum",
        "max_update_kl": 0.1,
        "kl": {
            "coef": 0.1,
            "place": "loss",
            "estimator": "k2",
            "controller": "adaptive",
            "target": 6.0,
            "horizon": 100.0,
        },
    },
    "optim": {
        "policy_lr": 3e-7,
        "offload": True,
        "critic_lr": 3e-6,
        "schedule": "cosine",
        "warmup_steps": 3,
        "betas": [0.8, 0.95],
        "eps": 1e-5,
        "weight_decay": 0.1,
        "max_grad_norm": None,
    },
    "batch": {"tokens": 100, "packing": "off", "side_by_side": "on"},
    "checkpoint": {"every": 2, "keep": 1, "best_by": "score/mean"},
    "evaluate": {
        "prompts": "some/data:test",
        "every": 2,
        "max_prompts": 4,
        "samples_per_prompt": 2,
        "temperature": 0.0,
        "top_k": 2,
        "top_p": 0.5,
        "max_new_tokens": 6,
        "seed": 3,
    },
    "stop": {"patience": 2, "kl_budget": 9.0, "score": -1.5},
    "track": {"tensorboard": True, "samples_every": 1},
    "guard": {"max_skipped": 1},
    "serve": {
        "roles": ["critic", "reward"],
        "reward": "some/reward",
        "host": "0.0.0.0",
        "port": 1,
        "token_env": "SERVICE_TOKEN",
        "dir": "elsewhere",
        "body_mb": 1,
        "max_rows": 2,
        "queue": 3,
        "batch_wait_ms": 0.5,
        "memory": "turns",
        "trunk": "one",
        "lease_s": 4.0,
        "drain_s": 5.0,
    },
    "sft": {
        "data": "some/chats",
        "held_out": "some/chats:test",
        "held_out_share": 0.2,
        "epochs": 0.5,
        "steps": 3,
        "lr": 1e-3,
        "max_tokens": 40,
        "overlong": "cut",
        "bad_rows": "skip",
        "publish": "last",
        "rows_per_step": 3,
        "turns": "last",
        "messages_column": "dialogue",
        "prompt_column": "question",
        "completion_column": "answer",
        "text_column": "body",
    },
    "reward_model": {
        "data": "some/pairs",
        "held_out": "some/pairs:test",
        "held_out_share": 0.2,
        "epochs": 2.0,
        "steps": 3,
        "lr": 1e-3,
        "max_tokens": 40,
        "overlong": "error",
        "bad_rows": "skip",
        "publish": "last",
        "init": "some/model",
        "head_lr": 1e-2,
        "pairs_per_step": 3,
        "tasks": "some/tasks",
        "min_gap": 0.5,
        "pairs_per_prompt": 4,
        "transcripts": "text",
        "margin_scale": 0.5,
        "centering": 0.0,
        "heads": 3,
    },
    "sample": {
        "prompts": "some/prompts",
        "max_prompts": 3,
        "answers": 4,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "max_new_tokens": 6,
        "file": "elsewhere.jsonl",
    },
    "cluster": {"nodes": 2},
    "registry": {"path": "x"},
    "gateway": {"port": 2},
}


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def leaves(model: BaseModel, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def test_the_other_config_sets_every_key_to_another_value() -> None:
    """A new key must be added to OTHER, so that the round trip below covers it."""
    default, other = leaves(Config()), leaves(build_config(OTHER))
    assert [key for key, value in default.items() if key in other and other[key] == value] == []
    terms = {f"reward.terms.{key}" for term in OTHER["reward"]["terms"] for key in term}
    covered = {key.rstrip("0123456789.") for key in other} | terms
    sections = {key for key in known_keys() if any(k.startswith(f"{key}.") for k in known_keys())}
    assert set(known_keys()) - sections <= covered | set(OTHER)


TREACHEROUS = [
    "no",
    "off",
    "y",
    "1e5",
    "1.5e3",
    "1e-6",
    "null",
    "~",
    "true",
    "3",
    "0x1f",
    "1_0",
    "12:30",
    "=",
    "- a",
    "",
]


@pytest.mark.parametrize(
    "tree",
    [{}, OTHER, {"rollout": {"stop": TREACHEROUS}, "data": {"column": "1e5"}, "run": {"name": "off", "dir": "yes"}}],
    ids=["defaults", "every key changed", "texts that look like something else"],
)
def test_a_config_that_was_written_out_is_read_as_the_same(tree: dict[str, Any], tmp_path: Path) -> None:
    config = build_config(tree)
    if config.run.name is None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": "c"})})
    again = load_config(write(tmp_path / "c.yaml", dump_config(config)))
    assert again == config
    assert dump_config(again) == dump_config(config)
    assert build_config(yaml.safe_load(dump_config(config))) == config, "other tools read config.yaml as well"


def test_a_resolved_config_is_complete_and_resolves_to_itself(tmp_path: Path) -> None:
    write(tmp_path / "run" / "prompts.jsonl", "")
    write(tmp_path / "run" / "reward.py", "")
    (tmp_path / "run" / "model").mkdir()
    first = load_config(
        write(
            tmp_path / "run" / "c.yaml",
            "model: {policy: model}\ndata: {prompts: prompts.jsonl}\n"
            "reward: {terms: [{name: a, target: 'reward.py:f'}]}\n",
        )
    )
    text = dump_config(first)
    elsewhere = load_config(write(tmp_path / "elsewhere" / "config.yaml", text))
    assert elsewhere == first
    assert first.model.policy == str(tmp_path / "run" / "model")
    assert first.data.prompts == str(tmp_path / "run" / "prompts.jsonl")
    assert first.reward.terms[0].target == f"{tmp_path / 'run' / 'reward.py'}:f"
    written = yaml.safe_load(text)
    absent = ("reward.terms.", "model.lora.", "serve.")
    missing = [k for k in known_keys() if not k.startswith(absent) and not _has(written, k)]
    assert missing == []


def _has(tree: Any, path: str) -> bool:
    for part in path.split("."):
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def test_the_last_override_wins_over_earlier_ones_and_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "ppo: {epochs: 3, lam: 0.5, kl: {coef: 0.3}}\n")
    config = load_config(file, ["ppo.epochs=5", "ppo.epochs=4", "ppo.kl.place=loss"])
    assert config.ppo.epochs == 4
    assert config.ppo.lam == 0.5
    assert (config.ppo.kl.coef, config.ppo.kl.place) == (0.3, "loss"), "an override of one key must keep the others"
    assert config.ppo.gamma == Config().ppo.gamma


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("optim.policy_lr=1e-6", "optim.policy_lr", 1e-6),
        ("rollout.stop=['a: b', \"\\n\"]", "rollout.stop", ["a: b", "\n"]),
        ("model.lora.rank=4", "model.lora.rank", 4),
        ("ppo.value_clip=null", "ppo.value_clip", None),
        ("ppo.value_clip=", "ppo.value_clip", None),
        ("reward.terms.0.weight=-2", "reward.terms.0.weight", -2.0),
        ("reward.terms.0.target=a=b.py:f", "reward.terms.0.target", None),
        ("run.name='7'", "run.name", "7"),
    ],
)
def test_an_override_is_read_as_yaml(override: str, key: str, value: Any, tmp_path: Path) -> None:
    config = load_config(write(tmp_path / "c.yaml", "reward: {terms: [{name: a, target: b:c}]}"), [override])
    found: Any = config.model_dump()
    for part in key.split("."):
        found = found[int(part) if part.isdigit() else part]
    assert str(found).endswith("a=b.py:f") if value is None and "target" in key else found == value


@pytest.mark.parametrize(
    ("key", "word"),
    [("packing", w) for w in ("on", "off", "'off'", "auto")] + [("side_by_side", w) for w in ("on", "off", "'on'")],
)
def test_on_and_off_are_words(key: str, word: str, tmp_path: Path) -> None:
    """YAML 1.1 reads them as booleans, and the documented value would be refused."""
    file = write(tmp_path / "c.yaml", f"batch: {{{key}: {word}}}\n")
    assert getattr(load_config(file).batch, key) == word.strip("'")
    written = load_config(write(tmp_path / "d.yaml", ""), [f"batch.{key}={word}"])
    assert getattr(written.batch, key) == word.strip("'")


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("False", False), ("yes", True), ("no", False), ("on", True), ("off", False)]
)
def test_switches_take_every_word_for_them(text: str, value: bool, tmp_path: Path) -> None:
    assert load_config(write(tmp_path / "c.yaml", f"ppo: {{whiten: {text}}}\n")).ppo.whiten is value


@pytest.mark.parametrize("text", ["1e-6", "1.0e-6", "1E-6", "+1e-06", ".000001", "0.000001"])
def test_numbers_as_people_write_them(text: str, tmp_path: Path) -> None:
    assert load_config(write(tmp_path / "c.yaml", f"optim: {{policy_lr: {text}}}\n")).optim.policy_lr == 1e-6


def test_the_file_names_the_run_unless_it_says_so(tmp_path: Path) -> None:
    assert load_config(write(tmp_path / "my run #2.yaml", "")).run.name == "my-run--2"
    assert load_config(write(tmp_path / ".hidden.yaml", "")).run.name == "hidden"
    assert load_config(write(tmp_path / "c.yaml", "run: {name: other}")).run.name == "other"
    assert load_config(tmp_path / "c.yaml", ["run.name=third"]).run.name == "third"


def test_paths_beside_the_config_come_before_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("here", "there"):
        write(tmp_path / folder / "both.jsonl", "")
        write(tmp_path / folder / f"only-{folder}.jsonl", "")
    monkeypatch.chdir(tmp_path / "here")
    file = write(tmp_path / "there" / "c.yaml", "data: {prompts: both.jsonl}\nevaluate: {prompts: only-here.jsonl}\n")
    config = load_config(file)
    assert config.data.prompts == str(tmp_path / "there" / "both.jsonl")
    assert config.evaluate.prompts == str(tmp_path / "here" / "only-here.jsonl")


def test_what_is_not_found_stays_a_hub_id_unless_it_is_named_as_a_file(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "model: {policy: org/name}\ndata: {prompts: gone.jsonl}\n")
    config = load_config(file)
    assert config.model.policy == "org/name"
    assert config.data.prompts == str(tmp_path / "gone.jsonl"), "the message must say where it was looked for"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_a_shipped_config_has_all_that_train_needs(example: Path) -> None:
    require(load_config(example), "train")


def test_there_are_shipped_configs() -> None:
    assert len(EXAMPLES) >= 2


def test_every_missing_key_is_named_with_its_meaning() -> None:
    with pytest.raises(ConfigError, match="needs 4 more key") as caught:
        require(Config(), "train")
    assert all(k in str(caught.value) for k in ("run.steps", "model.policy", "reward.terms", "data.prompts"))


def test_reading_a_config_loads_no_torch(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", dump_config(build_config(OTHER)))
    code = "import sys; from surefoot.config import load_config as f; f(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
