"""The report of ``surefoot eval reward-model`` as text: order, changes, roles, findings, verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefoot.cli.table import aligned, number

UNDER = (
    "rise: of scores with the change, in their deviation; share: of answers that rise; flips: share of the rightly\n"
    "ordered pairs in which the rejected answer with the change beats the chosen one\n\n"
)


def render(report: Mapping[str, Any], file: Path) -> str:
    """The report as text.

    Args:
        report: as it was written.
        file: where.
    """
    pairs, model = report["pairs"], report["model"]
    met = {criterion["name"]: criterion for criterion in report["criteria"]}
    lines = [
        f"{model['path']} on {pairs['used']} pairs of {pairs['path']} ({pairs['prompts']} prompts)\n",
        *_notes(report),
        "\n",
        _order(report["order"], met),
        "\n",
        _probes(report["probes"], met),
        UNDER,
        _roles(report["roles"]),
    ]
    lines += [f"{f['severity']}: {f['message']}\n  {f['advice']}\n" for f in report["findings"]]
    return "".join([*lines, f"verdict: {report['verdict']}\nreport: {file}\n"])


def _notes(report: Mapping[str, Any]) -> list[str]:
    pairs, model = report["pairs"], report["model"]
    counts = {
        "ties in the data, left out": pairs["counts"]["ties"],
        "rows that could not be used": pairs["counts"]["skipped"],
        "pairs that could not be encoded": len(pairs["refused"]),
        "ties in scores, counted as wrong": report["order"]["ties"],
        f"texts longer than {model['max_tokens']} tokens, which lost their beginning": model["truncated"],
    }
    return [f"{count} {what}\n" for what, count in counts.items() if count]


def _order(order: Mapping[str, Any], met: Mapping[str, Mapping[str, Any]]) -> str:
    classes = {f"chosen {name.replace('_', ' ')}": part for name, part in order["by_length"].items()}
    parts = {"accuracy": order["accuracy"], **classes}
    parts |= {f"segment {name}": part for name, part in order["by_segment"].items()}
    rows = [
        (
            name.replace("accuracy", "all"),
            str(part["count"]),
            *(number(part[key]) for key in ("share", "low", "high")),
            _said(met.get(name)),
        )
        for name, part in parts.items()
    ]
    calibration = order["calibration"]
    return aligned(("pairs", "count", "accuracy", "low", "high", ""), rows, right=(1, 2, 3, 4)) + (
        f"calibration error {number(calibration['expected_calibration_error'])}, at temperature "
        f"{number(calibration['temperature'])} {number(calibration['expected_calibration_error_at_temperature'])}; "
        f"leads and lengths correlate by {number(order['length_correlation'])}\n"
    )


def _probes(probes: Mapping[str, Any], met: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            name,
            *(number(probe["shift"][key]) for key in ("mean", "low", "high")),
            number(met[name]["bound"]) if name in met else "-",
            number(probe["raised"]),
            number(probe["flips"]),
            _said(met.get(name)),
        )
        for name, probe in probes.items()
    ]
    return aligned(("change", "rise", "low", "high", "bound", "share", "flips", ""), rows, right=(1, 2, 3, 4, 5, 6))


def _said(criterion: Mapping[str, Any] | None) -> str:
    return "" if criterion is None or criterion["passed"] else "FAIL"


def _roles(roles: Mapping[str, Any]) -> str:
    where = f"{roles['chats']} chats" if roles["chats"] else f"{roles['texts']} plain texts"
    return (
        f"roles: {len(roles['spellings'])} control tokens and a faked turn typed into {where}: "
        f"{len(roles['broken'])} became real\n"
    )
