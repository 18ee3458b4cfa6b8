"""GGUF conversion: tiny random Llamas written here with the gguf package, against the models they were made from."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from surefoot.errors import MissingExtra, ModelError
from surefoot.models.gguf import MANIFEST, conversion_problem, convert_gguf
from tests.models.tiny_gguf import TOKENS, Kind, Tiny

TEXTS = ["hello  world 2010\n\n x", "<|im_start|>user<|im_end|><spare>", "crème “brûlée” 中 🙂", " \thellohello", ""]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, LlamaForCausalLM]:
    """A GGUF, what it was converted to, and the model that it was made from."""
    folder = tmp_path_factory.mktemp("tiny")
    model = Tiny().write(folder / "tiny.gguf")
    return folder / "tiny.gguf", convert_gguf(folder / "tiny.gguf", folder / "converted"), model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(24).reshape(2, 12) * 7 % len(TOKENS)).logits
    return found


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_key_value_heads": 4},
        {"tie_word_embeddings": False},
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 32},
    ],
    ids=["grouped", "full-heads", "untied", "biases", "wide-heads"],
)
def test_logits_are_those_of_the_model_the_file_was_made_from(tmp_path: Path, config: dict[str, Any]) -> None:
    model = Tiny(config).write(tmp_path / "tiny.gguf")
    converted = AutoModelForCausalLM.from_pretrained(convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf"))
    assert torch.equal(logits(converted), logits(model))
    assert converted.config.tie_word_embeddings is config.get("tie_word_embeddings", True)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q5_0, Kind.Q5_1, Kind.BF16])
def test_other_block_formats_are_read(tmp_path: Path, kind: Any) -> None:
    model = Tiny(kinds=(kind,)).write(tmp_path / "tiny.gguf")
    weights = load_file(convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf") / "model.safetensors")
    assert all(torch.equal(weights[name], parameter) for name, parameter in model.named_parameters())


def test_weights_are_those_of_transformers_own_loader(tiny: tuple[Path, Path, LlamaForCausalLM]) -> None:
    source, folder, _ = tiny
    theirs = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name).state_dict()
    ours = load_file(folder / "model.safetensors")
    theirs.pop("lm_head.weight")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {tensor.dtype for tensor in ours.values()} == {torch.float32}


def test_the_configuration_is_the_files_and_bears_no_mark_of_quantisation(
    tiny: tuple[Path, Path, LlamaForCausalLM],
) -> None:
    folder = tiny[1]
    written = json.loads((folder / "config.json").read_text())
    assert not [key for key in written if "quant" in key or "gguf" in key.lower()]
    config = AutoConfig.from_pretrained(folder)
    assert config.dtype == torch.float32
    assert config.rope_parameters["rope_theta"] == 5000.0
    assert config.rms_norm_eps == 1e-5
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 0)
    assert (config.max_position_embeddings, config.vocab_size) == (512, len(TOKENS))
    generation = json.loads((folder / "generation_config.json").read_text())
    generation.pop("transformers_version")
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}, "settings nobody asked for"


def test_the_tokenizer_is_what_transformers_makes_of_the_file(tiny: tuple[Path, Path, LlamaForCausalLM]) -> None:
    source, folder, _ = tiny
    theirs = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    ours = AutoTokenizer.from_pretrained(folder)
    assert json.loads(ours.backend_tokenizer.to_str()) == json.loads(theirs.backend_tokenizer.to_str())
    for text in TEXTS:
        assert ours(text)["input_ids"] == theirs(text)["input_ids"]
        assert ours.decode(ours(text)["input_ids"]) == text
    assert ours("<|im_start|>hello").input_ids == [1, TOKENS.index("hello")]
    assert len(ours) == len(TOKENS)
    assert (
        ours.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "<|im_start|>user: x<|im_end|>"
    )


def test_a_tokenizer_that_lies_beside_the_file_is_not_taken_for_its_own(
    tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    source, folder, _ = tiny
    shutil.copy(source, tmp_path / "tiny.gguf")
    other = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    other["model"]["merges"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(other), encoding="utf-8")
    converted = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    assert (converted / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("ids", "special", "pad"),
    [
        ({"bos": 1, "eos": 2, "unk": 0, "pad": 2}, 4, "<|endoftext|>"),
        ({"bos": 1, "eos": 2, "unk": 0, "pad": None}, 4, "<|endoftext|>"),
        ({"bos": 1, "eos": 2, "unk": 0, "pad": 3}, 4, "<spare>"),
        ({"bos": 0, "eos": 2, "unk": 0, "pad": 2}, 4, "<spare>"),
        ({"bos": 2, "eos": 2, "unk": None, "pad": 2}, 4, "<|endoftext|>"),
        ({"bos": 0, "eos": 2, "unk": None, "pad": 2}, 3, "<|im_end|>"),
    ],
    ids=["pad-is-eos", "no-pad", "own-pad", "unk-is-bos", "no-unk", "nothing-free"],
)
def test_padding_is_not_the_end_token_where_another_is_free(
    tmp_path: Path, ids: dict[str, int | None], special: int, pad: str
) -> None:
    Tiny(ids=ids, special=special).write(tmp_path / "tiny.gguf")
    folder = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "hf")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token == pad
    assert len(tokenizer) == len(TOKENS), "the vocabulary grew"
    assert AutoConfig.from_pretrained(folder).pad_token_id == tokenizer.pad_token_id == TOKENS.index(pad)
    assert tokenizer.eos_token_id == 2


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Tiny(architecture="qwen2"), r"another architecture; got: qwen2; allowed: llama; hint:"),
        (Tiny(metadata={"llama.rope.scaling.type": "linear"}), r"scaled rotary embeddings \(linear\)"),
        (Tiny(extra={"rope_freqs.weight": (8,)}), "scaled rotary embeddings"),
        (Tiny(metadata={"llama.expert_count": 8}), "got: experts"),
        (Tiny(metadata={"llama.rope.dimension_count": 8}), "on a part of each head"),
        (Tiny(metadata={"llama.attention.value_length": 8}), "of different widths"),
        (Tiny(drop=("blk.1.attn_q.weight",)), r"1 missing \['blk.1.attn_q.weight'\], 0 not known"),
        (
            Tiny(extra={"blk.0.attn_q_norm.weight": (64,)}),
            r"0 missing \[\], 1 not known \['blk.0.attn_q_norm.weight'\]",
        ),
        (Tiny(drop=("blk.1.ffn_norm.weight",), extra={"blk.1.ffn_norm.weight": (32,)}), r"does not fit.*\(64,\)"),
        (Tiny({"vocab_size": 200}), "more tokens than rows in its embedding"),
    ],
    ids=[
        *("architecture", "scaled", "rope-factors", "experts", "partial-rope", "value-width"),
        *("missing", "unknown", "shape", "tokens"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_and_leaves_nothing(tmp_path: Path, made: Tiny, message: str) -> None:
    made.write(tmp_path / "tiny.gguf")
    with pytest.raises(ModelError, match=message):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out" / "hf")
    assert [*tmp_path.glob("out/*"), *tmp_path.glob("out/.*")] == []


@pytest.mark.parametrize("keep", [0, 3, 40, 3000, -1], ids=["empty", "magic", "metadata", "table", "last-byte"])
def test_a_file_cut_short_is_refused_and_leaves_nothing(
    tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path, keep: int
) -> None:
    (tmp_path / "cut.gguf").write_bytes(tiny[0].read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        convert_gguf(tmp_path / "cut.gguf", tmp_path / "out" / "hf")
    assert [*tmp_path.glob("out/*"), *tmp_path.glob("out/.*")] == []


def test_no_file_and_no_gguf_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read as a GGUF file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "hf")
    (tmp_path / "other.gguf").write_bytes(b"PK\x03\x04 a zip")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        convert_gguf(tmp_path / "other.gguf", tmp_path / "hf")


def test_a_folder_of_somebody_elses_is_not_replaced(tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for target in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(ModelError, match="is not replaced"):
            convert_gguf(tiny[0], target)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_without_the_gguf_package_the_install_command_is_named(
    tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"'gguf'.*pip install 'surefoot\[quickstart\]'"):
        convert_gguf(tiny[0], tmp_path / "hf")


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "digests", "problem"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), False, "no finished conversion"),
        (lambda folder: (folder / MANIFEST).write_text("{"), False, "cannot be read"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), False, "cannot be read"),
        (lambda folder: edit_manifest(folder, lambda m: m.update(version=0)), False, "version 0"),
        (lambda folder: edit_manifest(folder, lambda m: m["source"].update(sha256="0")), False, "another GGUF"),
        (lambda folder: (folder / "tokenizer.json").unlink(), False, "tokenizer.json is missing"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), False, "another size"),
        (lambda folder: flip_last_byte(folder / "model.safetensors"), True, "model.safetensors has changed"),
    ],
)
def test_a_damaged_conversion_is_found_and_made_anew(
    tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path, damage: Any, digests: bool, problem: str
) -> None:
    source, whole, _ = tiny
    digest = json.loads((whole / MANIFEST).read_text())["source"]["sha256"]
    folder = Path(shutil.copytree(whole, tmp_path / "hf"))
    assert conversion_problem(folder, source_sha256=digest, digests=True) is None
    damage(folder)
    assert problem in (conversion_problem(folder, source_sha256=digest, digests=digests) or "")
    if (folder / MANIFEST).exists():
        convert_gguf(source, folder)
        assert conversion_problem(folder, source_sha256=digest, digests=True) is None
        assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
        assert list(tmp_path.iterdir()) == [folder], "the damaged folder was left beside"


def killed_at(moment: int, source: Path, folder: Path) -> bool:
    """Converts in a child that kills itself at its n-th act on the file system; False when it had finished before."""
    child = os.fork()
    if child == 0:
        acts = itertools.count(1)

        def kill(event: str, _: object) -> None:
            if event in ("open", "mmap.__new__", "os.mkdir", "os.rename", "os.remove") and next(acts) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(kill)
            convert_gguf(source, folder)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_kill_at_any_moment_leaves_a_whole_folder_or_none(
    tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    folder, outcomes = tmp_path / "hf", []
    for moment in itertools.count(1):
        if not killed_at(moment, tiny[0], folder):
            break
        outcomes.append(folder.exists())
        assert not folder.exists() or conversion_problem(folder, digests=True) is None
    assert len(outcomes) > 20, "hardly any moment was tried"
    assert conversion_problem(folder, digests=True) is None
    left = list(tmp_path.glob(".hf.*.partial"))
    assert left
    for path in left:
        os.utime(path, (0, 0))
    convert_gguf(tiny[0], folder)
    assert list(tmp_path.iterdir()) == [folder], "what kills left is removed after a day"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_kill_while_a_folder_is_replaced_leaves_a_whole_folder_or_none(
    tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path
) -> None:
    for moment in itertools.count(1):
        folder = Path(shutil.copytree(tiny[1], tmp_path / str(moment) / "hf"))
        edit_manifest(folder, lambda manifest: manifest.update(version=0))
        finished = not killed_at(moment, tiny[0], folder)
        assert conversion_problem(folder, digests=True) in (None, "there is no finished conversion") or (
            json.loads((folder / MANIFEST).read_text())["version"] == 0
        )
        if finished:
            break
    assert conversion_problem(folder, digests=True) is None
    assert list(folder.parent.iterdir()) == [folder], "the replaced folder was left beside"


@pytest.mark.parametrize("version", [None, 0], ids=["onto-nothing", "onto-an-old-one"])
def test_several_at_once_end_with_one_whole_folder(
    tiny: tuple[Path, Path, LlamaForCausalLM], tmp_path: Path, version: int | None
) -> None:
    if version is not None:
        shutil.copytree(tiny[1], tmp_path / "hf")
        edit_manifest(tmp_path / "hf", lambda manifest: manifest.update(version=version))
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: convert_gguf(tiny[0], tmp_path / "hf"), range(24)))
    assert set(folders) == set(tmp_path.iterdir())
    assert conversion_problem(tmp_path / "hf", digests=True) is None
