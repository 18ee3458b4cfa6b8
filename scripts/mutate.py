"""Puts one fault at a time into a copy of the sources and runs the tests that should notice.

    .venv/bin/python scripts/mutate.py            all mutations, two at a time
    .venv/bin/python scripts/mutate.py -k clip    those with "clip" in their name
    .venv/bin/python scripts/mutate.py --list     only their names

The sources in src/ are never touched. First the tests run on an unchanged copy: they must pass, or nothing could be
said about the others. The exit code is 1 when a mutation survived, and 2 when one could not be tried.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KILLED, SURVIVED, BROKEN = "killed", "SURVIVED", "BROKEN"

MASKS, KLS, WHITENING, GAE = (
    f"tests/algo/test_{name}.py" for name in ("aggregation", "divergence", "whitening", "advantages")
)
UPDATE, STEP, RECORDS = (f"tests/training/test_{name}.py" for name in ("update", "step", "step_records"))
SCHEDULE = "tests/training/test_schedule.py"
OPTIMIZER, RESUME = (f"tests/training/test_{name}.py" for name in ("optimizer", "resume"))
EVALUATION, STOPPING = (f"tests/training/test_{name}.py" for name in ("evaluation", "stopping"))
OPTIMUM = "tests/training/test_optimum.py::test_ppo_reaches_the_optimum"
KILL = "tests/training/test_kill.py::test_killed_at_random_moments_a_run_repeats_the_untouched_one"
ANSWERS, SCORES = "tests/models/test_answers.py", "tests/models/test_score_model.py"
SFT, PAIRS = "tests/training/test_sft.py", "tests/training/test_reward_model.py"
SFT_RUN, PREFERENCES = "tests/assembly/test_sft_run.py", "tests/data/test_preferences.py"
HEAD, ATTENTION = "tests/models/test_output_head.py", "tests/models/test_attention.py"
DRAWS, ENGINE = "tests/rollout/test_sampling.py", "tests/rollout/test_engine_native.py"


@dataclass(frozen=True)
class Mutation:
    """A fault: what it is, where, and which tests must turn red.

    Attributes:
        name: of the fault.
        file: below src/surefoot.
        old, new: text that occurs exactly once there, and what replaces it.
        tests: files and folders handed to pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTATIONS = (
    # ---------------------------------------------------------------- the mathematics
    Mutation(
        "the larger surrogate instead of the smaller",
        "algo/losses.py",
        "torch.minimum(ratio * advantages, clipped * advantages)",
        "torch.maximum(ratio * advantages, clipped * advantages)",
        (UPDATE,),
    ),
    Mutation(
        "the smaller value loss instead of the larger",
        "algo/losses.py",
        "torch.maximum(squared, (clipped - returns).square())",
        "torch.minimum(squared, (clipped - returns).square())",
        (UPDATE,),
    ),
    Mutation(
        "dual clip for positive advantages",
        "algo/losses.py",
        "torch.where(advantages < 0, torch.maximum(",
        "torch.where(advantages > 0, torch.maximum(",
        (UPDATE,),
    ),
    Mutation("mask dropped in the mean", "algo/aggregation.py", "torch.where(mask, x, 0.0)", "x", (MASKS,)),
    Mutation("sign of the KL", "algo/divergence.py", "    return difference\n", "    return -difference\n", (KLS,)),
    Mutation(
        "score on the token before the last",
        "algo/shaping.py",
        "mask & (remaining == 1)",
        "mask & (remaining == 2)",
        (STEP,),
    ),
    Mutation(
        "given tokens decay",
        "algo/advantages.py",
        "next_advantage = torch.where(chosen, advantage, next_advantage)",
        "next_advantage = torch.where(chosen, advantage, gamma * lam * next_advantage)",
        (GAE,),
    ),
    Mutation(
        "values off the mask enter the advantages",
        "algo/advantages.py",
        "next_value = torch.where(chosen, value, next_value)",
        "next_value = value",
        (GAE,),
    ),
    Mutation(
        "sample variance in whitening",
        "algo/mean_variance.py",
        "(valid - mean).square().mean().item()",
        "valid.var().item()",
        (WHITENING,),
    ),
    Mutation(
        "adaptive KL turned round",
        "algo/controllers.py",
        "_check_kl(kl) / self.target - 1.0",
        "1.0 - _check_kl(kl) / self.target",
        (STEP,),
    ),
    # ---------------------------------------------------------------- estimating
    Mutation(
        "operands of the KL swapped",
        "training/estimate.py",
        'algo.kl(logp, ref_logp, "k1")',
        'algo.kl(ref_logp, logp, "k1")',
        (STEP,),
    ),
    Mutation(
        "k3 as the reward",
        "training/estimate.py",
        'algo.kl(logp, ref_logp, "k1")',
        'algo.kl(logp, ref_logp, "k3")',
        (OPTIMUM,),
    ),
    Mutation(
        "every row bootstrapped",
        "training/estimate.py",
        "torch.where(cut_off, after, 0.0)",
        "after",
        (STEP,),
    ),
    Mutation(
        "no row bootstrapped",
        "training/estimate.py",
        "torch.where(cut_off, after, 0.0)",
        "torch.zeros_like(after)",
        (STEP,),
    ),
    Mutation(
        "finished rows pay for a missing end",
        "training/estimate.py",
        "penalty * bool(cut_off[i])",
        "penalty",
        (STEP,),
    ),
    Mutation(
        "failed scores as 0",
        "training/estimate.py",
        "    if not failed.any():\n",
        "    if True:\n",
        (STEP,),
    ),
    Mutation(
        "failed scores enter the statistics as 0",
        "training/estimate.py",
        "for i, score in enumerate(scores) if score.value is not None]",
        "for i, score in enumerate(scores)]",
        (STEP,),
    ),
    Mutation(
        "KL as a loss paid in the reward too",
        "training/estimate.py",
        'kl_coef if cfg.ppo.kl.place == "reward" else 0.0',
        "kl_coef",
        (STEP,),
    ),
    Mutation(
        "a foreign engine not corrected",
        "training/estimate.py",
        "if foreign_engine and rollout.logp is not None:",
        "if False:",
        (STEP,),
    ),
    # ---------------------------------------------------------------- losses and updates
    Mutation(
        "old log-probabilities recomputed from the weights as they are",
        "training/losses.py",
        "cfg, old, advantages = self.cfg, self.old[rows], self.advantages[rows]",
        "cfg, old, advantages = self.cfg, logp.detach(), self.advantages[rows]",
        (UPDATE,),
    ),
    Mutation(
        "whitening per micro-batch",
        "training/losses.py",
        '    if cfg.surrogate == "kl":\n',
        "    advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)\n"
        '    if cfg.surrogate == "kl":\n',
        (UPDATE,),
    ),
    Mutation(
        "mean over the micro-batch's own tokens",
        "training/losses.py",
        "count=counts.denominator(how))",
        "count=None)",
        (UPDATE,),
    ),
    Mutation(
        "sides of the clip swapped",
        "training/losses.py",
        "logp, old, advantages, clip_low=cfg.clip_low, clip_high=cfg.clip_high, dual_clip=cfg.dual_clip",
        "logp, old, advantages, clip_low=cfg.clip_high, clip_high=cfg.clip_low, dual_clip=cfg.dual_clip",
        (UPDATE,),
    ),
    Mutation("value clip removed", "training/losses.py", "clip=cfg.value_clip", "clip=None", (UPDATE,)),
    Mutation(
        "entropy punished",
        "training/losses.py",
        "return by_logp, (-self.cfg.entropy_coef",
        "return by_logp, (self.cfg.entropy_coef",
        (UPDATE,),
    ),
    Mutation(
        "importance weights not applied",
        "training/losses.py",
        "if self.weights is not None:",
        "if False:",
        (UPDATE,),
    ),
    Mutation(
        "policy trained during the warm-up",
        "training/update.py",
        "frozen=warming_up)",
        "frozen=False)",
        (STEP,),
    ),
    Mutation(
        "the same order of minibatches in every step",
        "training/update.py",
        '"minibatch", step=step, index=epoch',
        '"minibatch", index=epoch',
        (UPDATE,),
    ),
    Mutation(
        "a step taken on the minibatch that showed too large a KL",
        "training/update.py",
        "                learner.policy_optimizer.zero()\n                yield replace",
        "                learner.policy_optimizer.step(sums.loss)\n                yield replace",
        (UPDATE,),
    ),
    Mutation(
        "value loss without its coefficient",
        "training/update.py",
        "weighted = ppo.value_coef * value",
        "weighted = value",
        (UPDATE,),
    ),
    # ---------------------------------------------------------------- the optimizer
    Mutation(
        "a shared critic's head clipped in one norm with the policy",
        "assembly/models.py",
        '"clip_apart": True',
        '"clip_apart": False',
        (UPDATE,),
    ),
    Mutation(
        "groups that should be clipped apart clipped in one norm",
        "training/optimizer.py",
        "together if clip_apart else",
        "together if not groups else",
        (OPTIMIZER,),
    ),
    Mutation(
        "the norm of a shared critic's head not reported",
        "training/report.py",
        "u.grad_norm if facts.updates.critic else u.head_grad_norm for u in taken",
        "u.grad_norm if facts.updates.critic else None for u in taken",
        (STEP,),
    ),
    Mutation(
        "a frozen policy with a gradient's norm",
        "training/update.py",
        "grad_norm=None if work.frozen else outcome.grad_norm",
        "grad_norm=outcome.grad_norm",
        (STEP,),
    ),
    Mutation(
        "a group that is not finite overlooked behind the first",
        "training/optimizer.py",
        "all(map(math.isfinite, norms))",
        "math.isfinite(norms[0])",
        (OPTIMIZER,),
    ),
    Mutation(
        "AdamW's state not restored",
        "training/optimizer.py",
        "for name, state in states.items():",
        "for name, state in {}.items():",
        (RESUME,),
    ),
    Mutation(
        "the schedule starts again after a resume",
        "training/optimizer.py",
        'self.position = int(counts.get("position", self.steps_taken))',
        "self.position = 0",
        (OPTIMIZER, SCHEDULE),
    ),
    Mutation(
        "non-finite gradients stepped on",
        "training/optimizer.py",
        "if not math.isfinite(loss) or not all(map(math.isfinite, norms)):",
        "if not math.isfinite(loss):",
        (OPTIMIZER,),
    ),
    Mutation(
        "small gradients scaled up",
        "training/optimizer.py",
        "(max_norm / (norm + 1e-6)).clamp(max=1.0)",
        "(max_norm / (norm + 1e-6))",
        (OPTIMIZER,),
    ),
    Mutation(
        "one rate for all groups",
        "training/optimizer.py",
        "rates.append(rate * factor)",
        "rates.append(self.rates[0] * factor)",
        (OPTIMIZER,),
    ),
    # ---------------------------------------------------------------- step, controllers, evaluation, stopping
    Mutation(
        "adaptive KL fed per token",
        "training/step.py",
        'kl = result.metrics["kl/reference_k1"]',
        'kl = result.metrics["kl/reference_k1_per_token"]',
        (STEP,),
    ),
    Mutation(
        "values read after the update",
        "training/step.py",
        "    result = report(facts, cfg, clock)\n",
        "    batch = estimate(rollout, scores, read(rollout, parts), cfg, kl_coef=kl_coef)\n"
        "    result = report(facts, cfg, clock)\n",
        (RECORDS, STEP),
    ),
    Mutation(
        "evaluation draws anew each time",
        "training/evaluation.py",
        "seed=(section.seed, 0)",
        "seed=(section.seed, step)",
        (EVALUATION,),
    ),
    Mutation(
        "evaluation with the training's temperature",
        "training/evaluation.py",
        "greedy=section.temperature == 0",
        "greedy=False",
        (EVALUATION,),
    ),
    Mutation(
        "evaluation counts samples, not prompts",
        "training/evaluation.py",
        "setdefault(trajectory.group, [])",
        "setdefault(len(groups), [])",
        (EVALUATION,),
    ),
    Mutation(
        "a reason to stop forgotten by a resume",
        "training/stopping.py",
        'self._kl, self._score = state["kl"], state["score"]',
        "pass",
        (STOPPING,),
    ),
    Mutation(
        "the first evaluation twice after a kill",
        "training/trainer.py",
        "lambda record: 0 < self.step >= int",
        "lambda record: self.step >= int",
        (KILL,),
    ),
    # ---------------------------------------------------------------- the state
    Mutation(
        "the KL coefficient not restored",
        "training/state.py",
        'parts.kl.coef, parts.penalty.coef = state["kl_coef"], state["surrogate_kl_coef"]',
        'parts.penalty.coef = state["surrogate_kl_coef"]',
        (RESUME,),
    ),
    Mutation(
        "the end of the warm-up not restored",
        "training/state.py",
        'parts.warmed_up = state["warmed_up"]',
        "pass",
        (RESUME,),
    ),
    Mutation(
        "reward statistics not restored",
        "training/state.py",
        'parts.normaliser.load(state["normaliser"])',
        "pass",
        (RESUME,),
    ),
    Mutation(
        "the critic not restored",
        "training/state.py",
        '    load_parameters(learner.critic.trainable(), folder / "critic.safetensors")\n',
        "",
        (RESUME,),
    ),
    # ---------------------------------------------------------------- the stages before PPO
    Mutation(
        "the prompt is trained too",
        "models/answers.py",
        "first, last = found.cuts[start], found.cuts[end]",
        "first, last = 0, found.cuts[end]",
        (ANSWERS,),
    ),
    Mutation(
        "the end of a turn is not trained",
        "models/answers.py",
        "last = closing + 1",
        "last = closing",
        (ANSWERS,),
    ),
    Mutation(
        "a template that rewrites answers is believed",
        "models/answers.py",
        "if not written.startswith(part):",
        "if False:",
        (ANSWERS,),
    ),
    Mutation(
        "a token across a cut",
        "models/answers.py",
        "if all(ids[: len(part)] == part for part in cuts.values()):",
        "if True:",
        (ANSWERS,),
    ),
    Mutation(
        "fine-tuning averages micro-batches",
        "training/sft.py",
        'share(-logp, micro, counts, "token-mean")',
        "(-logp).mean()",
        (SFT,),
    ),
    Mutation(
        "groups of pairs weigh alike",
        "training/reward_model.py",
        " * (len(group) / len(rows))",
        "",
        (PAIRS,),
    ),
    Mutation(
        "centring forgotten",
        "training/reward_model.py",
        "margin=margin, centering=cfg.centering",
        "margin=margin",
        (PAIRS,),
    ),
    Mutation(
        "a score before the last token",
        "models/score_model.py",
        "index_select(0, batch.last)",
        "index_select(0, batch.last - 1)",
        (SCORES,),
    ),
    Mutation(
        "a padding token that ends texts",
        "models/save_score_model.py",
        "if i not in endings), codec.pad_id)",
        "), codec.pad_id)",
        (SCORES,),
    ),
    Mutation(
        "the least of the heads is their mean",
        "models/reward_model.py",
        'if self.how == "min":',
        "if False:",
        (SCORES,),
    ),
    Mutation(
        "ties not counted",
        "data/preferences.py",
        "            found.ties += 1\n            continue",
        "            continue",
        (PREFERENCES,),
    ),
    Mutation(
        "a task that was edited",
        "data/judging.py",
        'if row.get("id") != expected:',
        "if False:",
        (PREFERENCES,),
    ),
    Mutation(
        "a stage resumed without its moments",
        "training/stage.py",
        '        self.optimizer.load(read_tensors(folder / MOMENTS), state["optimizer"])\n',
        "",
        (SFT_RUN,),
    ),
    Mutation(
        "the last weights published for the best",
        "training/stage.py",
        "if best is not None and best != step:",
        "if False:",
        (SFT_RUN,),
    ),
    # ---------------------------------------------------------------- models and sampling
    Mutation(
        "temperature dropped in the head",
        "models/output_head.py",
        "if self.temperature != 1.0:",
        "if False:",
        (UPDATE,),
    ),
    Mutation(
        "a loss that is not what was said of it",
        "models/output_head.py",
        "> SLOPES_MAY_DIFFER * said.abs().max():",
        "> 1e9:",
        (HEAD,),
    ),
    Mutation(
        "slopes of the first tokens for all",
        "training/losses.py",
        "cfg, old, advantages = self.cfg, self.old[rows], self.advantages[rows]",
        "cfg, old, advantages = self.cfg, self.old[: len(logp)], self.advantages[: len(logp)]",
        (UPDATE,),
    ),
    Mutation(
        "pieces attended to together see what comes later",
        "models/grouped_attention.py",
        "triu_(width - length + 1)",
        "triu_(width - length + 2)",
        (ATTENTION,),
    ),
    Mutation(
        "what several pieces see learns from one",
        "models/grouped_attention.py",
        "for heads, places in plan.copies:",
        "for heads, places in ():",
        (ATTENTION,),
    ),
    Mutation(
        "padded queries learn",
        "models/grouped_attention.py",
        ".index_fill_(0, bucket.padded, 0.0)",
        "",
        (ATTENTION,),
    ),
    Mutation(
        "packed rows see each other",
        "models/packing.py",
        "layout=Packed(tuple(lengths), tuple(pieces.before)),",
        "layout=Packed((sum(lengths),)),",
        (UPDATE,),
    ),
    Mutation(
        "packed rows with running positions",
        "models/packing.py",
        "np.concatenate([np.arange(start, end) for _, start, end in pieces.cuts])[None]",
        "np.arange(sum(lengths))[None]",
        (UPDATE,),
    ),
    Mutation(
        "log-probability read one state too late",
        "models/batching.py",
        "starts[local] + columns - 1",
        "starts[local] + columns",
        (UPDATE,),
    ),
    Mutation(
        "the reference trains along",
        "models/policy.py",
        "with starting_policy(self._policy.lm.adapters):",
        "if True:",
        (STEP,),
    ),
    Mutation(
        "the draw's side of the search",
        "rollout/sampling.py",
        "torch.searchsorted(inner, rest, right=True)",
        "torch.searchsorted(inner, rest, right=False)",
        (DRAWS,),
    ),
    Mutation(
        "the same draws in every step",
        "rollout/engine_native.py",
        "step=seed[1], index=index",
        "index=index",
        (STEP,),
    ),
    Mutation(
        "the same draws in every row",
        "rollout/engine_native.py",
        "step=seed[1], index=index",
        "step=seed[1]",
        (ENGINE,),
    ),
    Mutation(
        "a schedule that steps left out do not move",
        "training/update.py",
        "optimizer.move_to(position_of(step, cfg))",
        "pass",
        (SCHEDULE,),
    ),
    Mutation(
        "the policy's schedule runs while only the critic is trained",
        "training/optimizer.py",
        "if moving[i] or not any(moving):",
        "if True:",
        (SCHEDULE,),
    ),
    Mutation(
        "a checkpoint that copies the moments",
        "training/optimizer.py",
        'f"{name}::{key}": value.detach()',
        'f"{name}::{key}": value.detach().clone()',
        ("tests/training/test_memory.py",),
    ),
    # ---------------------------------------------------------------- what makes it fast
    Mutation(
        "a common beginning gets no gradient of the rows that continue it",
        "models/attention.py",
        "(torch.cat([x[j] for j in (*before, i)], dim=1) if before else x[i] for x in (keys, values))",
        "(torch.cat([*(x[j].detach() for j in before), x[i]], dim=1) for x in (keys, values))",
        ("tests/models/test_attention.py", "tests/models/test_packing.py"),
    ),
    Mutation(
        "a piece that attends to itself only",
        "models/attention.py",
        "before = layout.before[i] if layout.before else ()",
        "before = ()",
        ("tests/models/test_attention.py",),
    ),
    Mutation(
        "a piece whose first token does not see itself",
        "models/attention.py",
        "hidden.triu_(keys - queries + 1)",
        "hidden.triu_(keys - queries)",
        ("tests/models/test_attention.py",),
    ),
    Mutation(
        "a piece that does not see what it continues",
        "models/packing.py",
        "self.before.append(before)",
        "self.before.append(())",
        ("tests/models/test_packing.py",),
    ),
    Mutation(
        "the adapter's part of a state's gradient left out",
        "models/kernels.py",
        "dx.addmm_(dh, down)",
        "pass",
        ("tests/models/test_kernels.py",),
    ),
    Mutation(
        "a norm whose scale has no gradient of its own",
        "models/kernels.py",
        "dx.addcmul_(x, along.view_as(inverse))",
        "pass",
        ("tests/models/test_kernels.py",),
    ),
    Mutation(
        "adapters folded in without their scale",
        "models/decoder.py",
        "torch.addmm(weight, m.up, m.down, alpha=m.scale)",
        "torch.addmm(weight, m.up, m.down)",
        ("tests/models/test_decoder.py",),
    ),
    Mutation(
        "the sampler believed without a look",
        "training/step.py",
        "> AGREEMENT for own, theirs in pairs",
        "> 1e9 for own, theirs in pairs",
        ("tests/training/test_old_logp.py",),
    ),
)


