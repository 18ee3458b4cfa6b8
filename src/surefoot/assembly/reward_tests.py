"""``try_reward_model(...)``: a reward model against pairs it was not trained on, and against changes of the surface.

Every score is written down as soon as it is known, so a run that was killed goes on where it was.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from surefoot import __version__
from surefoot.assembly.models import choose_device
from surefoot.assembly.role_tests import fake_turn, try_roles
from surefoot.config import RewardModelSection
from surefoot.data.parsing import RowFault, parse_rows
from surefoot.data.preferences import Pair, PairSet, read_preferences
from surefoot.data.transcripts import common_prompt
from surefoot.errors import ConfigError
from surefoot.evals.gate import REPORT_FILE
from surefoot.evals.reward_report import (
    Bounds,
    ProbedPairs,
    ScoredPairs,
    describe_order,
    describe_probe,
    deviation,
    findings_of,
    verdict,
)
from surefoot.evals.surface import parts_of, probes, with_answer
from surefoot.models.reward_model import RewardModel
from surefoot.records import Finding
from surefoot.training.durable import append_line, json_bytes, read_records, write_file, writing
from surefoot.training.lineage import describe_input

logger = logging.getLogger("surefoot")

SCORES_FILE: Final = "scores.jsonl"
ROWS_AT_ONCE: Final = 256
FORMAT: Final = 1

Progress = Callable[[str, int, int], None]
"""Told what is done, how many texts of it are scored, and how many there are."""


@dataclass(frozen=True)
class Asked:
    """What a reward model is tested on.

    Attributes:
        model: its folder or hub id.
        pairs: preferences that it was not trained on, in any form that ``surefoot reward-model`` reads.
        out: folder for report and scores.
        segment: column of the pairs whose values part them; None: they are not parted.
        words: keywords of which one suspects that they are rewarded.
        bounds: what is asked of it.
        max_pairs: of the file, by its digest order; None: all.
        section: how the pairs are read.
        device, batch_tokens: how it is computed.
        trust_remote_code: run code that comes with the model.
    """

    model: str
    pairs: str
    out: Path
    segment: str | None = None
    words: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    max_pairs: int | None = None
    section: RewardModelSection = field(default_factory=RewardModelSection)
    device: str = "cpu"
    batch_tokens: int = 8192
    trust_remote_code: bool = False


def try_reward_model(asked: Asked, progress: Progress = lambda what, done, total: None) -> dict[str, Any]:
    """Score pairs as they are and with each change of the surface; write ``report.json``.

    Args:
        asked: what is tested, and on what.
        progress: told how far it is.
    Returns:
        the report, as it was written.
    Raises:
        UserError: model or data cannot be used.
        RunError: the report could not be written.
    """
    model = RewardModel(
        asked.model,
        device=str(choose_device(asked.device)),
        batch_tokens=asked.batch_tokens,
        trust_remote_code=asked.trust_remote_code,
    )
    found = read_preferences(asked.pairs, asked.section, chats=model.has_chat_template)
    pairs = _chosen(found, asked.max_pairs)
    scorer = _Scorer(model, asked.out / SCORES_FILE, progress)
    scored = _scored(pairs, scorer, _segments(asked))
    scale = deviation(scored.chosen, scored.rejected)
    order = describe_order(scored)
    changes = probes(asked.words, fake_turn(model))
    probed = {name: _probe(name, change, pairs, scored, scorer, scale) for name, change in changes.items()}
    roles = try_roles(model, [pair.chosen for pair in pairs])
    findings = [*findings_of(order, probed, asked.bounds), *roles.findings]
    report = {
        "format": FORMAT,
        "verdict": verdict(findings),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "surefoot": __version__,
        "model": {"path": asked.model, "sha256": model.digest, "truncated": model.truncated},
        "pairs": describe_input(asked.pairs, "data") | {"counts": found.counts, "used": len(pairs)},
        "bounds": asdict(asked.bounds) | {"shifts": dict(asked.bounds.shifts)},
        "words": list(asked.words),
        "scores": {"mean": float(np.mean([*scored.chosen, *scored.rejected])), "deviation": scale},
        "order": order,
        "probes": probed,
        "roles": roles.as_json(),
        "findings": [_as_json(finding) for finding in findings],
    }
    with writing(asked.out):
        asked.out.mkdir(parents=True, exist_ok=True)
        write_file(asked.out / REPORT_FILE, json_bytes(report, indent=1))
    return report


def _as_json(finding: Finding) -> dict[str, Any]:
    return {key: value for key, value in asdict(finding).items() if key != "step"}


def _chosen(found: PairSet, most: int | None) -> Sequence[Pair]:
    """At most so many pairs, whole prompts together, in an order that has nothing to do with the file's."""
    if most is None or len(found.pairs) <= most:
        return found.pairs
    prompts = sorted({pair.prompt_key for pair in found.pairs})
    by_prompt: dict[str, list[Pair]] = {prompt: [] for prompt in prompts}
    for pair in found.pairs:
        by_prompt[pair.prompt_key].append(pair)
    kept: list[Pair] = []
    for prompt in prompts:
        if len(kept) >= most:
            break
        kept += by_prompt[prompt]
    return kept[:most]


