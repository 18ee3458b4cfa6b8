"""The config: one typed tree, torch-free. YAML plus ``a.b=c`` overrides; unknown keys are refused."""

from surefoot.config.ineffective import ineffective
from surefoot.config.load import apply_override, build_config, dump_config, known_keys, load_config
from surefoot.config.optimisation import (
    BatchSection,
    CheckpointSection,
    GuardSection,
    KLSection,
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
    LoraSection,
    ModelSection,
    RewardSection,
    RewardTerm,
    RolloutSection,
    RunSection,
    Section,
)
from surefoot.config.serving import ServeSection, token_from
from surefoot.config.sft import SFTSection, StageSection
from surefoot.config.tree import Command, Config, require

__all__ = [
    "BatchSection",
    "CheckpointSection",
    "Command",
    "Config",
    "CriticSection",
    "DataSection",
    "EvaluateSection",
    "GuardSection",
    "KLSection",
    "LoraSection",
    "ModelSection",
    "OptimSection",
    "PPOSection",
    "RewardModelSection",
    "RewardSection",
    "RewardTerm",
    "RolloutSection",
    "RunSection",
    "SFTSection",
    "SampleSection",
    "Section",
    "ServeSection",
    "StageSection",
    "StopSection",
    "TrackSection",
    "apply_override",
    "build_config",
    "dump_config",
    "ineffective",
    "known_keys",
    "load_config",
    "require",
    "token_from",
]