def copy_of_sources(folder: Path, mutation: Mutation | None) -> str | None:
    """Copy src/ with one fault in it; what is wrong with the mutation, if anything."""
    shutil.copytree(ROOT / "src" / "surefoot", folder / "surefoot", ignore=shutil.ignore_patterns("__pycache__"))
    if mutation is None:
        return None
    file = folder / "surefoot" / mutation.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutation.old) != 1:
        return f"its text occurs {text.count(mutation.old)} times in {mutation.file}: bring it up to date"
    file.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return None


def run_tests(folder: Path, tests: tuple[str, ...], *, stop: bool) -> subprocess.CompletedProcess[str]:
    """Run tests against the copy in ``folder``."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    how = ["-x", "-p", "no:xdist"] if stop else ["-n", "2", "--dist=worksteal"]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", *how, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def try_one(mutation: Mutation) -> tuple[str, str]:
    """(verdict, what was seen)."""
    with tempfile.TemporaryDirectory(prefix="surefoot-mutation-") as name:
        problem = copy_of_sources(Path(name), mutation)
        if problem:
            return BROKEN, problem
        done = run_tests(Path(name), mutation.tests, stop=True)
    lines = done.stdout.strip().splitlines()
    if done.returncode == 1:
        failed = [line for line in lines if line.startswith("FAILED")]
        return KILLED, failed[0].removeprefix("FAILED ").split(" - ")[0] if failed else "an error in a fixture"
    if done.returncode == 0:
        return SURVIVED, " ".join(mutation.tests)
    return BROKEN, (lines or done.stderr.strip().splitlines() or ["no output"])[-1]


def check_baseline(mutations: list[Mutation]) -> bool:
    """Whether the unchanged sources pass every test that will be used."""
    tests = tuple(sorted({test for mutation in mutations for test in mutation.tests}))
    with tempfile.TemporaryDirectory(prefix="surefoot-mutation-") as name:
        copy_of_sources(Path(name), None)
        where = [sys.executable, "-c", "import surefoot; print(surefoot.__file__)"]
        found = subprocess.run(
            where, env={**os.environ, "PYTHONPATH": name}, capture_output=True, text=True, check=True
        )
        if not found.stdout.startswith(name):
            print(f"the copy is not what gets imported: {found.stdout.strip()}")
            return False
        done = run_tests(Path(name), tests, stop=False)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))), end="")
    print(f"unchanged sources: {lines[-1]}", flush=True)
    return done.returncode == 0


def main() -> int:
    """Try the mutations and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="only mutations with this in their name")
    parser.add_argument("-j", type=int, default=min(2, os.cpu_count() or 1), help="mutations tried at once")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.k.lower() in mutation.name.lower()]
    if options.list:
        print("\n".join(f"{m.name}  ({m.file})" for m in chosen))
        return 0
    if not chosen:
        print("no mutation of that name")
        return 2
    if not check_baseline(chosen):
        return 2
    verdicts = []
    with ThreadPoolExecutor(options.j) as pool:
        begun = time.monotonic()
        for mutation, (verdict, seen) in zip(chosen, pool.map(try_one, chosen), strict=True):
            verdicts.append(verdict)
            print(f"{verdict:9} {mutation.name:60} {seen}", flush=True)
    counts = ", ".join(f"{verdicts.count(v)} {v.lower()}" for v in (KILLED, SURVIVED, BROKEN))
    print(f"{len(verdicts)} mutations: {counts}; {time.monotonic() - begun:.0f} s")
    return 2 if BROKEN in verdicts else int(SURVIVED in verdicts)


if __name__ == "__main__":
    raise SystemExit(main())
