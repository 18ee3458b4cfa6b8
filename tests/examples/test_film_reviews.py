"""The film example's data, on made-up reviews in the packages' own forms."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from surefoot.config.pipeline import load_pipeline
from surefoot.data.cards import check_cards
from surefoot.data.film_reviews import Review
from surefoot.errors import DataError
from surefoot.models.reward_model import RewardModel
from surefoot.models.toy import make_toy_model
from surefoot.training.durable import json_bytes, read_records
from tests.examples.example_scripts import EXAMPLES, script

prepare = script("film-reviews", "prepare")
evaluate = script("film-reviews", "evaluate")
films = script("film-reviews", "films")
FILMS = [f"Film {n}" for n in range(40)]
GOOD, BAD = ["good", "great", "superb", "lovely", "charming"], ["bad", "awful", "boring", "weak", "horrible"]


def made_up() -> tuple[list[Review], str, str]:
    """Reviews, and the two rating files, quotes and line ends as untidy as the real ones."""
    dice = random.Random(0)
    reviews, means, raw = [], [], []
    for film in FILMS:
        for number in range(6):
            fresh = number % 2 == 0
            word = "good" if fresh else "bad"
            text = f'{film}: it\'s number {number}, a {word} film , "{word}".'
            ratings = [max(-4, min(4, (2 if fresh else -2) + dice.randint(-1, 1))) for _ in range(5)]
            mean = sum(ratings) / 5
            reviews.append(Review(film, text, fresh))
            means.append(f"{film}{number}\t{mean}\t{text.replace(chr(34), chr(39) * 2).upper()}\r\n")
            raw.append(f"{film}{number}\t{mean}\t0.5\t{ratings}\r\n")
    return reviews, "".join(means), "".join(raw)


@pytest.fixture(scope="module")
def rated() -> list[Any]:
    reviews, means, raw = made_up()
    again = [*reviews, reviews[0], Review("Film 0", "a plot", None), Review("Film 0", "nobody rated it", True)]
    found: list[Any] = prepare.join(again, prepare.parse_ratings(means, raw))
    assert len(found) == len(reviews), "each text once, plots and unrated ones left out"
    return found


def test_no_film_is_on_two_sides(rated: list[Any]) -> None:
    files = prepare.files_of(rated)
    films = {name: {row["film"] for row in rows} for name, rows in files.items()}
    trained = films["demonstrations.jsonl"] | films["pairs-train.jsonl"]
    judged = films["pairs-judge.jsonl"] | films["verdicts-judge.jsonl"]
    measured = films["pairs-held-out.jsonl"] | films["verdicts-held-out.jsonl"] | films["prompts-held-out.jsonl"]
    groups = [trained, judged, measured, films["prompts-train.jsonl"]]
    assert all(groups) and sum(map(len, groups)) == len(set().union(*groups)) == len(FILMS)
    counts = {name: list(prepare.part(FILMS).values()).count(name) for name in prepare.SHARES}
    assert counts == {name: pytest.approx(40 * share, abs=1) for name, share in prepare.SHARES.items()}


def test_demonstrations_lean_to_neither_verdict(rated: list[Any]) -> None:
    rows = prepare.demonstrations([r for r in rated if not (r.film == "Film 1" and r.fresh)])
    texts = [row["messages"][-1]["content"] for row in rows]
    assert sum("good" in text for text in texts) == sum("bad" in text for text in texts) == len(rows) / 2
    assert "Film 1" not in {row["film"] for row in rows}, "it has no fresh review any more"
    assert rows[0]["messages"][0] == {
        "role": "user",
        "content": f'Write a one-sentence review of the film "{rows[0]["film"]}".',
    }


def test_pairs_are_of_one_film_and_far_apart(rated: list[Any]) -> None:
    rows = prepare.preferences(rated, 5)
    mean = {r.text: r.mean for r in rated}
    film = {r.text: r.film for r in rated}
    for row in rows:
        assert film[row["chosen"]] == film[row["rejected"]] == row["film"]
        assert row["margin"] == pytest.approx(mean[row["chosen"]] - mean[row["rejected"]], abs=1e-3)
        assert row["margin"] >= prepare.GAP and 0.5 < row["single_rater"] <= 1
    assert max(sum(row["film"] == name for row in rows) for name in FILMS) == 5


def test_a_single_rater_by_hand() -> None:
    assert prepare.single_rater((2, 1), (1, 0)) == (3 + 0.5) / 4


def test_rows_of_another_form_are_refused() -> None:
    with pytest.raises(DataError, match="not as expected"):
        prepare.parse_ratings("1\tgood\ttext\n", "1\t1.0\t0.5\t[1]\n")
    with pytest.raises(DataError, match="not as expected"):
        prepare.parse_ratings("1\t1.0\ttext\n", "2\t1.0\t0.5\t[1]\n")


def test_the_ratings_lie_in_an_archive_in_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, means, raw = made_up()
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        for name, text in ((prepare.MEANS, means), (prepare.RAW, raw)):
            entry = tarfile.TarInfo(f"hutto/{name}")
            data = text.encode()
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    outer = tmp_path / "package.zip"
    with zipfile.ZipFile(outer, "w") as package:
        package.writestr(prepare.ARCHIVE, inner.getvalue())
    monkeypatch.setattr(prepare, "fetch_package", lambda package, cache: outer)
    assert prepare.fetch_ratings(tmp_path) == (means, raw)


def test_the_whole_of_it_writes_cards_that_training_accepts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reviews, means, raw = made_up()
    monkeypatch.setattr(prepare, "load_reviews", lambda cache: reviews)
    monkeypatch.setattr(prepare, "fetch_ratings", lambda cache: (means, raw))
    prepare.main(tmp_path / "data")
    files = sorted((tmp_path / "data").glob("*.jsonl"))
    assert len(files) == 8
    check_cards(map(str, files), require=True)
    first = {file.name: file.read_bytes() for file in files}
    prepare.main(tmp_path / "data")
    assert {file.name: file.read_bytes() for file in files} == first


def test_the_comparison_is_paired_by_film() -> None:
    compare = script("film-reviews", "compare")
    rows = [{"film": f"f{n % 30}", "single_rater": 0.9} for n in range(120)]
    dice = random.Random(1)
    lexicon = [dice.choice((1.0, -1.0, 0.0)) for _ in rows]
    better = [1.0 if lead <= 0 and dice.random() < 0.5 else lead for lead in lexicon]
    found = compare.compared(rows, better, lexicon)
    assert found["vader"]["accuracy"] == pytest.approx(sum((s > 0) + 0.5 * (s == 0) for s in lexicon) / 120)
    assert found["difference"]["mean"] == pytest.approx(found["reward_model"]["accuracy"] - found["vader"]["accuracy"])
    assert found["beats_vader"] and found["films"] == 30
    assert not compare.compared(rows, lexicon, lexicon)["beats_vader"]
    assert found["single_rater"]["accuracy"] == pytest.approx(0.9)
    assert read_records(Path("nothing.jsonl")) == []


def test_turned_labels_are_found_by_models_that_never_saw_the_film(tmp_path: Path) -> None:
    flips = script("film-reviews", "flips")
    dice = random.Random(0)
    rows: list[dict[str, Any]] = [
        {"film": film, "prompt": [{"role": "user", "content": f"On {film}."}], **answers}
        for film in FILMS
        for answers in (
            {k: " ".join(dice.choices(words, k=3)) for k, words in (("chosen", GOOD), ("rejected", BAD))}
            for _ in range(5)
        )
    ]
    numbers = flips.folds(rows, random.Random(1))
    assert len({(row["film"], n) for row, n in zip(rows, numbers, strict=True)}) == len(FILMS) and set(numbers) == {
        0,
        1,
    }
    file, folder = tmp_path / "pairs.jsonl", tmp_path / "flips"
    file.write_bytes(b"".join(map(json_bytes, rows)))
    toy = make_toy_model(tmp_path / "toy", seed=0)
    settings = [
        f"model.policy={toy}",
        "model.lora=null",
        "reward_model.max_tokens=100",
        "reward_model.epochs=4",
        "reward_model.lr=3e-3",
    ]
    found = flips.find(file, folder, settings)
    exchanged = sum(a["chosen"] != b["chosen"] for a, b in zip(rows, read_records(folder / "pairs.jsonl"), strict=True))
    assert found["turned"] == exchanged == pytest.approx(0.1 * len(rows), abs=8)
    assert found["accuracy_on_true_labels"] > 0.9 and found["area_under_the_curve"] > 0.9
    assert found["turned_among_as_many_of_the_worst"] >= 0.7 * exchanged
    pairs, scores = read_records(folder / "pairs.jsonl"), read_records(folder / "scores.jsonl")
    seen = {str(row["prompt"]) for row in read_records(folder / "train-0.jsonl")}
    unseen = [i for i, pair in enumerate(pairs) if str(pair["prompt"]) not in seen]
    by_hand = flips.margins(RewardModel(str(folder / "fold-0" / "model")), [pairs[i] for i in unseen])
    assert len(unseen) == 100 and by_hand == pytest.approx([scores[i]["margin"] for i in unseen], abs=1e-5)
    (tmp_path / "no-pairs.jsonl").write_bytes(json_bytes({"film": "A"}))
    for name in ("none.jsonl", "no-pairs.jsonl"):
        assert flips.main([str(tmp_path / name), str(folder)]) == 2
    assert flips.main([]) == 2
    before = {file: file.read_bytes() for file in folder.glob("*.json*")}
    assert flips.find(file, folder, ["model.policy=nowhere"]) == found, "what is trained is used again"
    assert {file: file.read_bytes() for file in folder.glob("*.json*")} == before


def judged(film: str, when: str, score: float, **more: Any) -> dict[str, Any]:
    scores = dict.fromkeys(evaluate.JUDGES, score)
    return {"film": film, "when": when, "text": f"{film} {when} {score}", "ended": True} | scores | more


def test_wins_by_hand() -> None:
    rows = [judged("a", "before", 0), judged("a", "before", 2), judged("a", "after", 1), judged("a", "after", 2)]
    rows += [judged("b", "before", 5), judged("b", "after", 1)]
    rate = evaluate.wins(rows, "vader")
    assert rate.mean == pytest.approx((1 + 0 + 1 + 0.5 + 0) / 5) and rate.groups == 2


def test_seeds_meet_only_themselves_when_pooled(tmp_path: Path) -> None:
    folders = [tmp_path / name / "verdict" for name in ("seed-3", "seed-5")]
    for seed, folder in enumerate(folders):
        rows = [judged(film, when, 10 * seed + (when == "after")) for film in "abc" for when in ("before", "after")]
        folder.mkdir(parents=True)
        (folder / "scores.jsonl").write_bytes(b"".join(map(json_bytes, rows)))
        verdict = evaluate.verdict_of(rows) | {"kl": 3.0 + seed, "step": 2}
        (folder / "verdict.json").write_bytes(json_bytes(verdict))
    found = evaluate.pool(tmp_path, folders)
    assert {judge: found["wins"][judge]["share"] for judge in evaluate.JUDGES} == dict.fromkeys(evaluate.JUDGES, 1.0)
    assert found["wins"]["vader"]["count"] == 6 and found["wins"]["vader"]["groups"] == 3
    assert {name: one["kl"] for name, one in found["seeds"].items()} == {"seed-3": 3.0, "seed-5": 4.0}
    with pytest.raises(DataError, match="pooled with itself"):
        evaluate.pool(tmp_path, [folders[0], folders[0]])
    assert json.loads((tmp_path / "pooled.json").read_bytes()) == found


def test_distinct_by_hand() -> None:
    assert evaluate.distinct(["a good film", "a good story"], 1) == 4 / 6
    assert evaluate.distinct(["a good film", "a good story"], 2) == 3 / 4
    assert evaluate.distinct(["one"], 2) == 0


def test_the_critics_judge_learns_words_and_not_films() -> None:
    words = {True: ("lovely", "warm", "fine"), False: ("dull", "cold", "weak")}
    dice = random.Random(0)
    rows = [
        {"film": f"f{n % 9}", "text": f"a {dice.choice(words[n % 2 == 0])} film number {n}", "fresh": n % 2 == 0}
        for n in range(90)
    ]
    judge = evaluate.critics([row["text"] for row in rows[:60]], [row["fresh"] for row in rows[:60]])
    assert evaluate.critics_measured(judge, rows[60:])["accuracy"] == 1.0
    wrong = [row | {"fresh": not row["fresh"]} for row in rows[60:]]
    assert evaluate.critics_measured(judge, wrong)["area_under_curve"] == 0.0


def test_a_run_without_evaluations_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evaluations.jsonl").write_bytes(json_bytes({"step": 0}))
    assert evaluate.main([str(tmp_path), str(tmp_path), str(tmp_path / "out")]) == 2
    assert "no evaluation before and after training" in capsys.readouterr().err
    assert evaluate.main(["pool"]) == 2
    assert "evaluate.py PPO-RUN JUDGES OUT" in capsys.readouterr().err


def test_a_seed_that_fails_its_gate_is_told_and_the_others_are_pooled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def run(file: str, settings: list[str]) -> int:
        asked.append((file, settings))
        name = next((s.partition("=")[2] for s in settings if s.startswith("pipeline.name=")), "judges")
        if name == "seed-1":
            return int(films.GATE)
        if name != "judges":
            folder = tmp_path / "film-reviews" / name / "verdict"
            folder.mkdir(parents=True)
            rows = [judged(film, when, float(when == "after")) for film in "abc" for when in ("before", "after")]
            (folder / "scores.jsonl").write_bytes(b"".join(map(json_bytes, rows)))
            (folder / "verdict.json").write_bytes(json_bytes(evaluate.verdict_of(rows) | {"kl": 3.0, "step": 2}))
        return 0

    monkeypatch.setattr(films, "pipeline", run)
    monkeypatch.setattr(films, "smollm2", lambda: tmp_path / "model")
    assert films.main(["--dir", str(tmp_path), "--seeds", "0", "1", "2", "0"]) == 1
    assert [file for file, _ in asked] == ["judges.yaml", *["films.yaml"] * 3]
    assert all(f"defaults.model.policy={tmp_path / 'model'}" in settings for _, settings in asked)
    said = capsys.readouterr().out
    assert "seed 1: its reward model did not pass" in said and "seed-0: KL 3.00" in said and "seed-2" in said
    monkeypatch.setattr(films, "pipeline", lambda file, settings: 143)
    assert films.main(["--dir", str(tmp_path)]) == 143


def surefoot(folder: Path, *arguments: str) -> None:
    main = "from surefoot.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", main, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_whole_example_on_a_toy(tmp_path: Path, rated: list[Any]) -> None:
    """Both pipelines as they stand, but for the data's source and the sizes; then the seeds pooled."""
    make_toy_model(tmp_path / "toy", hidden_size=16, layers=1)
    source = tmp_path / "source"
    source.mkdir()
    for name, rows in prepare.files_of(rated).items():
        (source / name).write_bytes(b"".join(map(json_bytes, rows)))
    (source / "summary.json").write_text("{}")
    judges = (EXAMPLES / "film-reviews" / "judges.yaml").read_text()
    copying = f"import shutil, sys; shutil.copytree({str(source)!r}, sys.argv[1], dirs_exist_ok=True)"
    assert '[python, prepare.py, "stage:data"]' in judges
    judges = judges.replace('[python, prepare.py, "stage:data"]', json.dumps(["python", "-c", copying, "stage:data"]))
    folder = tmp_path / "films"
    folder.mkdir()
    for file in (EXAMPLES / "film-reviews").glob("*.*"):
        (folder / file.name).write_text(judges if file.name == "judges.yaml" else file.read_text())
    more = ["defaults.model.policy=" + str(tmp_path / "toy"), "defaults.run.threads=1"]
    small = ["sft.sft.steps=1", "sft.sft.max_tokens=128", "reward.reward_model.steps=1"]
    small += ["reward.reward_model.max_tokens=128", "tests.accuracy=0", "tests.segment_accuracy=0"]
    small += ["tests.shift=99", "ppo.run.steps=1", "ppo.rollout.prompts_per_step=4", "ppo.rollout.max_new_tokens=6"]
    surefoot(
        tmp_path,
        "pipeline",
        "films/judges.yaml",
        *more,
        "judge.reward_model.steps=1",
        "judge.reward_model.max_tokens=128",
    )
    surefoot(tmp_path, "pipeline", "films/films.yaml", *more, *small)
    made = tmp_path / "runs" / "film-reviews" / "seed-0"
    place = f"pipeline.dir={made.parent}"
    for own_judges, own_films in films.SIZES.values():  # every key that the sizes set is one
        assert len(load_pipeline(folder / "judges.yaml", [place, *more, *own_judges]).stages) == 2
        short = load_pipeline(folder / "films.yaml", [place, *more, *own_films])
        assert [stage.name for stage in short.stages] == ["sft", "reward", "tests", "ppo", "verdict"]
    verdict = json.loads((made / "verdict" / "verdict.json").read_bytes())
    assert verdict["films"] == len(prepare.files_of(rated)["prompts-held-out.jsonl"]) and verdict["step"] == 1
    assert evaluate.main(["pool", str(tmp_path), str(made / "verdict")]) == 0
    pooled = json.loads((tmp_path / "pooled.json").read_bytes())
    assert pooled["wins"] == verdict["wins"]
