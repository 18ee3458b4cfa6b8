"""Steps of Surefoot on the yardstick's work, timed by phase.

Everything is built as ``surefoot train`` builds it. One thing differs: nothing ends a response early, since TRL draws
and trains every token up to the limit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import surefoot
from benchmarks.measuring import StepMeter, prefer_this_process
from benchmarks.work import (
    CONFIGS,
    KL_COEF,
    LEARNING_RATE,
    TEMPERATURE,
    VALUE_COEF,
    add_step_arguments,
    read_prompts,
    step_result,
    write_result,
)
from surefoot.assembly.train import Inputs, build_parts, exact_arithmetic, read_inputs
from surefoot.config import Config, load_config, require
from surefoot.errors import DataError
from surefoot.models.critic import SeparateCritic
from surefoot.models.policy import CausalPolicy
from surefoot.parallel import lanes
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.records import Prompt, Rollout, StopReason, Trajectory
from surefoot.rollout import NativeEngine
from surefoot.training.clock import StepClock
from surefoot.training.step import Parts, StepResult, ppo_step


def make_config(args: argparse.Namespace) -> Config:
    """The run, with what TRL's defaults say; its file lies beside the result."""
    tree = {
        "run": {"name": "benchmark", "steps": args.warmup + args.steps, "seed": args.seed, "device": "cpu"},
        "model": {"policy": args.model},
        "reward": {"terms": [{"name": "quality", "kind": "model", "target": args.reward}]},
        "data": {"prompts": str(args.prompts.resolve()), "shuffle": False},
        "rollout": {
            "prompts_per_step": len(read_prompts(args.prompts, args.num_prompts)),
            "max_new_tokens": args.new_tokens,
            "temperature": TEMPERATURE,
        },
        "ppo": {"epochs": args.epochs, "minibatches": 1, "value_coef": VALUE_COEF, "kl": {"coef": KL_COEF}},
        "optim": {"policy_lr": LEARNING_RATE, "critic_lr": LEARNING_RATE},
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    file: Path = args.out.with_suffix(".yaml")
    file.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    config = load_config(file, [f"run.threads={args.threads}", *CONFIGS[args.config], *args.set])
    require(config, "train")
    return config


def read_same_prompts(inputs: Inputs, count: int) -> tuple[Prompt, ...]:
    """The first prompts as Surefoot encodes them.

    Raises:
        DataError: not the ids that the file holds, which TRL is given.
    """
    prompts = tuple(inputs.prompts.prompts[:count])
    for prompt in prompts:
        given = tuple(prompt.columns["input_ids"])
        if given != prompt.tokens:
            raise DataError(f"prompt {prompt.id} is not the one that TRL is given", got=prompt.tokens, allowed=given)
    return prompts


def build(config: Config, inputs: Inputs) -> Parts:
    """The parts of a run, with an engine that draws every token up to the limit."""
    parts = build_parts(config, inputs)
    engine = parts.engine
    assert isinstance(engine, NativeEngine)
    engine.sampling = replace(engine.sampling, stop_ids=frozenset(), stop_strings=())
    return parts


class Counts:
    """What the update of a step went over: action tokens in training forward passes, and prompts' tokens."""

    def __init__(self, policy: CausalPolicy) -> None:
        self.trained_tokens = 0
        forward = policy.forward

        def counted(batch: Any, **options: Any) -> Any:
            self.trained_tokens += len(batch.tokens)
            return forward(batch, **options)

        setattr(policy, "forward", counted)  # noqa: B010 - mypy knows it as a method

    def take(self, result: StepResult) -> dict[str, int]:
        """A step's counts; those of the next one begin."""
        metrics, mask = result.report.metrics, result.sampled.mask
        counts = {
            "prompt_tokens": int((result.sampled.lengths - mask.sum(axis=1)).sum()),
            "positions": int(result.sampled.lengths.sum()),
            "action_tokens": int(mask.sum()),
            "trained_tokens": self.trained_tokens,
            "optimizer_steps": int(metrics["policy/updates"] or 0),
        }
        self.trained_tokens = 0
        return counts


def watch(parts: Parts, meter: StepMeter) -> None:
    """Time what a step calls. With a shared critic, ``policy_read`` holds the values too."""
    learner = parts.learner
    meter.stand_in(parts.engine, "rollout", "generation")
    meter.stand_in(parts.reward, "score", "reward")
    meter.stand_in(parts.reference, "logp", "reference")
    meter.stand_in(learner.policy, "read", "policy_read")
    meter.stand_in(learner.policy, "forward", "train_forward")
    meter.stand_in(torch.autograd, "backward", "train_backward")
    meter.stand_in(learner.policy_optimizer, "step", "optimizer")
    if isinstance(learner.critic, SeparateCritic):
        meter.stand_in(learner.critic, "values", "values")
        meter.stand_in(learner.critic, "forward", "train_forward")
        meter.stand_in(learner.critic_optimizer, "step", "optimizer")
        # Trained beside the policy, the critic's time shows where it lasts longer.
        meter.stand_in(lanes, "_join", "train_wait")


def logp_gap(policy: CausalPolicy, samples: Path, prompts: Sequence[Prompt]) -> dict[str, float]:
    """How far the policy's log-probabilities of TRL's tokens are from TRL's own.

    Raises:
        DataError: TRL's prompts are others.
    """
    with np.load(samples) as held:
        theirs = [tuple(row[row >= 0].tolist()) for row in held["prompts"]]
        tokens, logp = held["tokens"], held["logp"]
    if sorted(theirs) != sorted(prompt.tokens for prompt in prompts):
        raise DataError(f"the prompts in {samples.name} are not those of the benchmark", hint="run with --fresh")
    rollout = Rollout.of(
        [
            Trajectory(
                tokens=(*prompt, *response),
                mask=(False,) * len(prompt) + (True,) * len(response),
                stop_reason=StopReason.LENGTH,
            )
            for prompt, response in zip(theirs, tokens.tolist(), strict=True)
        ]
    )
    gaps = np.abs(policy.evaluate(rollout).logp[rollout.mask] - logp.reshape(-1))
    return {"max": float(gaps.max()), "mean": float(gaps.mean()), "tokens": int(gaps.size)}


def measure(config: Config, args: argparse.Namespace) -> dict[str, Any]:
    """Run the steps."""
    inputs = read_inputs(config)
    try:
        parts = build(config, inputs)
        prompts = read_same_prompts(inputs, config.rollout.prompts_per_step)
        gap = logp_gap(parts.learner.policy, args.samples, prompts) if args.samples else None
        meter, counts = StepMeter(), Counts(parts.learner.policy)
        watch(parts, meter)
        steps = []
        for step in range(1, args.warmup + args.steps + 1):
            clock = StepClock()
            meter.start()
            result = ppo_step(step, prompts, parts, config, clock)
            steps.append({**meter.stop(), "clock": dict(clock.seconds), "counts": counts.take(result)})
    finally:
        inputs.reward.close()
    versions = {
        "surefoot": surefoot.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    return step_result(
        steps,
        args.warmup,
        side="surefoot",
        config=args.config,
        epochs=config.ppo.epochs,
        threads=torch.get_num_threads(),
        versions=versions,
        logp_gap=gap,
    )


def main() -> None:
    """Run the steps and write what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_step_arguments(parser)
    parser.add_argument("--config", choices=CONFIGS, required=True, help="what is trained")
    parser.add_argument("--samples", type=Path, help="npz of TRL's side, to compare log-probabilities with")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another override; repeatable")
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    keep_freed_memory()
    config = make_config(args)
    with exact_arithmetic(config.run.threads):
        write_result(args.out, measure(config, args))


if __name__ == "__main__":
    main()
