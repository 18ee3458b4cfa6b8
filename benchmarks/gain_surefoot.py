"""Surefoot on the way to a held-out gain: the quickstart's steps, evaluated after each one.

Everything is built as ``surefoot train`` builds it; what a run writes down (samples, checkpoints) is left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import surefoot
from benchmarks.gain import Course, Task, add_run_arguments, prompts_digest
from benchmarks.measuring import StepMeter, prefer_this_process
from benchmarks.surefoot_side import read_same_prompts, watch
from benchmarks.work import write_result
from surefoot.assembly.train import Inputs, build_parts, exact_arithmetic, read_inputs
from surefoot.config import Config, load_config
from surefoot.envs import SingleTurn
from surefoot.errors import DataError
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.records import Score, StopReason, Trajectory
from surefoot.rewards import total
from surefoot.training.clock import StepClock
from surefoot.training.evaluation import Evaluator
from surefoot.training.step import Parts, ppo_step


def make_config(args: argparse.Namespace, task: Task) -> Config:
    """The quickstart's config with this run's seed, learning rate and prompts, in the order of the file."""
    prompts = task.prompts[str(args.seed)]
    overrides = {
        "run.seed": args.seed,
        "run.threads": args.threads,
        "run.device": "cpu",
        "run.steps": max(args.steps, 1),
        "data.prompts": json.dumps(prompts),
        "data.shuffle": "false",
        "optim.policy_lr": args.lr,
        "evaluate.seed": args.seed if args.evaluation_seed is None else args.evaluation_seed,
        "evaluate.samples_per_prompt": args.evaluation_samples,
        **({"evaluate.max_prompts": args.held_out} if args.held_out else {}),
    }
    texts = [f"{key}={value}" for key, value in overrides.items()]
    return load_config(task.config, [*task.overrides, *texts])


def build_evaluator(config: Config, inputs: Inputs, parts: Parts, task: Task) -> Evaluator:
    """As the quickstart's own; its prompts must be the ones that TRL's side is given.

    Raises:
        DataError: they are not.
    """
    assert inputs.held_out is not None
    lines = Path(task.held_out).read_text(encoding="utf-8").splitlines()
    given = [tuple(json.loads(line)["input_ids"]) for line in lines]
    own = [prompt.tokens for prompt in inputs.held_out.prompts]
    if own != given[: len(own)]:
        raise DataError("the held-out prompts are not those that TRL is given")
    return Evaluator(
        prompts=inputs.held_out.prompts,
        reward=inputs.reward,
        reference=parts.reference,
        environment=SingleTurn(),
        text=inputs.codec,
        stop_ids=inputs.codec.stop_ids,
        cfg=config,
    )


def responses_of(trajectories: Sequence[Trajectory], scores: Sequence[Score]) -> list[dict[str, Any]]:
    """Responses with what the reward gave them and whether they ended by themselves."""
    return [
        {"text": row.response, "score": total(score), "ended": row.stop_reason is StopReason.EOS}
        for row, score in zip(trajectories, scores, strict=True)
    ]


def train(config: Config, args: argparse.Namespace, task: Task) -> dict[str, Any]:
    """Steps until the goal is reached."""
    inputs, course = read_inputs(config), Course(args.goal, args.budget_s)
    try:
        parts = build_parts(config, inputs)
        size = config.rollout.prompts_per_step
        prompts = read_same_prompts(inputs, args.steps * size)
        evaluator, policy, meter = build_evaluator(config, inputs, parts, task), parts.learner.policy, StepMeter()
        watch(parts, meter)

        def evaluate(step: int) -> None:
            held_out = evaluator(policy, step)
            course.evaluated(responses_of(held_out.rollout.trajectories, held_out.scores))

        evaluate(0)
        for step in range(1, args.steps + 1):
            taken = prompts[(step - 1) * size : step * size]
            meter.start()
            result = ppo_step(step, taken, parts, config, StepClock())
            cost = meter.stop()
            course.stepped(
                cost,
                responses_of(result.sampled.trajectories, result.scores),
                kl=result.report.metrics["kl/reference_k1"],
                updates=result.report.metrics["policy/updates"],
                prompts=prompts_digest(prompt.tokens for prompt in taken),
            )
            evaluate(step)
            if course.over:
                break
    finally:
        inputs.reward.close()
    versions = {
        "surefoot": surefoot.__version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }
    return course.result(side="surefoot", threads=torch.get_num_threads(), versions=versions)


def main() -> None:
    """Train towards the gain and write how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_arguments(parser)
    parser.add_argument("--evaluation-seed", type=int, help="default: the run's")
    parser.add_argument("--evaluation-samples", type=int, default=1, help="responses to each held-out prompt")
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    keep_freed_memory()
    task = Task.read(args.task)
    config = make_config(args, task)
    with exact_arithmetic(config.run.threads):
        write_result(args.out, train(config, args, task))


if __name__ == "__main__":
    main()
