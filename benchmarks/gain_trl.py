"""TRL 1.12.0's PPO trainer on the way to a held-out gain, on the quickstart's task. Runs in ``.venv-trl``.

The trainer is TRL's own and unchanged. What it is given, besides what stands at the top of ``trl_side.py``:

- Low-rank adapters like Surefoot's on the policy (by its ``peft_config``). Its value model has to be a model of its
  own: the same base with adapters of the same rank, and a score layer that starts at zero, as Surefoot's head does (one
  drawn at random would say noise at first). One learning rate serves both, since that is what it has.
- The score at its ``get_reward``: the quickstart's own function on the decoded response. No reward model is run.
- ``stop_token="eos"``: responses end where Surefoot's do; ``missing_eos_penalty`` is the quickstart's.
- Its data loader without shuffling, so that its steps take the prompts that Surefoot's take.
- A batch is one micro-batch; its loop makes a minibatch's optimizer step of it then.

It has no gradient clipping; Surefoot clips at 1.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import trl  # type: ignore[import-not-found, unused-ignore]
from datasets import Dataset
from peft import LoraConfig, inject_adapter_in_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, GenerationConfig
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer  # type: ignore[import-not-found, unused-ignore]

from benchmarks.gain import Course, Task, add_run_arguments, load_reward, prompts_digest
from benchmarks.measuring import prefer_this_process
from benchmarks.trl_side import Watch
from benchmarks.work import read_prompts, write_result


class Over(Exception):
    """The run has reached its goal or used up its time; TRL's loop has no other way to be ended."""


class SentimentReward:
    """Stands in for TRL's ``get_reward``: the quickstart's score for the reward model, TRL's own code for the critic.

    Args:
        function: the quickstart's reward.
        tokenizer: of the policy.

    Attributes:
        model: given to the trainer as its reward model; it holds nothing and is never run.
        latest: the latest step's responses: ``text``, ``score``, ``ended``.
    """

    def __init__(self, function: Callable[..., list[float]], tokenizer: Any) -> None:
        self.model = torch.nn.Identity()
        self.latest: list[dict[str, Any]] = []
        self._function, self._tokenizer, self._original = function, tokenizer, ppo_trainer.get_reward
        ppo_trainer.get_reward = self

    def __call__(self, model: Any, query_responses: Any, pad: int, context_length: int) -> Any:
        """As TRL's: ``[B, P + T]`` tokens, prompts ``context_length`` long; scores ``[B]`` come second."""
        if model is not self.model:
            return self._original(model, query_responses, pad, context_length)
        self.latest = self.score(query_responses[:, context_length:])
        return None, torch.tensor([response["score"] for response in self.latest]), None

    def score(self, responses: Any) -> list[dict[str, Any]]:
        """Decode and score ``[B, T]`` tokens, each row up to its end-of-sequence token, as Surefoot decodes them."""
        end, rows = self._tokenizer.eos_token_id, responses.tolist()
        ended = [end in row for row in rows]
        texts = [
            self._tokenizer.decode(
                row[: row.index(end)] if end in row else row,
                skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
            for row in rows
        ]
        scores = self._function(prompts=[""] * len(texts), completions=texts)
        return [
            {"text": text, "score": score, "ended": done}
            for text, score, done in zip(texts, scores, ended, strict=True)
        ]


class HeldOut:
    """Held-out prompts: sampled with the trainer's policy and settings, with the same draws each time, and scored.

    Args:
        rows: token ids of each prompt.
        task: the numbers.
        seed: of the draws.
        reward: scores responses.
        tokenizer: pads on the left.
    """

    def __init__(
        self, rows: Sequence[list[int]], task: Task, *, seed: int, reward: SentimentReward, tokenizer: Any
    ) -> None:
        self._batch = tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt")
        self._settings = {
            "max_new_tokens": task.max_new_tokens,
            "temperature": task.temperature + 1e-7,
            "top_k": 0.0,
            "top_p": 1.0,
            "do_sample": True,
        }
        self._seed, self._reward = seed, reward

    def __call__(self, trainer: Any) -> list[dict[str, Any]]:
        """One response a prompt; leaves the trainer's random numbers as they are."""
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            ppo_trainer.unwrap_model_for_generation(
                trainer.model, trainer.accelerator, generation_kwargs=self._settings
            ) as model,
        ):
            torch.manual_seed(self._seed)
            out = model.policy.generate(**self._batch, generation_config=GenerationConfig(**self._settings))
        return self._reward.score(out[:, self._batch["input_ids"].shape[1] :])


