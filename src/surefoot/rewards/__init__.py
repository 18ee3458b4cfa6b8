"""Rewards: Python functions in processes of their own, reward models, and weighted sums of both.

Torch-free: a model to score with is handed in (``surefoot.models.reward_model``).
"""

from surefoot.rewards.composite import CompositeReward
from surefoot.rewards.failures import check_failures, score_metrics, total
from surefoot.rewards.function import FunctionReward, columns_of, load_function
from surefoot.rewards.model import ModelReward
from surefoot.rewards.normalise import RunningMoments, ScoreNormaliser
from surefoot.rewards.placing import place_spans, place_tokens

__all__ = [
    "CompositeReward",
    "FunctionReward",
    "ModelReward",
    "RunningMoments",
    "ScoreNormaliser",
    "check_failures",
    "columns_of",
    "load_function",
    "place_spans",
    "place_tokens",
    "score_metrics",
    "total",
]
