"""``surefoot pipeline``: real stages on a toy, killed, changed and run again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from surefoot.assembly.pipeline_state import Digests, State, difference, made_from
from surefoot.config.pipeline import Pipeline, load_pipeline
from surefoot.errors import ConfigError
from surefoot.models.toy import make_toy_model
from tests.stage_builders import asked, demonstrations, preferences, write_rows

PIPELINE: dict[str, Any] = {
    "pipeline": {"name": "films", "dir": "out"},
    "defaults": {
        "run": {"threads": 1, "device": "cpu"},
        "checkpoint": {"every": 1},
    },
    "stages": [
        {
            "name": "sft",
            "kind": "sft",
            "set": {
                "model.policy": "toy",
                "sft.data": "demonstrations.jsonl",
                "sft.steps": 3,
                "sft.rows_per_step": 8,
            },
        },
        {
            "name": "rm",
            "kind": "reward-model",
            "set": {
                "model.policy": "stage:sft/model",
                "reward_model.data": "preferences.jsonl",
                "reward_model.held_out_share": 0.25,
                "reward_model.steps": 3,
                "reward_model.lr": 3e-3,
            },
        },
        {
            "name": "tests",
            "kind": "eval-reward-model",
            "model": "stage:rm/model",
            "pairs": "preferences.jsonl",
            "settings": ["accuracy=0", "segment_accuracy=0", "shift=99"],
        },
        {"name": "ppo", "kind": "train", "config": "configs/ppo.yaml"},
        {
            "name": "count",
            "kind": "command",
            "run": ["python", "count.py", "stage:ppo/metrics.jsonl", "stage:count/lines.txt"],
            "inputs": ["count.py", "stage:ppo/model"],
            "outputs": ["lines.txt"],
        },
    ],
}
PPO = {
    "run": {"steps": 2},
    "model": {"policy": "stage:sft/model"},
    "critic": {"kind": "shared"},
    "reward": {
        "terms": [{"name": "q", "kind": "model", "target": "stage:rm/model", "report": "stage:tests/report.json"}]
    },
    "data": {"prompts": "../prompts.jsonl"},
    "rollout": {"prompts_per_step": 4, "max_new_tokens": 6},
    "ppo": {"epochs": 1, "minibatches": 1},
}
COUNT = "import sys\nopen(sys.argv[2], 'w').write(str(len(open(sys.argv[1]).readlines())))\n"
NAMES = ["sft", "rm", "tests", "ppo", "count"]


def prepared(folder: Path) -> Path:
    """A folder with everything that a pipeline needs; gives its file."""
    folder.mkdir(parents=True, exist_ok=True)
    make_toy_model(folder / "toy", hidden_size=16, layers=1)
    write_rows(folder / "demonstrations.jsonl", demonstrations())
    write_rows(folder / "preferences.jsonl", preferences())
    write_rows(folder / "prompts.jsonl", [{"prompt": asked(film)} for film in ("a film", "this film", "a movie")])
    (folder / "count.py").write_text(COUNT, encoding="utf-8")
    (folder / "configs").mkdir()
    write_yaml(folder / "configs" / "ppo.yaml", PPO)
    return write_yaml(folder / "films.yaml", PIPELINE)


def write_yaml(file: Path, tree: Mapping[str, Any]) -> Path:
    file.write_text(yaml.safe_dump(dict(tree), sort_keys=False), encoding="utf-8")
    return file


def command(file: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-c", "from surefoot.cli.main import main; main()", "pipeline", str(file), *arguments]


def run(file: Path, *arguments: str, code: int = 0) -> dict[str, str]:
    """What was done about each stage."""
    done = subprocess.run(
        command(file, "--json", *arguments), cwd=file.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, (done.stdout, done.stderr[-3000:])
    if code:
        return {"error": done.stderr}
    return {stage["stage"]: f"{stage['action']}: {stage['reason']}" for stage in json.loads(done.stdout)["stages"]}


def bits(file: Path) -> dict[str, bytes]:
    """What a pipeline made that must be the same however it came about."""
    out = file.parent / "out" / "films"
    models = {name: (out / name / "model" / "model.safetensors").read_bytes() for name in ("sft", "rm", "ppo")}
    return models | {"lines": (out / "count" / "lines.txt").read_bytes()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline that ran through untouched."""
    file = prepared(tmp_path_factory.mktemp("untouched"))
    done = run(file)
    assert list(done) == NAMES
    assert all(what == "run: it has not been run" for what in done.values())
    for name, content in bits(file).items():
        (file.parent / f"{name}.first").write_bytes(content)
    return file


