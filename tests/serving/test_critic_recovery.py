"""A critic that comes back after its process ended, or after a step failed, is the one that it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from surefoot.config import Config
from surefoot.errors import RunFolderError, ServiceError, SurefootError, TrainingError
from surefoot.serving.control import CheckpointRequest, RestoreRequest
from surefoot.serving.critic_host import CriticHost
from tests.serving.parts import (
    RUN,
    begun,
    build_toy_critic,
    digest_of,
    infer_request,
    journal_of,
    names_in,
    refused,
    toy_config,
    toy_host,
    toy_rollout,
    train,
    train_requests,
)

pytestmark = pytest.mark.usefixtures("exact")


# ---------------------------------------------------------------------------------------------------- a new process


def test_a_new_process_goes_on_where_the_old_one_was(cfg: Config) -> None:
    requests = train_requests(cfg, 4)
    host = begun(cfg)
    given = [train(host, request) for request in requests[:3]]
    again = toy_host(cfg)
    assert (again.run, again.trained_step, again.replayed) == (RUN, 3, 3)
    assert digest_of(again) == digest_of(host)
    assert again.waits_for is None
    repeated = again.train(requests[1], requests[1].pack())
    assert repeated.repeated and repeated.numbers == given[1]
    assert train(again, requests[3]) == train(host, requests[3])


@pytest.mark.parametrize("lost", ["results", "a result is damaged"])
def test_a_result_that_is_lost_comes_out_the_same(cfg: Config, lost: str) -> None:
    requests = train_requests(cfg, 2)
    host = begun(cfg)
    given = [train(host, request) for request in requests]
    for path in journal_of(cfg).glob("*.result"):
        path.unlink() if lost == "results" else path.write_bytes(b'{"digest": ')
    again = toy_host(cfg)
    assert [again.train(request, request.pack()).numbers for request in requests] == given


def test_from_a_checkpoint_on_only_later_steps_are_replayed(cfg: Config) -> None:
    requests = train_requests(cfg, 3)
    host = begun(cfg)
    for request in requests[:2]:
        train(host, request)
    host.checkpoint(CheckpointRequest(RUN, 2))
    train(host, requests[2])
    again = toy_host(cfg)
    assert (again.trained_step, again.replayed) == (3, 1)
    assert digest_of(again) == digest_of(host)
    assert refused(lambda: train(again, requests[0])).code == "stale_step"


def test_a_damaged_checkpoint_is_made_up_for_by_the_journal(cfg: Config) -> None:
    requests = train_requests(cfg, 4)
    host = begun(cfg)
    for request in requests:
        train(host, request)
        if request.step in (1, 3):
            host.checkpoint(CheckpointRequest(RUN, request.step, [1]))
    weights = journal_of(cfg).parent / "checkpoints" / "step-3" / "critic.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\1\2\3")
    again = toy_host(cfg)
    assert (again.trained_step, again.replayed) == (4, 3)
    assert digest_of(again) == digest_of(host)


def test_a_damaged_journal_ends_before_the_damage(cfg: Config) -> None:
    requests = train_requests(cfg, 3)
    host = begun(cfg)
    train(host, requests[0])
    digest = digest_of(host)
    for request in requests[1:]:
        train(host, request)
    path = journal_of(cfg) / "step-2.request"
    path.write_bytes(path.read_bytes()[:-9])
    again = toy_host(cfg)
    assert (again.trained_step, digest_of(again)) == (1, digest)
    assert names_in(journal_of(cfg)) == ["step-1.request", "step-1.result"]
    train(again, requests[1])
    assert toy_host(cfg).trained_step == 2


def test_another_model_than_before_is_refused(cfg: Config, toy: Path, tmp_path: Path) -> None:
    host = begun(cfg)
    (request,) = train_requests(cfg, 1)
    train(host, request)
    other = cfg.model_copy(update={"model": cfg.model.model_copy(update={"dtype": "float64"})})
    with pytest.raises(RunFolderError, match="another critic") as found:
        toy_host(other)
    assert "serve.dir" in str(found.value)


def test_other_settings_are_refused_while_there_is_something_to_replay(
    cfg: Config, caplog: pytest.LogCaptureFixture
) -> None:
    host = begun(cfg)
    (request,) = train_requests(cfg, 1)
    train(host, request)
    faster = cfg.model_copy(update={"optim": cfg.optim.model_copy(update={"critic_lr": 0.5})})
    with pytest.raises(RunFolderError, match=r"optim\.critic_lr: 0\.5, not 0\.003"):
        toy_host(faster)
    host.checkpoint(CheckpointRequest(RUN, 1))
    assert toy_host(faster).trained_step == 1
    assert "settings have changed" in caplog.text


# ---------------------------------------------------------------------------------------------------------- failures


class _Failing:
    """Builds critics whose optimizer fails at its n-th step, until told otherwise."""

    def __init__(self, cfg: Config, *, at: int) -> None:
        self.cfg, self.at, self.count = cfg, at, 0

    def __call__(self) -> Any:
        held = build_toy_critic(self.cfg)
        real = held.optimizer.step

        def step(loss: float) -> Any:
            self.count += 1
            if self.count == self.at:
                raise TrainingError("too many steps were skipped", hint="lower it")
            return real(loss)

        held.optimizer.step = step  # type: ignore[method-assign]
        return held


def test_a_step_that_fails_is_taken_back_whole(cfg: Config) -> None:
    requests = train_requests(cfg, 2)
    failing = _Failing(cfg, at=6)  # in the middle of step 2
    host = begun(cfg, build=failing)
    train(host, requests[0])
    before = digest_of(host)
    error = refused(lambda: train(host, requests[1]))
    assert error.code == "model_failed" and error.hint == "lower it"
    assert "as it was before" in str(error)
    assert (host.trained_step, host.waits_for, digest_of(host)) == (1, None, before)
    assert names_in(journal_of(cfg)) == ["step-1.request", "step-1.result"]
    expected = begun(toy_config(Path(cfg.run.dir).parent, serve={"dir": str(Path(cfg.run.dir) / "other")}))
    assert [train(host, r) for r in requests[1:]] == [train(expected, r) for r in requests][1:]


def test_a_kill_while_a_failed_step_is_taken_back_changes_nothing(cfg: Config) -> None:
    requests = train_requests(cfg, 2)
    host = begun(cfg)
    train(host, requests[0])
    before = digest_of(host)
    host._bindings.of(RUN).journal.write(2, requests[1].pack())
    again = toy_host(cfg, build=_Failing(cfg, at=6))
    assert (again.trained_step, digest_of(again)) == (1, before)
    assert names_in(journal_of(cfg)) == ["step-1.request", "step-1.result"]


def test_a_step_that_had_been_trained_is_never_left_out(cfg: Config) -> None:
    requests = train_requests(cfg, 2)
    host = begun(cfg)
    for request in requests:
        train(host, request)
    with pytest.raises(SurefootError, match="step 1 of the journal cannot be applied again"):
        toy_host(cfg, build=_Failing(cfg, at=2))
    assert toy_host(cfg).trained_step == 2


def test_a_critic_that_cannot_be_put_back_says_so_until_it_is_restored(cfg: Config, toy: Path) -> None:
    requests = train_requests(cfg, 1)
    failing = _Failing(cfg, at=1)
    host = begun(cfg, build=failing)
    model = Path(str(cfg.model.policy))
    moved = model.with_name("moved")
    model.rename(moved)
    try:
        assert refused(lambda: train(host, requests[0])).code == "model_failed"
        assert host.broken is not None
        lost = refused(lambda: train(host, requests[0]))
        assert lost.code == "model_failed" and "lost" in str(lost)
        (found,) = host.values([infer_request(toy_rollout(1, seed=1))])
        assert isinstance(found, ServiceError) and found.code == "model_failed"
    finally:
        moved.rename(model)
    host.restore(RestoreRequest(RUN, 0))
    assert host.broken is None
    assert len(train(host, requests[0])) == 4


def test_weights_that_are_not_finite_are_not_saved(host: CriticHost) -> None:
    with torch.no_grad():
        host._keeper.critic.critic.head.weight[0, 0] = torch.inf
    error = refused(lambda: host.checkpoint(CheckpointRequest(RUN, 0)))
    assert error.code == "model_failed"
    assert "not finite" in str(error)
