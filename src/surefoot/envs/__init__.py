"""Environments: where responses lead."""

from surefoot.envs.single_turn import SingleTurn

__all__ = ["SingleTurn"]
