"""Rewards: functions, reward models, verifiable checks, people's ratings, servers elsewhere, and weighted sums.

Torch-free: a model to score with is handed in (``surefoot.models.reward_model``).
"""

from surefoot.rewards.checking import CheckReward
from surefoot.rewards.composite import CompositeReward, Standing
from surefoot.rewards.failures import check_failures, score_metrics, total
from surefoot.rewards.function import FunctionReward, columns_of, load_function
from surefoot.rewards.human import HumanReward, Ratings
from surefoot.rewards.model import ModelReward
from surefoot.rewards.normalise import RunningMoments, ScoreNormaliser
from surefoot.rewards.placing import place_spans, place_tokens
from surefoot.rewards.remote import RemoteReward, own_server

__all__ = [
    "CheckReward",
    "CompositeReward",
    "FunctionReward",
    "HumanReward",
    "ModelReward",
    "Ratings",
    "RemoteReward",
    "RunningMoments",
    "ScoreNormaliser",
    "Standing",
    "check_failures",
    "columns_of",
    "load_function",
    "own_server",
    "place_spans",
    "place_tokens",
    "score_metrics",
    "total",
]
