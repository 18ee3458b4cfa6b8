"""``preflight(config)``: finds in seconds what would otherwise be found after hours, and writes nothing.

Every check goes through the code that training uses. A stage that fails is a problem, and the stages that do not need
it go on, so that one call names all there is to put right.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from surefoot.assembly.memory import Estimate, free_disk, memory_for, memory_of
from surefoot.assembly.mistakes import common_mistakes
from surefoot.assembly.models import choose_device
from surefoot.assembly.preflight_identities import check_identities, start_of
from surefoot.assembly.preflight_prompts import Text, check_text
from surefoot.assembly.preflight_responses import check_responses, sample
from surefoot.assembly.preflight_reward import check_reward
from surefoot.assembly.preflight_update import check_update
from surefoot.assembly.rewards import build_reward, required_columns
from surefoot.assembly.services import connect_critic
from surefoot.assembly.train import Inputs, build_parts, check_columns, exact_arithmetic, run_name
from surefoot.assembly.verdicts import Verdicts
from surefoot.config import Config, ineffective
from surefoot.data.order import PromptOrder
from surefoot.models.load import load_model_config
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.tokenizer import TextCodec, load_codec
from surefoot.records import Finding, Prompt, Rollout, Score
from surefoot.rewards import CompositeReward

GROUPS: Final = (
    "config",
    "machine",
    "model",
    "tokenizer",
    "prompts",
    "responses",
    "reward",
    "service",
    "identities",
    "update",
    "mistakes",
)
"""The groups of checks, in the order they are shown in."""
GB: Final = 1e9
SERVICE_PATIENCE_S: Final = 10.0
HELPS: Final = (
    "try model.lora, critic.kind: shared, model.gradient_checkpointing, smaller batch.tokens or rollout.max_rows"
)


def preflight(config: Config) -> list[Finding]:
    """Run every check.

    Args:
        config: complete for ``train`` (see :func:`surefoot.config.require`).
    Returns:
        one finding per check, named ``group/check``, in the order of GROUPS; severity ``error`` is a problem.
    """
    verdicts = Verdicts()
    _check_config(config, verdicts)
    common_mistakes(config, verdicts)
    config = _check_machine(config, verdicts)
    with exact_arithmetic(config.run.threads):
        codec = verdicts.attempt("tokenizer/load", lambda: _codec(config))
        reward = verdicts.attempt("reward/load", lambda: build_reward(_impatient(config), codec))
        try:
            if codec is not None:
                config = _check_critic_service(config, codec, verdicts)
                _check_model(config, codec, reward, verdicts)
        finally:
            if reward is not None:
                reward.close()
    return sorted(verdicts.findings, key=lambda finding: GROUPS.index(finding.name.partition("/")[0]))


def _check_config(config: Config, verdicts: Verdicts) -> None:
    verdicts.ok("config/keys", "complete, and nothing in it contradicts another key")
    idle = ineffective(config)
    for sentence in idle:
        verdicts.warn("config/effect", sentence, "remove it, or set what it waits for")
    if not idle:
        verdicts.ok("config/effect", "every setting that was changed has an effect")
    steps, warmup = config.run.steps or 0, config.critic.warmup_steps
    if warmup >= steps and config.critic.warmup_explained_variance is None:
        verdicts.problem(
            "config/warmup",
            f"the critic warms up for {warmup} steps and the run has {steps}: the policy is never trained",
            "lower critic.warmup_steps, or raise run.steps",
        )


def _check_machine(config: Config, verdicts: Verdicts) -> Config:
    """Device, packages and run folder; the config with the device that the other checks use."""
    device = verdicts.attempt("machine/device", lambda: choose_device(config.run.device))
    if device is None:
        config = config.model_copy(update={"run": config.run.model_copy(update={"device": "cpu"})})
    else:
        threads = config.run.threads or torch.get_num_threads()
        verdicts.ok("machine/device", f"{device}, {threads} CPU threads", device=str(device), threads=threads)
    folder = Path(config.run.dir).expanduser() / run_name(config)
    if os.path.lexists(folder):
        verdicts.note(
            "machine/run_folder",
            f"{folder} exists",
            "train will need --resume to go on with that run, or another run.name",
        )
    else:
        verdicts.ok("machine/run_folder", f"{folder} will be made")
    if config.track.tensorboard and importlib.util.find_spec("tensorboard") is None:
        verdicts.problem(
            "machine/packages", "track.tensorboard needs the package 'tensorboard'", "pip install 'surefoot[track]'"
        )
    if config.model.quantize == "nf4" and importlib.util.find_spec("bitsandbytes") is None:
        verdicts.problem(
            "machine/packages",
            "model.quantize: nf4 needs the package 'bitsandbytes'",
            "pip install 'surefoot[quantize]'",
        )
    return config


def _check_critic_service(config: Config, codec: TextCodec, verdicts: Verdicts) -> Config:
    """Meet the critic's service; the config with the critic in this process, for all checks that try it."""
    if config.critic.url is None:
        return config
    name = "service/critic"
    critic = verdicts.attempt(name, lambda: connect_critic(config, codec, patience_s=SERVICE_PATIENCE_S))
    if critic is not None:
        critic.client.close()
        verdicts.ok(name, f"the service at {config.critic.url} answers, with the critic that this run needs")
    return config.model_copy(update={"critic": config.critic.model_copy(update={"url": None})})


