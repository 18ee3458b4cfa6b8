"""``train(config)``: from a config to an aligned model."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from surefoot.assembly.card import model_card
from surefoot.assembly.models import (
    build_controllers,
    build_critic,
    build_learner,
    build_policy,
    build_reference,
    build_sampling,
    check_critic_vocabulary,
    check_reference_vocabulary,
    choose_device,
    critic_source,
)
from surefoot.assembly.plan import predicted
from surefoot.assembly.resuming import earlier_lineage, resume_run, threads_of
from surefoot.assembly.rewards import ask_people, build_reward, describe_term, required_columns
from surefoot.assembly.services import bind_run, connect_critic, served_critic
from surefoot.config import Config, dump_config, require
from surefoot.config.sections import DataSection
from surefoot.data.cards import check_cards
from surefoot.data.order import PromptOrder
from surefoot.data.prompts import PromptSet, prepare_prompts
from surefoot.data.reading import read_rows
from surefoot.envs import SingleTurn
from surefoot.errors import ConfigError, RunError
from surefoot.models.critic import SeparateCritic, SharedCritic
from surefoot.models.load import context_length, load_model_config
from surefoot.models.lora import base_of_adapter, is_adapter
from surefoot.models.policy import FrozenReference, StartingReference
from surefoot.models.reward_model import RewardModel
from surefoot.models.save import save_policy
from surefoot.models.tokenizer import TextCodec, load_codec
from surefoot.monitor.sinks import TensorBoardTracker
from surefoot.parallel.allocator import keep_freed_memory
from surefoot.protocols import Tracker
from surefoot.records import Lineage
from surefoot.rewards import CompositeReward, ScoreNormaliser
from surefoot.rewards.model import ModelReward
from surefoot.rewards.remote import RemoteReward
from surefoot.rollout import NativeEngine
from surefoot.serving.remote_critic import RemoteCritic
from surefoot.serving.scorer import ServiceScorer
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.critic_update import ServedCritic
from surefoot.training.display import Display, choose_display
from surefoot.training.evaluation import Evaluator
from surefoot.training.experiment import write_experiment
from surefoot.training.lineage import (
    build_lineage,
    describe_input,
    lineage_warnings,
    write_lineage,
)
from surefoot.training.memory_report import MemoryReport
from surefoot.training.run_folder import RunFolder
from surefoot.training.step import Parts
from surefoot.training.trainer import Job, RunResult, Trainer

logger = logging.getLogger("surefoot")


@dataclass(frozen=True)
class Inputs:
    """What is read before any weights are: tokenizer, prompts, reward.

    Attributes:
        codec: the policy's tokenizer.
        model_config: the policy's config.
        prompts, held_out: encoded; ``held_out`` is None without ``evaluate.prompts``.
        reward: ready to score.
    """

    codec: TextCodec
    model_config: Any
    prompts: PromptSet
    held_out: PromptSet | None
    reward: CompositeReward


def train(config: Config, *, resume: bool = False, display: Display | None = None) -> RunResult:
    """Align a model.

    Args:
        config: the run, from :func:`surefoot.load_config`.
        resume: go on from the run folder's last checkpoint; without one, start.
        display: where progress is shown; a live bar on a terminal and plain lines elsewhere when left out.
    Returns:
        how the run ended, and where everything lies.
    Raises:
        UserError: something in config, data or models is wrong; nothing was written.
        RunError: trouble after the start; the last checkpoint is whole.
    """
    require(config, "train")
    refuse_float16(config)
    keep_freed_memory()
    earlier = earlier_lineage(folder_of(config)) if resume else None
    with exact_arithmetic(config.run.threads or threads_of(earlier)):
        inputs = read_inputs(config)
        try:
            return _run(config, inputs, earlier, resume=resume, display=display or choose_display())
        finally:
            inputs.reward.close()


def refuse_float16(config: Config) -> None:
    """Adam's epsilon of 1e-8 is 0 in float16: the first step divides by it."""
    if config.model.dtype == "float16":
        raise ConfigError(
            "float16 weights cannot be trained: Adam's epsilon is 0 in float16, and the first step gives NaN",
            got="model.dtype=float16",
            allowed="float32, bfloat16, float64",
            hint="set model.dtype: bfloat16 on a GPU, float32 on a CPU",
        )


def folder_of(config: Config) -> RunFolder:
    """Where the run lies or will lie, for reading."""
    return RunFolder(Path(config.run.dir).expanduser() / run_name(config))


def run_name(config: Config) -> str:
    """The run's name, ``run`` when the config gives none."""
    return config.run.name or "run"


