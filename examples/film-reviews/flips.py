"""Wrong labels found by a reward model: ``python flips.py PAIRS FOLDER [SECTION.KEY=VALUE ...]``.

A tenth of the labels is turned round; each half of the films is scored by a reward model trained on the other half,
wrong labels included; ``surefoot data audit`` ranks all pairs by how much the scores contradict their labels. The
folder keeps what is trained, and the same call goes on from there. Further arguments are keys of
``reward-model.yaml``, such as ``model.policy``.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sklearn.metrics import roc_auc_score

from surefoot.cli.reward_model import run_reward_model
from surefoot.data.audit.run import audit
from surefoot.data.audit.text_checks import AuditOptions
from surefoot.errors import DataError, UserError
from surefoot.models.reward_model import RewardModel
from surefoot.training.durable import digest_file, json_bytes, read_records, write_file

SHARE, SEED, FOLDS = 0.1, 7, 2
Row = Mapping[str, Any]


def turned(rows: Sequence[Row], dice: random.Random) -> tuple[list[dict[str, Any]], list[bool]]:
    """Pairs of which a tenth have their answers exchanged, and which those are."""
    wrong = [dice.random() < SHARE for _ in rows]
    pairs = [
        {"prompt": row["prompt"], "chosen": row[("chosen", "rejected")[w]], "rejected": row[("rejected", "chosen")[w]]}
        for row, w in zip(rows, wrong, strict=True)
    ]
    return pairs, wrong


def folds(rows: Sequence[Row], dice: random.Random) -> list[int]:
    """The fold of each pair; a film is in one of them."""
    films = sorted({str(row["film"]) for row in rows})
    dice.shuffle(films)
    number = {film: i % FOLDS for i, film in enumerate(films)}
    return [number[str(row["film"])] for row in rows]


def trained(fold: int, pairs: Sequence[Row], folder: Path, settings: Sequence[str]) -> RewardModel:
    """A reward model of these pairs.

    Raises:
        SystemExit: the training did not end well; the same call goes on from its last checkpoint.
    """
    run, data = folder / f"fold-{fold}", folder / f"train-{fold}.jsonl"
    if not (run / "model").exists():
        write_file(data, b"".join(map(json_bytes, pairs)))
        where = [f"reward_model.data={data.resolve()}", f"run.name={run.name}", f"run.dir={folder.resolve()}"]
        config = Path(__file__).with_name("reward-model.yaml")
        code = run_reward_model(config, [*settings, *where], resume=run.exists(), show=None, as_json=False)
        if code:
            raise SystemExit(code)
    return RewardModel(str(run / "model"))


def margins(model: RewardModel, pairs: Sequence[Row]) -> list[float]:
    """How much better the chosen answers score."""
    chats = [
        [*row["prompt"], {"role": "assistant", "content": row[k]}] for row in pairs for k in ("chosen", "rejected")
    ]
    scores = model.score_texts(chats)
    return [scores[i] - scores[i + 1] for i in range(0, len(scores), 2)]


def find(file: Path, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Turn, train, score, audit; the result is also written to ``flips.json``.

    Raises:
        DataError: there are no pairs, or they do not say which film they are about.
    """
    rows = read_records(file)
    if not rows or not all({"film", "prompt", "chosen", "rejected"} <= row.keys() for row in rows):
        hint = "make film-reviews writes runs/film-reviews/judges/data/pairs-train.jsonl"
        raise DataError("there are no pairs with film, prompt, chosen and rejected", got=str(file), hint=hint)
    folder.mkdir(parents=True, exist_ok=True)
    dice = random.Random(SEED)
    (pairs, wrong), fold = turned(rows, dice), folds(rows, dice)
    lead = [0.0] * len(rows)
    for number in range(FOLDS):
        model = trained(number, [p for p, f in zip(pairs, fold, strict=True) if f != number], folder, settings)
        mine = [i for i, f in enumerate(fold) if f == number]
        for i, margin in zip(mine, margins(model, [pairs[i] for i in mine]), strict=True):
            lead[i] = margin
    write_file(folder / "pairs.jsonl", b"".join(map(json_bytes, pairs)))
    scores = [{"row": i + 1, "margin": margin} for i, margin in enumerate(lead)]
    write_file(folder / "scores.jsonl", b"".join(map(json_bytes, scores)))
    report = audit(str(folder / "pairs.jsonl"), AuditOptions(scores=folder / "scores.jsonl"))
    suspicion = {s.row: 1 - s.p_right for s in report.suspicions}
    worst = sorted(range(len(rows)), key=lambda i: -suspicion[i + 1])[: sum(wrong)]
    reported = [finding.row - 1 for finding in report.findings if finding.kind == "label/contradicted"]
    found = {
        "pairs": len(rows),
        "turned": sum(wrong),
        "accuracy_on_true_labels": sum((m > 0) != w for m, w in zip(lead, wrong, strict=True)) / len(rows),
        "area_under_the_curve": float(roc_auc_score(wrong, [suspicion[i + 1] for i in range(len(rows))])),
        "turned_among_as_many_of_the_worst": sum(wrong[i] for i in worst),
        "reported": len(reported),
        "turned_among_reported": sum(wrong[i] for i in reported),
        "data": digest_file(file),
    }
    write_file(folder / "flips.json", json_bytes(found, indent=1))
    return found


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    if len(arguments) < 2:
        sys.stderr.write("usage: python flips.py PAIRS FOLDER [SECTION.KEY=VALUE ...]\n")
        return 2
    try:
        found = find(Path(arguments[0]), Path(arguments[1]), arguments[2:])
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
