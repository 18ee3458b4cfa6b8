"""What both sides read: the model, a reward model of its size, and prompts with their token ids. Made once and kept."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.prompts import chats
from benchmarks.work import write_result
from surefoot.data.smollm2 import smollm2
from surefoot.models.load import quiet_library
from surefoot.models.toy import make_toy_model

NUM_PROMPTS: Final = 16
NUM_DECODED: Final = 64
HEAD_SEED: Final = 7
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def make_reward_model(model: Path, folder: Path) -> Path:
    """A reward model with the weights of a causal LM and a random score layer, the same one at every call."""
    if (folder / "config.json").is_file():
        return folder
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    with torch.random.fork_rng(devices=[]), quiet_library():
        torch.manual_seed(HEAD_SEED)
        reward = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
        reward.save_pretrained(aside)
    for name in TOKENIZER_FILES:
        if (model / name).exists():
            shutil.copy(model / name, aside)
    aside.replace(folder)
    return folder


def write_prompts(model: Path, file: Path, count: int) -> Path:
    """JSONL: a chat as ``prompt``, and its ``input_ids`` in the model's own template."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    rows = []
    for messages in chats(count):
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        rows.append(json.dumps({"prompt": messages, "input_ids": ids}))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


def prepare(name: str, cache: Path) -> dict[str, str]:
    """Everything for one model, ``smollm2`` or ``toy``: paths by what they are."""
    model = smollm2() if name == "smollm2" else make_toy_model(cache / "toy")
    return {
        "model": str(model),
        "reward": str(make_reward_model(model, cache / f"{name}-reward")),
        "prompts": str(write_prompts(model, cache / f"{name}-prompts.jsonl", NUM_PROMPTS)),
        "decoding_prompts": str(write_prompts(model, cache / f"{name}-decoding-prompts.jsonl", NUM_DECODED)),
    }


def main() -> None:
    """Prepare, and write where everything lies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("smollm2", "toy"), default="smollm2")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    write_result(args.out, prepare(args.model, args.cache.resolve()))


if __name__ == "__main__":
    main()