@contextmanager
def exact_arithmetic(threads: int | None) -> Iterator[None]:
    """Deterministic algorithms and a fixed number of threads, so that a run can be repeated bit for bit on a CPU."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    threads_before, fill_before = torch.get_num_threads(), memory.fill_uninitialized_memory
    # Filling every fresh tensor with NaN finds bugs in kernels; here it would only cost time.
    memory.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = fill_before
        torch.set_num_threads(threads_before)


def read_inputs(config: Config) -> Inputs:
    """Everything that can be wrong without loading weights.

    Raises:
        UserError: the first thing that cannot be used.
    """
    assert config.model.policy is not None and config.data.prompts is not None
    check_cards([config.data.prompts, config.evaluate.prompts], config.data.allow, require=config.data.require_card)
    policy = config.model.policy
    base = base_of_adapter(policy) if is_adapter(policy) else policy
    trust = config.model.trust_remote_code
    model_config = load_model_config(base, trust_remote_code=trust)
    codec = load_codec(policy, chat_template=config.model.chat_template, trust_remote_code=trust)
    check_critic_vocabulary(config, codec)
    check_reference_vocabulary(config, codec)
    context = context_length(model_config)
    prompts = read_prompts(config.data, config.data.prompts, codec, context, config.rollout.max_new_tokens)
    held_out = None
    if config.evaluate.prompts is not None:
        new_tokens = config.evaluate.max_new_tokens or config.rollout.max_new_tokens
        held_out = read_prompts(config.data, config.evaluate.prompts, codec, context, new_tokens)
        if config.evaluate.max_prompts is not None:
            held_out = replace(held_out, prompts=held_out.prompts[: config.evaluate.max_prompts])
    reward = build_reward(config, codec)
    try:
        check_columns(required_columns(reward), prompts, config.data.prompts)
        if held_out is not None:
            check_columns(required_columns(reward), held_out, config.evaluate.prompts or "")
    except BaseException:
        reward.close()
        raise
    return Inputs(codec, model_config, prompts, held_out, reward)


def read_prompts(
    section: DataSection, source: str, codec: TextCodec, context: int | None, max_new_tokens: int
) -> PromptSet:
    """Read and encode one source of prompts."""
    rows = read_rows(source, column=section.column, bad_rows=section.bad_rows)
    return prepare_prompts(rows.rows, codec, section, context=context, max_new_tokens=max_new_tokens)


def build_parts(config: Config, inputs: Inputs) -> Parts:
    """Load the models and put a step's parts together."""
    device = choose_device(config.run.device)
    vocabulary = inputs.codec.check_vocabulary(int(inputs.model_config.get_text_config().vocab_size))
    policy = build_policy(config, vocabulary, device)
    critic: SeparateCritic | SharedCritic | ServedCritic
    if config.critic.url is None:
        critic = build_critic(config, policy, device)
    else:
        critic = connect_critic(config, inputs.codec)
    reference = build_reference(config, policy, vocabulary, device)
    kl, penalty = build_controllers(config)
    mode = config.reward.normalise
    engine = NativeEngine(
        policy,
        build_sampling(config, inputs.codec),
        inputs.codec,
        samples_per_prompt=config.rollout.samples_per_prompt,
        value_head=critic.head if isinstance(critic, SharedCritic) else None,
    )
    return Parts(
        learner=build_learner(config, policy, critic),
        reference=reference,
        engine=engine,
        environment=SingleTurn(),
        reward=inputs.reward,
        kl=kl,
        penalty=penalty,
        normaliser=ScoreNormaliser("reference" if mode == "reference" else "running") if mode else None,
    )


def _run(config: Config, inputs: Inputs, earlier: Lineage | None, *, resume: bool, display: Display) -> RunResult:
    order = PromptOrder(
        len(inputs.prompts.prompts),
        batch=config.rollout.prompts_per_step,
        seed=config.run.seed,
        shuffle=config.data.shuffle,
        drop_last=config.data.drop_last,
    )
    # A package that is missing is found here, before anything is loaded or written.
    boards = [TensorBoardTracker(folder_of(config).tensorboard)] if config.track.tensorboard else []
    trackers: list[Tracker] = [*boards]
    parts = build_parts(config, inputs)
    frozen = frozen_digests(parts, inputs.reward)
    lineage = describe_run(config, inputs, frozen)
    warnings = lineage_warnings(earlier, lineage) if earlier is not None else []
    begun = folder_of(config).path.exists()
    for warning in warnings:
        logger.warning("the resumed run may differ from an uninterrupted one: %s", warning)
    text = dump_config(config)
    with (
        served_critic(parts.learner.critic) as served,
        RunFolder.create(config.run.dir, run_name(config), resume=resume, config_text=text) as folder,
    ):
        if earlier is None:
            write_lineage(folder.lineage, lineage)
            write_experiment(folder.experiment, config, lineage)
        if served is not None:
            bind_run(served, folder.path, run_name(config))
        ask_people(inputs.reward, folder.path)
        held_out = inputs.held_out.prompts if inputs.held_out is not None else ()
        planned = predicted(config, inputs.model_config, inputs.prompts.prompts, held_out)
        trackers.append(MemoryReport(folder.path / "memory.json", parts, planned))
        store = CheckpointStore(folder.checkpoints, keep=config.checkpoint.keep, best_by=config.checkpoint.best_by)
        job = Job(
            cfg=config,
            parts=parts,
            prompts=inputs.prompts.prompts,
            order=order,
            evaluator=_evaluator(config, inputs, parts),
            folder=folder,
            store=store,
            save_model=lambda target: _save_model(config, inputs, parts, folder, target),
            display=display,
            trackers=trackers,
            facts={"threads": torch.get_num_threads()},
        )
        trainer = Trainer(job)
        if resume:
            display.note(resume_run(trainer, boards, begun=begun))
        result = trainer.run(warnings=warnings)
        _refuse_moved(frozen, frozen_digests(parts, inputs.reward))
        return result


