"""One PPO step: identities at unchanged weights, what the scores do, who is trained, and what adapts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from surefoot.config import Config
from surefoot.errors import RewardError, RolloutError
from surefoot.protocols import Turn
from surefoot.records import Prompt, Rollout, StopReason, Trajectory
from surefoot.rollout import NativeEngine, Sampling
from surefoot.training.clock import StepClock
from surefoot.training.critic_update import Update
from surefoot.training.estimate import estimate
from surefoot.training.report import StepFacts, report
from surefoot.training.step import Parts, StepResult, ppo_step, read
from surefoot.training.update import Updates
from tests.builders import (
    ActionReward,
    ScriptedEngine,
    make_config,
    make_parts,
    make_prompts,
    make_rollout,
    merged,
    save_gpt2,
    save_llama,
)

PROMPTS = make_prompts((1, 2), (1, 2, 3, 4), (5,), (6, 7, 8))
EOS = 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {"llama": save_llama(folder / "llama"), "gpt2": save_gpt2(folder / "gpt2")}


def quality(actions: Sequence[int]) -> float:
    return sum(actions) / (11 * len(actions))


def build(folder: Path, **sections: Any) -> tuple[Config, Parts]:
    cfg = make_config(folder, **sections)
    return cfg, make_parts(cfg, quality, stop_ids=(EOS,))


def run_step(parts: Parts, cfg: Config, step: int = 1) -> StepResult:
    return ppo_step(step, PROMPTS, parts, cfg, StepClock())


def scripted(parts: Parts, cfg: Config, rollout: Rollout, value: Any = quality, step: int = 1) -> StepResult:
    """A step on a rollout made by hand."""
    parts = replace(parts, engine=ScriptedEngine(rollout), reward=ActionReward(value))
    return ppo_step(step, PROMPTS, parts, cfg, StepClock())


def give_the_critic_something_to_say(parts: Parts) -> None:
    """A fresh value head is zero, and so is everything it says."""
    head = parts.learner.critic.head.weight
    with torch.no_grad():
        head.copy_(torch.randn(head.shape, generator=torch.Generator().manual_seed(3), dtype=head.dtype) / 4)


def weights(parts: Parts) -> dict[str, Tensor]:
    named = parts.learner.policy.trainable() | parts.learner.critic.trainable()
    return {name: p.detach().clone() for name, p in named.items()}


def policy_weights(parts: Parts) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in parts.learner.policy.trainable().items()}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert float((value - right[name]).abs().max()) <= tolerance, name


def moved(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return any(not torch.equal(value, right[name]) for name, value in left.items())


# ------------------------------------------------------------------------------------- with unchanged weights

SETTINGS = [
    {"model": {"dtype": "float64"}},
    {"model": {"dtype": "float32"}},
    {"model": {"dtype": "float32", "lora": {"rank": 2}}, "critic": {"kind": "shared"}},
    {"model": {"dtype": "float64"}, "rollout": {"temperature": 0.5}},
    {"model": {"dtype": "float64"}, "batch": {"tokens": 1, "packing": "off"}},
]


@pytest.mark.parametrize("sections", SETTINGS, ids=["float64", "float32", "adapters", "temperature", "row by row"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_before_the_first_update_nothing_differs(models: dict[str, Path], kind: str, sections: dict[str, Any]) -> None:
    """ALG-13, ALG-16, CKP-09: ratio 1, KL 0, clip fraction 0; sampler, policy and reference say the same."""
    cfg, parts = build(models[kind], **merged({"ppo": {"epochs": 1, "minibatches": 1}}, sections))
    result = run_step(parts, cfg)
    metrics = result.report.metrics
    assert metrics["policy/clip_fraction"] == 0.0
    gap = 1e-4 if cfg.model.dtype == "float32" else 1e-10
    assert result.sampled.logp is not None
    assert float(np.abs(result.sampled.logp - result.reading.logp).max()) < gap
    assert metrics["engine/logp_gap_max"] < gap
    assert abs(metrics["kl/update_k3"]) < gap
    assert abs(metrics["kl/reference_k1"]) < gap
    assert float(np.abs(result.reading.logp - result.reading.ref_logp).max()) < gap
    assert metrics["kl/coef"] == 0.05


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["all weights", "adapters"])
def test_after_an_update_the_policy_has_left_the_reference_and_the_sampler_has_not_left_the_policy(
    models: dict[str, Path], lora: dict[str, Any] | None
) -> None:
    """CKP-12: the engine samples from the weights as they are now, and the reference stays what it was."""
    cfg, parts = build(models["gpt2"], model={"lora": lora}, optim={"policy_lr": 0.05})
    reference = parts.reference.digest()  # type: ignore[attr-defined]
    for step in (1, 2, 3):
        result = run_step(parts, cfg, step)
    assert result.report.metrics["kl/reference_k1"] > 1e-3
    assert result.report.metrics["engine/logp_gap_max"] < 1e-10
    assert result.sampled.info["version"] == 3
    assert parts.reference.digest() == reference  # type: ignore[attr-defined]


def test_a_step_repeats_itself_and_another_seed_or_step_does_not(models: dict[str, Path]) -> None:
    cfg, parts = build(models["llama"])
    first = run_step(parts, cfg)
    again = run_step(build(models["llama"])[1], cfg)
    assert np.array_equal(first.sampled.tokens, again.sampled.tokens)
    for key, value in first.report.metrics.items():
        if not key.startswith(("time/", "memory/", "throughput/")):
            assert again.report.metrics[key] == value, key
    other_cfg, other = build(models["llama"], run={"seed": 1})
    assert not np.array_equal(run_step(other, other_cfg).sampled.tokens, first.sampled.tokens)
    assert not np.array_equal(run_step(build(models["llama"])[1], cfg, 2).sampled.tokens, first.sampled.tokens)


# ------------------------------------------------------------------------------------------------ from score to reward


def test_the_score_falls_on_the_last_action_token(models: dict[str, Path]) -> None:
    """ALG-06: given tokens behind it do not take it away, and KL is 0 at the start."""
    rollout = Rollout.of(
        [
            Trajectory([1, 11, 8, 3], [False, True, True, True]),
            Trajectory([1, 4, 5, 6, 7], [False, True, False, True, False], StopReason.ENVIRONMENT),
            Trajectory([1, 3], [False, True]),
        ]
    )
    cfg, parts = build(models["gpt2"])
    batch = scripted(parts, cfg, rollout, lambda actions: float(sum(actions))).batch
    expected = [[0, 0, 0, 22, 0], [0, 0, 0, 10, 0], [0, 3, 0, 0, 0]]
    assert torch.allclose(batch.rewards, torch.tensor(expected, dtype=torch.float64))


def test_the_kl_in_the_reward_is_k1_with_its_sign(models: dict[str, Path]) -> None:
    """ALG-01: a policy that moved away from its reference pays for it, token by token."""
    cfg, parts = build(models["gpt2"], ppo={"kl": {"coef": 0.1}})
    with torch.no_grad():
        for p in parts.learner.policy.trainable().values():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype))
    result = run_step(parts, cfg)
    batch, mask = result.batch, result.batch.mask
    logp, ref_logp = torch.from_numpy(result.reading.logp), torch.from_numpy(result.reading.ref_logp)
    paid = -0.1 * (logp - ref_logp)
    paid[torch.arange(len(mask)), result.sampled.lengths - 1] += torch.tensor([s.value for s in result.scores])
    assert torch.allclose(batch.rewards[mask], paid[mask], atol=1e-12)
    assert float(batch.rewards[~mask].abs().max()) == 0.0
    summed = (logp - ref_logp)[mask].sum() / len(mask)
    assert result.report.metrics["kl/reference_k1"] == pytest.approx(float(summed))
    assert float(summed) > 0.01


def test_kl_as_a_loss_is_not_paid_a_second_time_in_the_reward(models: dict[str, Path]) -> None:
    cfg, parts = build(models["gpt2"], ppo={"kl": {"place": "loss", "coef": 5.0}}, optim={"policy_lr": 0.05})
    for step in (1, 2):
        result = run_step(parts, cfg, step)
    rewards = torch.where(result.batch.mask, result.batch.rewards, 0.0).sum(dim=1)
    assert torch.allclose(rewards, torch.tensor([s.value for s in result.scores], dtype=torch.float64))
    assert result.report.metrics["kl/reference_k1"] > 1e-3


def test_only_cut_off_rows_pay_for_a_missing_end(models: dict[str, Path]) -> None:
    """ALG-24: a configured stop counts as an end, whatever its token is."""
    rollout = make_rollout(
        ((1,), (11, 9)),
        ((1,), (11, 8, 7, 6)),
        ((1,), (11, 8, 2)),
        stop_reasons=[StopReason.STOP, StopReason.LENGTH, StopReason.EOS],
    )
    for cut_off, expected in (("penalise", [1.0, 0.0, 1.0]), ("terminal", [1.0, 1.0, 1.0])):
        cfg, parts = build(models["gpt2"], ppo={"cut_off": cut_off, "missing_eos_penalty": 1.0})
        result = scripted(parts, cfg, rollout, lambda _: 1.0)
        assert result.batch.scores.tolist() == expected
        assert result.report.metrics["score/mean"] == 1.0, "the raw score is logged as it is"
        assert result.report.metrics["response/cut_off_share"] == pytest.approx(1 / 3)


def test_the_sampler_and_the_penalty_mean_the_same_by_finished(models: dict[str, Path]) -> None:
    cfg = make_config(
        models["gpt2"], ppo={"cut_off": "penalise", "missing_eos_penalty": 2.0}, rollout={"samples_per_prompt": 8}
    )
    stops = (3, 5)
    result = run_step(make_parts(cfg, lambda _: 1.0, stop_ids=stops), cfg)
    finished = [int(t.tokens[-1]) in stops for t in result.sampled.trajectories]
    assert 0 < sum(finished) < len(finished)
    assert result.batch.scores.tolist() == [1.0 if done else -1.0 for done in finished]


def test_only_cut_off_rows_are_bootstrapped(models: dict[str, Path]) -> None:
    rollout = make_rollout(((1,), (11, 8, 7, 6)), ((1, 2), (11, 3)), stop_reasons=[StopReason.LENGTH, StopReason.EOS])
    sections = {"ppo": {"cut_off": "bootstrap", "whiten": False, "lam": 1.0}, "critic": {"kind": "shared"}}
    cfg, parts = build(models["gpt2"], **sections)
    give_the_critic_something_to_say(parts)
    result = scripted(parts, cfg, rollout, lambda _: 1.0)
    after = torch.from_numpy(result.reading.after)
    assert float(after.abs().min()) > 1e-3
    assert result.batch.bootstrap.tolist() == [float(after[0]), 0.0]
    assert result.batch.returns[0, 1:5].tolist() == pytest.approx([1.0 + float(after[0])] * 4)
    assert result.batch.returns[1, 2:4].tolist() == pytest.approx([1.0] * 2)


def test_scores_are_normalised_by_statistics_that_exist(models: dict[str, Path]) -> None:
    """ALG-30: the reference's scores 2, 4, 6, 8 have mean 5 and deviation sqrt 5; then 7 becomes 2 / sqrt 5."""
    cfg, parts = build(models["gpt2"], reward={"normalise": "reference"})
    table = {4: 2.0, 5: 4.0, 6: 6.0, 7: 8.0, 8: 7.0}
    first = make_rollout(*(((1,), (token,)) for token in (4, 5, 6, 7)))
    result = scripted(parts, cfg, first, lambda actions: table[actions[0]])
    assert result.batch.scores.tolist() == pytest.approx([-3 / 5**0.5, -1 / 5**0.5, 1 / 5**0.5, 3 / 5**0.5])
    result = scripted(parts, cfg, make_rollout(((1,), (8,)), ((1,), (8,))), lambda actions: table[actions[0]], step=2)
    assert result.batch.scores.tolist() == pytest.approx([0.89442719] * 2)
    assert result.report.metrics["normaliser/mean"] == 5.0
    assert result.report.metrics["normaliser/std"] == pytest.approx(5**0.5)
    assert result.report.metrics["score/mean"] == 7.0


