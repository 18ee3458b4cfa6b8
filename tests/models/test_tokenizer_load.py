"""A model folder's text side: what is followed, what is not, and errors before any weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import ModelError
from surefoot.models.tokenizer import load_codec
from tests.models.made_tokenizers import CHATML, byte_level

CHAT = [{"role": "user", "content": "hi"}]


def folder_of(path: Path, tokenizer: Any, **files: Any) -> str:
    tokenizer.save_pretrained(path)
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_a_folder_gives_back_the_tokenizer_that_was_saved(tmp_path: Path) -> None:
    made = byte_level()
    codec = load_codec(folder_of(tmp_path, made, config={"model_type": "llama"}))
    expected = made.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    assert codec.encode_prompt(CHAT)[0] == list(expected)
    assert codec.name == str(tmp_path)
    codec.save(str(tmp_path / "again"))
    assert load_codec(str(tmp_path / "again")).fingerprint() == codec.fingerprint()


@pytest.mark.parametrize(
    ("generation", "config", "stops"),
    [
        ({"eos_token_id": [332, 330]}, {"eos_token_id": 332}, {330, 332}),
        ({"eos_token_id": 330}, {}, {330, 332}),
        ({}, {"eos_token_id": [331]}, {331, 332}),
        ({"eos_token_id": None}, {"text_config": {"eos_token_id": 330}}, {330, 332}),
        ({"eos_token_id": -1}, {"eos_token_id": 2}, {332}),  # the default of a config class: "#" in this vocabulary
    ],
)
def test_stop_ids_come_from_all_three_places(
    tmp_path: Path, generation: dict[str, Any], config: dict[str, Any], stops: set[int]
) -> None:
    config = {"model_type": "llama"} | config
    codec = load_codec(folder_of(tmp_path, byte_level(), generation_config=generation, config=config))
    assert codec.stop_ids == stops


def test_sampling_settings_of_the_folder_are_named_and_not_followed(tmp_path: Path) -> None:
    settings = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    bookkeeping = {"eos_token_id": 332, "pad_token_id": 0, "_from_model_config": True, "transformers_version": "5"}
    codec = load_codec(folder_of(tmp_path, byte_level(), generation_config=settings | bookkeeping))
    assert codec.ignored_generation_settings == settings
    assert load_codec(folder_of(tmp_path, byte_level(), generation_config={})).ignored_generation_settings == {}


def test_a_template_may_be_given_as_source_or_as_a_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", byte_level(template=None))
    assert not load_codec(folder).has_chat_template
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML, encoding="utf-8")
    expected = byte_level().apply_chat_template(CHAT, add_generation_prompt=True, tokenize=False)
    for given in (CHATML, str(file)):
        codec = load_codec(folder, chat_template=given)
        assert codec.encode_prompt(CHAT)[1] == expected
    codec.save(str(tmp_path / "saved"))
    assert load_codec(str(tmp_path / "saved")).encode_prompt(CHAT)[1] == expected
    with pytest.raises(ModelError, match=r"model\.chat_template is neither"):
        load_codec(folder, chat_template=str(tmp_path / "missing.jinja"))


def test_a_given_template_goes_before_the_folders_own(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, byte_level())
    assert load_codec(folder, chat_template="{{ messages[0]['content'] }}!").encode_prompt(CHAT)[1] == "hi!"


def test_no_chat_template_is_found_without_any_weights(tmp_path: Path) -> None:
    codec = load_codec(folder_of(tmp_path, byte_level(template=None), config={"model_type": "llama"}))
    assert not list(tmp_path.glob("*.safetensors"))
    with pytest.raises(ModelError, match="no chat template") as caught:
        codec.encode_prompt(CHAT)
    assert str(tmp_path) in str(caught.value)


def test_folders_without_a_tokenizer_or_with_a_broken_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_codec(str(tmp_path))
    with pytest.raises(ModelError, match="does not exist"):
        load_codec(str(tmp_path / "missing"))
    with pytest.raises(ModelError, match="could not be loaded"):
        load_codec("no-such-org/no-such-model")


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, byte_level(), config={"model_type": "llama"})
    (tmp_path / "generation_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match=r"generation_config\.json is not valid JSON"):
        load_codec(folder)


def test_code_that_comes_with_a_tokenizer_does_not_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, byte_level())
    file, mark = tmp_path / "tokenizer_config.json", tmp_path / "it_ran"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings |= {"auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}, "tokenizer_class": "Own"}
    file.write_text(json.dumps(settings), encoding="utf-8")
    code = f"open({str(mark)!r}, 'w').close()\nfrom transformers import PreTrainedTokenizerFast as Own\n"
    (tmp_path / "own.py").write_text(code, encoding="utf-8")
    with pytest.raises(ModelError, match=r"model\.trust_remote_code"):
        load_codec(folder)
    assert not mark.exists()


def test_an_adapter_without_a_tokenizer_has_that_of_its_base(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", byte_level(), generation_config={"eos_token_id": 330})
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}), encoding="utf-8")
    codec = load_codec(str(adapter))
    assert codec.stop_ids == {330, 332}
    byte_level(template="{{ messages[0]['content'] }}?").save_pretrained(adapter)
    assert load_codec(str(adapter)).encode_prompt(CHAT)[1] == "hi?"
