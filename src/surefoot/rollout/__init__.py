"""Rollouts: engines and the loop that drives an environment."""

from surefoot.rollout.decoding import Sampling
from surefoot.rollout.engine_native import NativeEngine

__all__ = ["NativeEngine", "Sampling"]
