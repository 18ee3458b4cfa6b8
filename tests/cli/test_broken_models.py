"""A broken model folder is one paragraph in every command, and a problem among others for ``check``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import Workspace
from tests.cli.test_user_mistakes import check_refusal, refused

WEIGHTS = "model.safetensors"
Break = Callable[[Path], Any]


def config(**keys: Any) -> Break:
    """Keys of config.json set, or taken out with ``...``."""
    return edited("config.json", **keys)


def edited(name: str, **keys: Any) -> Break:
    def change(folder: Path) -> None:
        tree = json.loads((folder / name).read_text()) | keys
        (folder / name).write_text(json.dumps({key: value for key, value in tree.items() if value is not ...}))

    return change


def written(name: str, data: bytes | str) -> Break:
    return lambda folder: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def cut(name: str, share: float) -> Break:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return change


def folder_instead(name: str) -> Break:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return change


def tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Break:
    def changed(folder: Path) -> None:
        save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, {"format": "pt"})

    return changed


def index(text: str) -> Break:
    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / f"{WEIGHTS}.index.json").write_text(text)

    return change


CONFIGS: dict[str, tuple[Break, str]] = {
    "no JSON": (written("config.json", "{abc"), "config could not be read"),
    "empty": (written("config.json", ""), "config could not be read"),
    "zeros": (written("config.json", bytes(100)), "config could not be read"),
    "an array": (written("config.json", "[1]"), "config could not be read"),
    "null": (written("config.json", "null"), "config could not be read"),
    "nothing in it": (written("config.json", "{}"), "config could not be read"),
    "too deep": (written("config.json", "[" * 100_000), "config could not be read"),
    "a folder": (folder_instead("config.json"), "config could not be read"),
    "a type of nobody": (config(model_type="nobody"), "config could not be read"),
    "no type": (config(model_type=...), "config could not be read"),
    "a number as type": (config(model_type=7), "config could not be read"),
    "a list as type": (config(model_type=["llama"]), "config could not be read"),
    "its own code": (config(model_type="own", auto_map={"AutoConfig": "own.Config"}), "config could not be read"),
    "another type": (config(model_type="gpt2"), "weights"),
    "an encoder and decoder": (config(model_type="t5"), "could not be loaded"),
    "a number as architecture": (config(architectures=3), "architectures: 3"),
    "a classifier": (config(architectures=["LlamaForSequenceClassification"]), "no causal language model"),
    "no width": (config(hidden_size=...), "not a multiple"),
    "a text as width": (config(hidden_size="abc"), "'hidden_size' expected int, got str"),
    "width 0": (config(hidden_size=0), "hidden_size: 0"),
    "width -1": (config(hidden_size=-1), "config could not be read"),
    "another width": (config(hidden_size=96), "could not be loaded"),
    "no heads": (config(num_attention_heads=0), "config could not be read"),
    "a text as heads": (config(num_attention_heads="x"), "expected int, got str"),
    "no key heads": (config(num_key_value_heads=0), "could not be loaded"),
    "no layers": (config(num_hidden_layers=0), "num_hidden_layers: 0"),
    "too many layers": (config(num_hidden_layers=4), "are not in the model's files"),
    "a vocabulary of 0": (config(vocab_size=0), "vocab_size: 0"),
    "a vocabulary without end": (config(vocab_size=10**10), "impossible size"),
    "no activation": (config(hidden_act="nobody"), "could not be loaded"),
    "no rotation": (config(rope_parameters={"rope_type": "nobody"}), ""),
    "a text as window": (config(sliding_window="x"), "sliding_window: 'x'"),
    "a number as text model": (config(text_config=3), "text_config: 3"),
    "quantized by nobody": (config(quantization_config={"quant_method": "nobody"}), "hold quantized weights"),
}
FILES: dict[str, tuple[Break, str]] = {
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "could not be loaded"),
    "empty weights": (written(WEIGHTS, b""), "could not be loaded"),
    "garbage": (written(WEIGHTS, b"\xff" * 1000), "could not be loaded"),
    "half of the weights": (cut(WEIGHTS, 0.5), "could not be loaded"),
    "a piece of their header": (cut(WEIGHTS, 0.01), "could not be loaded"),
    "a header without end": (written(WEIGHTS, (2**62).to_bytes(8, "little") + b"{}"), "could not be loaded"),
    "a folder as weights": (folder_instead(WEIGHTS), "could not be loaded"),
    "a tensor missing": (tensors(lambda t: dict(list(t.items())[1:])), "are not in the model's files"),
    "no tensors": (tensors(lambda t: {}), "are not in the model's files"),
    "other shapes": (tensors(lambda t: {n: x[:-1].contiguous() for n, x in t.items()}), "could not be loaded"),
    "no numbers": (tensors(lambda t: {n: x * torch.nan for n, x in t.items()}), ""),
    "pickled": (lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"), "could not be loaded"),
    "an index that is no JSON": (index("{"), "could not be loaded"),
    "an index of nothing": (index("{}"), "could not be loaded"),
    "an index of what is not there": (index('{"metadata": {}, "weight_map": {"a": "x.safetensors"}}'), "could not be"),
    "a broken tokenizer": (written("tokenizer.json", "{"), "the tokenizer of"),
    "half a tokenizer": (cut("tokenizer.json", 0.5), "the tokenizer of"),
    "an empty tokenizer": (written("tokenizer.json", "{}"), "the tokenizer of"),
    "a folder as tokenizer": (folder_instead("tokenizer.json"), ""),
    "a broken tokenizer config": (written("tokenizer_config.json", "{"), "the tokenizer of"),
    "an array as tokenizer config": (written("tokenizer_config.json", "[]"), "the tokenizer of"),
    "a broken template": (written("chat_template.jinja", "{% for"), "is not valid Jinja"),
    "a template that divides by zero": (written("chat_template.jinja", "{{ 1 / 0 }}"), "refuses the messages"),
    "a broken generation config": (written("generation_config.json", "{"), "generation_config.json"),
}
ADAPTERS: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "could not be read"),
    "an array": ("[]", "must hold a JSON object"),
    "no base": ("{}", "which base model"),
    "a number as base": ('{"base_model_name_or_path": 3}', "which base model"),
    "a base with a NUL": (r'{"base_model_name_or_path": "a\u0000b"}', "cannot be a path"),
    "a base without end": (json.dumps({"base_model_name_or_path": "x" * 5000}), "cannot be a path"),
    "half a character": (r'{"base_model_name_or_path": "\ud800"}', "cannot be a path"),
    "another kind": ('{"base_model_name_or_path": "../toy", "peft_type": "NOBODY"}', "only LoRA adapters"),
    "no weights": ('{"base_model_name_or_path": "../toy", "peft_type": "LORA"}', "has no adapter_model.safetensors"),
}


def broken(space: Workspace, toy: Path, change: Break) -> None:
    shutil.copytree(toy, space.path / "broken")
    change(space.path / "broken")


def check_all(space: Workspace, words: str, key: str = "model.policy") -> None:
    """What every command makes of the folder ``broken``; ``plan`` may do without what is broken."""
    assert words in refused(space, "train", "c.yaml", f"{key}=broken")
    checked = space.run("check", "c.yaml", f"{key}=broken")
    assert (checked.code, checked.err) == (2, "")
    assert "problem" in checked.out
    planned = space.run("plan", "c.yaml", f"{key}=broken")
    if planned.code not in (0, 1):
        check_refusal(planned)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_broken_config(name: str, space: Workspace, toy: Path) -> None:
    change, words = CONFIGS[name]
    broken(space, toy, change)
    check_all(space, words)


@pytest.mark.parametrize("name", FILES)
def test_broken_files(name: str, space: Workspace, toy: Path) -> None:
    change, words = FILES[name]
    broken(space, toy, change)
    check_all(space, words)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_broken_adapter(name: str, space: Workspace) -> None:
    text, words = ADAPTERS[name]
    space.write("broken/adapter_config.json", text)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(space.path / "toy" / file, space.path / "broken")
    check_all(space, words)


ROLES = {
    "model.reference": {},
    "critic.init": {"critic": {"kind": "separate"}},
    "reward.terms.0.target": {"reward": {"terms": [{"name": "judge", "kind": "model", "target": "toy"}]}},
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["no JSON", "a text as width", "a list as type"])
def test_a_broken_config_in_other_roles(role: str, name: str, space: Workspace, toy: Path) -> None:
    space.set(ROLES[role])
    broken(space, toy, CONFIGS[name][0])
    check_all(space, "broken", role)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["half of the weights", "garbage"])
def test_broken_weights_in_other_roles(role: str, name: str, space: Workspace, toy: Path) -> None:
    space.set(ROLES[role])
    broken(space, toy, FILES[name][0])
    check_all(space, "broken", role)
