"""The whole config tree, and the checks that need more than one section. Torch-free."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from surefoot.config.optimisation import (
    BatchSection,
    CheckpointSection,
    GuardSection,
    OptimSection,
    PPOSection,
    StopSection,
    TrackSection,
)
from surefoot.config.reward_model import RewardModelSection, SampleSection
from surefoot.config.sections import (
    CriticSection,
    DataSection,
    EvaluateSection,
    ModelSection,
    RewardSection,
    RolloutSection,
    RunSection,
    Section,
)
from surefoot.config.serving import ServeSection, check_remote, check_served
from surefoot.config.sft import SFTSection, StageSection
from surefoot.errors import ConfigError

Command = Literal["train", "sft", "reward-model", "sample", "serve"]


class Config(Section):
    """A run, completely described."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    critic: CriticSection = CriticSection()
    reward: RewardSection = RewardSection()
    data: DataSection = DataSection()
    rollout: RolloutSection = RolloutSection()
    ppo: PPOSection = PPOSection()
    optim: OptimSection = OptimSection()
    batch: BatchSection = BatchSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluate: EvaluateSection = EvaluateSection()
    stop: StopSection = StopSection()
    track: TrackSection = TrackSection()
    guard: GuardSection = GuardSection()
    sft: SFTSection = SFTSection()
    reward_model: RewardModelSection = RewardModelSection()
    sample: SampleSection = SampleSection()
    serve: ServeSection | None = None
    """The critic and reward service that `surefoot serve` starts; `{}` for one with the defaults."""
    cluster: dict[str, Any] | None = None
    """Training on a cluster. Not available in this version."""
    registry: dict[str, Any] = Field(default_factory=dict)
    """The model registry. Not available in this version."""
    gateway: dict[str, Any] = Field(default_factory=dict)
    """The serving gateway. Not available in this version."""

    @property
    def rows_per_step(self) -> int:
        """Trajectories per step."""
        return self.rollout.prompts_per_step * self.rollout.samples_per_prompt

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run: the unit of schedules."""
        return (self.run.steps or 0) * self.ppo.epochs * self.ppo.minibatches


REQUIRED: dict[str, dict[str, str]] = {
    "train": {
        "run.steps": "the number of PPO steps, for instance 20",
        "model.policy": "a Hugging Face model folder",
        "reward.terms": "a list with at least one term, for instance [{name: quality, target: reward.py:score}]",
        "data.prompts": "a JSONL file with one prompt a line",
    },
    "sft": {
        "model.policy": "a Hugging Face model folder",
        "sft.data": "a JSONL file with one demonstration a line",
    },
    "reward-model": {"reward_model.data": "a JSONL file with one pair a line"},
    "sample": {"model.policy": "a Hugging Face model folder"},
}


def require(config: Config, command: Command) -> None:
    """Check that a config has what a command needs, and asks for nothing that does not go together.

    Raises:
        ConfigError: naming each missing key, or the first combination that cannot work.
    """
    if command == "serve":
        _refuse_absent_features(config)
        check_served(config)
        return
    missing = []
    for path, meaning in REQUIRED[command].items():
        section, key = path.split(".")
        if not getattr(getattr(config, section), key):
            missing.append(f"{path} ({meaning})")
    missing += _missing_alternatives(config, command)
    if missing:
        raise ConfigError(
            f"{command} needs {len(missing)} more key(s): " + ", ".join(missing), hint="add them to the config"
        )
    _refuse_absent_features(config)
    if command in ("train", "sft"):
        _refuse_nothing_to_train(config)
    if command == "train":
        _refuse_transformed_sampling(config)
        _check_combinations(config)
        check_remote(config)
    elif command != "sample":
        _check_stage(config, config.sft if command == "sft" else config.reward_model, command.replace("-", "_"))


def _missing_alternatives(config: Config, command: Command) -> list[str]:
    """Keys of which one would do."""
    model, sample = config.model.policy, config.sample
    if command == "reward-model" and not (config.reward_model.init or model):
        return ["reward_model.init or model.policy (what the reward model starts from)"]
    if command == "sample" and not (sample.prompts or config.data.prompts):
        return ["sample.prompts or data.prompts (a JSONL file with one prompt a line)"]
    return []


def _refuse_nothing_to_train(config: Config) -> None:
    if config.model.quantize is not None and config.model.lora is None:
        raise ConfigError(
            "quantised weights are frozen, and without adapters there is nothing else to train",
            got=f"model.quantize={config.model.quantize}",
            hint="add model.lora (rank: 16, for instance), or remove model.quantize",
        )


def _check_stage(config: Config, section: StageSection, name: str) -> None:
    if name == "reward_model" and config.model.quantize is not None:
        raise ConfigError(
            "a reward model is trained on whole weights",
            got=f"model.quantize={config.model.quantize}",
            hint="remove model.quantize; model.lora saves memory too",
        )
    if config.stop.patience and not (section.held_out or section.held_out_share):
        raise ConfigError(
            "stop.patience looks at the held-out loss, and there are no held-out rows",
            hint=f"set {name}.held_out or {name}.held_out_share, and evaluate.every",
        )
    if config.stop.patience and config.evaluate.every == 0:
        raise ConfigError(
            "stop.patience counts evaluations, and there are none during the run", hint="set evaluate.every"
        )


def _refuse_absent_features(config: Config) -> None:
    absent = {
        "rollout.engine=vllm": config.rollout.engine == "vllm",
        "cluster": config.cluster is not None,
        "registry": bool(config.registry),
        "gateway": bool(config.gateway),
    }
    for key, asked in absent.items():
        if asked:
            raise ConfigError(f"{key} is not available in this version of Surefoot", hint=f"remove {key.split('=')[0]}")


def _refuse_transformed_sampling(config: Config) -> None:
    rollout = config.rollout
    if rollout.top_k != 0 or rollout.top_p != 1.0:
        raise ConfigError(
            "top-k and top-p make the sampled distribution another than the trained one: ratios and KL are wrong",
            got=f"rollout.top_k={rollout.top_k}, rollout.top_p={rollout.top_p}",
            allowed="top_k: 0 and top_p: 1.0 in training",
            hint="remove them from rollout; the evaluate section may have them",
        )


def _check_combinations(config: Config) -> None:
    names = [term.name for term in config.reward.terms]
    if len(set(names)) != len(names):
        raise ConfigError("two reward terms have the same name", got=names, hint="give each term its own name")
    if config.ppo.minibatches > config.rows_per_step:
        raise ConfigError(
            "there are more minibatches than trajectories in a step",
            got=f"ppo.minibatches={config.ppo.minibatches}, trajectories={config.rows_per_step}",
            hint="lower ppo.minibatches or raise rollout.prompts_per_step",
        )
    if config.critic.kind == "shared" and config.critic.init != "policy":
        raise ConfigError(
            "a shared trunk starts from the policy, so critic.init has no effect with kind: shared",
            got=config.critic.init,
            hint="remove critic.init, or set critic.kind: separate",
        )
    if (config.stop.patience or config.stop.score is not None) and config.evaluate.prompts is None:
        raise ConfigError(
            "stop.patience and stop.score look at held-out scores, and there are no held-out prompts",
            hint="set evaluate.prompts and evaluate.every",
        )
    if config.stop.patience and config.evaluate.every == 0:
        raise ConfigError(
            "stop.patience counts evaluations, and there are none during the run", hint="set evaluate.every"
        )
    if config.critic.warmup_explained_variance is not None and config.critic.warmup_steps == 0:
        raise ConfigError(
            "critic.warmup_explained_variance ends a warm-up that critic.warmup_steps: 0 never starts",
            hint="set critic.warmup_steps to the most steps the warm-up may take",
        )
