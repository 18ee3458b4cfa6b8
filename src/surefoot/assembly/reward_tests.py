"""``try_reward_model(...)``: a reward model against pairs it was not trained on, and against changes of the surface."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from surefoot import __version__
from surefoot.assembly.models import choose_device
from surefoot.assembly.reward_scores import SCORES_FILE, KeptScores, PairScores, Progress, drawn, score_pairs
from surefoot.assembly.role_tests import RoleTest, fake_turn, try_roles
from surefoot.config import RewardModelSection
from surefoot.data.parsing import RowFault, parse_rows
from surefoot.data.preferences import PairSet, read_preferences
from surefoot.errors import ConfigError
from surefoot.evals.changed_pairs import STATED_VIEW
from surefoot.evals.criteria import Bounds, criteria, findings_of, verdict
from surefoot.evals.gate import REPORT_FILE
from surefoot.evals.reward_report import describe_order, describe_probe, deviation
from surefoot.evals.surface import surface_changes
from surefoot.models.reward_identity import reward_identity
from surefoot.models.reward_model import Ensemble, RewardModel
from surefoot.records import Finding
from surefoot.training.durable import json_bytes, plain, write_file, writing
from surefoot.training.lineage import NUMERIC_PACKAGES, describe_input, package_versions

FORMAT: Final = 2
PROBE_PAIRS: Final = 500


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
        max_pairs: of the file, by the digest of their prompts; None: all.
        probe_pairs: of these at most so many are changed; None: all.
        section: how the pairs are read.
        device, dtype, batch_tokens: how it is computed.
        ensemble: what becomes of several heads.
        trust_remote_code: run code that comes with the model.
    """

    model: str
    pairs: str
    out: Path
    segment: str | None = None
    words: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    max_pairs: int | None = None
    probe_pairs: int | None = PROBE_PAIRS
    section: RewardModelSection = field(default_factory=RewardModelSection)
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    batch_tokens: int = 8192
    ensemble: Ensemble | None = None
    trust_remote_code: bool = False

    def as_json(self) -> dict[str, Any]:
        """The options, for the report."""
        section = {key: getattr(self.section, key) for key in ("min_gap", "bad_rows", "transcripts")}
        names = ("segment", "max_pairs", "probe_pairs", "device", "dtype", "batch_tokens")
        return {name: getattr(self, name) for name in names} | {"words": list(self.words)} | section


def try_reward_model(asked: Asked, progress: Progress = lambda what, done, total: None) -> dict[str, Any]:
    """Score pairs as they are and with each change; write ``report.json``.

    Args:
        asked: what is tested, and on what.
        progress: told how far it is.
    Returns:
        the report, as it was written.
    Raises:
        UserError: model or data cannot be used.
        RunError: scores or the report could not be written.
    """
    model = RewardModel(
        asked.model,
        dtype=asked.dtype,
        device=str(choose_device(asked.device)),
        batch_tokens=asked.batch_tokens,
        trust_remote_code=asked.trust_remote_code,
        ensemble=asked.ensemble,
    )
    found = read_preferences(asked.pairs, asked.section, chats=model.has_chat_template)
    segments = _segments(asked)
    pairs = [found.pairs[i] for i in sorted(drawn(found.pairs, asked.max_pairs))]
    changes = surface_changes(asked.words, fake_turn(model, pairs))
    _check_bounds(asked.bounds, [*changes, STATED_VIEW])
    roles = try_roles(model, pairs, progress)
    scored = score_pairs(
        pairs,
        changes,
        model,
        KeptScores(model, asked.dtype, asked.out / SCORES_FILE),
        probe_pairs=asked.probe_pairs,
        skip=asked.section.bad_rows == "skip",
        progress=progress,
    )
    roles = replace(roles, unguarded=model.codec.unguarded)
    report = _report(asked, model, found, roles, _measured(scored, segments, [*changes, STATED_VIEW]))
    with writing(asked.out):
        asked.out.mkdir(parents=True, exist_ok=True)
        write_file(asked.out / REPORT_FILE, json_bytes(report, indent=1))
    return report


def _measured(scored: PairScores, segments: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    pairs = scored.as_they_are(segments)
    scale = deviation(pairs.chosen, pairs.rejected)
    probes = {name: describe_probe(scored.with_change(name), scale) for name in names}
    return {
        "scores": {"mean": float(np.mean([*pairs.chosen, *pairs.rejected])), "deviation": scale},
        "used": {
            "used": len(scored.pairs),
            "prompts": len(set(pairs.prompts)),
            "refused": scored.refused,
        },
        "order": describe_order(pairs),
        "probes": {name: probe for name, probe in probes.items() if probe["answers"]},
    }


def _report(
    asked: Asked, model: RewardModel, found: PairSet, roles: RoleTest, measured: Mapping[str, Any]
) -> dict[str, Any]:
    of_roles = roles.criterion()
    asked_for = criteria(measured["order"], measured["probes"], asked.bounds)
    asked_for += () if of_roles is None else (of_roles,)
    versions = package_versions()
    report = {
        "format": FORMAT,
        "verdict": verdict(asked_for),
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"surefoot": __version__} | {name: versions[name] for name in NUMERIC_PACKAGES if name in versions},
        "model": {
            "path": asked.model,
            "sha256": model.digest,
            "identity": reward_identity(model),
            "max_tokens": model.max_tokens,
            "truncated": model.truncated,
        },
        "pairs": describe_input(asked.pairs, "data") | {"counts": found.counts} | measured["used"],
        "options": asked.as_json(),
        "bounds": asdict(asked.bounds) | {"shifts": dict(asked.bounds.shifts)},
        "criteria": [criterion.as_json() for criterion in asked_for],
        **{name: measured[name] for name in ("scores", "order", "probes")},
        "roles": roles.as_json(),
        "findings": [_as_json(finding) for finding in findings_of(asked_for)],
    }
    strict: dict[str, Any] = plain(report)
    return strict


def _as_json(finding: Finding) -> dict[str, Any]:
    return {key: value for key, value in asdict(finding).items() if key != "step"}


def _check_bounds(bounds: Bounds, names: Sequence[str]) -> None:
    unknown = [name for name in bounds.shifts if name not in names]
    if unknown:
        raise ConfigError(
            "there is no such change of the surface",
            got=f"shift.{unknown[0]}",
            allowed=", ".join(names),
            hint="given_words needs words=...; fake_turn needs a chat template or transcripts",
        )


def _segments(asked: Asked) -> dict[str, str]:
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