def test_scores_are_clipped_after_they_are_normalised(models: dict[str, Path]) -> None:
    cfg, parts = build(models["gpt2"], reward={"normalise": True, "clip": 0.5})
    rollout = make_rollout(*(((1,), (token,)) for token in (4, 5, 6, 7)))
    assert scripted(parts, cfg, rollout, lambda a: 2.0 * a[0]).batch.scores.tolist() == pytest.approx(
        [-0.5, -1 / 5**0.5, 1 / 5**0.5, 0.5]
    )


# --------------------------------------------------------------------------------------- rows that do not take part


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize("normalise", [False, "running"])
def test_a_failed_score_leaves_no_trace_but_its_count(models: dict[str, Path], critic: str, normalise: Any) -> None:
    """SRV-02: scores 1, missing, 0 train like scores 1, 0; a failure as 0 would have the mean 1/3."""
    rows = [((1, 2), (4, 6, 3)), ((1,), (9, 9, 9, 9)), ((5,), (5, 3))]
    table = {(4, 6, 3): 1.0, (9, 9, 9, 9): None, (5, 3): 0.0}
    sections = {
        "critic": {"kind": critic},
        "reward": {"max_failures": 0.5, "normalise": normalise},
        "ppo": {"minibatches": 1},
        "optim": {"eps": 1.0, "policy_lr": 1.0, "critic_lr": 1.0},
    }
    cfg, parts = build(models["gpt2"], **sections)
    before = weights(parts)
    result = scripted(parts, cfg, make_rollout(*rows), table.__getitem__)
    _, others = build(models["gpt2"], **sections)
    without = scripted(others, cfg, make_rollout(rows[0], rows[2]), table.__getitem__)
    assert moved(before, weights(parts))
    assert_same(weights(parts), weights(others), 1e-12)
    assert result.report.metrics["score/mean"] == 0.5
    assert result.report.metrics["score/failed_share"] == pytest.approx(1 / 3)
    assert not result.batch.mask[1].any()
    for key, value in without.report.metrics.items():
        if not key.startswith(("time/", "memory/", "throughput/", "response/", "score/failed")):
            assert result.report.metrics[key] == pytest.approx(value), key


