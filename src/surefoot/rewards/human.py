"""People's ratings as a term of the reward: looked up by the digest of prompt and response. Torch-free.

A file of ratings is JSONL, one rating a line::

    {"digest": "9f86...", "rating": 4, "judge": "ana"}
    {"prompt": "Name a river.", "response": "The Nile.", "rating": 5}

``digest`` is :func:`surefoot.records.digest_of` of prompt and response; a line may have those themselves instead.
Ratings of different judges are averaged. A judge who rates the same twice has changed their mind: the later line
counts, and within a folder the file that comes later by name. Lines without a judge are a person each.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from surefoot.errors import DataError, RewardError
from surefoot.records import Prompt, Rollout, Score, Trajectory, digest_of

logger = logging.getLogger("surefoot.rewards")

WAITS: Final = "waits for a judgement"
HEX_DIGITS: Final = 64

Stamp = tuple[tuple[str, int, int], ...]


class Ratings:
    """The ratings in a file, or in the JSONL files of a folder; read again when they have changed.

    Args:
        source: the file or folder.
    Raises:
        DataError: it does not exist, or a line is no rating, with file and line.
    """

    def __init__(self, source: str) -> None:
        self.source = Path(source)
        self._stamp: Stamp | None = None
        self._ratings: dict[str, dict[str, float]] = {}
        if not self.source.exists():
            raise DataError(
                "there are no ratings", got=str(self.source), hint="name a JSONL file or a folder; it may be empty"
            )
        self._ratings, faults = self._read()
        if faults:
            raise DataError(faults[0], hint='a line is {"digest": ..., "rating": NUMBER, "judge": ...}')

    def refresh(self) -> None:
        """Take in what has changed. A line that cannot be read is told and left out: it ends no run."""
        if self._stamp == self._current():
            return
        self._ratings, faults = self._read()
        for fault in faults:
            logger.warning("a rating is left out: %s", fault)

    def of(self, digest: str) -> list[float]:
        """The ratings of a response, one a judge."""
        return list(self._ratings.get(digest, {}).values())

    def _files(self) -> list[Path]:
        return sorted(self.source.glob("*.jsonl")) if self.source.is_dir() else [self.source]

    def _current(self) -> Stamp:
        try:
            states = [(file, file.stat()) for file in self._files()]
        except OSError as error:
            raise RewardError("the ratings can no longer be read", got=f"{error.filename}: {error.strerror}") from None
        return tuple((str(file), state.st_mtime_ns, state.st_size) for file, state in states)

    def _read(self) -> tuple[dict[str, dict[str, float]], list[str]]:
        # The state first: what is written while the files are read is seen the next time.
        self._stamp = self._current()
        found: dict[str, dict[str, float]] = {}
        faults: list[str] = []
        for file in self._files():
            lines = file.read_bytes().split(b"\n")
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    digest, judge, rating = _rating(json.loads(line))
                except (ValueError, RecursionError) as error:
                    if number < len(lines):  # what follows the last line end may still be being written
                        faults.append(f"{file}:{number}: {error}")
                    continue
                found.setdefault(digest, {})[judge or f"{file.name}:{number}"] = rating
        return found, faults


def _rating(row: Any) -> tuple[str, str | None, float]:
    """Digest, judge and rating of a line; ValueError says what is wrong."""
    if not isinstance(row, Mapping):
        raise ValueError(f"a rating is an object, not {type(row).__name__}")
    rating, judge, digest = row.get("rating"), row.get("judge"), row.get("digest")
    if isinstance(rating, bool) or not isinstance(rating, int | float) or not math.isfinite(rating):
        raise ValueError(f"rating must be a number, not {rating!r}")
    if judge is not None and not isinstance(judge, str):
        raise ValueError(f"judge must be a text, not {judge!r}")
    if digest is None and isinstance(row.get("response"), str) and isinstance(row.get("prompt"), str | list):
        digest = digest_of(row["prompt"], row["response"])
    if not isinstance(digest, str) or len(digest) != HEX_DIGITS:
        raise ValueError(
            f"digest must be {HEX_DIGITS} hexadecimal digits, or prompt and response stand there, not {digest!r}"
        )
    return digest.lower(), judge, float(rating)


class HumanReward:
    """One term of the reward: the mean of people's ratings. Scores are raw.

    ``Score.terms`` holds ``NAME`` and ``NAME_count``, the number of people. A response that nobody has rated is
    ``missing``; with ``waits`` it is written as a judging task too.

    Args:
        name: the term's name.
        ratings: where they are.
        waits: whether missing judgements are asked for.
    """

    def __init__(self, name: str, ratings: Ratings, *, waits: bool) -> None:
        self.name, self.ratings, self.waits = name, ratings, waits
        self._tasks: Path | None = None
        self._asked: set[str] = set()

    def ask_in(self, file: Path) -> None:
        """Write judging tasks to this file, those not in it yet; a torn last line is cut off."""
        self._tasks = file
        if file.is_file():
            data = file.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                file.write_bytes(whole)
            self._asked = {json.loads(line)["digest"] for line in whole.splitlines()}

    def score(self, rollout: Rollout) -> list[Score]:
        """One raw Score per trajectory, in order."""
        self.ratings.refresh()
        scores: list[Score] = []
        waiting: dict[str, Trajectory] = {}
        for row in rollout.trajectories:
            digest = digest_of(_read_by_people(row), row.response)
            given = self.ratings.of(digest)
            count = {f"{self.name}_count": float(len(given))}
            if given:
                mean = math.fsum(given) / len(given)
                scores.append(Score(mean, None, {self.name: mean, **count}))
                continue
            waiting[digest] = row
            reason = WAITS if self.waits else "nobody has rated it"
            scores.append(Score(None, reason, {self.name: None, **count}, missing=True))
        if self.waits and self._tasks is not None:
            self._ask(waiting, self._tasks)
        return scores

    def close(self) -> None:
        """Nothing to end."""

    def _ask(self, waiting: Mapping[str, Trajectory], file: Path) -> None:
        new = {digest: row for digest, row in waiting.items() if digest not in self._asked}
        if not new:
            return
        lines = [
            {"digest": digest, "term": self.name, "prompt": _read_by_people(row), "response": row.response}
            for digest, row in new.items()
        ]
        try:
            with file.open("ab") as stream:
                stream.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        except OSError as error:
            raise RewardError("judging tasks cannot be written", got=f"{file}: {error.strerror}") from None
        self._asked |= new.keys()
        logger.info("%d responses wait for a judgement: %s", len(new), file)


def _read_by_people(row: Trajectory) -> str | Sequence[Mapping[str, Any]]:
    prompt = row.prompt or Prompt("", ())
    return prompt.text if prompt.messages is None else [dict(message) for message in prompt.messages]