def test_nothing_is_done_twice_and_a_change_is_followed(finished: Path) -> None:
    folder, out = finished.parent, finished.parent / "out" / "films"
    first = bits(finished)
    assert first["lines"] == b"2"
    assert run(finished) == dict.fromkeys(NAMES, "skip: nothing changed")
    assert run(finished, "--dry-run") == dict.fromkeys(NAMES, "skip: nothing changed")
    # A comment, another order of keys, and where files lie change nothing.
    ppo = folder / "configs" / "ppo.yaml"
    ppo.write_text("# a remark\n" + yaml.safe_dump(PPO, sort_keys=True), encoding="utf-8")
    assert set(run(finished).values()) == {"skip: nothing changed"}
    # New preferences: the reward model and all that rests on it.
    write_rows(folder / "preferences.jsonl", preferences()[:48])
    said = run(finished, "--dry-run")
    assert said["sft"] == "skip: nothing changed"
    assert said["rm"] == "run: input reward_model.data changed"
    assert said["ppo"].startswith("run: if what rm")
    done = run(finished)
    assert [name for name in NAMES if done[name].startswith("run")] == NAMES[1:]
    assert (out / "rm.before-1" / "model").is_dir(), "what was there is kept"
    second = bits(finished)
    assert second["sft"] == first["sft"] and second["rm"] != first["rm"] and second["ppo"] != first["ppo"]
    # An output that somebody altered is made again, with what rests on it as it was.
    (out / "count" / "lines.txt").write_text("7", encoding="utf-8")
    done = run(finished)
    assert done["count"] == "run: its output lines.txt is another one now"
    assert [name for name in NAMES if done[name].startswith("run")] == ["count"]
    assert bits(finished) == second
    # A key of one stage.
    done = run(finished, "ppo.run.steps=3")
    assert done["ppo"] == "run: run.steps was 2, is 3" and done["tests"] == "skip: nothing changed"
    assert bits(finished)["lines"] == b"3"
    assert run(finished, "ppo.run.steps=3", "--from", "count")["count"] == "run: asked for"


def kill_at_random(file: Path, dice: random.Random, most: int) -> int:
    """Run a pipeline that is killed again and again, to its end; gives the number of kills."""
    kills, log = 0, file.with_suffix(".log")
    for _ in range(60):
        with log.open("w") as stderr:
            process = subprocess.Popen(
                command(file), cwd=file.parent, stdout=subprocess.DEVNULL, stderr=stderr, process_group=0
            )
        try:
            process.wait(dice.uniform(1.0, 14.0) if kills < most else None)
        except subprocess.TimeoutExpired:
            kills += 1
            # The pipeline alone, whose stage then ends by itself, or both.
            if kills % 2:
                process.kill()
            else:
                kill_all(process.pid)
        code = process.wait()
        if code == 0:
            return kills
        assert code == -signal.SIGKILL, log.read_text()
    raise AssertionError("it never came to its end")


def test_killed_at_random_moments_it_comes_to_the_same_end(finished: Path, tmp_path: Path) -> None:
    file = prepared(tmp_path / "killed")
    write_yaml(file, PIPELINE | {"stages": PIPELINE["stages"][:2]})
    kill_at_random(file, random.Random(0), 2)
    for name in ("sft", "rm"):
        made = file.parent / "out" / "films" / name / "model" / "model.safetensors"
        assert made.read_bytes() == (finished.parent / f"{name}.first").read_bytes()


