"""Surefoot's side on a toy model: what it counts, what it times, and how it reads the yardstick's samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.decoding import compare, surefoot_decoder, transformers_decoder
from benchmarks.prepare import prepare
from benchmarks.surefoot_side import logp_gap
from benchmarks.work import TEMPERATURE, read_prompts
from surefoot.errors import DataError
from surefoot.models.load import quiet_library
from surefoot.models.policy import load_policy
from surefoot.records import Prompt

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return prepare("toy", tmp_path_factory.mktemp("cache"))


@pytest.fixture
def model(inputs: dict[str, str]) -> Any:
    with quiet_library():
        return AutoModelForCausalLM.from_pretrained(inputs["model"], dtype=torch.float32).eval()


@pytest.mark.parametrize("config", ["full-separate", "lora-shared"])
def test_a_step_of_the_toy(inputs: dict[str, str], tmp_path: Path, config: str) -> None:
    paths = [text for name in ("model", "reward", "prompts") for text in (f"--{name}", inputs[name])]
    numbers = [
        "--num-prompts",
        "8",
        "--new-tokens",
        "16",
        "--epochs",
        "2",
        "--warmup",
        "0",
        "--steps",
        "1",
        "--seed",
        "1",
    ]
    out = tmp_path / "part.json"
    command = [sys.executable, "-m", "benchmarks.surefoot_side", "--out", str(out), "--threads", "1"]
    done = subprocess.run(
        [*command, *paths, *numbers, "--config", config], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    part = json.loads(out.read_text(encoding="utf-8"))
    (step,) = part["steps"]
    prompts = sum(len(row["input_ids"]) for row in read_prompts(Path(inputs["prompts"]), 8))
    assert step["counts"] == {
        "prompt_tokens": prompts,
        "positions": prompts + 128,
        # Every response has its full length, although the toy draws its end-of-sequence token too.
        "action_tokens": 128,
        "trained_tokens": 256,
        "optimizer_steps": 2,
    }
    timed = {"generation", "policy_read", "reference", "reward", "train_forward", "train_backward", "optimizer"}
    timed |= {"values"} if config == "full-separate" else set()
    assert {name for name, seconds in step["phases"].items() if seconds > 0} == timed | {"other"}
    assert sum(step["phases"].values()) == pytest.approx(step["step_s"])
    assert {"rollout", "score", "update", "publish"} <= set(step["clock"])
    assert step["peak_gb"] > 0.1
    assert (part["epochs"], part["threads"], part["logp_gap"]) == (2, 1, None)


def write_samples(file: Path, rows: list[list[int]], tokens: np.ndarray[Any, Any], logp: np.ndarray[Any, Any]) -> None:
    prompts = np.full((len(rows), max(map(len, rows))), -1)
    for b, row in enumerate(rows):
        prompts[b, : len(row)] = row
    np.savez(file, prompts=prompts, tokens=tokens, logp=logp)


def test_log_probabilities_of_the_yardsticks_tokens(inputs: dict[str, str], model: Any, tmp_path: Path) -> None:
    rows = [row["input_ids"] for row in read_prompts(Path(inputs["prompts"]), 3)]
    tokens = np.random.default_rng(0).integers(0, 40, size=(3, 5))
    logp = np.zeros(tokens.shape)
    for b, row in enumerate(rows):
        ids = torch.tensor([[*row, *tokens[b].tolist()]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(row) - 1 : -1] / TEMPERATURE
        logp[b] = torch.log_softmax(logits.double(), dim=-1)[torch.arange(5), torch.from_numpy(tokens[b])].numpy()
    # The yardstick shuffles its prompts.
    prompts = [Prompt(f"prompts:{i}", tuple(row)) for i, row in enumerate(reversed(rows))]
    policy, file = load_policy(inputs["model"], temperature=TEMPERATURE), tmp_path / "samples.npz"
    write_samples(file, rows, tokens, logp)
    gap = logp_gap(policy, file, prompts)
    assert gap["max"] < 1e-5
    assert gap["tokens"] == 15
    logp[1, 2] += 0.01
    write_samples(file, rows, tokens, logp)
    assert logp_gap(policy, file, prompts)["max"] == pytest.approx(0.01, abs=1e-5)
    with pytest.raises(DataError, match=r"samples\.npz are not those of the benchmark"):
        logp_gap(policy, file, prompts[:2])


def test_both_decoders_draw_every_token(inputs: dict[str, str], model: Any) -> None:
    rows = [row["input_ids"] for row in read_prompts(Path(inputs["decoding_prompts"]), 6)]
    policy = load_policy(inputs["model"], temperature=TEMPERATURE)
    decoders = {"surefoot": surefoot_decoder(policy, 7), "generate": transformers_decoder(model, 7)}
    found = compare(decoders, rows, new_tokens=7, repeats=2)
    assert [(entry["engine"], entry["sequences"], len(entry["runs"])) for entry in found] == [
        ("surefoot", 6, 2),
        ("generate", 6, 2),
    ]
    assert all(entry["tokens_per_s"] > 0 for entry in found)
    # Long enough for the end-of-sequence token to be drawn: it ends nothing.
    torch.manual_seed(0)
    assert transformers_decoder(model, 100)(rows[:1]) == 100
    with pytest.raises(RuntimeError, match="surefoot drew 42 tokens, wanted: 6 x 8"):
        compare(decoders, rows, new_tokens=8, repeats=1)
