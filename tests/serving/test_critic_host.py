"""The critic of a service computes what one process computes, trains each step once, and forgets nothing."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from surefoot.config import Config
from surefoot.protocols import Values
from surefoot.serving.control import CheckpointRequest, ReleaseRequest, RestoreRequest
from surefoot.serving.critic_host import CriticHost
from surefoot.serving.critic_keeper import CriticKeeper
from surefoot.serving.wire import TrainRequest
from surefoot.training.durable import digest_file
from tests.builders import merged
from tests.serving.parts import (
    RUN,
    begun,
    build_toy_critic,
    digest_of,
    infer_request,
    journal_of,
    names_in,
    refused,
    toy_batch,
    toy_config,
    toy_host,
    toy_rollout,
    train,
    train_locally,
    train_request,
    train_requests,
)

pytestmark = pytest.mark.usefixtures("exact")


# ------------------------------------------------------------------------------------------- as one process computes


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_are_those_of_one_process(toy: Path, tmp_path: Path, rows: int, dtype: str) -> None:
    cfg = toy_config(toy, model={"dtype": dtype}, serve={"dir": str(tmp_path)})
    host, local, rollout = begun(cfg), build_toy_critic(cfg), toy_rollout(rows, seed=rows)
    for step in (1, 2):  # before any training a head is zero, and so is every value
        batch = toy_batch(local, step)
        train(host, train_request(batch, step))
        train_locally(local, batch, cfg)
    (found,) = host.values([infer_request(rollout, run=RUN, trained_step=2)])
    expected = local.critic.values(rollout)
    assert isinstance(found, Values)
    assert found.values.dtype == expected.values.dtype == np.dtype(dtype)
    assert np.abs(expected.values).max() > 1e-3
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.after, expected.after)


@pytest.mark.parametrize("changes", [{}, {"model": {"lora": {"rank": 2}}}, {"optim": {"schedule": "linear"}}])
def test_training_is_that_of_one_process(toy: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    cfg = toy_config(toy, **merged(changes, {"serve": {"dir": str(tmp_path)}}))
    host, local = begun(cfg), build_toy_critic(cfg)
    for step in (1, 2, 3):
        batch = toy_batch(local, step)
        found = train(host, train_request(batch, step))
        assert found == [asdict(update) for update in train_locally(local, batch, cfg)]
        assert len(found) == 4 and all(one["grad_norm"] for one in found)
    held = host._keeper.critic
    assert held.digest() == local.digest()
    mine, theirs = held.optimizer.state(), local.optimizer.state()
    assert mine[1] == theirs[1]
    assert all(torch.equal(mine[0][name], tensor) for name, tensor in theirs[0].items())


def test_joined_requests_are_answered_as_alone(host: CriticHost, cfg: Config) -> None:
    for request in train_requests(cfg, 2):
        train(host, request)
    requests = [infer_request(toy_rollout(rows, seed=rows, longest=6 * rows)) for rows in (1, 4, 2)]
    joined = host.values(requests)
    for request, found in zip(requests, joined, strict=True):
        (alone,) = host.values([request])
        assert isinstance(found, Values) and isinstance(alone, Values) and request.tokens is not None
        assert found.values.shape == request.tokens.shape
        np.testing.assert_allclose(found.values, alone.values, atol=1e-4, rtol=0)
        np.testing.assert_allclose(found.after, alone.after, atol=1e-4, rtol=0)


def test_one_bad_request_among_good_ones_fails_alone(host: CriticHost) -> None:
    good = infer_request(toy_rollout(2, seed=1))
    stale = infer_request(toy_rollout(2, seed=2), run=RUN, trained_step=5)
    other_run = infer_request(toy_rollout(2, seed=2), run="another")
    foreign = infer_request(toy_rollout(2, seed=3))
    assert foreign.tokens is not None
    foreign.tokens[0, 0] = 10_000
    long = infer_request(toy_rollout(1, seed=4, longest=400))
    found = host.values([stale, good, other_run, foreign, long])
    assert isinstance(found[1], Values)
    codes = [getattr(one, "code", None) for one in found]
    assert codes == ["stale_step", None, "mismatch", "unprocessable", "unprocessable"]


def test_a_critic_that_gives_nan_fails_and_says_so(host: CriticHost) -> None:
    rollouts = [toy_rollout(1, seed=1), toy_rollout(1, seed=2)]
    poisoned = int(rollouts[1].tokens[0, 0])
    assert poisoned not in rollouts[0].tokens
    trunk: Any = host._keeper.critic.critic.trunk
    with torch.no_grad():
        trunk.get_input_embeddings().weight[poisoned] = torch.nan
    fine, nan = (infer_request(rollout) for rollout in rollouts)
    for requests in ([fine, nan], [nan]):  # a batch is tried again one by one: see test_batcher.py
        error = refused(lambda requests=requests: host.values(requests))
        assert error.code == "model_failed" and "not finite" in str(error)
    assert isinstance(host.values([fine])[0], Values)


# ------------------------------------------------------------------------------------------------------ exactly once


def test_a_repeat_gets_the_stored_result_and_trains_nothing(host: CriticHost, cfg: Config) -> None:
    first, second = train_requests(cfg, 2)
    given = host.train(first, first.pack())
    host.train(second, second.pack())
    digest = digest_of(host)
    again = host.train(first, first.pack())
    assert again == given.again(2)
    assert again.repeated and again.trained_step == 2
    assert digest_of(host) == digest


def test_another_batch_for_a_trained_step_is_refused(host: CriticHost, cfg: Config) -> None:
    first, second = train_requests(cfg, 2)
    train(host, first)
    forged = replace(second, step=1)
    error = refused(lambda: train(host, forged))
    assert error.code == "other_content"
    assert host.trained_step == 1


@pytest.mark.parametrize("step", [2, 3])
def test_a_gap_is_refused(host: CriticHost, cfg: Config, step: int) -> None:
    error = refused(lambda: train(host, train_requests(cfg, 3)[step - 1]))
    assert (error.code, host.trained_step) == ("stale_step", 0)
    assert names_in(journal_of(cfg)) == []


def test_a_run_that_has_not_begun_is_refused(cfg: Config) -> None:
    host = toy_host(cfg)
    (request,) = train_requests(cfg, 1)
    assert refused(lambda: train(host, request)).code == "mismatch"
    assert refused(lambda: host.checkpoint(CheckpointRequest(RUN, 0))).code == "mismatch"


def test_a_step_with_nothing_to_train_on_counts(host: CriticHost, cfg: Config) -> None:
    (request,) = train_requests(cfg, 1)
    empty = replace(request, plan=(), mask=np.zeros_like(request.mask))
    digest = digest_of(host)
    assert train(host, empty) == []
    assert host.trained_step == 1
    assert digest_of(host) == digest
    assert host.train(empty, empty.pack()).repeated


def test_what_the_model_cannot_read_is_refused_before_it_is_written(host: CriticHost, cfg: Config) -> None:
    (request,) = train_requests(cfg, 1)
    tokens = request.tokens.copy()
    tokens[0, 0] = 9999
    error = refused(lambda: train(host, replace(request, tokens=tokens)))
    assert error.code == "unprocessable"
    assert names_in(journal_of(cfg)) == []


# ------------------------------------------------------------------------------------------ checkpoints and restores


def test_a_checkpoint_is_named_by_the_digest_of_its_manifest(host: CriticHost, cfg: Config) -> None:
    (request,) = train_requests(cfg, 1)
    train(host, request)
    saved = host.checkpoint(CheckpointRequest(RUN, 1))
    folder = journal_of(cfg).parent / "checkpoints" / saved.name
    assert saved.digest == digest_file(folder / "manifest.json")
    assert host.checkpoint(CheckpointRequest(RUN, 1)) == saved
    assert {p.name for p in folder.iterdir()} == {
        "critic.safetensors",
        "critic_optimizer.safetensors",
        "state.json",
        "manifest.json",
    }
    error = refused(lambda: host.checkpoint(CheckpointRequest(RUN, 2)))
    assert error.code == "stale_step"


def test_what_the_trainer_no_longer_has_goes(host: CriticHost, cfg: Config) -> None:
    kept: dict[int, list[int]] = {1: [], 2: [1], 3: [1, 2], 4: [2, 3]}
    for request in train_requests(cfg, 4):
        train(host, request)
        host.checkpoint(CheckpointRequest(RUN, request.step, kept[request.step]))
    assert names_in(journal_of(cfg).parent / "checkpoints") == ["step-2", "step-3", "step-4"]
    assert names_in(journal_of(cfg)) == ["step-3.request", "step-3.result", "step-4.request", "step-4.result"]


def test_a_restore_goes_back_and_what_came_after_is_gone(host: CriticHost, cfg: Config) -> None:
    requests = train_requests(cfg, 4)
    digests = {}
    for request in requests[:2]:
        train(host, request)
        digests[request.step] = host.checkpoint(CheckpointRequest(RUN, request.step, [1])).digest
    at_one = toy_host(cfg)
    assert at_one.restore(RestoreRequest(RUN, 1, digests[1])).trained_step == 1
    assert names_in(journal_of(cfg).parent / "checkpoints") == ["step-1"]
    first = train(at_one, requests[1])
    digest = digest_of(at_one)
    train(at_one, requests[2])
    assert at_one.restore(RestoreRequest(RUN, 1, digests[1])).trained_step == 1
    assert train(at_one, requests[1]) == first
    assert digest_of(at_one) == digest
    assert digest_of(toy_host(cfg)) == digest
    # After a restore a step may be trained on another batch: the old result must not come back.
    at_one.restore(RestoreRequest(RUN, 1, digests[1]))
    other = replace(requests[2], step=2)
    assert not at_one.train(other, other.pack()).repeated


def test_a_restore_to_the_beginning_is_the_initial_critic(host: CriticHost, cfg: Config) -> None:
    initial, request = digest_of(host), train_requests(cfg, 1)[0]
    first = train(host, request)
    host.checkpoint(CheckpointRequest(RUN, 1))
    assert host.restore(RestoreRequest(RUN, 0)).trained_step == 0
    assert digest_of(host) == initial
    assert names_in(journal_of(cfg).parent / "checkpoints") == names_in(journal_of(cfg)) == []
    assert train(host, request) == first


def test_a_checkpoint_of_step_0_can_be_restored(host: CriticHost, cfg: Config) -> None:
    initial = digest_of(host)
    saved = host.checkpoint(CheckpointRequest(RUN, 0))
    (request,) = train_requests(cfg, 1)
    first = train(host, request)
    assert host.restore(RestoreRequest(RUN, 0, saved.digest)).trained_step == 0
    assert digest_of(host) == initial
    assert train(host, request) == first


def test_a_restore_to_what_is_not_there_says_what_is(host: CriticHost, cfg: Config) -> None:
    (request,) = train_requests(cfg, 1)
    train(host, request)
    saved = host.checkpoint(CheckpointRequest(RUN, 1))
    for wanted in (RestoreRequest(RUN, 1, "0" * 64), RestoreRequest(RUN, 2, saved.digest)):
        error = refused(lambda wanted=wanted: host.restore(wanted))
        assert error.code == "no_such_checkpoint"
        assert "step 1" in str(error.allowed)
    error = refused(lambda: host.restore(RestoreRequest("run-2", 1, saved.digest)))
    assert error.code == "in_use"
    assert refused(lambda: host.restore(RestoreRequest(RUN, 1))).code == "unprocessable"
    assert host.trained_step == 1


def test_a_checkpoint_of_another_critic_is_refused(host: CriticHost, cfg: Config, toy: Path) -> None:
    saved = host.checkpoint(CheckpointRequest(RUN, 0))
    host.release(ReleaseRequest(RUN))
    other = cfg.model_copy(update={"model": cfg.model.model_copy(update={"dtype": "float64"})})
    assert cfg.serve is not None
    (Path(cfg.serve.dir) / "service.json").unlink()
    error = refused(lambda: toy_host(other).restore(RestoreRequest(RUN, 0, saved.digest)))
    assert error.code == "mismatch"


def test_two_runs_do_not_share_the_critic(cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("surefoot.serving.bindings.time.monotonic", lambda: now[0])
    host = begun(cfg, lease_s=60.0)
    (request,) = train_requests(cfg, 1)
    train(host, request)
    saved = host.checkpoint(CheckpointRequest(RUN, 1))
    now[0] += 59
    host.touch(RUN)
    now[0] += 59
    error = refused(lambda: host.restore(RestoreRequest("run-2", 0)))
    assert error.code == "in_use" and RUN in str(error)
    now[0] += 2
    host.restore(RestoreRequest("run-2", 0))
    assert (host.run, host.trained_step) == ("run-2", 0)
    assert refused(lambda: train(host, request)).code == "mismatch"
    train(host, replace(request, run="run-2"))
    host.release(ReleaseRequest("run-2"))
    # The first run finds its checkpoint again, and nothing of the other's.
    assert host.restore(RestoreRequest(RUN, 1, saved.digest)).trained_step == 1
    assert refused(lambda: train(host, request)).code == "stale_step"


def test_a_training_longer_than_the_lease_does_not_end_it(cfg: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("surefoot.serving.bindings.time.monotonic", lambda: now[0])
    host = begun(cfg, lease_s=60.0)
    real = CriticKeeper.apply

    def slow(keeper: CriticKeeper, request: TrainRequest) -> Any:
        now[0] += 100
        return real(keeper, request)

    monkeypatch.setattr(CriticKeeper, "apply", slow)
    train(host, train_requests(cfg, 1)[0])
    assert refused(lambda: host.restore(RestoreRequest("run-2", 0))).code == "in_use"


def test_a_released_critic_is_free_in_a_new_process_too(host: CriticHost, cfg: Config) -> None:
    assert refused(lambda: toy_host(cfg).restore(RestoreRequest("run-2", 0))).code == "in_use"
    host.release(ReleaseRequest(RUN))
    assert toy_host(cfg).restore(RestoreRequest("run-2", 0)).run == "run-2"


def test_a_restore_that_fails_half_way_leaves_what_the_disk_says(
    host: CriticHost, cfg: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = train_requests(cfg, 3)
    train(host, requests[0])
    saved = host.checkpoint(CheckpointRequest(RUN, 1))
    for request in requests[1:]:
        train(host, request)
    folder = journal_of(cfg)
    real, calls = Path.unlink, []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        calls.append(path.name)
        if path.name == "step-2.request":
            raise PermissionError(13, "Permission denied", str(path))
        real(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert refused(lambda: host.restore(RestoreRequest(RUN, 1, saved.digest))).code == "model_failed"
    monkeypatch.undo()
    assert "step-3.request" in calls
    assert [name for name in names_in(folder) if name.endswith("request")] == ["step-2.request"]
    assert host.trained_step == 2
    assert digest_of(host) == digest_of(toy_host(cfg))
    assert train(host, requests[2]) != []
    shutil.rmtree(folder)