def _segments(asked: Asked) -> Mapping[str, str]:
    """The segment of each row, by its id.

    Raises:
        ConfigError: no row has the column.
    """
    if asked.segment is None:
        return {}
    column = asked.segment
    found: dict[str, str] = {}

    def parse(at: str, row: Mapping[str, Any]) -> None:
        value = row.get(column)
        if isinstance(value, (dict, list)):
            raise RowFault(f"{column}: a segment is a text or a number, not {type(value).__name__}")
        if value is not None:
            found[at] = str(value)

    parse_rows(asked.pairs, parse, bad_rows=asked.section.bad_rows, section="reward_model")
    if not found:
        raise ConfigError("no row has the column for segments", got=column, hint="name one that the pairs have")
    return found


class _Scorer:
    """Scores texts once, and remembers them in a file.

    Args:
        model: the reward model.
        file: of scores by the digest of their tokens; those of another model are left aside.
        progress: told how far it is.
    """

    def __init__(self, model: RewardModel, file: Path, progress: Progress) -> None:
        self._model, self._file, self._progress = model, file, progress
        self._known: dict[str, float] = {}
        for record in read_records(file):
            if record.get("model") == model.digest:
                self._known[record["text"]] = float(record["score"])

    def encode(self, text: Any) -> list[int]:
        """Ids as the model reads them."""
        return self._model.encode(text)

    def __call__(self, what: str, rows: Sequence[Sequence[int]]) -> list[float]:
        """Scores of rows of ids, in order."""
        keys = [hashlib.sha256(np.asarray(row, dtype=np.int64).tobytes()).hexdigest()[:32] for row in rows]
        missing = list({key: row for key, row in zip(keys, rows, strict=True) if key not in self._known}.items())
        missing.sort(key=lambda item: len(item[1]))
        done = len(rows) - len(missing)
        with writing(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            for start in range(0, len(missing), ROWS_AT_ONCE):
                part = missing[start : start + ROWS_AT_ONCE]
                scores = self._model.score_tokens([row for _, row in part])
                for (key, _), score in zip(part, scores, strict=True):
                    self._known[key] = score
                records = ({"model": self._model.digest, "text": k, "score": self._known[k]} for k, _ in part)
                append_line(self._file, b"".join(map(json_bytes, records)))
                done += len(part)
                self._progress(what, done, len(rows))
        return [self._known[key] for key in keys]


def _scored(pairs: Sequence[Pair], scorer: _Scorer, segments: Mapping[str, str]) -> ScoredPairs:
    rows = [(scorer.encode(pair.chosen), scorer.encode(pair.rejected)) for pair in pairs]
    scores = scorer("pairs", [row for both in rows for row in both])
    common = [_common(*both) for both in rows]
    return ScoredPairs(
        chosen=scores[0::2],
        rejected=scores[1::2],
        chosen_tokens=[len(both[0]) - same for both, same in zip(rows, common, strict=True)],
        rejected_tokens=[len(both[1]) - same for both, same in zip(rows, common, strict=True)],
        prompts=[pair.prompt_key for pair in pairs],
        margins=[pair.margin for pair in pairs],
        segments=[segments.get(pair.id) or segments.get(pair.id.rpartition(" ")[0]) for pair in pairs],
    )


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    same = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(same, min(len(one), len(other)))


def _probe(
    name: str,
    change: Callable[[str, str], str],
    pairs: Sequence[Pair],
    scored: ScoredPairs,
    scorer: _Scorer,
    scale: float,
) -> dict[str, Any]:
    changed: list[list[int]] = []
    used: list[int] = []
    for number, pair in enumerate(pairs):
        texts, common = [], common_prompt(pair.chosen, pair.rejected)
        for text in (pair.chosen, pair.rejected):
            before, answer = parts_of(text, common)
            other = change(answer, before)
            if other != answer:
                texts.append(scorer.encode(with_answer(text, before, other)))
        if len(texts) == 2:
            changed += texts
            used.append(number)
    scores = scorer(name, changed)
    probed = ProbedPairs(
        [scored.chosen[i] for i in used],
        [scored.rejected[i] for i in used],
        scores[0::2],
        scores[1::2],
        [scored.prompts[i] for i in used],
    )
    return describe_probe(probed, scale)
