"""The yardstick: steps of TRL 1.12.0's PPO trainer on given token ids, timed by phase. Runs in ``.venv-trl``.

The trainer is TRL's own and unchanged; functions that its loop calls get stand-ins that read the clock. What has to be
set by hand so that it does this work at all:

- ``pad_token``: TRL masks every token that equals it, inside the prompt too. SmolLM2's own pad token is ``<|im_end|>``,
  which ends every message of a chat.
- ``bf16=False``: the default turns on autocast, which is slower on most CPUs and not the same numbers.
- ``stop_token=None`` (the default): every response runs to its full length, and all of it is trained on.
- ``gradient_checkpointing`` is left as it is: on by default, and without effect, since ``train()`` never enables it.
- ``num_sample_generations=0``, ``save_strategy="no"``, ``report_to="none"``: nothing but the step.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import trl  # type: ignore[import-not-found, unused-ignore]
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer  # type: ignore[import-not-found, unused-ignore]

from benchmarks.measuring import StepMeter, prefer_this_process
from benchmarks.work import (
    KL_COEF,
    LEARNING_RATE,
    TEMPERATURE,
    VALUE_COEF,
    add_step_arguments,
    read_prompts,
    step_result,
    write_result,
)


class Watch:
    """Stands between TRL's loop and the functions it calls.

    Args:
        trainer: ready to train; its functions are replaced.
        pad: the pad token's id.
        samples: where the first step's tokens and log-probabilities are written, or None.

    Attributes:
        steps: what each step cost and did.
    """

    def __init__(self, trainer: Any, pad: int, samples: Path | None) -> None:
        self.steps: list[dict[str, Any]] = []
        self._meter, self._pad, self._samples = StepMeter(), pad, samples
        self._counts: dict[str, int] = {}
        self._new_tokens = 0
        self._generate, self._log, self._forward = ppo_trainer.batch_generation, trainer.log, ppo_trainer.forward
        ppo_trainer.batch_generation, ppo_trainer.forward, trainer.log = self.generate, self.forward, self.log
        # In a rollout TRL reads values and scores by the same function.
        self._meter.stand_in(
            ppo_trainer, "get_reward", lambda model, *_: "reward" if model is trainer.reward_model else "values"
        )
        self._meter.stand_in(trainer.accelerator, "backward", "train_backward")
        self._optimizer_step = trainer.optimizer.step
        trainer.optimizer.step = self.optimizer_step

    def generate(self, model: Any, queries: Any, *rest: Any) -> Any:
        """TRL's generation: a step begins here."""
        self._meter.start()
        with self._meter.phase("generation"):
            out, logits = self._generate(model, queries, *rest)
        responses = out[:, queries.shape[1] :]
        self._new_tokens = responses.shape[1]
        self._counts = {
            "prompt_tokens": int((queries != self._pad).sum()),
            "positions": out.numel(),
            "action_tokens": responses.numel(),
            "stray_pads": int((responses == self._pad).sum()),
            "trained_tokens": 0,
            "optimizer_steps": 0,
        }
        if self._samples is not None:
            write_samples(self._samples, queries, responses, logits, self._pad)
            self._samples = None
        return out, logits

    def forward(self, model: Any, query_responses: Any, pad: int) -> Any:
        """TRL's forward pass: the reference's in the rollout, policy's and critic's in training."""
        training = torch.is_grad_enabled()
        if training:
            self._counts["trained_tokens"] += query_responses.shape[0] * self._new_tokens
        with self._meter.phase("train_forward" if training else "reference"):
            return self._forward(model, query_responses, pad)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """An optimizer step over policy and critic."""
        self._counts["optimizer_steps"] += 1
        with self._meter.phase("optimizer"):
            return self._optimizer_step(*args, **kwargs)

    def log(self, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's log: a step ends here."""
        self.steps.append({**self._meter.stop(), "counts": self._counts})
        return self._log(metrics, *args, **kwargs)


def write_samples(file: Path, queries: Any, responses: Any, logits: Any, pad: int) -> None:
    """Keep what was sampled, for the other side to read with its own code.

    Args:
        file: an npz with ``prompts`` (``[B, P]``, right-padded with -1), ``tokens`` and ``logp`` (``[B, T]``).
        queries: ``[B, P]``, left-padded with ``pad``.
        responses: ``[B, T]``.
        logits: ``[B, T, V]`` that they were drawn from, temperature applied.
    """
    prompts = np.full(tuple(queries.shape), -1, dtype=np.int64)
    logp = np.zeros(tuple(responses.shape))
    for row, query in enumerate(queries):
        ids = query[query != pad]
        prompts[row, : len(ids)] = ids.numpy()
        chosen = torch.log_softmax(logits[row].double(), dim=-1).gather(1, responses[row][:, None])
        logp[row] = chosen[:, 0].numpy()
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, prompts=prompts, tokens=responses.numpy(), logp=logp)


def build_trainer(args: argparse.Namespace, tokenizer: Any, output: str) -> Any:
    """TRL's trainer with policy, reference, critic and reward model in float32."""
    rows = [{"input_ids": row["input_ids"]} for row in read_prompts(args.prompts, args.num_prompts)]
    prompts = Dataset.from_list(rows)

    def load(auto: Any, folder: str, **options: Any) -> Any:
        return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa", **options)

    torch.manual_seed(args.seed)
    critic = load(AutoModelForSequenceClassification, args.model, num_labels=1)
    lora = None
    if args.lora:
        lora = LoraConfig(r=args.lora, lora_alpha=2 * args.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    config = PPOConfig(
        output_dir=output,
        per_device_train_batch_size=len(rows),
        gradient_accumulation_steps=1,
        num_mini_batches=1,
        num_ppo_epochs=args.epochs,
        total_episodes=len(rows) * (args.warmup + args.steps),
        response_length=args.new_tokens,
        local_rollout_forward_batch_size=len(rows),
        num_sample_generations=0,
        learning_rate=LEARNING_RATE,
        temperature=TEMPERATURE,
        kl_coef=KL_COEF,
        vf_coef=VALUE_COEF,
        stop_token=None,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        seed=args.seed,
    )
    return PPOTrainer(
        args=config,
        processing_class=tokenizer,
        model=load(AutoModelForCausalLM, args.model),
        ref_model=None if lora else load(AutoModelForCausalLM, args.model),
        reward_model=load(AutoModelForSequenceClassification, args.reward, num_labels=1),
        value_model=critic,
        train_dataset=prompts,
        eval_dataset=prompts,
        peft_config=lora,
    )


def main() -> None:
    """Run the steps and write what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_step_arguments(parser)
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters on the policy; 0: all weights")
    parser.add_argument("--pad", default="<|endoftext|>", help="pad token; must not occur in prompts")
    parser.add_argument("--samples", type=Path, help="npz for the first step's tokens and log-probabilities")
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    torch.set_num_threads(args.threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    tokenizer.pad_token = args.pad
    with tempfile.TemporaryDirectory() as output:
        trainer = build_trainer(args, tokenizer, output)
        watch = Watch(trainer, tokenizer.pad_token_id, args.samples)
        trainer.train()
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    result = step_result(
        watch.steps, args.warmup, side="trl", epochs=args.epochs, threads=torch.get_num_threads(), versions=versions
    )
    write_result(args.out, result)


if __name__ == "__main__":
    main()
