"""Rewards written as Python functions, with the signature that users of TRL know.

::

    def quality(prompts, completions, **columns):
        return [float(len(text) < 200) for text in completions]

What the function gets, each a list with one entry per trajectory, and only what its signature accepts:

- ``prompts``: the rendered prompt; ``completions``: the text of the response, without the closing stop token. Both are
  plain text, also for chat prompts (TRL passes message lists there); the messages are in ``messages``.
- every other column of the prompt rows by its name, None where a row lacks it;
- ``messages`` (None for a prompt that is a string), ``completion_ids`` (the action tokens, the stop token among them),
  ``stop_reasons``. A column of the data with one of these names is not passed.

What it may return stands in ``answers.py``. It runs in a process of its own (``isolation.py``); a function object
without a target runs in a thread, which cannot be ended.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from surefoot.config.sections import RewardTerm
from surefoot.errors import ConfigError
from surefoot.parallel.rng import derive_seed
from surefoot.records import Prompt, Rollout, Score, Trajectory
from surefoot.rewards import worker
from surefoot.rewards.answers import Reader
from surefoot.rewards.isolation import Callee, CallFailed, CallLost, Columns, ProcessCallee, ThreadCallee
from surefoot.rewards.placing import Offsets

logger = logging.getLogger("surefoot.rewards")

SEARCH_BUDGET = 4.0
"""When the rows of a lost call are scored one by one, none is begun after this many times ``timeout_s``."""


def load_function(target: str) -> Callable[..., Any]:
    """Load ``file.py:name`` or ``package.module:name`` into this process.

    Raises:
        ConfigError: the file, the module or the name does not exist or does not load, what it names is not callable,
            or its signature has no place for the completions.
    """
    try:
        function, _ = worker.resolve(target)
        worker.Caller(function, target.rpartition(":")[2])
    except worker.Unusable as error:
        what, got, hint = error.args
        raise ConfigError(what, got=got, hint=hint) from error.__cause__
    return function


class FunctionReward:
    """One term of the reward: a Python function. Scores are raw: neither clipped nor weighted.

    - An answer of the wrong length or type is an error; None or a number that is not finite is a failed score.
    - When the function raises, every row of the call has failed, with the exception's text as the reason.
    - A call that takes longer than ``timeout_s``, or whose process dies, is lost; its rows are then scored one by one,
      each with the same limit, so that only those fail that cannot be scored. No row is begun once the search has
      taken SEARCH_BUDGET times ``timeout_s``; those it did not come to have failed. A function that compares the rows
      of a call with each other sees single rows then.
    - Before each call the worker's random generators (Python's, and numpy's and torch's if loaded) are seeded from the
      run's seed, the term and the tokens to be scored: the same rollout gets the same scores, also after a resume.
      What the function keeps in memory between calls does not survive a resume or a killed worker.

    Args:
        term: name and target.
        timeout_s: limit for one call, in seconds.
        seed: the run's seed.
        offsets: from token ids to the characters each stands for; needed for rewards by span of text.
        function: call this object, in a thread, instead of loading ``term.target``.
    Raises:
        ConfigError: the function cannot be used.
    """

    def __init__(
        self,
        term: RewardTerm,
        *,
        timeout_s: float = 60.0,
        seed: int = 0,
        offsets: Offsets | None = None,
        function: Callable[..., Any] | None = None,
    ) -> None:
        self.name, self.timeout_s = term.name, timeout_s
        self._seed = seed
        called = getattr(function, "__name__", term.place) if function is not None else term.place
        self._reader = Reader(term.name, called, offsets)
        self._callee: Callee
        if function is None:
            self._callee = ProcessCallee(term.place, seed=derive_seed(seed, "reward"))
        else:
            self._callee = ThreadCallee(function, called)

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Columns that the prompts must have, by the function's signature."""
        return tuple(name for name in self._callee.required if name not in OWN)

    def score(self, rollout: Rollout) -> list[Score]:
        """One raw Score per trajectory, in order.

        Raises:
            RewardError: the answer has the wrong length or type, or a column that the function needs is missing.
        """
        rows = rollout.trajectories
        try:
            return self._call(rows, self.timeout_s)
        except CallLost as lost:
            logger.warning("reward %s: a call for %d rows %s; searching for the row", self.name, len(rows), lost)
            return [self._reader.failed(str(lost))] if len(rows) == 1 else self._one_by_one(rows)
        except CallFailed as failure:
            logger.warning("reward %s failed for %d rows: %s", self.name, len(rows), failure)
            return [self._reader.failed(str(failure))] * len(rows)

    def close(self) -> None:
        """End the function's process."""
        self._callee.close()

    def _call(self, rows: Sequence[Trajectory], limit_s: float) -> list[Score]:
        answer = self._callee.call(columns_of(rows), seed=self._call_seed(rows), limit_s=limit_s)
        return self._reader.read(answer, rows)

    def _call_seed(self, rows: Sequence[Trajectory]) -> int:
        text = repr((self.name, [(list(map(int, t.tokens)), list(map(bool, t.mask))) for t in rows])).encode()
        index = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        return derive_seed(self._seed, "reward", index=index)

    def _one_by_one(self, rows: Sequence[Trajectory]) -> list[Score]:
        scores: list[Score] = []
        budget = SEARCH_BUDGET * self.timeout_s
        for row in rows:
            if budget <= 0:
                scores.append(self._reader.failed("not scored: the search for rows that hang used up its time"))
                continue
            start = time.monotonic()
            try:
                scores += self._call([row], self.timeout_s)
            except CallFailed as failure:
                scores.append(self._reader.failed(str(failure)))
            budget -= time.monotonic() - start
        return scores


OWN = ("prompts", "completions", "messages", "completion_ids", "stop_reasons")


def columns_of(rows: Sequence[Trajectory]) -> Columns:
    """What a reward function is called with: one list per name, one entry per trajectory."""
    prompts = [row.prompt or Prompt("", ()) for row in rows]
    own: tuple[list[Any], ...] = (
        [prompt.text for prompt in prompts],
        [row.response for row in rows],
        [None if p.messages is None else [dict(message) for message in p.messages] for p in prompts],
        [[int(t) for t, m in zip(row.tokens, row.mask, strict=True) if m] for row in rows],
        [str(row.stop_reason) for row in rows],
    )
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns if name not in OWN)
    return dict(zip(OWN, own, strict=True)) | {n: [prompt.columns.get(n) for prompt in prompts] for n in names}