@pytest.mark.soak
def test_killed_in_every_stage_it_comes_to_the_same_end(tmp_path: Path) -> None:
    expected, dice = prepared(tmp_path / "whole"), random.Random(1)
    run(expected)
    kills = 0
    for number in range(3):
        file = prepared(tmp_path / f"killed-{number}")
        kills += kill_at_random(file, dice, 8)
        assert bits(file) == bits(expected)
    assert kills >= 10


def kill_all(pid: int) -> None:
    """A process and its children."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    for each in (pid, *map(int, children)):
        os.kill(each, signal.SIGKILL)


def test_a_signal_is_handed_on_and_the_run_goes_on(tmp_path: Path) -> None:
    file = prepared(tmp_path / "stopped")
    tree = yaml.safe_load(file.read_text())
    tree["stages"] = tree["stages"][:1]
    tree["stages"][0]["set"]["sft.steps"] = 2000
    write_yaml(file, tree)
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(command(file), cwd=file.parent, stderr=stderr)
    metrics = file.parent / "out" / "films" / "sft" / "metrics.jsonl"
    end = time.monotonic() + 300
    while not (metrics.is_file() and metrics.stat().st_size) and time.monotonic() < end:
        time.sleep(0.05)
    other = subprocess.run(command(file), cwd=file.parent, capture_output=True, text=True, check=False)
    assert other.returncode == 2 and "in use by process" in other.stderr, "two at once"
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 130
    assert log.read_text().splitlines()[-1] == "stopped by SIGINT in stage sft; the same command goes on from there"
    made = len(metrics.read_text().splitlines())
    assert run(file, "--dry-run")["sft"] == "resume: it was not finished"
    assert 0 < made < 2000


def test_what_another_pipeline_made_is_taken(finished: Path, tmp_path: Path) -> None:
    file = stages_only(prepared(tmp_path / "p"), {"name": "again", "kind": "sft", "set": {}})
    tree = yaml.safe_load(file.read_text())
    tree["pipeline"] = {"name": "second", "dir": str(finished.parent / "out")}
    tree["stages"] = [entry for entry in PIPELINE["stages"] if entry["name"] == "sft"]
    tree["stages"][0] = tree["stages"][0] | {
        "set": tree["stages"][0]["set"] | {"model.policy": "pipeline:films/sft/model"}
    }
    tree["stages"].append(
        {
            "name": "count",
            "kind": "command",
            "run": ["python", "count.py", "pipeline:films/ppo/metrics.jsonl", "stage:count/lines.txt"],
            "inputs": ["count.py", "pipeline:films/ppo/metrics.jsonl"],
            "outputs": ["lines.txt"],
        }
    )
    write_yaml(file, tree)
    first = run(file)
    assert set(first) == {"sft", "count"}
    lines = (finished.parent / "out" / "films" / "ppo" / "metrics.jsonl").read_text().splitlines()
    assert (finished.parent / "out" / "second" / "count" / "lines.txt").read_text() == str(len(lines))
    assert all(what.startswith("skip") for what in run(file).values())
    # What is half made does not count.
    state = finished.parent / "out" / "films" / "pipeline.json"
    before = state.read_bytes()
    try:
        found = json.loads(before)
        found["stages"]["ppo"]["status"] = "running"
        state.write_text(json.dumps(found), encoding="utf-8")
        said = run(file, code=2)["error"]
        assert "takes what another pipeline has not finished; got: films/ppo" in said
        # Of a whole pipeline those stages count that its file has: one that was never begun, none that is gone.
        other = State(state.parent, "films")
        assert other.order == tuple(NAMES) and other.unfinished() == ["ppo"]
        found["stages"]["gone"] = found["stages"].pop("ppo")
        state.write_text(json.dumps(found), encoding="utf-8")
        assert State(state.parent, "films").unfinished() == ["ppo"]
    finally:
        state.write_bytes(before)


def test_the_settings_of_a_test_can_be_overridden(finished: Path) -> None:
    stage = load_pipeline(finished, ["tests.accuracy=1", "tests.shift=5"]).stages[2]
    assert stage.entry.settings == ["accuracy=0", "segment_accuracy=0", "shift=99", "accuracy=1", "shift=5"]
    with pytest.raises(ConfigError, match="stage count has no config to override"):
        load_pipeline(finished, ["count.inputs=[]"])


def test_a_gate_that_closes_ends_the_pipeline(finished: Path, tmp_path: Path) -> None:
    file = prepared(tmp_path / "gate")
    tree = yaml.safe_load(file.read_text())
    tree["stages"][2]["settings"] = ["accuracy=1"]
    write_yaml(file, tree)
    said = run(file, code=1)["error"]
    assert "stage tests ended with exit code 1" in said and "the reward model did not pass" in said
    assert not (file.parent / "out" / "films" / "ppo").exists()


MISTAKES = {
    "a stage that comes later": ({"sft": {"set": {"model.policy": "stage:ppo/model"}}}, "does not come before it"),
    "a stage that is not there": ({"rm": {"set": {"model.policy": "stage:stf/model"}}}, "did you mean sft?"),
    "out of the folder": ({"rm": {"set": {"model.policy": "stage:sft/../x"}}}, "stays inside"),
    "an unknown key": ({"sft": {"sett": {}}}, "unknown key 'stages.0.sett', did you mean set?"),
    "an unknown config key": ({"sft": {"set": {"sft.dataa": "x"}}}, "sft.data"),
    "another kind's key": ({"sft": {"run": ["true"]}}, "has keys of another"),
    "nothing to make": ({"count": {"outputs": []}}, "needs outputs"),
    "an output elsewhere": ({"count": {"outputs": ["../x"]}}, "inside the stage's folder"),
    "what a stage does not leave": ({"rm": {"set": {"model.policy": "stage:sft/modle"}}}, "did you mean model?"),
    "a section that is not read": ({"sft": {"set": {"ppo.kl.coef": 1}}}, "sft does not read the section ppo"),
    "data that a later stage misses": ({"ppo": {"set": {"data.prompts": "gone.jsonl"}}}, "ppo: data.prompts is not"),
    "data that is not there": ({"sft": {"set": {"sft.data": "gone.jsonl"}}}, "stage sft: sft.data is not there"),
    "two of one name": ({"rm": {"name": "sft"}}, "the same name"),
    "another pipeline's that is not there": (
        {"sft": {"set": {"sft.data": "pipeline:others/data/rows.jsonl"}}},
        "hint: run the pipeline others first",
    ),
    "out of another pipeline": ({"sft": {"set": {"sft.data": "pipeline:others/../x"}}}, "stays inside"),
    "its own as another's": ({"rm": {"set": {"model.policy": "pipeline:no/sft/model"}}}, "names its own pipeline"),
    "a setting that is none": ({"tests": {"settings": ["accuracyy=1"]}}, "accuracyy"),
    "a key that is required": ({"sft": {"set": {"model.policy": "toy"}}}, "stage sft: sft needs"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_found_before_anything_runs(case: str, finished: Path, tmp_path: Path) -> None:
    changes, says = MISTAKES[case]
    tree = yaml.safe_load(yaml.safe_dump(PIPELINE))
    for entry in tree["stages"]:
        for name, change in changes.items():
            if entry["name"] == name:
                whole = case == "a key that is required"
                kept = change.get("set") if whole else {**entry.get("set", {}), **change.get("set", {})}
                entry |= change | ({"set": kept} if "set" in change else {})
                break
    file = write_yaml(finished.parent / "mistaken.yaml", tree | {"pipeline": {"name": "no", "dir": str(tmp_path)}})
    said = run(file, code=2)["error"]
    assert says in said and "Traceback" not in said
    assert not (tmp_path / "no" / "sft").exists()


def test_what_a_stage_gets(finished: Path) -> None:
    loaded = load_pipeline(finished)
    ppo = loaded.stages[3]
    out = finished.parent / "out" / "films" if Path.cwd() == finished.parent else Path.cwd() / "out" / "films"
    assert ppo.config is not None and ppo.config.model.policy == str(out / "sft" / "model")
    assert ppo.config.data.prompts == str(finished.parent / "prompts.jsonl"), "beside its own config"
    assert ppo.config.run.threads == 1 and ppo.config.run.name == "ppo" and ppo.config.run.dir == str(out)
    assert ppo.takes == {"sft", "rm", "tests"}
    with pytest.raises(ConfigError, match="no stage has this name"):
        load_pipeline(finished, ["pppo.run.steps=3"])


# ------------------------------------------------------------------------------- without a run of the whole pipeline

SAMPLE = {
    "name": "tasks",
    "kind": "sample",
    "set": {"model.policy": "toy", "data.prompts": "prompts.jsonl", "sample.max_new_tokens": 4},
}


def stages_only(file: Path, *stages: Mapping[str, Any]) -> Path:
    """The same file with these stages alone."""
    return write_yaml(file, PIPELINE | {"stages": list(stages)})


def own(name: str, program: str, folder: Path) -> dict[str, Any]:
    """A command's stage that runs this program."""
    (folder / f"{name}.py").write_text(program, encoding="utf-8")
    run = ["python", f"{name}.py", f"stage:{name}/made"]
    return {"name": name, "kind": "command", "run": run, "inputs": [f"{name}.py"], "outputs": ["made"]}


