"""One point of growth: PPO steps of a random Llama of given sizes.

All weights are trained, with a value head on the policy's trunk, in one epoch of one minibatch. Everything is built as
``surefoot train`` builds it, but for three things: prompts are random tokens that share no beginning, the score is the
number of words, and nothing ends a response early.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import surefoot
from benchmarks.growth import Point
from benchmarks.measuring import CpuTime, PeakMemory, prefer_this_process
from benchmarks.surefoot_side import build
from benchmarks.work import KL_COEF, LEARNING_RATE, TEMPERATURE, add_process_arguments, write_result
from surefoot.assembly.train import Inputs, exact_arithmetic
from surefoot.config import Config
from surefoot.config.load import build_config
from surefoot.config.sections import RewardTerm
from surefoot.data.prompts import PromptSet
from surefoot.models.load import load_model_config, quiet_library
from surefoot.models.tokenizer import TextCodec
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.parallel.rng import generator
from surefoot.records import Prompt
from surefoot.rewards import CompositeReward, FunctionReward
from surefoot.training.clock import StepClock
from surefoot.training.step import ppo_step

SPECIAL: Final = ("<pad>", "<eos>", "<unk>")
PROMPT_TOKENS: Final = 8
HEAD_WIDTH: Final = 32


def make_codec(vocabulary: int) -> TextCodec:
    """A tokenizer of that many words."""
    words = {word: i for i, word in enumerate((*SPECIAL, *(f"w{i}" for i in range(len(SPECIAL), vocabulary))))}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    return TextCodec.of(tokenizer, name="the random model")


def make_model(folder: Path, point: Point, *, seed: int = 0) -> None:
    """Write a random Llama in the proportions of SmolLM2.

    Args:
        folder: made when missing.
        point: ``hidden`` is a multiple of 96: three query heads of 32 share a key head.
        seed: of the weights.
    """
    heads = point.hidden // HEAD_WIDTH
    config = LlamaConfig(
        vocab_size=point.vocabulary,
        hidden_size=point.hidden,
        intermediate_size=8 * point.hidden // 3,
        num_hidden_layers=point.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3,
        max_position_embeddings=PROMPT_TOKENS + point.new_tokens,
        pad_token_id=SPECIAL.index("<pad>"),
        eos_token_id=SPECIAL.index("<eos>"),
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]), quiet_library():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        model.save_pretrained(folder)


def make_aside(folder: Path, point: Point) -> None:
    """:func:`make_model` in a process of its own: what it leaves in memory is not to count as the run's."""
    process = multiprocessing.get_context("fork").Process(target=make_model, args=(folder, point))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"making the model failed with exit code {process.exitcode}")


def make_prompts(point: Point) -> tuple[Prompt, ...]:
    """A prompt a trajectory, without a token in common."""
    wanted = point.trajectories * PROMPT_TOKENS
    ids = generator(0, "data").permutation(np.arange(len(SPECIAL), point.vocabulary))[:wanted]
    if len(ids) < wanted:
        raise ValueError(f"{point.vocabulary} words are too few for {point.trajectories} prompts of {PROMPT_TOKENS}")
    rows = ids.reshape(point.trajectories, PROMPT_TOKENS).tolist()
    return tuple(Prompt(f"prompts:{i}", tuple(row), " ".join(f"w{t}" for t in row)) for i, row in enumerate(rows))


def make_config(folder: Path, point: Point, threads: int) -> Config:
    """The run."""
    return build_config(
        {
            "run": {"name": "growth", "steps": 1, "device": "cpu", "threads": threads},
            "model": {"policy": str(folder)},
            "critic": {"kind": "shared"},
            "reward": {"terms": [{"name": "words", "target": "benchmarks.growth_side:count_words"}]},
            "rollout": {
                "prompts_per_step": point.trajectories,
                "max_new_tokens": point.new_tokens,
                "temperature": TEMPERATURE,
            },
            "ppo": {"epochs": 1, "minibatches": 1, "kl": {"coef": KL_COEF}},
            "optim": {"policy_lr": LEARNING_RATE},
        }
    )


def count_words(completions: list[str]) -> list[float]:
    """The score: it must cost nothing."""
    return [float(len(text.split())) for text in completions]


def make_reward(term: RewardTerm) -> CompositeReward:
    """The score in this process, so that no other one keeps the machine busy."""
    return CompositeReward([FunctionReward(term, function=count_words)])


def measure(point: Point, config: Config, steps: int, seconds: float) -> dict[str, Any]:
    """Run a rollout, a step that does not count, and those that do.

    Args:
        point: sizes.
        config: from :func:`make_config`.
        steps: measured ones, at least.
        seconds: further steps are measured until they have taken this long together.
    Raises:
        RuntimeError: a step did not have the action tokens that the point asks for.
    """
    assert config.model.policy is not None
    prompts = make_prompts(point)
    inputs = Inputs(
        codec=make_codec(point.vocabulary),
        model_config=load_model_config(config.model.policy),
        prompts=PromptSet(prompts),
        held_out=None,
        reward=make_reward(config.reward.terms[0]),
    )
    parts, memory = build(config, inputs), PeakMemory()
    memory.start()
    parts.engine.rollout(prompts, parts.environment, seed=(config.run.seed, 0))
    rollout_peak = memory.stop()
    found: list[dict[str, Any]] = []

    def step() -> None:
        clock = StepClock()
        memory.start()
        result = ppo_step(len(found) + 1, prompts, parts, config, clock)
        found.append({"clock": dict(clock.seconds), "peak_gb": memory.stop()})
        tokens = int(result.sampled.mask.sum())
        if tokens != point.trajectories * point.new_tokens:
            raise RuntimeError(f"{tokens} action tokens, wanted: {point.trajectories} x {point.new_tokens}")

    step()
    # Of all measured steps together: the machine's clock ticks are coarse for a short one.
    start = CpuTime.now()
    while len(found) <= steps or time.perf_counter() < start.at + seconds:
        step()
    return {
        "side": "growth",
        "parameters": sum(parameter.numel() for parameter in parts.learner.policy.lm.model.parameters()),
        "steps": found[1:],
        "rollout_peak_gb": rollout_peak,
        "threads": torch.get_num_threads(),
        "other_cores": CpuTime.now().other_cores(start),
    }


def main() -> None:
    """Measure a point and write what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_process_arguments(parser)
    parser.add_argument("--steps", type=int, default=3, help="measured steps, at least")
    parser.add_argument("--seconds", type=float, default=0.0, help="that the measured steps take together, at least")
    for field in fields(Point):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, required=True)
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    # Ended from outside, it takes its model with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    point = Point(**{field.name: getattr(args, field.name) for field in fields(Point)})
    with tempfile.TemporaryDirectory(prefix=".growth-model-", dir=args.out.parent) as folder:
        make_aside(Path(folder), point)
        keep_freed_memory()
        libraries_gb = PeakMemory().stop()
        config = make_config(Path(folder), point, args.threads)
        with exact_arithmetic(config.run.threads):
            result = measure(point, config, args.steps, args.seconds)
    versions = {
        "surefoot": surefoot.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    write_result(args.out, {**result, "libraries_gb": libraries_gb, "versions": versions})


if __name__ == "__main__":
    main()
