"""``surefoot data``: the commands as users call them, and runs that cards stop."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from surefoot.data.cards import card_path
from surefoot.models.weight_files import digest_weights
from surefoot.records import Lineage
from surefoot.training.lineage import describe_input, read_lineage, write_lineage
from tests.cli.conftest import Outcome, Workspace

APPROVED = {"status": "approved", "by": "jo", "date": "2026-11-30"}


def fill_in(file: Path, **changes: Any) -> None:
    """Fill in the template that the command wrote."""
    path = card_path(file)
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    said = {"owner": "us", "source": "here", "annotation_source": "none", "licence": "MIT", "privacy": "public"}
    path.write_text(yaml.safe_dump({**tree, **said, "approval": APPROVED, **changes}), encoding="utf-8")


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def refused(outcome: Outcome, *said: str) -> None:
    """Exit code 2, one paragraph with a hint on stderr, nothing on stdout."""
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("error: ") == 1 and "\nhint: " in outcome.err and "Traceback" not in outcome.err
    for one in said:
        assert one in outcome.err


def test_a_card_is_written_filled_in_and_renewed(bare: Workspace) -> None:
    file = bare.path / "prompts.jsonl"
    first = bare.run("data", "card", "prompts.jsonl")
    assert (first.code, first.out) == (0, f"{file}.card.yaml\n")
    refused(bare.run("data", "card", "prompts.jsonl"), "owner: is empty", "prompts.jsonl.card.yaml")
    fill_in(file)
    shown = bare.run("data", "card", "prompts.jsonl", "--json")
    assert shown.code == 0 and json.loads(shown.out)["approval"]["by"] == "jo"
    assert json.loads(bare.run("data", "card", "prompts.jsonl", "--renew", "--json").out)["approval"]["by"] == "jo"
    file.write_text(lines({"prompt": "another"}), encoding="utf-8")
    refused(bare.run("data", "card", "prompts.jsonl"), "changed after its card was written", "--renew")
    assert bare.run("data", "card", "prompts.jsonl", "--renew").code == 0
    assert json.loads(bare.run("data", "card", "prompts.jsonl", "--json").out)["approval"]["status"] == "pending"
    refused(bare.run("data", "card", "nothing.jsonl"), "no such data")


def test_exit_codes_and_forms_of_an_audit(bare: Workspace) -> None:
    bare.write("good.jsonl", lines({"prompt": "What is a river?"}, {"prompt": "Name a bird."}))
    good = bare.run("data", "audit", "good.jsonl")
    assert good.code == 0 and "nothing found" in good.out and "2 rows (2 prompt)" in good.out
    bare.write("warned.jsonl", lines({"prompt": "a b c"}, {"prompt": "A  b c"}))
    warned = bare.run("data", "audit", "warned.jsonl")
    assert warned.code == 0 and "warned.jsonl:2  the same as warned.jsonl:1" in warned.out
    bare.write("bad.jsonl", lines({"prompt": "ok"}, {"prompt": ""}) + "[]\n")
    bad = bare.run("data", "audit", "bad.jsonl", "--json")
    report = json.loads(bad.out)
    assert bad.code == 1
    assert {(f["file"], f["row"], f["kind"]) for f in report["findings"]} == {
        ("bad.jsonl", 2, "row/empty"),
        ("bad.jsonl", 3, "row/unreadable"),
    }
    assert report["counts"]["row/empty"] == {"severity": "error", "rows": 1}
    against = bare.run("data", "audit", "good.jsonl", "--against", "good.jsonl")
    assert against.code == 1 and "2 evaluation rows of good.jsonl are repeated" in against.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing.jsonl"], "does not exist"),
        (["prompts.jsonl", "--against", "nothing.jsonl"], "does not exist"),
        (["prompts.jsonl", "--scores", "prompts.jsonl"], "scores are of preference pairs"),
        (["prompts.jsonl", "colour=red"], "allowed: column=..."),
        (["prompts.jsonl", "max_tokens=many"], "max_tokens is a whole number"),
        (["prompts.jsonl", "max_tokens=5"], "tokenizer.json"),
        (["prompts.jsonl", "tokenizer=."], "no tokenizer.json"),
        (["empty.jsonl"], "no rows to audit"),
    ],
)
def test_mistakes_with_an_audit(arguments: list[str], said: str, bare: Workspace) -> None:
    bare.write("empty.jsonl", "")
    refused(bare.run("data", "audit", *arguments), said)


def test_versions_are_registered_and_compared(bare: Workspace) -> None:
    file = bare.write("d.jsonl", lines({"prompt": "a", "x": 1}, {"prompt": "b", "x": 1}))
    refused(bare.run("data", "register", "d.jsonl"), "only data with a card", "surefoot data card d.jsonl")
    bare.run("data", "card", "d.jsonl")
    fill_in(file)
    assert "d@1 " in bare.run("data", "register", "d.jsonl", "--keep-copy").out
    assert "was registered already" in bare.run("data", "register", "d.jsonl").out
    file.write_text(lines({"prompt": "b", "x": 2}, {"prompt": "c", "x": 1, "y": 0}), encoding="utf-8")
    bare.run("data", "card", "d.jsonl", "--renew")
    fill_in(file, version="2", owner="them")
    assert json.loads(bare.run("data", "register", "d.jsonl", "--json").out)["new"] is True
    text = bare.run("data", "diff", "d@1", "d@2").out
    assert "rows are told by the column 'prompt'" in text and "card, owner: 'us' -> 'them'" in text
    found = json.loads(bare.run("data", "diff", "d@1", "d.jsonl", "--json").out)
    assert (found["added"], found["removed"]) == (["d.jsonl:2"], ["d.jsonl:1"])
    assert (found["changed"], found["new_columns"]) == ({"d.jsonl:1": ["x"]}, ["y"])
    refused(bare.run("data", "diff", "d@1", "d@3"), "d@3 is not registered", "d@1, d@2")


def run_of(folder: Path, name: str, **inputs: dict[str, Any]) -> Path:
    """A run folder as far as lineage and model go."""
    run = folder / name
    (run / "model").mkdir(parents=True)
    (run / "model" / "config.json").write_text(json.dumps({"run": name}), encoding="utf-8")
    (run / "model" / "model.safetensors").write_text(name, encoding="utf-8")
    (run / "config.yaml").write_text("{}", encoding="utf-8")
    write_lineage(run / "lineage.json", Lineage(run=name, inputs=inputs, packages={}, seed=0, machine={}, code={}))
    return run


def test_where_data_was_used(bare: Workspace) -> None:
    """Directly, in a folder, through a model by its place, and through the model of that, which was moved or served."""
    file = bare.write("d/d.jsonl", lines({"prompt": "a"}))
    bare.run("data", "card", "d/d.jsonl")
    fill_in(file)
    bare.run("data", "register", "d/d.jsonl")
    runs = bare.path / "runs"
    refused(bare.run("data", "where-used", "d"), "no such folder of runs")
    sft = run_of(runs, "sft", demonstrations=describe_input(file, "data"))
    folder = run_of(runs, "folder", prompts=describe_input(file.parent, "data"))
    reward = run_of(runs, "reward", base=describe_input((sft / "model").resolve(), "model"))
    (sft / "model" / "config.json").write_text("{}", encoding="utf-8")  # changed since: told by its place
    shutil.copytree(reward / "model", bare.path / "moved")
    ppo = run_of(runs, "ppo", **{"reward/quality": describe_input(bare.path / "moved", "model")})
    address = {"kind": "service", "path": "http://127.0.0.1:8600", "sha256": digest_weights(reward / "model")}
    served = run_of(runs, "served", **{"reward/quality": address})
    run_of(runs, "other-service", **{"reward/quality": {**address, "sha256": "0" * 64}})
    other = bare.write("other.jsonl", lines({"prompt": "z"}))
    run_of(runs, "apart", prompts=describe_input(other, "data"))
    (runs / "broken").mkdir()
    (runs / "broken" / "config.yaml").write_text("{}", encoding="utf-8")
    uses = json.loads(bare.run("data", "where-used", "d", "--json").out)
    assert {(Path(u["run"]), u["used_as"], u["through"]) for u in uses} == {
        (sft, "demonstrations", "d@1"),
        (folder, "prompts", "d@1"),
        (reward, "base", "the model of sft"),
        (ppo, "reward/quality", "the model of reward"),
        (served, "reward/quality", "the model of reward"),
    }
    assert {u["model"] for u in uses} == {str(run / "model") for run in (sft, folder, reward, ppo, served)}
    text = bare.run("data", "where-used", "d@1", "--runs", "runs")
    assert "the model of sft" in text.out and "broken is passed over" in text.err
    refused(bare.run("data", "where-used", "d@2"), "d@2 is not registered")


def test_training_asks_the_card(space: Workspace) -> None:
    file = space.path / "prompts.jsonl"
    space.run("data", "card", "prompts.jsonl")
    fill_in(file, privacy="restricted", approval={"status": "pending"})
    before = space.contents()
    refused(space.run("train", "c.yaml"), "may not be trained on", "pending and restricted", "data.allow: [pending, ")
    assert space.contents() == before
    assert space.check().findings["prompts/cards"]["severity"] == "error"
    refused(space.run("train", "c.yaml", "data.allow=[pending]"), "restricted")
    allowed = "data.allow=[pending, restricted]"
    refused(space.run("train", "c.yaml", allowed, "data.require_card=true"), "without a card", "held-out.jsonl")
    assert space.run("data", "audit", "prompts.jsonl", "--save").code == 0
    assert space.run("train", "c.yaml", allowed).code == 0
    inputs = read_lineage(space.path / "runs" / "c" / "lineage.json").inputs
    assert inputs["prompts"]["card"]["approval"]["status"] == "pending"
    assert inputs["prompts"]["audit"]["rows"] == 4 and inputs["prompts"]["audit"]["rules"] == 1
    assert "card" not in inputs["evaluate"]
    more = "data.allow=[pending, restricted, personal]"
    assert space.run("train", "c.yaml", more, "--resume", "run.steps=3").code == 0
