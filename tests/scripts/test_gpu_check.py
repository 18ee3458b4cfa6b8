"""``scripts/gpu_check`` runs through on a CPU, notices what is wrong, and says so by its exit code.

Where there is no GPU this is all that is known of the script: that it compares what it says it compares.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.models.attention import Packed
from surefoot.records import Rollout

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "gpu_check"


def run(*arguments: str, flags: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, str(SCRIPT), *arguments]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def script() -> Any:
    """The script as a module; it has no ``.py`` to be imported by."""
    loader = SourceFileLoader("gpu_check", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # its dataclasses look themselves up there
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def models(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    script.make_models(script.SIZES["tiny"], folder)
    return folder


def verdicts(script: Any, models: Path, group: str, *, scale: float = 1.0) -> dict[str, bool | None]:
    """What a group of checks finds on the CPU, by name."""
    report = script.Report(scale)
    script.run_groups(script.Bench(torch.device("cpu"), script.SIZES["tiny"], models), report, [group])
    return {result.name: result.passed for result in report.results}


# ------------------------------------------------------------------------------------------------- the whole script


@pytest.mark.slow
def test_everything_passes_on_a_cpu_and_is_written_down(tmp_path: Path) -> None:
    done = run("--device", "cpu", "--size", "tiny", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["passed"] and found["size"] == "tiny" and found["tolerance_scale"] == 1.0
    assert found["machine"]["torch"] == torch.__version__ and found["machine"]["device"].startswith("CPU")
    counts: dict[str, int] = {}
    for check in found["checks"]:
        counts[check["group"]] = counts.get(check["group"], 0) + 1
        required = check["group"] != "speed"
        assert check["passed"] is (True if required else None), check
        assert check["bound"] is None or check["value"] <= check["bound"], check
        assert required or check["value"] > 0, check
    assert counts == {
        "agreement": 6,
        "gradients": 2,
        "offload": 3,
        "sampler": 2,
        "identities": 4,
        "training": 5,
        "speed": 6,
    }
    exact = [c for c in found["checks"] if "device and CPU" in c["name"] or c["group"] == "training"]
    assert len(exact) == 9 and all(c["value"] == 0 for c in exact)
    lines = done.stdout.splitlines()
    for check in found["checks"]:
        shown = [line for line in lines if f"{check['group']}: {check['name']} " in line]
        assert len(shown) == 2 and shown[1].startswith("| "), shown
        assert all(("PASS" if check["passed"] else "reported") in line for line in shown)
    assert lines[-1] == "all passed"


def test_a_failed_check_is_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = run(
        "--device", "cpu", "--size", "tiny", "--only", "agreement", "--tolerance-scale", "0", "--json", str(file)
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    assert not found["passed"]
    failed = {check["name"]: check["value"] for check in found["checks"] if not check["passed"]}
    assert {"packed and padded, llama float32", "packed and padded, gpt2 float64"} <= set(failed)
    assert not any(name.startswith("device and CPU") for name in failed)
    assert all(0 < value < 1e-5 for value in failed.values())
    assert done.stdout.splitlines()[-1] == "FAILED"


def test_without_a_gpu_it_says_so_and_needs_no_installation() -> None:
    """Without ``site`` the interpreter knows no editable installation: the script finds the source beside it."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = run("--size", "tiny", flags=("-S",), PYTHONPATH=os.pathsep.join(packages), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "no GPU; hint: --device cpu" in done.stderr