def test_too_many_failed_scores_end_the_run_before_any_update(models: dict[str, Path]) -> None:
    cfg, parts = build(models["gpt2"])
    before = weights(parts)
    table = {(4, 3): None, (5, 3): 1.0}
    with pytest.raises(RewardError, match="1 of 2 scores failed"):
        scripted(parts, cfg, make_rollout(((1,), (4, 3)), ((1,), (5, 3))), table.__getitem__)
    assert_same(before, weights(parts))


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_a_batch_without_action_tokens_is_skipped_and_counted(models: dict[str, Path], critic: str) -> None:
    """ALG-25: no division by an empty count, no update, and it shows."""
    rollout = Rollout.of([Trajectory([1, 2, 3], [False] * 3), Trajectory([1, 2], [False] * 2)])
    cfg, parts = build(models["llama"], critic={"kind": critic})
    before = weights(parts)
    result = scripted(parts, cfg, rollout, lambda _: 1.0)
    assert_same(before, weights(parts))
    assert result.report.metrics["policy/updates"] == 0
    assert result.report.metrics["policy/skipped_updates"] == cfg.ppo.epochs * cfg.ppo.minibatches
    assert_finite_or_none(result)
    assert parts.kl.coef == cfg.ppo.kl.coef


def test_a_row_without_action_tokens_changes_nothing_for_the_others(models: dict[str, Path]) -> None:
    rows = [Trajectory([1, 2, 4, 3], [False, False, True, True]), Trajectory([1, 6, 3], [False, True, True])]
    empty = Trajectory([1, 2, 3, 4, 5, 6], [False] * 6)
    sections = {"ppo": {"minibatches": 1}, "optim": {"eps": 1.0, "policy_lr": 1.0, "critic_lr": 1.0}}

    def value(actions: Sequence[int]) -> float:
        return quality(actions) if actions else 9.0

    cfg, parts = build(models["gpt2"], **sections)
    scripted(parts, cfg, Rollout.of([rows[0], empty, rows[1]]), value)
    _, others = build(models["gpt2"], **sections)
    scripted(others, cfg, Rollout.of(rows), value)
    assert_same(weights(parts), weights(others), 1e-12)


