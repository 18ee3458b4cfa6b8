"""The native engine: samples with the trainer's own weights and code, in the trainer's process."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from surefoot.errors import ConfigError, RolloutError
from surefoot.models.policy import CausalPolicy
from surefoot.models.scoring import ValueHead
from surefoot.parallel.rng import generator
from surefoot.protocols import Environment
from surefoot.records import Prompt, Rollout, StopReason, Trajectory
from surefoot.rollout.decoding import Continuation, Sampling, decode

MAX_TURNS = 64


class Text(Protocol):
    """What the engine needs of a tokenizer."""

    def response_text(self, tokens: Sequence[int], stop_reason: StopReason) -> str:
        """Text of a response without its closing stop token."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of any ids, special tokens included."""
        ...


@dataclass
class _Episode:
    """A trajectory in the making."""

    prompt: Prompt
    group: int
    tokens: list[int]
    mask: list[bool]
    seen: dict[str, list[float]]
    step_rewards: dict[int, float] = field(default_factory=dict)
    stop_reason: StopReason = StopReason.LENGTH
    open: bool = True


@dataclass
class _Turns:
    """The responses of one round, each taken once, when it has ended or at the latest when all have.

    Attributes:
        rows, episodes: that are open.
        environment: answers.
        tell: of an episode that is over (row, episode).
        taken: places whose response has been taken.
    """

    rows: list[int]
    episodes: list[_Episode]
    environment: Environment
    tell: Callable[[int, _Episode], None]
    taken: set[int] = field(default_factory=set)

    def take(self, place: int, continuation: Continuation) -> None:
        if place in self.taken:
            return
        self.taken.add(place)
        episode = self.episodes[place]
        _take_turn(episode, continuation, self.environment)
        if not episode.open:
            self.tell(self.rows[place], episode)