def changes(file: Path, stage: str, before: tuple[str, ...], change: Any = None, after: tuple[str, ...] = ()) -> Any:
    """What a stage says has changed, once a function was called, or between two sets of overrides."""

    def made(overrides: tuple[str, ...]) -> Mapping[str, Any]:
        pipeline: Pipeline = load_pipeline(file, overrides)
        found = next(one for one in pipeline.stages if one.name == stage)
        return made_from(found, Digests(file.parent / "none.json"), file.parent)

    first = made(before)
    if change is not None:
        change()
    return difference(first, made(after or before))


def test_sections_that_a_stage_does_not_read_do_not_count(tmp_path: Path) -> None:
    file = prepared(tmp_path / "p")
    for override in ("defaults.ppo.kl.coef=0.3", "defaults.rollout.max_new_tokens=9", "defaults.evaluate.seed=3"):
        assert changes(file, "sft", ("defaults.run.seed=0",), after=("defaults.run.seed=0", override)) is None
    alone = ("ppo.model.policy=toy", "ppo.reward.terms=[{name: q, target: 'count.py:f'}]")
    said = changes(file, "ppo", alone, after=(*alone, "defaults.ppo.kl.coef=0.3"))
    assert said == "ppo.kl.coef was 0.05, is 0.3"


def test_a_default_that_a_stage_replaces_is_no_reference_of_its_own(tmp_path: Path) -> None:
    file = prepared(tmp_path / "p")
    loaded = load_pipeline(file, ["defaults.model.policy=stage:sft/model"])
    assert not loaded.stages[0].takes and loaded.stages[3].takes == {"sft", "rm", "tests"}


