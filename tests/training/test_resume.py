"""What a checkpoint holds, and what a resumed run does with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

from surefoot.assembly.train import train
from surefoot.config import Config
from surefoot.errors import CheckpointError, ConfigError, RunFolderError
from surefoot.training.checkpoint import CheckpointStore
from surefoot.training.clock import StepClock
from surefoot.training.run_folder import RunFolder
from surefoot.training.samples import read_samples
from surefoot.training.state import read_state, write_state
from surefoot.training.step import Parts, ppo_step
from tests.builders import make_config, make_parts, make_prompts, merged, save_gpt2, toy_run

PROMPTS = make_prompts((1, 2), (1, 2, 3, 4), (5,), (6, 7, 8))
FULL: dict[str, Any] = {
    "ppo": {"kl": {"coef": 0.1, "controller": "adaptive", "target": 0.5, "horizon": 20}, "surrogate": "kl"},
    "reward": {"normalise": "running"},
    "critic": {"warmup_steps": 5, "warmup_explained_variance": -100.0},
    "optim": {"schedule": "cosine", "warmup_steps": 3},
}
KINDS: dict[str, dict[str, Any]] = {
    "separate": FULL,
    "shared": merged(FULL, {"critic": {"kind": "shared"}}),
    "adapters": merged(FULL, {"model": {"lora": {"rank": 2}}}),
    "shared adapters": merged(FULL, {"model": {"lora": {"rank": 2}}, "critic": {"kind": "shared"}}),
}


def quality(actions: Sequence[int]) -> float:
    return sum(actions) / (11 * len(actions))


def trained(folder: Path, sections: dict[str, Any], steps: int = 3) -> tuple[Config, Parts]:
    if not (folder / "model").exists():
        save_gpt2(folder / "model")
    cfg = make_config(folder / "model", **sections)
    parts = make_parts(cfg, quality, stop_ids=(3,))
    for step in range(1, steps + 1):
        ppo_step(step, PROMPTS, parts, cfg, StepClock())
    return cfg, parts


def saved(parts: Parts, folder: Path) -> Path:
    folder.mkdir()
    write_state(folder, parts, step=3, extra={"cursor": [1, 2]})
    return folder


# ----------------------------------------------------------------------------------------------- the state itself


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_read_into_fresh_parts_is_all_of_it(tmp_path: Path, kind: str) -> None:
    """CKP-01, CKP-02: written again it is the same, bit for bit, and the next step is the one that was due."""
    cfg, parts = trained(tmp_path, KINDS[kind])
    first = saved(parts, tmp_path / "first")
    _, fresh = trained(tmp_path, KINDS[kind], steps=0)
    assert read_state(first, fresh) == {"cursor": [1, 2]}
    second = saved(fresh, tmp_path / "second")
    names = sorted(p.name for p in first.iterdir())
    assert names == sorted(p.name for p in second.iterdir())
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    state = json.loads((first / "state.json").read_text())
    assert state["kl_coef"] != 0.1 and state["surrogate_kl_coef"] != 1.0 and state["warmed_up"]
    assert state["normaliser"]["count"] == 12
    expected, found = (ppo_step(4, PROMPTS, p, cfg, StepClock()).report.metrics for p in (parts, fresh))
    for key, value in expected.items():
        if not key.startswith(("time/", "memory/", "throughput/")):
            assert found[key] == value, key
    heads = [p.learner.critic.head.weight.detach() for p in (parts, fresh)]
    assert torch.equal(*heads) and bool(heads[0].any())


def test_a_state_does_not_share_memory_with_the_run(tmp_path: Path) -> None:
    cfg, parts = trained(tmp_path, KINDS["separate"])
    first = saved(parts, tmp_path / "first")
    before = {p.name: p.read_bytes() for p in first.iterdir()}
    ppo_step(4, PROMPTS, parts, cfg, StepClock())
    assert {p.name: p.read_bytes() for p in first.iterdir()} == before


def rewrite(path: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(path)
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    save_file(tensors, path)


def test_a_missing_part_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    """CKP-01: a value head that is not there must not be made anew in silence."""
    _, parts = trained(tmp_path, KINDS["separate"])
    _, fresh = trained(tmp_path, KINDS["separate"], steps=0)
    width = parts.learner.critic.head.weight.shape[1]
    faults: dict[str, Any] = {
        "other parameters": lambda f: rewrite(f / "critic.safetensors", **{"head.weight": None}),
        "another shape": lambda f: rewrite(f / "critic.safetensors", **{"head.weight": torch.zeros(1, width + 1)}),
        "is missing": lambda f: (f / "critic_optimizer.safetensors").unlink(),
        "state is of other": lambda f: rewrite(f / "policy_optimizer.safetensors", **{"odd::step": torch.zeros(1)}),
        "another version": lambda f: (f / "state.json").write_text(
            (f / "state.json").read_text().replace('"format": 1', '"format": 99')
        ),
        "do not fit reward.normalise": lambda f: (f / "state.json").write_text(
            json.dumps({**json.loads((f / "state.json").read_text()), "normaliser": None})
        ),
    }
    for number, (message, spoil) in enumerate(faults.items()):
        folder = saved(parts, tmp_path / f"state-{number}")
        spoil(folder)
        with pytest.raises(CheckpointError, match=message):
            read_state(folder, fresh)


def test_an_optimizer_without_any_state_is_saved_and_read(tmp_path: Path) -> None:
    """A policy frozen from the first step on has taken no step yet when the first checkpoint is written."""
    sections = {"critic": {"warmup_steps": 9}}
    _, parts = trained(tmp_path, sections, steps=1)
    _, fresh = trained(tmp_path, sections, steps=0)
    read_state(saved(parts, tmp_path / "state"), fresh)
    assert fresh.learner.critic_optimizer is not None
    assert (fresh.learner.policy_optimizer.steps_taken, fresh.learner.critic_optimizer.steps_taken) == (0, 4)


# ------------------------------------------------------------------------------------------------------ whole runs


def folder_of(cfg: Config) -> RunFolder:
    return RunFolder.open(Path(cfg.run.dir) / str(cfg.run.name))


def comparable(cfg: Config) -> list[dict[str, Any]]:
    skipped = ("time/", "memory/", "throughput/")
    return [{k: v for k, v in line.items() if not k.startswith(skipped)} for line in folder_of(cfg).read_metrics()]


def weights(cfg: Config) -> bytes:
    return (folder_of(cfg).model / "model.safetensors").read_bytes()


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 2}, evaluate={"prompts": str(tmp_path / "prompts.jsonl"), "every": 1})
    train(cfg)
    folder = folder_of(cfg)
    before = {p.relative_to(folder.path): p.read_bytes() for p in sorted(folder.path.rglob("*")) if p.is_file()}
    result = train(cfg, resume=True)
    assert (str(result.status), result.reason, result.step) == ("FINISHED", "all 2 steps are done", 2)
    after = {p.relative_to(folder.path): p.read_bytes() for p in sorted(folder.path.rglob("*")) if p.is_file()}
    changed = {str(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed == {"status.json"}
    assert [r["step"] for r in result.evaluations] == [0, 1, 2]


def test_steps_can_be_added_to_a_finished_run(tmp_path: Path) -> None:
    """With a constant rate the longer run has made the same steps so far; with a schedule it has not."""
    long = toy_run(tmp_path, run={"name": "long", "steps": 4})
    train(long)
    short = toy_run(tmp_path, run={"name": "short", "steps": 2})
    train(short)
    extended = toy_run(tmp_path, run={"name": "short", "steps": 4})
    result = train(extended, resume=True)
    assert result.step == 4
    assert comparable(extended) == comparable(long)
    assert weights(extended) == weights(long)
    changes = json.loads((folder_of(extended).status).read_text())["resumes"][0]["changed"]
    assert changes == {"run.steps": [2, 4]}

    sloping = {"optim": {"schedule": "linear"}}
    train(toy_run(tmp_path, run={"name": "sloping", "steps": 2}, **sloping))
    before = comparable(toy_run(tmp_path, run={"name": "sloping"}))
    with pytest.raises(RunFolderError, match=r"run\.steps was 2"):
        train(toy_run(tmp_path, run={"name": "sloping", "steps": 4}, **sloping), resume=True)
    assert comparable(toy_run(tmp_path, run={"name": "sloping"})) == before


def test_a_resumed_runs_curve_begins_where_it_goes_on(tmp_path: Path) -> None:
    """TensorBoard is told the step, so that what a killed process recorded beyond it is dropped."""
    cfg = toy_run(tmp_path, run={"steps": 2}, track={"tensorboard": True})
    train(cfg)
    train(toy_run(tmp_path, run={"steps": 3}, track={"tensorboard": True}), resume=True)
    starts = []
    for file in sorted(folder_of(cfg).tensorboard.iterdir()):
        events = [Event.FromString(bytes(e)) for e in RawEventFileLoader(str(file)).Load()]
        starts.append([e.step for e in events if e.HasField("session_log")])
    assert starts == [[], [3]]


def test_float16_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 2}, model={"dtype": "float16"})
    with pytest.raises(ConfigError, match=r"float16 weights cannot be trained.*hint: set model\.dtype: bfloat16"):
        train(cfg)
    assert not Path(cfg.run.dir, str(cfg.run.name)).exists()


def test_a_resumed_run_goes_on_with_the_next_prompts(tmp_path: Path) -> None:
    """CKP-04: seven prompts, two a step; after step 3 the fourth batch comes, the last of the epoch."""
    sections: dict[str, Any] = {"rollout": {"prompts_per_step": 2}, "track": {"samples_every": 1}}
    whole = toy_run(tmp_path, run={"name": "whole", "steps": 6}, **sections)
    train(whole)
    parts = {"name": "parts", "steps": 3}
    train(toy_run(tmp_path, run=parts, **sections))
    train(toy_run(tmp_path, run={**parts, "steps": 6}, **sections), resume=True)

    def used(cfg: Config) -> list[list[str]]:
        return [[r["prompt_id"] for r in read_samples(folder_of(cfg).samples_file(step))] for step in range(1, 7)]

    order = used(whole)
    assert used(toy_run(tmp_path, run=parts)) == order
    assert [len(batch) for batch in order] == [2, 2, 2, 1, 2, 2]
    epoch = [name for batch in order[:4] for name in batch]
    assert sorted(epoch) == [f"prompts.jsonl:{i}" for i in range(1, 8)]
    assert epoch != sorted(epoch), "the order must be shuffled, or the test proves little"


def test_other_prompts_than_the_run_began_with_are_refused(tmp_path: Path) -> None:
    cfg = toy_run(tmp_path, run={"steps": 2})
    train(cfg)
    before = comparable(cfg)
    longer = toy_run(tmp_path, run={"steps": 3})
    with (tmp_path / "prompts.jsonl").open("a") as stream:
        stream.write('{"prompt": "another film"}\n')
    with pytest.raises(RunFolderError, match="prompts") as caught:
        train(longer, resume=True)
    assert caught.value.exit_code == 2
    assert comparable(cfg) == before


def test_the_first_rollout_after_a_resume_is_made_by_the_current_weights(tmp_path: Path) -> None:
    """CKP-12: the engine's log-probabilities are those of the restored policy, and its version says so."""
    sections: dict[str, Any] = {"track": {"samples_every": 1}, "optim": {"policy_lr": 0.05}}
    train(toy_run(tmp_path, run={"steps": 2}, **sections))
    cfg = toy_run(tmp_path, run={"steps": 3}, **sections)
    train(cfg, resume=True)
    third = read_samples(folder_of(cfg).samples_file(3))
    assert {r["sampling"]["version"] for r in third} == {3}
    gaps = [abs(a - b) for r in third for a, b in zip(r["engine_logp"], r["logp"], strict=True)]
    moved = [abs(a - b) for r in third for a, b in zip(r["ref_logp"], r["logp"], strict=True)]
    assert max(gaps) < 1e-4 < 1e-2 < max(moved)