# ---------------------------------------------------------------------------------------------- the critic's warm-up


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_during_the_warm_up_the_policy_does_not_move_by_a_bit(models: dict[str, Path], critic: str) -> None:
    sections = {"critic": {"kind": critic, "warmup_steps": 2}, "optim": {"weight_decay": 0.1, "warmup_steps": 0}}
    cfg, parts = build(models["gpt2"], **sections)
    for step, frozen in ((1, True), (2, True), (3, False)):
        before = policy_weights(parts)
        head = parts.learner.critic.head.weight.detach().clone()
        metrics = run_step(parts, cfg, step).report.metrics
        assert moved(before, policy_weights(parts)) is not frozen
        assert not torch.equal(head, parts.learner.critic.head.weight)
        assert metrics["policy/frozen"] == int(frozen)
        assert (metrics["policy/updates"] == 0) is frozen
        assert (metrics["policy/loss"] is None) is frozen
        assert (metrics["policy/grad_norm"] is None) is frozen
        assert metrics["value/loss"] > 0
        assert metrics["value/grad_norm"] > 0


def test_the_warm_up_ends_once_the_critic_explains_enough(models: dict[str, Path]) -> None:
    """The threshold is looked at after each step, and a critic that was good enough once is not frozen again."""
    cfg, parts = build(models["gpt2"], critic={"warmup_steps": 50, "warmup_explained_variance": 0.5})
    frozen = []
    for explained in (0.4, 0.6, 0.1):
        rollout = explained_by(parts, cfg, explained)
        metrics = scripted_with_values(parts, cfg, *rollout, step=len(frozen) + 1)
        assert metrics["value/explained_variance"] == pytest.approx(explained, abs=0.05)
        frozen.append(metrics["policy/frozen"])
    assert frozen == [1, 1, 0]
    assert parts.warmed_up


