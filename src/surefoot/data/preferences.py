"""Preferences: rows of several shapes to pairs of a preferred and another answer. Torch-free.

Pairs as they stand, several rated or judged answers to one prompt, and single rated answers all become pairs; ties are
dropped and counted.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from surefoot.config import RewardModelSection
from surefoot.data.demonstrations import prompt_key
from surefoot.data.judging import Judgement, Task, read_judgements, read_tasks
from surefoot.data.parsing import RowFault, parse_rows
from surefoot.data.transcripts import Text, as_text, common_prompt, conversation, transcript
from surefoot.errors import DataError


@dataclass(frozen=True, slots=True)
class Pair:
    """One comparison.

    Attributes:
        id: ``FILE:LINE`` of its row, with the numbers of the two answers where a row or a prompt makes several pairs.
        chosen, rejected: what the reward model reads, the prompt included: a text, or messages.
        margin: by how much the chosen one is better, where the data says it; else None.
        prompt_key: sha256 of the prompt.
        prompt: what the texts begin with, where the data parts it from the answers.
    """

    id: str
    chosen: Text
    rejected: Text
    margin: float | None
    prompt_key: str
    prompt: Text | None = None


@dataclass(frozen=True, slots=True)
class PairSet:
    """What a source held.

    Attributes:
        pairs: in the order of the rows.
        rows: rows read.
        ties: comparisons that say nothing: equal answers, ratings too close, votes that cancel.
        skipped: rows that cannot be used; 0 unless skipping was asked for.
        spared: pairs left out by ``reward_model.pairs_per_prompt``.
    """

    pairs: tuple[Pair, ...]
    rows: int
    ties: int = 0
    skipped: int = 0
    spared: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Rows, pairs and what became of the rest."""
        return {
            "rows": self.rows,
            "pairs": len(self.pairs),
            "ties": self.ties,
            "skipped": self.skipped,
            "spared": self.spared,
        }


@dataclass(slots=True)
class _Answers:
    """Answers to one prompt, and what people said of them."""

    id: str
    prompt: Text
    responses: list[str]
    said: list[Judgement]


@dataclass(slots=True)
class _Found:
    """Pairs and ties so far, and single rated answers by their prompt."""

    pairs: list[Pair] = field(default_factory=list)
    ties: int = 0
    spared: int = 0
    rated: dict[str, _Answers] = field(default_factory=dict)


def read_preferences(source: str, section: RewardModelSection, *, chats: bool, seed: int = 0) -> PairSet:
    """Read a source of preferences.

    Args:
        source: a file, a folder or a hub id.
        section: which ratings make a pair, what bad rows mean, where the judging tasks are.
        chats: whether the model can read conversations, so that transcripts become messages.
        seed: of the draw with ``pairs_per_prompt``.
    Raises:
        DataError: nothing is there, no row is usable, some are not and skipping was not asked for, or every comparison
            is a tie.
    """
    found = _Found()
    if section.tasks is not None:
        judged = read_judgements(source, read_tasks(section.tasks), section)
        for task, said in judged.by_task():
            _compare(found, _of_task(task, said), section, seed)
        rows, skipped = judged.rows, judged.skipped
    else:

        def parse(at: str, row: Mapping[str, Any]) -> None:
            _parse(found, at, row, section, chats=chats and section.transcripts != "text", seed=seed)

        parsed = parse_rows(source, parse, bad_rows=section.bad_rows, section="reward_model")
        rows, skipped = parsed.read, len(parsed.skipped)
    for answers in found.rated.values():
        _compare(found, _averaged(answers), section, seed)
    if not found.pairs:
        raise DataError(
            "there are no preferences in the data: every comparison is a tie",
            got=f"{source}: {found.ties} ties in {rows} rows",
            hint="lower reward_model.min_gap, or look at the data",
        )
    return PairSet(tuple(found.pairs), rows, found.ties, skipped, found.spared)


# ------------------------------------------------------------------------------------------------------------- rows


def _parse(
    found: _Found, at: str, row: Mapping[str, Any], section: RewardModelSection, *, chats: bool, seed: int
) -> None:
    if row.get("chosen") is not None or row.get("rejected") is not None:
        _add_pair(found, at, row, section, chats=chats)
    elif row.get("responses") is not None:
        _compare(found, _judged_row(at, row), section, seed)
    elif row.get("response") is not None:
        _add_rated(found, at, row)
    else:
        raise RowFault(
            "no comparison in it: it needs 'chosen' and 'rejected', 'responses' with 'ratings' or 'choice', or "
            f"'response' with 'rating' (columns: {', '.join(list(row)[:12]) or 'none'})"
        )