def _impatient(config: Config) -> Config:
    """With remote rewards that are given up soon: a wrong address is to be found in seconds."""
    terms = [
        term.model_copy(update={"patience_s": min(term.patience_s, SERVICE_PATIENCE_S)}) for term in config.reward.terms
    ]
    return config.model_copy(update={"reward": config.reward.model_copy(update={"terms": terms})})


def _codec(config: Config) -> TextCodec:
    assert config.model.policy is not None
    return load_codec(
        config.model.policy,
        chat_template=config.model.chat_template,
        trust_remote_code=config.model.trust_remote_code,
    )


def _check_model(config: Config, codec: TextCodec, reward: CompositeReward | None, verdicts: Verdicts) -> None:
    model_config = verdicts.attempt("model/config", lambda: _model_config(config))
    if model_config is None:
        return
    text = check_text(config, codec, model_config, verdicts)
    if text is None:
        return
    _check_columns(config, reward, text, verdicts)
    if not _fits(config, model_config, text, verdicts):
        return
    inputs = Inputs(codec, model_config, text.prompts, text.held_out, reward or _absent_reward())
    try:
        _check_samples(config, inputs, reward, verdicts)
    except (MemoryError, torch.OutOfMemoryError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        verdicts.problem(
            "machine/room", f"the memory ran out on a few short responses: {reason}", f"it does not fit; {HELPS}"
        )


def _model_config(config: Config) -> Any:
    assert config.model.policy is not None
    policy = config.model.policy
    base = base_of_adapter(policy) if is_adapter(policy) else policy
    return load_model_config(base, trust_remote_code=config.model.trust_remote_code)


def _check_columns(config: Config, reward: CompositeReward | None, text: Text, verdicts: Verdicts) -> None:
    if reward is None:
        return
    required = required_columns(reward)
    for prompts, source in ((text.prompts, config.data.prompts), (text.held_out, config.evaluate.prompts)):
        if prompts is not None and source is not None:
            verdicts.attempt("reward/columns", lambda p=prompts, s=source: check_columns(required, p, s))  # type: ignore[misc]


# ---------------------------------------------------------------------------------------------------------- memory


def _fits(config: Config, model_config: Any, text: Text, verdicts: Verdicts) -> bool:
    """Say what the run will need; whether loading the models alone can be tried."""
    prompts = [prompt.tokens for prompt in text.prompts.prompts]
    held_out = [] if text.held_out is None else [prompt.tokens for prompt in text.held_out.prompts]
    estimate = verdicts.attempt("machine/memory", lambda: memory_for(config, model_config, prompts, held_out))
    if estimate is None:
        return False
    free, total = memory_of(choose_device(config.run.device))
    counts = estimate.counts
    verdicts.ok("model/size", f"{counts['parameters']:,} parameters, {counts['trained']:,} of them trained", **counts)
    fixed, passing = estimate.fixed, {name: phase.total for name, phase in estimate.phases.items()}
    parts = {**fixed, estimate.fullest: passing[estimate.fullest]}
    what = (
        f"about {estimate.total / GB:.2g} GB at most (an estimate: "
        + ", ".join(f"{name} {size / GB:.2f}" for name, size in parts.items() if size >= GB / 100)
        + f"); {free / GB:.3g} of {total / GB:.3g} GB are free"
    )
    evidence = {**fixed, **passing, "total": estimate.total, "free": free, "machine": total}
    if estimate.total > total:
        verdicts.problem("machine/memory", what, f"it does not fit; {HELPS}", **evidence)
    elif estimate.total > free:
        verdicts.warn("machine/memory", what, f"end what else runs here; {HELPS}", **evidence)
    else:
        verdicts.ok("machine/memory", what, **evidence)
    _check_disk(config, estimate, verdicts)
    loaded = sum(estimate.fixed.values())
    if loaded > free:
        verdicts.note(
            "model/load", "not loaded: there is no room for it", "the checks that need the model were left out"
        )
    return loaded <= free


def _check_disk(config: Config, estimate: Estimate, verdicts: Verdicts) -> None:
    """Checkpoints that are kept, one being written, and the model."""
    kept = config.checkpoint.keep + 1 + (config.checkpoint.best_by is not None)
    needed = kept * estimate.checkpoint + estimate.model
    free = free_disk(Path(config.run.dir))
    what = f"about {needed / GB:.2g} GB for {kept} checkpoints and the model; {free / GB:.3g} GB are free"
    evidence = {"needed": needed, "free": free, "checkpoint": estimate.checkpoint}
    if needed > free:
        verdicts.problem("machine/disk", what, "make room, set run.dir elsewhere, or lower checkpoint.keep", **evidence)
    else:
        verdicts.ok("machine/disk", what, **evidence)


# --------------------------------------------------------------------------------------------------------- samples


def _check_samples(config: Config, inputs: Inputs, reward: CompositeReward | None, verdicts: Verdicts) -> None:
    """Everything that needs the models in memory."""
    prompts = verdicts.attempt("prompts/order", lambda: _first_prompts(config, inputs.prompts.prompts))
    parts = verdicts.attempt("model/load", lambda: build_parts(config, inputs))
    if parts is None or prompts is None:
        return
    policy = parts.learner.policy
    verdicts.ok("model/load", f"loaded in {config.model.dtype}; its logits agree with the library's own")
    samples = verdicts.attempt("responses/sample", lambda: sample(config, policy, inputs.codec, prompts))
    if samples is None:
        return
    check_responses(config, policy, inputs.codec, samples, verdicts)
    scores = None if reward is None else check_reward(config, reward, samples, verdicts)
    start = verdicts.attempt("identities/read", lambda: start_of(config, parts, samples.rollout, scores))
    if start is not None:
        check_identities(config, parts, start, verdicts)
        check_update(config, parts, start, verdicts)


def _first_prompts(config: Config, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts that step 1 will use."""
    order = PromptOrder(
        len(prompts),
        batch=config.rollout.prompts_per_step,
        seed=config.run.seed,
        shuffle=config.data.shuffle,
        drop_last=config.data.drop_last,
    )
    return [prompts[i] for i in order.batch(1)]


class _AbsentTerm:
    """Stands where a reward could not be built, so that the models can be checked all the same."""

    name = "absent"

    def score(self, rollout: Rollout) -> list[Score]:
        """Every score has failed."""
        return [Score(None, "the reward could not be built")] * rollout.num_rows

    def close(self) -> None:
        """Nothing to end."""


def _absent_reward() -> CompositeReward:
    return CompositeReward([_AbsentTerm()])