def explained_by(parts: Parts, cfg: Config, share: float) -> tuple[Rollout, list[float]]:
    """One-token responses and scores such that the critic's values explain this share of the returns' variance."""
    rollout = make_rollout(*(((i % 9,) * (1 + i % 3), (4,)) for i in range(64)))
    if not parts.learner.critic.head.weight.any():
        give_the_critic_something_to_say(parts)
    values = parts.learner.critic.values(rollout).values[rollout.mask]
    spread = float(values.std())
    assert spread > 0.1
    noise = np.random.default_rng(0).normal(size=64)
    centred = values - values.mean()
    noise -= noise.mean() + centred * float((noise * centred).mean() / (centred**2).mean())
    noise *= spread * math.sqrt(1 / share - 1) / noise.std()
    return rollout, [float(v + n) for v, n in zip(values, noise, strict=True)]


def scripted_with_values(parts: Parts, cfg: Config, rollout: Rollout, scores: list[float], step: int) -> Any:
    rest = iter(scores)
    held = replace(parts, engine=ScriptedEngine(rollout), reward=ActionReward(lambda _: next(rest)))
    metrics = ppo_step(step, PROMPTS, held, cfg, StepClock()).report.metrics
    parts.warmed_up = held.warmed_up
    return metrics


# ------------------------------------------------------------------------------------------------- a foreign engine


class ForeignEngine(NativeEngine):
    """An engine with numerics of its own: its log-probabilities are off by known amounts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.is_trainer_code = False

    def rollout(self, prompts: Any, environment: Any, *, seed: Any) -> Rollout:
        """As the native engine's, the log-probabilities shifted by turns."""
        found = super().rollout(prompts, environment, seed=seed)
        assert found.logp is not None
        off = np.where(found.mask, np.resize([-1.5, -0.2, 0.1, 0.3], found.mask.shape), 0.0)
        return replace(found, logp=found.logp + off)


