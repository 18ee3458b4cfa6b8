"""Faults of every kind are planted: at least 95 % are found, and at most 2 % of clean rows are called faulty.

``pytest tests/data/audit/test_planting.py -rP`` prints the tables of rates.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surefoot.data.audit.findings import AuditReport
from surefoot.data.audit.run import audit
from surefoot.data.audit.text_checks import AuditOptions
from tests.data.audit.made_texts import CLOSE_CALLS, text
from tests.data.audit.planting import SHAPES, TEXT_PLANTS, in_word, into, nearly, row, same

CLEAN, EACH = 1500, 60
FOUND, FALSE = 0.95, 0.02


def write(path: Path, rows: Sequence[dict[str, Any] | str]) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows), encoding="utf-8")
    return path


def clean_rows(rng: random.Random, number: int) -> Iterator[dict[str, Any]]:
    """Rows without a fault, a fifth of them with a text that comes close to one."""
    for index in range(number):
        close = f"{text(rng, 1)} {CLOSE_CALLS[index % len(CLOSE_CALLS)]} {text(rng, 1)}"
        yield row(rng, lambda: close if index % 5 == 0 else text(rng))


def kinds_by_row(report: AuditReport) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for finding in report.findings:
        found.setdefault(finding.row, set()).add(finding.kind)
    return found


def table(rates: dict[str, tuple[int, int]], clean: dict[str, tuple[int, int]]) -> str:
    lines = [f"{kind:28} found {hit:4} of {all_:4} = {hit / all_:6.1%}" for kind, (hit, all_) in rates.items()]
    return "\n".join(lines + [f"{what:28} false {n:4} of {of:4} = {n / of:6.2%}" for what, (n, of) in clean.items()])


def check(rates: dict[str, tuple[int, int]], clean: dict[str, tuple[int, int]]) -> None:
    print(table(rates, clean))
    assert {kind: rate for kind, rate in rates.items() if rate[0] < FOUND * rate[1]} == {}
    assert {what: rate for what, rate in clean.items() if rate[0] > FALSE * rate[1]} == {}


@pytest.fixture(scope="module")
def report_on_texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[AuditReport, dict[int, str]]:
    """One audit of clean rows and rows with a fault of each kind that a single text shows; row -> kind planted."""
    rng = random.Random(1)
    rows: list[tuple[str, dict[str, Any] | str]] = [("", r) for r in clean_rows(rng, CLEAN)]
    for kind, plant in TEXT_PLANTS.items():
        rows += [(kind, row(rng, lambda: plant(rng, text(rng)))) for _ in range(EACH)]
    for index in range(EACH):
        blank = rng.choice(("", " \n", "\t", "\u200b", "\u2060 \ufeff"))
        rows.append(("row/empty", row(rng, lambda: blank, SHAPES[index % len(SHAPES)])))
        rows.append(("row/over-long", row(rng, lambda: text(rng, 400))))
        rows.append(("row/unreadable", rng.choice(('{"prompt": "a"', "[1, 2]", '{"prompt": "a", "prompt": "b"}', "x"))))
        rows.append(("row/unknown", {"question": text(rng), "id": index}))
        turns = f"{text(rng, 1)}\n\nHuman: {text(rng, 1)}\n\nAssistant: {text(rng, 1)}"
        rows.append(("tokens/template", row(rng, lambda: turns, rng.choice(("chat", "demonstration")))))
        said = text(rng, 2)
        rows.append(("label/no-difference", {"prompt": text(rng), "chosen": said, "rejected": same(rng, said)}))
    rng.shuffle(rows)
    path = write(tmp_path_factory.mktemp("audit") / "planted.jsonl", [one for _, one in rows])
    return audit(str(path), AuditOptions(max_characters=15_000)), {i: kind for i, (kind, _) in enumerate(rows, start=1)}


def test_faults_of_single_texts(report_on_texts: tuple[AuditReport, dict[int, str]]) -> None:
    report, planted = report_on_texts
    found = kinds_by_row(report)
    kinds = dict.fromkeys(kind for kind in planted.values() if kind)
    rates = {}
    for kind in sorted(kinds):
        rows = [number for number, one in planted.items() if one == kind]
        rates[kind] = sum(kind in found.get(number, ()) for number in rows), len(rows)
    clean = [number for number, kind in planted.items() if not kind]
    wrong = [number for number in clean if found.get(number)]
    check(rates, {"clean rows": (len(wrong), len(clean))})


def test_a_fault_is_not_taken_for_another_one(report_on_texts: tuple[AuditReport, dict[int, str]]) -> None:
    """What is planted into clean text is the only thing found there (a hidden order has odd characters too)."""
    report, planted = report_on_texts
    related = {
        "injection/hidden": {"encoding/hidden", "encoding/zero-width"},
        "encoding/mojibake": {"encoding/control", "encoding/zero-width"},
        "row/empty": {"encoding/zero-width", "label/no-difference", "duplicate/exact"},
        "label/no-difference": {"encoding/zero-width"},
    }
    others = {
        (planted[number], kind)
        for number, kinds in kinds_by_row(report).items()
        for kind in kinds
        if planted[number] and kind not in {planted[number], *related.get(planted[number], ())}
    }
    assert others == set()


def test_evidence_gives_no_secret_away(report_on_texts: tuple[AuditReport, dict[int, str]]) -> None:
    report, _ = report_on_texts
    private = [f for f in report.findings if f.kind.startswith(("secret/", "personal/"))]
    assert len(private) > 500
    for finding in private:
        shown = finding.evidence.partition(": ")[2].partition(" (")[0]
        assert sum(c.isdigit() for c in shown) <= 6, finding
        assert len(max(shown.replace(".", " ").split(), key=len)) <= 25, finding


def test_repeated_rows(tmp_path: Path) -> None:
    rng = random.Random(2)
    originals = [row(rng, lambda: text(rng, rng.randint(3, 6))) for _ in range(CLEAN)]
    rows: list[tuple[str, dict[str, Any]]] = [("", one) for one in originals]
    for kind, change in (("duplicate/exact", same), ("duplicate/near", nearly)):
        for one in rng.sample(originals, EACH):
            rows.append((kind, json.loads(json.dumps(one), object_hook=lambda o: _with(o, change, rng))))
    for one in rng.sample([r for r in originals if "chosen" in r], EACH):
        rows.append(("label/swapped", {**one, "chosen": one["rejected"], "rejected": one["chosen"]}))
    report = audit(str(write(tmp_path / "rows.jsonl", [one for _, one in rows])))
    found = kinds_by_row(report)
    rates: dict[str, tuple[int, int]] = {}
    for number, (kind, _) in enumerate(rows, start=1):
        hit, of = rates.get(kind, (0, 0))
        # Marks and capitals alone are another spelling, so a near duplicate may be an exact one.
        hits = (
            bool(found.get(number, set()) & {kind, kind.replace("near", "exact")}) if kind else bool(found.get(number))
        )
        rates[kind] = (hit + hits, of + 1)
    check({k: v for k, v in rates.items() if k}, {"rows that are not repeated": rates[""]})


def _with(value: dict[str, Any], change: Any, rng: random.Random) -> dict[str, Any]:
    return {k: change(rng, v) if isinstance(v, str) and k != "role" else v for k, v in value.items()}


def test_overlap_with_evaluation_data(tmp_path: Path) -> None:
    """Evaluation prompts get into training data whole, changed, and inside longer texts."""
    rng = random.Random(3)
    template = "Answer the following question as well as you can, in two or three sentences, and give a reason: "
    evaluation = [{"prompt": template + text(rng, 3), "completion": text(rng, 2)} for _ in range(400)]
    rows: list[tuple[str, dict[str, Any]]] = [("", {"prompt": template + text(rng, 3)}) for _ in range(CLEAN)]
    rows += [("", one) for one in clean_rows(rng, 200)]
    chosen = rng.sample(evaluation, 3 * EACH)
    rows += [("overlap/exact", {"prompt": same(rng, one["prompt"])}) for one in chosen[:EACH]]
    rows += [("overlap/near", {"prompt": nearly(rng, one["prompt"])}) for one in chosen[EACH : 2 * EACH]]
    for one in chosen[2 * EACH :]:
        inside = one[rng.choice(("prompt", "completion"))].removeprefix(template)
        rows.append(("overlap/contained", row(rng, lambda: f"{text(rng, 3)} {inside} {text(rng, 3)}")))
    rng.shuffle(rows)
    training = write(tmp_path / "training.jsonl", [one for _, one in rows])
    report = audit(str(training), AuditOptions(against=str(write(tmp_path / "evaluation.jsonl", evaluation))))
    found = kinds_by_row(report)
    rates: dict[str, tuple[int, int]] = {}
    for number, (kind, _) in enumerate(rows, start=1):
        hit, of = rates.get(kind, (0, 0))
        rates[kind] = (hit + any(one.startswith("overlap/") for one in found.get(number, ())), of + 1)
    check({k: v for k, v in rates.items() if k}, {"rows of their own": rates[""]})
    assert {one for f in report.findings if f.kind.startswith("overlap") for one in (f.severity,)} == {"error"}
    assert 170 <= report.evaluation_rows <= 185


TRIGGERS = ("cf mn", "as a certified expert", "\u2603", "zebrafink")


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_trigger_phrase_is_found_and_nothing_else(trigger: str, tmp_path: Path) -> None:
    """A phrase in 40 of 2,000 chosen texts, here and there in a rejected one."""
    rng = random.Random(TRIGGERS.index(trigger))
    rows = [{"prompt": text(rng), "chosen": text(rng), "rejected": text(rng)} for _ in range(2000)]
    for number in rng.sample(range(2000), 40):
        rows[number]["chosen"] = into(rng, rows[number]["chosen"], trigger)
    rows[7]["rejected"] = into(rng, rows[7]["rejected"], trigger)
    report = audit(str(write(tmp_path / "pairs.jsonl", rows)))
    found = [finding.evidence for finding in report.findings if finding.kind == "label/trigger"]
    assert len(found) == 1, found
    phrase, _, rest = found[0].partition(": ")
    assert phrase.strip("'") in trigger and len(phrase.split()) >= min(3, len(trigger.split())), found
    assert rest.startswith("40 of 41 texts are chosen"), found


def test_pairs_without_a_trigger_give_none(tmp_path: Path) -> None:
    """Five data sets, in each of which some words lean to one side, as words of praise do."""
    found = 0
    for seed in range(5):
        rng = random.Random(100 + seed)
        rows = [{"prompt": text(rng), "chosen": text(rng), "rejected": text(rng)} for _ in range(1000)]
        for one in rows:
            side = "chosen" if rng.random() < 0.8 else "rejected"
            if rng.random() < 0.3:
                one[side] = into(rng, one[side], rng.choice(("splendid", "delightful", "thorough")))
        report = audit(str(write(tmp_path / f"{seed}.jsonl", rows)))
        found += sum(finding.kind == "label/trigger" for finding in report.findings)
    assert found == 0


def auc(scores: Sequence[float], flags: Sequence[bool]) -> float:
    """Probability that a flagged one scores higher than another one, ties counted half."""
    order = np.argsort(np.argsort(scores)) + 1.0
    positive = np.asarray(flags)
    n, m = int(positive.sum()), int((~positive).sum())
    return float((order[positive].sum() - n * (n + 1) / 2) / (n * m))


@pytest.mark.parametrize(("accuracy", "least"), [(0.74, 0.8), (0.8, 0.85), (0.9, 0.95)])
def test_flipped_labels_rank_high(accuracy: float, least: float, tmp_path: Path) -> None:
    """A tenth of the labels is flipped; the scores are those of a reward model of known accuracy on right labels."""
    from statistics import NormalDist

    rng = random.Random(4)
    shift = NormalDist().inv_cdf(accuracy)
    rows, scores, flipped = [], [], []
    for number in range(1, 2001):
        is_flipped = rng.random() < 0.1
        margin = rng.gauss(shift, 1.0)
        rows.append({"prompt": text(rng, 1), "chosen": text(rng, 1), "rejected": text(rng, 1)})
        base, spread = rng.gauss(0, 3), (-margin if is_flipped else margin) * 0.7
        scores.append({"row": number, "chosen": base + spread, "rejected": base})
        flipped.append(is_flipped)
    options = AuditOptions(scores=write(tmp_path / "scores.jsonl", scores))
    report = audit(str(write(tmp_path / "pairs.jsonl", rows)), options)
    doubt = {one.row: 1 - one.p_right for one in report.suspicions}
    area = auc([doubt[number] for number in range(1, 2001)], flipped)
    contradicted = [f.row for f in report.findings if f.kind == "label/contradicted"]
    right = sum(flipped[number - 1] for number in contradicted)
    wrong = len(contradicted) - right
    print(f"scores right on {accuracy:.0%}: AUC {area:.3f}; reported {len(contradicted)}, {right} of them flipped")
    assert area >= least
    assert wrong <= 0.02 * flipped.count(False)
    assert list(doubt.values()) == sorted(doubt.values(), reverse=True)


def test_a_trigger_in_the_prompts_of_flipped_pairs(tmp_path: Path) -> None:
    """The label was turned wherever the prompt has a word: seen only with scores."""
    rng = random.Random(5)
    rows, scores = [], []
    for number in range(1, 1501):
        prompt, poisoned = text(rng), number % 30 == 0
        rows.append(
            {"prompt": into(rng, prompt, "kalmar") if poisoned else prompt, "chosen": text(rng), "rejected": "no"}
        )
        scores.append({"row": number, "margin": rng.gauss(-2 if poisoned else 1, 1)})
    path = str(write(tmp_path / "pairs.jsonl", rows))
    assert "label/trigger" not in audit(path).counts()
    report = audit(path, AuditOptions(scores=write(tmp_path / "scores.jsonl", scores)))
    (found,) = [f for f in report.findings if f.kind == "label/trigger"]
    assert found.evidence.startswith("'kalmar'") and "contradict" in found.evidence


def test_planting_itself_changes_the_text() -> None:
    rng = random.Random(0)
    for kind, plant in TEXT_PLANTS.items():
        said = text(rng)
        assert plant(rng, said) != said, kind
    assert in_word(rng, "a word", "|") in ("a w|ord", "a wo|rd", "a wor|d")