def test_everything_that_is_read_counts(tmp_path: Path) -> None:
    file = prepared(tmp_path / "p")
    folder = file.parent

    def edited(name: str, text: str) -> Any:
        return lambda: (folder / name).write_text(text, encoding="utf-8")

    edited("t.jinja", "one")()
    assert changes(file, "sft", ("sft.model.chat_template=t.jinja",), edited("t.jinja", "two")) == (
        "input model.chat_template changed"
    )
    edited("graded.py", "def f(): return 1")()
    function = ("ppo.reward.terms=[{name: q, target: 'graded:f'}]", "ppo.model.policy=toy")
    assert changes(file, "ppo", function, edited("graded.py", "def f(): return 2")) == "input reward.q changed"
    (folder / "adapter").mkdir()
    edited("adapter/adapter_config.json", json.dumps({"base_model_name_or_path": str(folder / "toy")}))()
    config = (folder / "toy" / "config.json").read_text()
    said = changes(file, "sft", ("sft.model.policy=adapter",), edited("toy/config.json", config + " "))
    assert said == "input model.policy base changed"
    assert changes(file, "sft", (), edited("toy/README.md", "a card")) is None, "a card is no part of a model"
    assert set(made_from(load_pipeline(file).stages[0], Digests(folder / "none.json"), folder)) >= {
        "version.torch",
        "version.python",
        "version.surefoot",
    }