def test_a_foreign_engine_is_measured_and_corrected(models: dict[str, Path]) -> None:
    cfg, parts = build(models["gpt2"], ppo={"minibatches": 1, "epochs": 1})
    foreign = ForeignEngine(parts.learner.policy, Sampling(max_new_tokens=4, stop_ids=frozenset({EOS})))
    result = run_step(replace(parts, engine=foreign), cfg)
    mask = result.batch.mask
    assert result.sampled.logp is not None and result.batch.weights is not None
    off = torch.from_numpy(result.sampled.logp - result.reading.logp)[mask]
    assert torch.allclose(result.batch.weights[mask], torch.exp(-off).clamp(max=2.0), atol=1e-6)
    assert float(result.batch.weights[mask].max()) == 2.0
    assert result.report.metrics["engine/logp_gap"] == pytest.approx(float(off.abs().mean()))
    assert result.report.metrics["engine/logp_gap_max"] == pytest.approx(1.5, abs=1e-6)
    assert 0 < result.report.metrics["engine/effective_sample_size"] < 1
    own_cfg, own = build(models["gpt2"], ppo={"minibatches": 1, "epochs": 1})
    plain = run_step(own, own_cfg)
    assert plain.batch.weights is None
    assert "engine/effective_sample_size" not in plain.report.metrics
    assert np.array_equal(plain.sampled.tokens, result.sampled.tokens)
    assert moved(policy_weights(parts), policy_weights(own)), "the weights must reach the update"
    weighted = -(result.batch.weights * result.batch.advantages)[mask].mean()
    assert result.report.metrics["policy/loss"] == pytest.approx(float(weighted))


def test_a_foreign_engine_without_log_probabilities_is_refused(models: dict[str, Path]) -> None:
    """Nothing could be measured or corrected, and the ratio would be wrong in silence."""
    cfg, parts = build(models["gpt2"])
    engine = ScriptedEngine(replace(make_rollout(((1,), (4, 3)), ((1, 2, 5), (3,))), logp=None))
    engine.is_trainer_code = False
    with pytest.raises(RolloutError, match="ScriptedEngine gives no log-probabilities"):
        run_step(replace(parts, engine=engine), cfg)


# -------------------------------------------------------------------------------------------------------- controllers


def test_the_adaptive_coefficient_follows_the_kl_of_a_trajectory_once_a_step(models: dict[str, Path]) -> None:
    """ALG-21: the mean over trajectories of the KL summed over their tokens, and the number of trajectories."""
    kl = {"coef": 0.2, "controller": "adaptive", "target": 6.0, "horizon": 100.0}
    cfg, parts = build(
        models["gpt2"], ppo={"kl": kl}, rollout={"samples_per_prompt": 2}, optim={"policy_lr": 0.1, "critic_lr": 0.1}
    )
    coef = 0.2
    for step in range(1, 5):
        metrics = run_step(parts, cfg, step).report.metrics
        assert metrics["kl/coef"] == coef, "a step is shaped with the coefficient from before it"
        error = min(max(metrics["kl/reference_k1"] / 6.0 - 1, -0.2), 0.2)
        coef = coef * (1 + error * 8 / 100)
        assert parts.kl.coef == pytest.approx(coef)
    assert coef < 0.2


def test_the_penalty_of_the_kl_form_halves_and_doubles(models: dict[str, Path]) -> None:
    for target, expected in ((1e-9, 2.0), (1e9, 0.5)):
        cfg, parts = build(
            models["gpt2"],
            ppo={"surrogate": "kl", "surrogate_kl": {"coef": 1.0, "target": target}},
            optim={"policy_lr": 0.05},
        )
        metrics = run_step(parts, cfg).report.metrics
        assert metrics["kl/surrogate_coef"] == 1.0
        assert parts.penalty.coef == expected
    cfg, parts = build(models["gpt2"])
    run_step(parts, cfg)
    assert parts.penalty.coef == cfg.ppo.surrogate_kl.coef, "with the clip it must not drift"


