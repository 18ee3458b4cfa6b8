"""From parts to the table: ratios within one run of the benchmark, TRL's step = 1."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.parts import Part
from benchmarks.roofline import ModelShape, Rates, StepWork, decoding_step_s, least_step_s
from benchmarks.work import PHASES

ALLOWED_LOGP_GAP: Final = 1e-4
# What both sides must have done the same number of, in every step.
SAME: Final = ("prompt_tokens", "action_tokens", "trained_tokens", "optimizer_steps")


def measured_steps(parts: Sequence[Part]) -> list[Mapping[str, Any]]:
    """The measured steps of all rounds."""
    return [step for part in parts for step in part["steps"]]


def summary(parts: Sequence[Part]) -> dict[str, Any]:
    """Medians of the step and of each phase (taken one by one, so phases need not add up), the largest peak.

    Spoiled rounds count only where there is no other.
    """
    steps = measured_steps([part for part in parts if not part["spoiled"]] or parts)
    names = [name for name in PHASES if any(name in step["phases"] for step in steps)]
    return {
        "step_s": statistics.median(step["step_s"] for step in steps),
        "phases": {name: statistics.median(step["phases"].get(name, 0.0) for step in steps) for name in names},
        "peak_gb": max(step["peak_gb"] for step in steps),
        "other_cores": max(step["other_cores"] for step in steps),
        "runs": len(steps),
        "spoiled": all(part["spoiled"] for part in parts),
    }


def same_work_faults(ours: Sequence[Part], yardstick: Sequence[Part]) -> list[str]:
    """What the two sides did not do alike, and where their log-probabilities differ; empty when all is well."""
    faults = []
    for name in SAME:
        own = {step["counts"][name] for step in measured_steps(ours)}
        wanted = {step["counts"][name] for step in measured_steps(yardstick)}
        if own != wanted:
            faults.append(f"{name} in a step: {_listed(own)}, TRL's: {_listed(wanted)}")
    epochs, wanted = {part["epochs"] for part in ours}, {part["epochs"] for part in yardstick}
    if epochs != wanted:
        faults.append(f"epochs: {_listed(epochs)}, TRL's: {_listed(wanted)}")
    gaps = [part["logp_gap"] for part in ours]
    if any(gap is None for gap in gaps):
        faults.append("log-probabilities were not compared")
    else:
        # Written so that NaN is a fault.
        wide = [f"{gap['max']:.3g}" for gap in gaps if not gap["max"] <= ALLOWED_LOGP_GAP]
        if wide:
            faults.append(
                f"log-probabilities of TRL's tokens differ by {', '.join(wide)}, allowed: {ALLOWED_LOGP_GAP:g}"
            )
    return faults


def own_work_faults(ours: Sequence[Part], *, action_tokens: int, epochs: int) -> list[str]:
    """As :func:`same_work_faults` where TRL was not run: against what was asked for, one minibatch an epoch."""
    wanted = {"action_tokens": action_tokens, "trained_tokens": epochs * action_tokens, "optimizer_steps": epochs}
    faults = []
    for name, count in wanted.items():
        own = {step["counts"][name] for step in measured_steps(ours)}
        if own != {count}:
            faults.append(f"{name} in a step: {_listed(own)}, asked for: {count}")
    return faults


def _listed(numbers: set[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def row(
    config: str,
    ours: Sequence[Part],
    yardstick: Sequence[Part],
    limits: Mapping[str, float] | None = None,
    faults: Sequence[str] = (),
) -> dict[str, Any]:
    """A line of the table.

    Args:
        config: the configuration's name.
        ours: its parts, one a round.
        yardstick: TRL's, one a round; empty when it was not run, which leaves the ratios None.
        limits: least seconds by phase, with ``step``; None when they were not measured.
        faults: why it was not the same work.
    Returns:
        ``config``, ``allocator`` (by side), ``speedup``, ``memory_ratio`` and ``limit`` against TRL, and a summary.
    """
    own = summary(ours)
    their = summary(yardstick) if yardstick else None
    least = limits["step"] if limits else None
    gaps = [part["logp_gap"]["max"] for part in ours if part["logp_gap"]]
    return {
        "config": config,
        "speedup": their["step_s"] / own["step_s"] if their else None,
        "memory_ratio": own["peak_gb"] / their["peak_gb"] if their else None,
        "limit": their["step_s"] / least if their and least else None,
        "of_limit": least / own["step_s"] if least else None,
        **own,
        "spoiled": own["spoiled"] or bool(their and their["spoiled"]),
        "phase_ratios": {n: s / their["step_s"] for n, s in own["phases"].items()} if their else None,
        "least_s": dict(limits) if limits else None,
        "counts": dict(measured_steps(ours)[-1]["counts"]),
        "logp_gap": max(gaps) if gaps else None,
        "allocator": {
            "surefoot": ours[0]["settings"]["allocator"],
            "trl": yardstick[0]["settings"]["allocator"] if yardstick else None,
        },
        "faults": list(faults),
    }


def step_limits(configs: Sequence[str], shape: ModelShape, part: Part, rates: Rates, rows: int) -> dict[str, Any]:
    """Least seconds of each configuration, for the tokens of a measured part with that many rows."""
    counts = measured_steps([part])[-1]["counts"]
    work = StepWork(counts["prompt_tokens"], rows, counts["action_tokens"], part["epochs"])
    return {config: least_step_s(config, shape, work, rates) for config in configs}


def decoding_rows(parts: Sequence[Part], shape: ModelShape, rates: Rates) -> list[dict[str, Any]]:
    """Tokens per second by number of sequences: every engine, Surefoot's ratio to it, and the machine's limit."""
    found = [entry for part in parts for entry in part["decoding"]]
    out = []
    for count in sorted({entry["sequences"] for entry in found}):
        speeds = {entry["engine"]: entry["tokens_per_s"] for entry in found if entry["sequences"] == count}
        out.append(
            {
                "sequences": count,
                "tokens_per_s": speeds,
                "surefoot_ratio": {n: speeds["surefoot"] / s for n, s in speeds.items() if n != "surefoot"},
                "limit_tokens_per_s": count / decoding_step_s(shape, count, rates),
                "other_cores": max(part["other_cores"] for part in parts),
                "spoiled": any(part["spoiled"] for part in parts),
            }
        )
    return out


# ------------------------------------------------------------------------------------------------------ in words


def markdown(table: Mapping[str, Any]) -> str:
    """The whole table to read."""
    blocks = [_ratio_table(table["rows"], "TRL as it comes"), _phase_table(table)]
    if table["rows_trl_tuned"]:
        blocks.insert(1, _ratio_table(table["rows_trl_tuned"], "TRL with allocator settings"))
    if table["decoding"]:
        blocks.append(_decoding_table(table["decoding"], table["vllm"]))
    return "\n\n".join(blocks) + "\n"


def _ratio_table(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    lines = [
        f"| against {title} | faster | limit | of the limit | peak memory | step, s | peak, GB | others, cores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        name = r["config"] + (" (SPOILED)" if r["spoiled"] else "") + (" (NOT THE SAME WORK)" if r["faults"] else "")
        share = "-" if r["of_limit"] is None else f"{r['of_limit']:.0%}"
        cells = [name, _times(r["speedup"]), _times(r["limit"]), share, _number(r["memory_ratio"])]
        cells += [_number(r["step_s"]), _number(r["peak_gb"]), _number(r["other_cores"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _phase_table(table: Mapping[str, Any]) -> str:
    """Each phase as a share of TRL's step, or in seconds where TRL was not run."""
    columns: dict[str, Mapping[str, float]] = {}
    unit = 1.0
    if table["yardstick"]:
        unit = table["yardstick"]["default"]["step_s"]
        columns |= {f"TRL, {name}": entry for name, entry in _phases_of(table["yardstick"]).items()}
    columns |= _phases_of({row["config"]: row for row in table["rows"]})
    title = "share of TRL's step" if table["yardstick"] else "seconds"
    lines = [f"| {title} | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for phase in (*PHASES, "step"):
        if any(phase in column for column in columns.values()):
            cells = [f"{column[phase] / unit:.3f}" if phase in column else "-" for column in columns.values()]
            lines.append(f"| {phase} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _phases_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    return {name: {**entry["phases"], "step": entry["step_s"]} for name, entry in entries.items()}


def _decoding_table(rows: Sequence[Mapping[str, Any]], vllm: str) -> str:
    engines = list(dict.fromkeys(name for row in rows for name in row["tokens_per_s"]))
    titles = [f"{name}, tokens/s" for name in engines] + [
        f"Surefoot to {name}" for name in engines if name != "surefoot"
    ]
    lines = ["| sequences | " + " | ".join([*titles, "limit, tokens/s"]) + " |", "|---" * (len(titles) + 2) + "|"]
    for r in rows:
        cells = [f"{r['tokens_per_s'][name]:.0f}" for name in engines]
        cells += [_times(r["surefoot_ratio"].get(name)) for name in engines if name != "surefoot"]
        name = str(r["sequences"]) + (" (SPOILED)" if r["spoiled"] else "")
        lines.append("| " + " | ".join([name, *cells, f"{r['limit_tokens_per_s']:.0f}"]) + " |")
    return "\n".join([*lines, "", f"vLLM: {vllm}"])


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} x"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