class NativeEngine:
    """Batched decoding with the policy's own modules.

    Args:
        policy: sampled from as it is now; publishing only moves the version.
        sampling: how tokens are drawn.
        text: the tokenizer's side; None leaves responses empty.
        samples_per_prompt: trajectories per prompt.
        purpose: of the random draws (``rollout`` or ``evaluate``).
        value_head: on the policy's trunk; values are then read in passing.
    """

    tells_finished = True

    def __init__(
        self,
        policy: CausalPolicy,
        sampling: Sampling,
        text: Text | None = None,
        *,
        samples_per_prompt: int = 1,
        purpose: str = "rollout",
        value_head: ValueHead | None = None,
    ) -> None:
        self.policy, self.sampling, self.text, self.value_head = policy, sampling, text, value_head
        self.samples_per_prompt, self.purpose = samples_per_prompt, purpose
        self.version = 0
        # In half precision reading one token at a time and many at once differ by tenths of a nat (measured: 0.23 in
        # bfloat16), so such a sampler is corrected for like a foreign one.
        self.is_trainer_code = policy.lm.model.dtype.itemsize >= 4
        if samples_per_prompt < 1:
            raise ConfigError("samples_per_prompt must be at least 1", got=samples_per_prompt)
        if sampling.stop_strings and text is None:
            raise ConfigError("stop strings need a tokenizer", got=sampling.stop_strings, hint="use stop ids")

    def publish(self, policy: Any, *, version: int) -> None:
        """Note the version; the weights are the policy's own."""
        if policy is not self.policy:
            raise RolloutError("the native engine samples from the policy it was made with, not from another")
        self.version = version

    def rollout(
        self,
        prompts: Sequence[Prompt],
        environment: Environment,
        *,
        seed: tuple[int, int],
        finished: Callable[[int, Trajectory], None] | None = None,
    ) -> Rollout:
        """Sample ``samples_per_prompt`` trajectories a prompt.

        Args:
            prompts: at least one; the samples of a prompt stand next to each other and share a group.
            environment: answers each response, until the episode is over.
            seed: (run seed, step).
            finished: told of each trajectory (row, trajectory) that is over while others still go on. The environment
                is then asked in the order in which responses end, otherwise in the order of rows.
        Raises:
            RolloutError: a prompt leaves no room for a response, an environment breaks its contract, or the policy's
                logits are no distribution.
        """
        self._check_room(prompts)
        episodes = [
            _Episode(p, group, list(p.tokens), [False] * len(p.tokens), self._nothing(len(p.tokens)))
            for group, p in enumerate(prompts)
            for _ in range(self.samples_per_prompt)
        ]
        for turn in range(MAX_TURNS):
            open_rows = [i for i, e in enumerate(episodes) if e.open]
            if not open_rows:
                break
            draws = [self._uniform(seed, row, turn) for row in open_rows]
            sequences = [episodes[i].tokens for i in open_rows]
            turns = _Turns(open_rows, [episodes[i] for i in open_rows], environment, self._teller(finished))
            early = None if finished is None else turns.take
            found = decode(self.policy.lm, sequences, draws, self.sampling, self._decoder(), self.value_head, early)
            for place, continuation in enumerate(found):
                turns.take(place, continuation)
        for episode in episodes:
            if episode.open:
                # Not over by itself: the turns ran out.
                episode.stop_reason = StopReason.LENGTH
        return Rollout.of([self._trajectory(e) for e in episodes], info=self.describe())

    def _teller(self, finished: Callable[[int, Trajectory], None] | None) -> Callable[[int, _Episode], None]:
        return lambda row, episode: None if finished is None else finished(row, self._trajectory(episode))

    def _check_room(self, prompts: Sequence[Prompt]) -> None:
        context = self.policy.lm.context
        for prompt in prompts:
            if context is not None and len(prompt.tokens) >= context:
                raise RolloutError(
                    f"prompt {prompt.id} leaves no room for a response",
                    got=f"{len(prompt.tokens)} tokens",
                    allowed=f"fewer than the model's context of {context}",
                    hint="lower data.max_prompt_tokens",
                )

    def describe(self) -> dict[str, Any]:
        """The effective sampling parameters; nothing is inherited from a model's generation_config.json."""
        return {
            "engine": "native",
            "version": self.version,
            "temperature": 0.0 if self.sampling.greedy else self.sampling.temperature or self.policy.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "max_new_tokens": self.sampling.max_new_tokens,
            "stop_ids": sorted(self.sampling.stop_ids),
            "stop_strings": list(self.sampling.stop_strings),
        }

    def _nothing(self, length: int) -> dict[str, list[float]]:
        names = ("logp", "entropy") if self.value_head is None else ("logp", "entropy", "values")
        return {name: [0.0] * length for name in names}

    def _decoder(self) -> Callable[[Sequence[int]], str] | None:
        return None if self.text is None else self.text.decode

    def _uniform(self, seed: tuple[int, int], row: int, turn: int) -> npt.NDArray[np.float64]:
        index = row * MAX_TURNS + turn
        draws = generator(seed[0], self.purpose, step=seed[1], index=index).random(self.sampling.max_new_tokens)
        return np.asarray(draws, dtype=np.float64)

    def _trajectory(self, episode: _Episode) -> Trajectory:
        actions = [t for t, m in zip(episode.tokens, episode.mask, strict=True) if m]
        rewards = None
        if episode.step_rewards:
            rewards = [episode.step_rewards.get(i, 0.0) for i in range(len(episode.tokens))]
        return Trajectory(
            tokens=tuple(episode.tokens),
            mask=tuple(episode.mask),
            stop_reason=episode.stop_reason,
            logp=episode.seen["logp"],
            entropy=episode.seen["entropy"],
            values=episode.seen.get("values"),
            prompt=episode.prompt,
            response="" if self.text is None else self.text.response_text(actions, episode.stop_reason),
            group=episode.group,
            step_rewards=rewards,
        )


def _take_turn(episode: _Episode, continuation: Continuation, environment: Environment) -> None:
    """Append a response, ask the environment, append what it gives."""
    episode.stop_reason = continuation.stop_reason
    if not continuation.tokens:
        # What was given fills the model's context: cut off, and there is no response to answer.
        episode.open = False
        return
    episode.tokens += continuation.tokens
    episode.mask += [True] * len(continuation.tokens)
    for name, seen in episode.seen.items():
        seen.extend(getattr(continuation, name))
    turn = environment.respond(episode.prompt, episode.tokens, episode.mask)
    if not turn.done and not turn.given:
        raise RolloutError(
            f"the environment neither ended the episode of prompt {episode.prompt.id} nor gave any token",
            hint="return a Turn with done=True, or with the tokens that follow",
        )
    if not math.isfinite(turn.reward):
        raise RolloutError(
            f"the environment's reward for prompt {episode.prompt.id} is not finite",
            got=turn.reward,
            allowed="a number",
        )
    if turn.reward:
        episode.step_rewards[len(episode.tokens) - 1] = turn.reward
    episode.open = not turn.done
    if turn.stop_reason is not None:
        episode.stop_reason = turn.stop_reason
    episode.tokens += list(turn.given)
    episode.mask += [False] * len(turn.given)
    for seen in episode.seen.values():
        seen.extend([0.0] * len(turn.given))