def test_the_penalty_is_moved_by_the_kl_that_the_updates_led_to(models: dict[str, Path]) -> None:
    """With one update a step, the KL measured before that update is 0 and would halve the penalty for ever."""
    cfg, parts = build(
        models["gpt2"],
        ppo={"surrogate": "kl", "surrogate_kl": {"coef": 1.0, "target": 1e-6}, "epochs": 1, "minibatches": 1},
        optim={"policy_lr": 0.05},
    )
    result = run_step(parts, cfg)
    mask = result.batch.rollout.mask
    now = parts.learner.policy.evaluate(result.batch.rollout).logp[mask]
    log_ratio = now - result.reading.logp[mask]
    led_to = float((np.exp(log_ratio) - 1 - log_ratio).mean())
    assert led_to > 1e-4
    assert parts.penalty.coef == 2.0


# -------------------------------------------------------------------------------------------------------- environment


class Tool:
    """Answers the first response with three given tokens, then ends the episode with a reward."""

    def respond(self, prompt: Prompt, tokens: Sequence[int], mask: Sequence[bool]) -> Turn:
        """Given tokens once."""
        if sum(mask) == len(tokens) - len(prompt.tokens):
            return Turn(given=(9, 10, 11), done=False, reward=0.25)
        return Turn(done=True, reward=0.5, stop_reason=StopReason.ENVIRONMENT)


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_given_tokens_inside_an_episode_are_not_trained_on(models: dict[str, Path], critic: str) -> None:
    """AGT-01, AGT-02: rewards, returns and KL know action tokens only, and the environment's rewards are placed."""
    sections = {"critic": {"kind": critic}, "ppo": {"lam": 1.0, "whiten": False}}
    cfg = make_config(models["gpt2"], **sections)
    parts = make_parts(cfg, quality, stop_ids=(EOS,), environment=Tool())
    batch = run_step(parts, cfg).batch
    for b, trajectory in enumerate(batch.rollout.trajectories):
        actions = [t for t, m in enumerate(trajectory.mask) if m]
        gap = next(t for t in actions if not trajectory.mask[t + 1])
        assert list(trajectory.tokens[gap + 1 : gap + 4]) == [9, 10, 11]
        assert trajectory.mask[gap + 1 : gap + 4] == (False,) * 3
        own = quality([int(trajectory.tokens[t]) for t in actions])
        expected = [0.75 + own if t <= gap else 0.5 + own for t in actions]
        assert batch.returns[b, actions].tolist() == pytest.approx(expected)
        off = [t for t in range(batch.mask.shape[1]) if t not in actions]
        assert not batch.advantages[b, off].any() and not batch.rewards[b, off].any()


# ------------------------------------------------------------------------------------------------------------ metrics


def assert_finite_or_none(result: StepResult) -> None:
    for key, value in result.report.metrics.items():
        assert value is None or (isinstance(value, (int, float)) and math.isfinite(value)), f"{key} is {value!r}"
        assert not isinstance(value, bool), key


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"critic": {"kind": "shared"}, "model": {"lora": {"rank": 2}}},
        {"critic": {"warmup_steps": 1}},
        {"ppo": {"surrogate": "kl", "entropy_coef": 0.1}, "reward": {"normalise": True}},
        {"ppo": {"kl": {"place": "loss", "estimator": "k2"}, "max_update_kl": 1e-9}},
        {"rollout": {"prompts_per_step": 1, "max_new_tokens": 1}, "ppo": {"epochs": 1, "minibatches": 1}},
        {"optim": {"policy_lr": 1e9, "critic_lr": 1e9}, "guard": {"max_skipped": 100}},
    ],
    ids=["plain", "shared", "warm-up", "surrogate kl", "stopped", "one token", "blown up"],
)
def test_every_metric_is_a_finite_number_or_none(models: dict[str, Path], sections: dict[str, Any]) -> None:
    cfg, parts = build(models["llama"], **merged({"model": {"dtype": "float32"}}, sections))
    prompts = PROMPTS[: cfg.rollout.prompts_per_step]
    for step in (1, 2):
        result = ppo_step(step, prompts, parts, cfg, StepClock())
        assert_finite_or_none(result)
        assert result.report.step == step
    assert result.report.metrics["response/trajectories"] == len(prompts)