@pytest.mark.parametrize("arguments", [["--json", "no/such/folder/x.json"], ["--tolerance-scale", "nan"]])
def test_a_wrong_command_line_is_exit_code_2(
    script: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--device", "cpu", *arguments])
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err


# --------------------------------------------------------------------------------------- that it sees what is wrong


def test_moments_that_come_back_wrong_are_seen(script: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_away = "surefoot.training.offload.put_away"
    monkeypatch.setattr(put_away, lambda state, home: state["exp_avg"].mul_(0.5))
    found = verdicts(script, models, "offload")
    assert found == {
        "moments that are not on the device": True,
        "moments that are not in main memory": True,
        "weights after 3 steps, in main memory and on the device": False,
    }


def test_a_device_that_computes_wrongly_is_seen(script: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second load of each model is the device's: its numbers are made a little wrong."""
    load, loads = script.load, [0]

    def odd(*args: Any, **options: Any) -> Any:
        policy, critic = load(*args, **options)
        loads[0] += 1
        if loads[0] != 1:
            with torch.no_grad():
                policy.lm.model.get_input_embeddings().weight.mul_(1.01)
        return policy, critic

    monkeypatch.setattr(script, "load", odd)
    found = verdicts(script, models, "agreement")
    assert not found["device and CPU, llama float32"]
    assert found["packed and padded, llama float32"] and found["a row alone and in company, llama float32"]
    loads[0] = 0
    assert list(verdicts(script, models, "gradients").values()) == [False, False]


def test_rows_that_see_each_other_are_seen(script: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(lengths: tuple[int, ...], before: Any) -> Packed:
        return Packed((sum(lengths),))

    monkeypatch.setattr("surefoot.models.packing.Packed", leaking)
    found = verdicts(script, models, "agreement")
    assert not found["packed and padded, llama float32"] and not found["packed and padded, gpt2 float64"]
    assert found["a row alone and in company, llama float32"]


def test_a_sampler_that_is_not_the_trainer_is_seen(script: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = script.sample

    def off(*args: Any) -> Rollout:
        rollout = sample(*args)
        return replace(rollout, logp=rollout.logp + 0.01 * rollout.mask)

    monkeypatch.setattr(script, "sample", off)
    assert verdicts(script, models, "sampler") == {
        "sampler and trainer, float32": False,
        "sampler and trainer, bfloat16": True,
    }


def test_another_reference_is_seen(script: Any, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = script.load_causal_lm

    def other(*args: Any, **options: Any) -> Any:
        return load(*args, **{**options, "temperature": 1.01 * options["temperature"]})

    monkeypatch.setattr(script, "load_causal_lm", other)
    failed = [name for name, passed in verdicts(script, models, "identities").items() if not passed]
    assert failed == ["KL of a token, full policy, FrozenReference"]


def test_a_training_pass_that_reads_otherwise_is_seen(
    script: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = script.CausalPolicy.forward

    def other(*args: Any, **options: Any) -> Any:
        logp, entropy, states = forward(*args, **options)
        return logp + 1e-4, entropy, states

    monkeypatch.setattr(script.CausalPolicy, "forward", other)
    failed = [name for name, passed in verdicts(script, models, "identities").items() if not passed]
    assert failed == ["ratio away from 1, LoRA policy", "ratio away from 1, full policy"]


def test_training_that_does_not_repeat_itself_is_seen(
    script: Any, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = script.read_records

    def drifting(file: Path) -> Any:
        first = file.parent.name == "first"
        return [{**line, "policy/entropy": line["policy/entropy"] * (1 if first else 1.001)} for line in read(file)]

    monkeypatch.setattr(script, "read_records", drifting)
    found = verdicts(script, models, "training")
    assert found == {
        "steps of 3 without a finite score": True,
        "metrics that differ, repeated": False,
        "largest relative difference, repeated": False,
        "metrics that differ, resumed": False,
        "largest relative difference, resumed": False,
    }


def test_a_group_that_breaks_has_failed_and_the_next_one_runs(
    script: Any, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(bench: Any, report: Any) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(script, "GROUPS", {"broken": broken, "other": lambda bench, report: report.add("x", 1.0, 2.0)})
    report = script.Report()
    script.run_groups(script.Bench(torch.device("cpu"), script.SIZES["tiny"], models), report, ["broken", "other"])
    assert [(r.group, r.passed) for r in report.results] == [("broken", False), ("other", True)]
    assert report.results[0].note == "RuntimeError: out of memory"
    assert not report.passed
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("value", [1.1, math.nan, math.inf])
def test_what_is_past_its_bound_or_no_number_fails(script: Any, value: float) -> None:
    report = script.Report()
    report.add("within", 1.0, 1.0)
    assert report.passed
    report.add("past", value, 1.0)
    report.add("only reported", np.inf)
    assert [r.passed for r in report.results] == [True, False, None]
    assert not report.passed
    json.dumps([r.value for r in report.results], allow_nan=False)


def test_which_metrics_differ_and_by_how_much(script: Any) -> None:
    ours = [{"step": 1, "a": 1.0, "b": None, "time/x": 1.0, "tiny": 0.0}, {"step": 2, "a": 2.0, "b": None}]
    theirs = [{"step": 1, "a": 1.1, "b": None, "time/x": 2.0, "tiny": 1e-6}, {"step": 2, "a": 4.0, "c": 0.0}]
    found = script.differences(ours, theirs)
    assert found == {"a": 0.5, "c": math.inf, "tiny": pytest.approx(1e-5)}
    assert script.differences(ours, ours) == {}
    with pytest.raises(ValueError):
        script.differences(ours, ours[:1])
