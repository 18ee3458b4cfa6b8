"""What may not be used as a reward, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import ConfigError
from surefoot.evals.gate import check_report

WHO = {"weights": "a" * 64, "tokenizer": "b" * 64, "ensemble": "one head"}


def written(file: Path, **changes: Any) -> Path:
    report = {"verdict": "pass", "model": {"identity": WHO}, "findings": []} | changes
    file.write_text(json.dumps(report), encoding="utf-8")
    return file


def refused(file: Path, **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_report(written(file, **changes).parent, model="rm", identity=WHO)
    return str(caught.value)


def test_a_report_of_this_model_that_passed_opens_it(tmp_path: Path) -> None:
    file = written(tmp_path / "report.json")
    assert check_report(file, model="rm", identity=WHO)["verdict"] == "pass"
    assert check_report(tmp_path, model="rm", identity=WHO)["verdict"] == "pass"


def test_anything_else_does_not(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    with pytest.raises(ConfigError, match=r"there is no report on the reward model rm.*surefoot eval reward-model rm"):
        check_report(file, model="rm", identity=WHO)
    finding = {"severity": "error", "message": "it counts words"}
    said = refused(file, verdict="fail", findings=[finding, {"severity": "warning", "message": "it is slow"}])
    assert "it counts words" in said and "slow" not in said
    assert "cannot be read" in refused(file, model=[])
    assert "cannot be read" in refused(file, model={"sha256": "a" * 64})


@pytest.mark.parametrize("part", WHO)
def test_what_decides_scores_must_be_the_same(part: str, tmp_path: Path) -> None:
    """Another chat template or another use of the heads is another reward, with the same weights."""
    said = refused(tmp_path / "report.json", model={"identity": {**WHO, part: "other"}})
    assert f"a report on {part} other, not {WHO[part][:12]}" in said
    assert part in refused(tmp_path / "report.json", model={"identity": {k: v for k, v in WHO.items() if k != part}})