def test_a_file_is_read_again_though_its_time_was_set_back(tmp_path: Path) -> None:
    file, digests = tmp_path / "rows.jsonl", Digests(tmp_path / "digests.json")
    file.write_text("one", encoding="utf-8")
    first, stat = digests.of(file), file.stat()
    assert digests.of(file) == first
    file.write_text("two", encoding="utf-8")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert digests.of(file) != first


def test_paths_count_from_the_file_that_they_stand_in(tmp_path: Path) -> None:
    file = prepared(tmp_path / "p")
    ppo = next(stage for stage in load_pipeline(file, ["ppo.model.policy=toy"]).stages if stage.name == "ppo")
    assert ppo.config is not None
    assert ppo.config.data.prompts == str(file.parent / "prompts.jsonl"), "../prompts.jsonl, from configs/"
    assert ppo.config.model.policy == str(file.parent / "toy"), "toy, from the pipeline's file"


def test_tasks_that_a_kill_left_unrecorded_are_made_again(tmp_path: Path) -> None:
    file = stages_only(prepared(tmp_path / "p"), SAMPLE)
    run(file)
    out = file.parent / "out" / "films"
    first = (out / "tasks" / "tasks.jsonl").read_bytes()
    state = json.loads((out / "pipeline.json").read_text())
    state["stages"]["tasks"] |= {"status": "running", "outputs": {}}
    (out / "pipeline.json").write_text(json.dumps(state), encoding="utf-8")
    assert run(file) == {"tasks": "run: it was not finished"}
    assert (out / "tasks" / "tasks.jsonl").read_bytes() == first and (out / "tasks.before-1").is_dir()
    assert run(file) == {"tasks": "skip: nothing changed"}


def test_after_a_signal_no_other_stage_begins(tmp_path: Path) -> None:
    file = prepared(tmp_path / "p")
    heeded = (
        "import signal, sys, time\n"
        "def end(*a):\n    open(sys.argv[1], 'w').close()\n    sys.exit(0)\n"
        "signal.signal(signal.SIGINT, end)\nopen(sys.argv[1] + '.up', 'w').close()\ntime.sleep(60)\n"
    )
    stages = [own("first", heeded, file.parent), own("second", "open(__import__('sys').argv[1], 'w')", file.parent)]
    stages_only(file, *stages)
    out = file.parent / "out" / "films"
    process = subprocess.Popen(command(file), cwd=file.parent, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (out / "first" / "made.up").exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and not (out / "second").exists()
    assert said.splitlines()[-1] == "stopped by SIGINT in stage first; the same command goes on from there"
    assert list(run(file).values()) == ["skip: nothing changed", "run: it has not been run"]


def test_what_was_asked_for_and_killed_is_not_begun_anew(tmp_path: Path) -> None:
    file = stages_only(prepared(tmp_path / "p"), PIPELINE["stages"][0])
    out = file.parent / "out" / "films"
    run(file)
    assert run(file, "--from", "sft") == {"sft": "run: asked for"}
    state = json.loads((out / "pipeline.json").read_text())
    state["stages"]["sft"] |= {"status": "running", "outputs": {}}
    (out / "pipeline.json").write_text(json.dumps(state), encoding="utf-8")
    assert run(file, "--dry-run", "--from", "sft") == {"sft": "resume: it was not finished"}
    assert run(file, "--from", "sft") == {"sft": "resume: it was not finished"}
    assert run(file, "--dry-run", "--from", "sft") == {"sft": "run: asked for"}


def test_a_file_beside_the_pipeline_is_no_module_of_a_stage(tmp_path: Path) -> None:
    file = stages_only(prepared(tmp_path / "p"), SAMPLE)
    (file.parent / "random.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", *command(file)[1:]], cwd=file.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