def _refuse_moved(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    moved = [name for name, digest in after.items() if digest != before[name]]
    if moved:
        raise RunError(
            f"what must not change changed during the run: {', '.join(moved)}",
            hint="the run's numbers mean nothing; please report this as a bug",
        )


def frozen_digests(parts: Parts, reward: CompositeReward) -> dict[str, str]:
    """sha256 of the weights of reference and reward models, as they are in memory now."""
    digests = {}
    if isinstance(parts.reference, (FrozenReference, StartingReference)):
        digests["reference"] = parts.reference.digest()
    for term in reward.terms:
        if isinstance(term, ModelReward) and isinstance(term.model, RewardModel):
            digests[f"reward/{term.name}"] = term.model.weights_digest()
        elif isinstance(term, RemoteReward) and isinstance(term.scorer, ServiceScorer):
            digests[f"reward/{term.name}"] = term.scorer.card.model
    if isinstance(parts.learner.critic, RemoteCritic):
        # Of what it was before any training: which critic it is.
        digests["critic"] = parts.learner.critic.card.model
    return digests


def _evaluator(config: Config, inputs: Inputs, parts: Parts) -> Evaluator | None:
    if inputs.held_out is None:
        return None
    return Evaluator(
        prompts=inputs.held_out.prompts,
        reward=inputs.reward,
        reference=parts.reference,
        environment=SingleTurn(),
        text=inputs.codec,
        stop_ids=inputs.codec.stop_ids,
        cfg=config,
    )


def describe_run(config: Config, inputs: Inputs, frozen: Mapping[str, str]) -> Lineage:
    """The lineage: every input with its digest, and the digests of frozen weights in memory or behind an address."""
    assert config.model.policy is not None and config.data.prompts is not None
    places: dict[str, Mapping[str, Any]] = {
        "policy": describe_input(config.model.policy, "model"),
        "reference": describe_input(config.model.reference or config.model.policy, "model"),
        "tokenizer": {"kind": "model", "path": config.model.policy, "sha256": inputs.codec.fingerprint()},
        "prompts": describe_input(config.data.prompts, "data"),
    }
    if is_adapter(config.model.policy):
        places["base"] = describe_input(base_of_adapter(config.model.policy), "model")
    if config.critic.url is not None:
        places["critic"] = {"kind": "service", "path": config.critic.url, "sha256": frozen["critic"]}
    elif config.critic.kind == "separate":
        places["critic"] = describe_input(critic_source(config), "model")
    if config.evaluate.prompts is not None:
        places["evaluate"] = describe_input(config.evaluate.prompts, "data")
    for term in config.reward.terms:
        name = f"reward/{term.name}"
        places[name] = describe_term(term, frozen.get(name))
    for name, digest in frozen.items():
        places[name] = {**places[name], "weights_sha256": digest}
    device = choose_device(config.run.device)
    return build_lineage(config, inputs=places, threads=torch.get_num_threads(), device=str(device))


def _save_model(config: Config, inputs: Inputs, parts: Parts, folder: RunFolder, target: Path) -> None:
    card = model_card(config, folder)
    save_policy(parts.learner.policy, target, save_tokenizer=inputs.codec.save, card=card)


def missing_columns(required: Sequence[str], prompts: PromptSet) -> list[str]:
    """Columns that a reward needs and no prompt has."""
    return [name for name in required if not any(name in prompt.columns for prompt in prompts.prompts)]


def check_columns(required: Mapping[str, Sequence[str]], prompts: PromptSet, source: str) -> None:
    """Refuse prompts without the columns that reward functions need.

    Raises:
        ConfigError: naming function and columns.
    """
    for term, names in required.items():
        absent = missing_columns(names, prompts)
        if absent:
            raise ConfigError(
                f"reward {term} needs the column(s) {', '.join(absent)}, which {source} does not have",
                got=sorted({name for prompt in prompts.prompts[:100] for name in prompt.columns}),
                hint="add the column to the data; or give a function's parameter a default, a check missing: skip",
            )