def _add_pair(found: _Found, at: str, row: Mapping[str, Any], section: RewardModelSection, *, chats: bool) -> None:
    prompt = _prompt(row.get("prompt")) if row.get("prompt") is not None else None
    chosen, rejected = (conversation(prompt, row.get(name), name) for name in ("chosen", "rejected"))
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise RowFault("one of chosen and rejected is a text, the other a list of messages")
    if isinstance(chosen, str) and isinstance(rejected, str) and chats:
        one, other = transcript(chosen), transcript(rejected)
        if one is not None and other is not None:
            chosen, rejected, prompt = one, other, None
        elif section.transcripts == "chat":
            raise RowFault("chosen or rejected is no transcript of the form '\\n\\nHuman: ... \\n\\nAssistant: ...'")
    if chosen == rejected:
        found.ties += 1
        return
    margin = row.get("margin")
    if margin is not None:
        margin = _number(margin, "margin")
        if margin < 0:
            raise RowFault(f"margin: must be at least 0, not {margin:g}")
    key = prompt_key(prompt if prompt is not None else common_prompt(chosen, rejected))
    found.pairs.append(Pair(at, chosen, rejected, margin, key, prompt))


def _judged_row(at: str, row: Mapping[str, Any]) -> _Answers:
    responses = _responses(row["responses"])
    prompt = _prompt(row.get("prompt"))
    return _Answers(at, prompt, responses, [Judgement.of(row, len(responses))])


def _add_rated(found: _Found, at: str, row: Mapping[str, Any]) -> None:
    prompt = _prompt(row.get("prompt"))
    response = as_text(row["response"], "response")
    if row.get("rating") is None:
        raise RowFault("no rating")
    said = Judgement(ratings=(_number(row["rating"], "rating"),))
    answers = found.rated.setdefault(prompt_key(prompt), _Answers(at, prompt, [], []))
    answers.responses.append(response)
    answers.said.append(said)


def _prompt(value: Any) -> Text:
    if value is None:
        raise RowFault("no column 'prompt'")
    return conversation(None, value, "prompt", prompt_alone=True)


def _responses(value: Any) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) < 2:
        raise RowFault("responses: must be a list of at least two texts")
    return [as_text(one, f"response {number}") for number, one in enumerate(value, start=1)]


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RowFault(f"{name}: must be a number, not {value!r}")
    return float(value)


def _of_task(task: Task, said: Sequence[Judgement]) -> _Answers:
    return _Answers(f"task {task.id[:12]}", task.prompt, list(task.responses), list(said))


def _averaged(answers: _Answers) -> _Answers:
    """Single rated answers as if rated side by side; an answer that several people rated has their mean."""
    ratings: dict[str, list[float]] = {}
    for response, said in zip(answers.responses, answers.said, strict=True):
        ratings.setdefault(response, []).append(said.ratings[0] or 0.0)
    means = tuple(math.fsum(given) / len(given) for given in ratings.values())
    return _Answers(answers.id, answers.prompt, list(ratings), [Judgement(ratings=means)])


# -------------------------------------------------------------------------------------------------------- comparing


def _compare(found: _Found, answers: _Answers, section: RewardModelSection, seed: int) -> None:
    """Add the pairs that judgements of one prompt's answers make."""
    key = prompt_key(answers.prompt)
    pairs: list[Pair] = []
    for i, j in combinations(range(len(answers.responses)), 2):
        if answers.responses[i] == answers.responses[j]:
            continue
        lead = _lead(answers.said, i, j, section.min_gap)
        if lead is None:
            continue
        votes, margin = lead
        if votes == 0:
            found.ties += 1
            continue
        better, worse = (i, j) if votes > 0 else (j, i)
        chosen, rejected = (conversation(answers.prompt, answers.responses[n], "response") for n in (better, worse))
        pairs.append(Pair(f"{answers.id} {better + 1}>{worse + 1}", chosen, rejected, margin, key, answers.prompt))
    most = section.pairs_per_prompt
    if most is not None and len(pairs) > most:
        drawn = sorted(pairs, key=lambda pair: hashlib.sha256(f"{seed}/{key}/{pair.id}".encode()).digest())
        spared = {pair.id for pair in drawn[most:]}
        found.spared += len(spared)
        pairs = [pair for pair in pairs if pair.id not in spared]
    found.pairs += pairs


def _lead(said: Sequence[Judgement], i: int, j: int, min_gap: float) -> tuple[int, float | None] | None:
    """Votes for i over j, and the margin; None when nobody compared the two.

    The margin is the mean gap of ratings; with several people's choices the lead in votes per vote; else None.
    """
    votes, gaps, count = 0, list[float](), 0
    for judgement in said:
        vote, gap = judgement.compare(i, j, min_gap)
        if vote is None:
            continue
        count += 1
        votes += vote
        gaps += [] if gap is None else [gap]
    if count == 0:
        return None
    if len(gaps) == count:
        return votes, abs(math.fsum(gaps) / count)
    return votes, abs(votes) / count if count > 1 else None