class GainWatch(Watch):
    """Watches TRL's loop as ``trl_side.py`` does, evaluates after each step and ends the loop.

    Args:
        trainer: ready to train.
        pad: the pad token's id.
        course: what is kept of the run.
        reward: TRL's ``get_reward`` by now.
        held_out: sampled after each step.
    """

    def __init__(self, trainer: Any, pad: int, *, course: Course, reward: SentimentReward, held_out: HeldOut) -> None:
        super().__init__(trainer, pad, None)
        self._trainer, self._course, self._reward, self._held_out = trainer, course, reward, held_out
        self._prompts = ""

    def generate(self, model: Any, queries: Any, *rest: Any) -> Any:
        """TRL's generation; its prompts are noted."""
        self._prompts = prompts_digest(row[row != self._pad].tolist() for row in queries)
        return super().generate(model, queries, *rest)

    def log(self, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's log: a step ends here, and is evaluated off the clock."""
        super().log(metrics, *args, **kwargs)
        step = self.steps[-1]
        self._course.stepped(
            {name: value for name, value in step.items() if name != "counts"},
            self._reward.latest,
            kl=metrics["objective/kl"],
            updates=step["counts"]["optimizer_steps"],
            prompts=self._prompts,
            # As TRL took it, the penalty for missing ends included.
            trained_score=metrics["objective/scores"],
        )
        self._course.evaluated(self._held_out(self._trainer))
        if self._course.over:
            raise Over


def make_config(args: argparse.Namespace, task: Task, output: str) -> Any:
    """TRL's config with the task's numbers."""
    size = task.prompts_per_step
    return PPOConfig(
        output_dir=output,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=1,
        num_mini_batches=task.minibatches,
        num_ppo_epochs=task.epochs,
        total_episodes=size * args.steps,
        response_length=task.max_new_tokens,
        local_rollout_forward_batch_size=size,
        num_sample_generations=0,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        temperature=task.temperature,
        kl_coef=task.kl_coef,
        vf_coef=task.value_coef,
        cliprange=task.clip,
        cliprange_value=task.value_clip,
        gamma=task.gamma,
        lam=task.lam,
        stop_token="eos",
        missing_eos_penalty=task.missing_eos_penalty,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        seed=args.seed,
    )


def adapters(task: Task, **options: Any) -> LoraConfig:
    """Low-rank adapters on all linear layers, as the quickstart's."""
    return LoraConfig(r=task.lora_rank, lora_alpha=task.lora_alpha, target_modules="all-linear", **options)


def build_value_model(task: Task) -> Any:
    """The base model with trainable adapters and a score layer that says 0."""
    model: Any = load(AutoModelForSequenceClassification, task.model, num_labels=1)
    trunk = getattr(model, model.base_model_prefix)
    setattr(model, model.base_model_prefix, inject_adapter_in_model(adapters(task), trunk))
    torch.nn.init.zeros_(model.score.weight)
    return model


def load(auto: Any, folder: str, **options: Any) -> Any:
    """A model in float32."""
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa", **options)


def build_trainer(args: argparse.Namespace, task: Task, tokenizer: Any, reward: SentimentReward, output: str) -> Any:
    """TRL's trainer; with adapters on the policy, its own reference is the policy without them."""
    rows = read_prompts(Path(task.prompts[str(args.seed)]), args.steps * task.prompts_per_step)
    prompts = Dataset.from_list([{"input_ids": row["input_ids"]} for row in rows])
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # TRL draws its minibatches from here and never seeds it.
    trainer: Any = PPOTrainer(
        args=make_config(args, task, output),
        processing_class=tokenizer,
        model=load(AutoModelForCausalLM, task.model),
        ref_model=None,
        reward_model=reward.model,
        value_model=build_value_model(task),
        train_dataset=prompts,
        eval_dataset=prompts,
        peft_config=adapters(task, task_type="CAUSAL_LM"),
    )
    loader = DataLoader(
        prompts, batch_size=task.prompts_per_step, shuffle=False, collate_fn=trainer.data_collator, drop_last=True
    )
    trainer.dataloader = trainer.accelerator.prepare(loader)
    return trainer


def train(args: argparse.Namespace, task: Task, output: str) -> dict[str, Any]:
    """Steps until the goal is reached or the time is used up."""
    tokenizer: Any = AutoTokenizer.from_pretrained(task.model, padding_side="left")
    tokenizer.pad_token = task.pad_token
    reward, course = SentimentReward(load_reward(Path(task.reward)), tokenizer), Course(args.goal, args.budget_s)
    trainer = build_trainer(args, task, tokenizer, reward, output)
    rows = [row["input_ids"] for row in read_prompts(Path(task.held_out), args.held_out)]
    held_out = HeldOut(rows, task, seed=args.seed, reward=reward, tokenizer=tokenizer)
    GainWatch(trainer, tokenizer.pad_token_id, course=course, reward=reward, held_out=held_out)
    course.evaluated(held_out(trainer))
    with contextlib.suppress(Over):
        trainer.train()
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    return course.result(side="trl", threads=torch.get_num_threads(), versions=versions)


def main() -> None:
    """Train towards the gain and write how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_arguments(parser)
    args = parser.parse_args()
    if args.prefer:
        prefer_this_process()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as output:
        write_result(args.out, train(args, Task.read(args.task), output))


if __name__ == "__main__":
    main()