def test_without_a_checkpoint_a_resumed_run_starts_at_step_one(tmp_path: Path) -> None:
    untouched = toy_run(tmp_path, run={"name": "untouched", "steps": 2})
    train(untouched)
    cfg = toy_run(tmp_path, run={"steps": 2})
    assert train(cfg, resume=True).step == 2
    assert comparable(cfg) == comparable(untouched)


def test_the_best_checkpoint_is_kept_beside_the_newest(tmp_path: Path) -> None:
    cfg = toy_run(
        tmp_path,
        run={"steps": 6},
        checkpoint={"every": 1, "keep": 1, "best_by": "score/mean"},
        optim={"policy_lr": 1e-7},
    )
    train(cfg)
    scores = {line["step"]: line["score/mean"] for line in comparable(cfg)}
    best = max(scores, key=lambda step: (scores[step], step))
    assert best != 6, "with these draws the last step must not be the best one"
    store = CheckpointStore(folder_of(cfg).checkpoints, keep=1, best_by="score/mean")
    found = store.best()
    assert found is not None and found.step == best
    assert {p.name for p in folder_of(cfg).checkpoints.iterdir()} == {f"step-{best}", "step-6"}


def test_the_memory_of_a_step_is_not_needed_to_go_on(tmp_path: Path) -> None:
    """A checkpoint at every step or at none: the run is the same, so nothing outside the state is carried along."""
    every, never = (toy_run(tmp_path, run={"name": f"every-{n}", "steps": 3}, checkpoint={"every": n}) for n in (1, 0))
    train(every)
    train(never)
    assert comparable(every) == comparable(never)
    assert weights(every) == weights(never)
    assert {p.name for p in folder_of(never).checkpoints.iterdir()} == {"step-3"}