def test_metrics_read_the_mask_that_the_losses_read(models: dict[str, Path]) -> None:
    """UX-02: whatever stands off the mask, every metric stays as it is."""
    rollout = Rollout.of(
        [
            Trajectory([1, 2, 4, 5, 9, 9, 6, 3], [False, False, True, True, False, False, True, True]),
            Trajectory([1, 7, 3], [False, True, True], StopReason.LENGTH),
        ]
    )
    rollout = replace(rollout, logp=np.where(rollout.mask, -1.0, 0.0))
    cfg, parts = build(models["gpt2"], ppo={"surrogate": "kl", "cut_off": "bootstrap"})
    give_the_critic_something_to_say(parts)
    scores = parts.reward.score(rollout)
    reading = read(rollout, parts, cfg)
    found = []
    for garbage in (0.0, 1e6, math.nan, math.inf):
        off = {
            name: np.where(rollout.mask, getattr(reading, name), garbage)
            for name in ("logp", "entropy", "values", "ref_logp")
        }
        spoilt = replace(rollout, logp=np.where(rollout.mask, rollout.logp, garbage))
        batch = estimate(spoilt, scores, replace(reading, **off), cfg, kl_coef=0.1, foreign_engine=True)
        updates = Updates((Update(0, 6, kl=0.1, policy_loss=1.0, value_loss=1.0, clip_fraction=0.5),))
        facts = StepFacts(1, spoilt, scores, {}, replace(reading, **off), batch, updates, 0.1, 1.0, False)
        metrics = report(facts, cfg, StepClock()).metrics
        found.append({k: v for k, v in metrics.items() if not k.startswith(("time/", "memory/", "throughput/"))})
    assert found[0]["policy/entropy"] == pytest.approx(float(reading.entropy[rollout.mask].mean()))
    assert found[0]["engine/effective_sample_size"] is not None
    for metrics in found[1:]:
        assert metrics == found[0]


def test_entropy_and_kl_are_those_of_the_action_tokens(models: dict[str, Path]) -> None:
    """UX-02 by hand: sampled log-probabilities -0.5 and -1.5 against a reference's -1 and -1, one row of the two."""
    rollout = make_rollout(((1,), (4, 3)), ((1, 2, 5), (3,)))
    cfg, parts = build(models["gpt2"])
    reading = read(rollout, parts, cfg)
    logp, ref_logp, entropy = (np.zeros(rollout.tokens.shape) for _ in range(3))
    logp[0, 1:3], ref_logp[0, 1:3], entropy[0, 1:3] = [-0.5, -1.5], [-1.0, -1.0], [0.8, 1.2]
    logp[1, 3], ref_logp[1, 3], entropy[1, 3] = -0.2, -0.7, 0.4
    reading = replace(reading, logp=logp, ref_logp=ref_logp, entropy=entropy)
    scores = parts.reward.score(rollout)
    batch = estimate(rollout, scores, reading, cfg, kl_coef=0.1)
    metrics = report(StepFacts(1, rollout, scores, {}, reading, batch, Updates(), 0.1, 1.0, False), cfg, StepClock())
    assert metrics.metrics["kl/reference_k1"] == pytest.approx((0.5 - 0.5 + 0.5) / 2)
    assert metrics.metrics["kl/reference_k1_per_token"] == pytest.approx(0.5 / 3)
    assert metrics.metrics["kl/reference_k3_per_token"] == pytest.approx(
        ((math.exp(-0.5) - 0.5) * 2 + math.exp(0.5) - 1.5) / 3
    )
    assert metrics.metrics["policy/entropy"] == pytest.approx(0.8)
    assert metrics.metrics["response/tokens_mean"] == 1.5


def test_the_learning_rate_of_a_step_that_stopped_is_the_one_it_used(models: dict[str, Path]) -> None:
    cfg, parts = build(models["gpt2"], ppo={"max_update_kl": 1e-9}, optim={"policy_lr": 0.05})
    metrics = run_step(parts, cfg).report.metrics
    assert metrics["policy/stopped_early"] == 1
    assert metrics["policy/updates"] == 1
    assert metrics["policy/lr"] == 0.05
