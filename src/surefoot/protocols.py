"""The seams of the system: what a step needs from its parts. Nothing here knows torch or a library."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from surefoot.records import FloatArray, Prompt, Rollout, Score, StepReport, StopReason


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A policy's view of a rollout, without gradients.

    Attributes:
        logp: ``[B, T]`` log-probability of each action token, 0 off the mask.
        entropy: ``[B, T]`` entropy in nats of the distribution it was chosen from, 0 off the mask.
    """

    logp: FloatArray
    entropy: FloatArray


@dataclass(frozen=True, slots=True)
class Values:
    """A critic's view of a rollout, without gradients.

    Attributes:
        values: ``[B, T]`` value of the state in which each action token was chosen, 0 off the mask.
        after: ``[B]`` value of the state after the last token.
    """

    values: FloatArray
    after: FloatArray


@runtime_checkable
class Policy(Protocol):
    """The model being trained."""

    def evaluate(self, rollout: Rollout) -> Evaluation:
        """Log-probabilities and entropies of the rollout's action tokens."""
        ...


@runtime_checkable
class Critic(Protocol):
    """The value function."""

    def values(self, rollout: Rollout) -> Values:
        """Values of the states in which the action tokens were chosen, and after the last token."""
        ...


@runtime_checkable
class Reference(Protocol):
    """The frozen policy that KL is measured against."""

    def logp(self, rollout: Rollout) -> FloatArray:
        """``[B, T]`` log-probabilities of the action tokens, 0 off the mask."""
        ...


@dataclass(frozen=True, slots=True)
class Turn:
    """What an environment answers to a response.

    Attributes:
        given: token ids appended as given tokens before the policy acts again; empty when the episode ends.
        done: whether the episode is over.
        reward: reward for the response just made, placed on its last action token.
        stop_reason: why the episode ended, when it is over and not by the policy's own stop.
    """

    given: tuple[int, ...] = ()
    done: bool = True
    reward: float = 0.0
    stop_reason: StopReason | None = None


class Environment(Protocol):
    """Where responses lead."""

    def respond(self, prompt: Prompt, tokens: Sequence[int], mask: Sequence[bool]) -> Turn:
        """The environment's turn after the policy's response, given the whole episode so far."""
        ...


class Engine(Protocol):
    """Samples trajectories."""

    def rollout(self, prompts: Sequence[Prompt], environment: Environment, *, seed: tuple[int, int]) -> Rollout:
        """Sample; ``seed`` is (run seed, step). The same seed, weights and prompts give the same tokens."""
        ...

    def publish(self, policy: Any, *, version: int) -> None:
        """Take over the policy's current weights."""
        ...


@runtime_checkable
class Reward(Protocol):
    """Scores trajectories."""

    def score(self, rollout: Rollout) -> list[Score]:
        """One Score a trajectory, in order; a failure is a Score with a reason."""
        ...


class Tracker(Protocol):
    """Where reports go."""

    def log(self, report: StepReport) -> None:
        """Record one step."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...


class Clock(Protocol):
    """Times phases: ``with clock("rollout"): ...``."""

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Time the block under this name."""
        ...
