"""A step's updates against a slow, obvious twin, against the Llama oracle, and under every way of cutting a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from surefoot.config import Config
from surefoot.models import output_head
from surefoot.models.critic import SharedCritic
from surefoot.records import Rollout, StopReason, Trajectory
from surefoot.training.critic_update import cut
from surefoot.training.estimate import Batch, estimate
from surefoot.training.losses import Coefficients, Counts, share
from surefoot.training.optimizer import Optimizer
from surefoot.training.step import Parts, read
from surefoot.training.update import Updates, optimise, plan_minibatches
from tests.builders import make_config, make_parts, merged, save_gpt2, save_llama

ORACLES = Path(__file__).resolve().parents[1] / "oracles"
KL_COEF, SURROGATE_KL_COEF = 0.3, 0.7


# ------------------------------------------------------------------------------------------- the batch of all tests


def rows_of(dice: np.random.Generator, count: int = 7) -> list[Trajectory]:
    """Rows of many lengths; some with given tokens (a tool's answer) inside, one without any action token."""
    rows = []
    for i in range(count):
        given, first, tool, second = (int(dice.integers(1, n)) for n in (4, 6, 4, 4))
        mask = [False] * given + [True] * first + ([False] * tool + [True] * second if i % 3 == 1 else [])
        if i == 5:
            mask = [False] * len(mask)
        tokens = dice.integers(0, 12, len(mask)).tolist()
        rows.append(Trajectory(tokens, mask, StopReason.LENGTH if i % 2 else StopReason.EOS))
    return rows


def noisy_batch(parts: Parts, cfg: Config, rollout: Rollout, *, weights: bool = False) -> Batch:
    """Estimates whose old log-probabilities and values are off, so that ratios and values are clipped here and there.

    The noise belongs to a row's content, not to its place: a row keeps it wherever it stands.
    """
    seen = read(rollout, parts, cfg)
    noise = np.zeros((4, *rollout.tokens.shape))
    for b, trajectory in enumerate(rollout.trajectories):
        dice = np.random.default_rng(list(map(int, trajectory.tokens)))
        noise[:, b, : len(trajectory.tokens)] = dice.normal(size=(4, len(trajectory.tokens)))
    noise = np.where(rollout.mask, noise, 0.0)
    reading = replace(
        seen,
        logp=seen.logp + 0.3 * noise[0],
        values=seen.values + 0.3 * noise[1],
        ref_logp=seen.ref_logp + 0.3 * noise[2],
    )
    if weights:
        rollout = replace(rollout, logp=reading.logp + 0.6 * noise[3])
    scores = parts.reward.score(rollout)
    return estimate(rollout, scores, reading, cfg, kl_coef=0.1, foreign_engine=weights)


def record_gradients(optimizer: Optimizer) -> list[dict[str, Tensor]]:
    """Gradients of every optimizer step from now on, as they stand before clipping."""
    seen: list[dict[str, Tensor]] = []
    real = optimizer.step

    def step(loss: float) -> Any:
        named = optimizer.named.items()
        seen.append({n: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for n, p in named})
        return real(loss)

    optimizer.step = step  # type: ignore[method-assign]
    return seen


def score(actions: Sequence[int]) -> float:
    return sum(actions) / 11 - 1.0


def fresh(model: Path, sections: dict[str, Any]) -> tuple[Config, Parts]:
    """Parts of one config, the value head no longer zero so that its gradient says something."""
    cfg = make_config(model, **sections)
    parts = make_parts(cfg, score)
    head = parts.learner.critic.head.weight
    with torch.no_grad():
        head.copy_(torch.randn(head.shape, generator=torch.Generator().manual_seed(3), dtype=head.dtype) / 4)
    return cfg, parts


def coefficients() -> Coefficients:
    return Coefficients(kl=KL_COEF, surrogate_kl=SURROGATE_KL_COEF)


# --------------------------------------------------------------------------------------------------- the slow twin


def plain_forward(parts: Parts, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """[T, V] log-probabilities of what follows each token, and [T, H] states, by the library's own forward pass."""
    model = parts.learner.policy.lm.model
    model.set_attn_implementation("eager" if model.config.model_type == "gpt2" else "sdpa")
    out = model(input_ids=torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    model.set_attn_implementation("surefoot")
    return torch.log_softmax(out.logits[0], dim=-1), out.hidden_states[-1][0]


def plain_values(parts: Parts, tokens: Sequence[int], states: Tensor) -> Tensor:
    critic = parts.learner.critic
    if not isinstance(critic, SharedCritic):
        trunk: Any = critic.trunk
        trunk.set_attn_implementation("eager" if trunk.config.model_type == "gpt2" else "sdpa")
        states = trunk(input_ids=torch.tensor([list(tokens)]), use_cache=False).last_hidden_state[0]
        trunk.set_attn_implementation("surefoot")
    return states @ critic.head.weight[0]


def plain_policy_loss(log_p: Tensor, token: int, batch: Batch, at: tuple[int, int], cfg: Config) -> Tensor:
    """The policy's loss on one token, ``[V]`` log-probabilities given."""
    ppo, logp, advantage = cfg.ppo, log_p[token], float(batch.advantages[at])
    ratio = torch.exp(logp - float(batch.old_logp[at]))
    if ppo.surrogate == "kl":
        loss = -ratio * advantage + SURROGATE_KL_COEF * (ratio - 1 - torch.log(ratio))
    else:
        r = float(ratio.detach())
        flat = (advantage > 0 and r > 1 + ppo.clip_high) or (advantage < 0 and r < 1 - ppo.clip_low)
        edge = min(max(r, 1 - ppo.clip_low), 1 + ppo.clip_high)
        loss = 0 * ratio - edge * advantage if flat else -ratio * advantage
        if ppo.dual_clip is not None and advantage < 0 and r > ppo.dual_clip:
            loss = 0 * ratio - ppo.dual_clip * advantage
    if batch.weights is not None:
        loss = loss * float(batch.weights[at])
    loss = loss + ppo.entropy_coef * (log_p.exp() * log_p).sum()
    if ppo.kl.place == "loss":
        d = logp - float(batch.ref_logp[at])
        loss = loss + KL_COEF * (d**2 / 2 if ppo.kl.estimator == "k2" else torch.exp(-d) - 1 + d)
    return loss


def plain_value_loss(value: Tensor, batch: Batch, at: tuple[int, int], cfg: Config) -> Tensor:
    """The critic's loss on one token."""
    old, target, clip = float(batch.values[at]), float(batch.returns[at]), cfg.ppo.value_clip
    squared = (value - target) ** 2
    if clip is not None and abs(float(value.detach()) - old) > clip:
        edge = old + (clip if float(value.detach()) > old else -clip)
        if (edge - target) ** 2 > float(squared.detach()):
            squared = 0 * value + (edge - target) ** 2
    return squared / 2


def plain_losses(parts: Parts, cfg: Config, batch: Batch) -> tuple[Tensor, Tensor]:
    """(policy loss, value loss) of the whole batch, a token at a time, straight from the formulas."""
    policy, value = [], []
    for b, trajectory in enumerate(batch.rollout.trajectories):
        columns = [t for t in range(len(trajectory.tokens)) if batch.rollout.mask[b, t]]
        if not columns:
            continue
        log_p, states = plain_forward(parts, trajectory.tokens)
        values = plain_values(parts, trajectory.tokens, states)
        tokens = trajectory.tokens
        policy.append([plain_policy_loss(log_p[t - 1], int(tokens[t]), batch, (b, t), cfg) for t in columns])
        value.append([plain_value_loss(values[t - 1], batch, (b, t), cfg) for t in columns])

    def total(rows: list[list[Tensor]]) -> Tensor:
        if cfg.ppo.aggregate == "token-mean":
            return torch.stack([x for row in rows for x in row]).mean()
        sums = [torch.stack(row).mean() if cfg.ppo.aggregate == "sequence-mean" else sum(row) for row in rows]
        return torch.stack([torch.as_tensor(x) for x in sums]).mean()

    return total(policy), total(value)


def plain_gradients(parts: Parts, cfg: Config, batch: Batch) -> tuple[dict[str, Tensor], float, float]:
    """Gradients of all that is trained, and both losses."""
    policy, value = plain_losses(parts, cfg, batch)
    torch.autograd.backward(policy + cfg.ppo.value_coef * value)
    learner = parts.learner
    named = learner.policy.trainable() | learner.critic.trainable()
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for n, p in named.items()}
    for parameter in named.values():
        parameter.grad = None
    return gradients, float(policy.detach()), float(value.detach())


ONE_UPDATE = {"ppo": {"epochs": 1, "minibatches": 1}}
FORMS: dict[str, dict[str, Any]] = {
    "token-mean": {},
    "sequence-mean": {"ppo": {"aggregate": "sequence-mean"}},
    "sequence-sum": {"ppo": {"aggregate": "sequence-sum", "entropy_coef": 0.05, "kl": {"place": "loss"}}},
    "entropy bonus": {"ppo": {"entropy_coef": 0.3}},
    "KL as a loss, k3": {"ppo": {"kl": {"place": "loss"}}},
    "KL as a loss, k2": {"ppo": {"kl": {"place": "loss", "estimator": "k2"}, "aggregate": "sequence-mean"}},
    "surrogate kl": {"ppo": {"surrogate": "kl"}},
    "clip-higher and dual clip": {"ppo": {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.1}},
    "no value clip": {"ppo": {"value_clip": None, "value_coef": 0.1}},
    "low-rank adapters": {"model": {"lora": {"rank": 2}}},
    "a foreign engine": {},
    "sequence-sum, a foreign engine": {"ppo": {"aggregate": "sequence-sum", "entropy_coef": 0.1}},
    "surrogate kl, a foreign engine": {"ppo": {"surrogate": "kl"}},
}
CRITICS = ("separate", "shared")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {"llama": save_llama(folder / "llama", layers=2), "gpt2": save_gpt2(folder / "gpt2", layers=2)}


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize(
    ("kind", "form"),
    [("gpt2", form) for form in FORMS]
    + [("llama", form) for form in ("token-mean", "sequence-sum", "low-rank adapters")],
)
def test_losses_and_gradients_are_those_of_the_formulas(
    models: dict[str, Path], kind: str, form: str, critic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Logits of two or three tokens at a time, so that the loss is asked for its slopes piece by piece.
    monkeypatch.setattr(output_head, "CHUNK_BYTES", 1000)
    foreign = form.endswith("foreign engine")
    cfg, parts = fresh(models[kind], merged(merged(ONE_UPDATE, {"critic": {"kind": critic}}), FORMS[form]))
    batch = noisy_batch(parts, cfg, Rollout.of(rows_of(np.random.default_rng(1))), weights=foreign)
    expected, policy_loss, value_loss = plain_gradients(parts, cfg, batch)
    learner = parts.learner
    seen = record_gradients(learner.policy_optimizer)
    if learner.critic_optimizer is not None:
        seen_critic = record_gradients(learner.critic_optimizer)
    updates = optimise(learner, batch, cfg, coefficients(), step=1)
    found = seen[0] | (seen_critic[0] if learner.critic_optimizer is not None else {})
    assert found.keys() == expected.keys()
    # The library's Llama takes norms and angles in float32 whatever the dtype; test_kernels.py has the closer look.
    tolerance = 5e-6 if kind == "llama" else 1e-10
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert any(float(g.abs().max()) > 1e-3 for g in expected.values())
    critic_update = (updates.critic or updates.policy)[0]
    assert updates.policy[0].policy_loss == pytest.approx(policy_loss, abs=tolerance)
    assert critic_update.value_loss == pytest.approx(value_loss, abs=tolerance)


# --------------------------------------------------------------------------------------------------- invariances


def same_rows(rows: list[Trajectory]) -> list[Trajectory]:
    return rows


def turned(rows: list[Trajectory]) -> list[Trajectory]:
    return rows[::-1]


def with_empty_rows(rows: list[Trajectory]) -> list[Trajectory]:
    """More rows, one much longer than the others, none of which is trained on: padding and company, nothing else."""
    long = Trajectory(tokens=[3] * 40, mask=[False] * 40, stop_reason=StopReason.ENVIRONMENT)
    return [long, *rows, Trajectory(tokens=[5], mask=[False])]


Cut = tuple[dict[str, Any], Callable[[list[Trajectory]], list[Trajectory]]]
CUTS: dict[str, Cut] = {
    "a row at a time": ({"batch": {"tokens": 1, "packing": "off"}}, same_rows),
    "two or three rows, padded": ({"batch": {"tokens": 16, "packing": "off"}}, same_rows),
    "eight rows, padded": ({"batch": {"tokens": 400, "packing": "off"}}, same_rows),
    "two or three rows, packed": ({"batch": {"tokens": 16, "packing": "on"}}, same_rows),
    "all rows, packed": ({"batch": {"tokens": 400, "packing": "on"}}, same_rows),
    "rows in another order": ({"batch": {"tokens": 16, "packing": "on"}}, turned),
    "rows without action tokens around": ({"batch": {"tokens": 90, "packing": "off"}}, with_empty_rows),
}
# Several updates, one after the other. Adam's epsilon of 1 makes a step a smooth function of the gradient: with a tiny
# one it is the gradient's sign, where a rounding error can show as a whole step.
SEVERAL_UPDATES = {
    "ppo": {"epochs": 3, "minibatches": 1},
    "optim": {"eps": 1.0, "policy_lr": 0.5, "critic_lr": 0.5, "max_grad_norm": 0.5, "weight_decay": 0.01},
}


def trained_weights(model: Path, sections: dict[str, Any], rows: list[Trajectory]) -> tuple[dict[str, Tensor], Updates]:
    cfg, parts = fresh(model, sections)
    batch = noisy_batch(parts, cfg, Rollout.of(rows))
    updates = optimise(parts.learner, batch, cfg, coefficients(), step=1)
    named = parts.learner.policy.trainable() | parts.learner.critic.trainable()
    return {name: p.detach().clone() for name, p in named.items()}, updates


@pytest.mark.parametrize(
    ("kind", "form", "critic"),
    [(kind, "token-mean", critic) for kind in ("llama", "gpt2") for critic in CRITICS]
    + [("gpt2", form, "separate") for form in ("sequence-mean", "entropy bonus")]
    + [("gpt2", form, "shared") for form in ("sequence-sum", "surrogate kl")],
)
def test_no_way_of_cutting_a_batch_changes_an_update(
    models: dict[str, Path], kind: str, form: str, critic: str
) -> None:
    sections = merged(merged(SEVERAL_UPDATES, {"critic": {"kind": critic}}), FORMS[form])
    rows = rows_of(np.random.default_rng(2))
    whole = {"batch": {"tokens": 10_000, "packing": "off"}}
    expected, expected_updates = trained_weights(models[kind], merged(sections, whole), rows)
    start = fresh(models[kind], sections)[1].learner.policy.trainable()
    assert any(float((expected[n] - p.detach()).abs().max()) > 1e-3 for n, p in start.items()), (
        "the updates must move weights"
    )
    tolerance = 5e-6 if kind == "llama" else 1e-10
    for name, (batch, arrange) in CUTS.items():
        found, updates = trained_weights(models[kind], merged(sections, batch), arrange(rows))
        for parameter, value in expected.items():
            difference = float((found[parameter] - value).abs().max())
            assert difference < tolerance, f"{name}: {parameter} differs by {difference}"
        for ours, theirs in zip(
            (*updates.policy, *updates.critic), (*expected_updates.policy, *expected_updates.critic)
        ):
            for field in ("policy_loss", "value_loss", "clip_fraction", "kl", "grad_norm"):
                a, b = getattr(ours, field), getattr(theirs, field)
                assert a == b or a == pytest.approx(b, abs=tolerance), f"{name}: {field}"


def test_micro_batches_hold_the_budget_and_every_row_once(models: dict[str, Path]) -> None:
    """Without this, the invariances above could hold because nothing was ever cut."""
    for budget, packing, expected in ((1, "off", 7), (16, "on", None), (400, "on", 1)):
        cfg, parts = fresh(models["gpt2"], {"batch": {"tokens": budget, "packing": packing}})
        batch = noisy_batch(parts, cfg, Rollout.of(rows_of(np.random.default_rng(2))))
        micro = list(cut(batch, list(range(7)), parts.learner.policy.plan, torch.device("cpu")))
        assert sorted(int(r) for m in micro for r in m.rows) == list(range(7))
        assert expected is None or len(micro) == expected
        assert all(m.input_ids.numel() <= budget or len(m.rows) == 1 for m in micro)
        assert budget != 16 or 2 <= len(micro) < 7


def test_a_share_is_a_part_of_the_whole_batch_not_of_its_own_tokens(models: dict[str, Path]) -> None:
    """ALG-11 and ALG-12: (4 + 2 + 6 x 1) / 8 = 1.5 however it is cut; means of means would be 2."""
    cfg, parts = fresh(models["gpt2"], {"batch": {"tokens": 1}})
    lengths, losses = (2, 6), ([4.0, 2.0], [1.0] * 6)
    rollout = Rollout.of([Trajectory([1] * (n + 1), [False] + [True] * n) for n in lengths])
    batch = noisy_batch(parts, cfg, rollout)
    counts = Counts.of(batch, [0, 1])
    shares = {
        how: sum(
            float(share(torch.tensor(losses[int(m.rows[0])]), m, counts, how))
            for m in cut(batch, [0, 1], parts.learner.policy.plan, torch.device("cpu"))
        )
        for how in ("token-mean", "sequence-mean", "sequence-sum")
    }
    assert shares == {"token-mean": 1.5, "sequence-mean": 2.0, "sequence-sum": 6.0}


# --------------------------------------------------------------------------------------------------- minibatches


def test_every_epoch_takes_every_trained_row_once_in_an_order_of_its_own(models: dict[str, Path]) -> None:
    cfg, parts = fresh(models["gpt2"], {"ppo": {"epochs": 3, "minibatches": 4}})
    batch = noisy_batch(parts, cfg, Rollout.of(rows_of(np.random.default_rng(2), 12)))
    plan = plan_minibatches(batch, cfg, step=3)
    assert 5 not in batch.trained_rows
    for minibatches in plan:
        assert sorted(r for rows in minibatches for r in rows) == batch.trained_rows
        assert [len(rows) for rows in minibatches] == [2, 3, 3, 3]
    assert plan[0] != plan[1] != plan[2]
    assert plan == plan_minibatches(batch, cfg, step=3)
    assert plan != plan_minibatches(batch, cfg, step=4)
    other_seed = cfg.model_copy(update={"run": cfg.run.model_copy(update={"seed": 1})})
    assert plan != plan_minibatches(batch, other_seed, step=3)


def test_fewer_rows_than_minibatches_leave_no_minibatch_empty(models: dict[str, Path]) -> None:
    cfg, parts = fresh(models["gpt2"], {"ppo": {"epochs": 1, "minibatches": 4}})
    batch = noisy_batch(parts, cfg, Rollout.of(rows_of(np.random.default_rng(2), 2)))
    assert [len(rows) for rows in plan_minibatches(batch, cfg, step=1)[0]] == [1, 1]


def test_policy_and_critic_side_by_side_learn_what_they_learn_one_after_the_other(models: dict[str, Path]) -> None:
    """One thread each is what one thread is: the same bits."""
    base = {"ppo": {"epochs": 2, "minibatches": 2}}
    rows = rows_of(np.random.default_rng(3))

    def run(mode: str, threads: int) -> tuple[Updates, dict[str, Tensor]]:
        cfg, parts = fresh(models["gpt2"], merged(base, {"batch": {"side_by_side": mode}}))
        batch = noisy_batch(parts, cfg, Rollout.of(rows))
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            updates = optimise(parts.learner, batch, cfg, coefficients(), step=1)
        finally:
            torch.set_num_threads(before)
        named = parts.learner.policy.trainable() | parts.learner.critic.trainable()
        return updates, {name: p.detach().clone() for name, p in named.items()}

    apart, weights = run("off", 1)
    together, same = run("on", 2)
    assert len(together.policy) == len(together.critic) == 4
    assert (together.policy, together.critic) == (apart.policy, apart.critic)
    assert together.seconds.keys() == {"critic_train", "critic_wait"} and not apart.seconds
    assert 0 <= together.seconds["critic_wait"] < together.seconds["critic_train"]
    assert all(torch.equal(weights[name], same[name]) for name in weights)


# ------------------------------------------------------------------------------------------ the ratio's denominator


def test_old_log_probabilities_stay_those_of_the_rollout(models: dict[str, Path]) -> None:
    """ALG-19: at the second update the ratio is no longer 1, and it is that of the moved policy to the rollout's."""
    sections = {"ppo": {"epochs": 2, "minibatches": 1, "clip_low": 0.05, "clip_high": 0.05}}
    sections = merged(sections, {"optim": {"policy_lr": 0.05}})
    cfg, parts = fresh(models["gpt2"], sections)
    rollout = Rollout.of(rows_of(np.random.default_rng(2)))
    reading = read(rollout, parts, cfg)
    batch = estimate(rollout, parts.reward.score(rollout), reading, cfg, kl_coef=0.1)
    first, second = optimise(parts.learner, batch, cfg, coefficients(), step=1).policy
    assert (first.clip_fraction, first.kl) == (0.0, 0.0)

    cfg, once = fresh(models["gpt2"], merged(sections, {"ppo": {"epochs": 1}}))
    optimise(once.learner, batch, cfg, coefficients(), step=1)
    moved = once.learner.policy.evaluate(rollout).logp[rollout.mask]
    log_ratio = moved - reading.logp[rollout.mask]
    outside = (np.exp(log_ratio) < 0.95) | (np.exp(log_ratio) > 1.05)
    assert second.clip_fraction == pytest.approx(float(outside.mean())) and second.clip_fraction > 0.1
    assert second.kl == pytest.approx(float((np.exp(log_ratio) - 1 - log_ratio).mean()))


def test_updates_end_once_the_policy_has_moved_too_far(models: dict[str, Path]) -> None:
    """The minibatch that shows it is not stepped on; a critic of its own goes on."""
    base = {"optim": {"policy_lr": 0.05}, "ppo": {"epochs": 3, "minibatches": 1}}
    rows = rows_of(np.random.default_rng(2))

    def run(sections: dict[str, Any]) -> tuple[Updates, dict[str, Tensor]]:
        cfg, parts = fresh(models["gpt2"], merged(base, sections))
        rollout = Rollout.of(rows)
        batch = estimate(rollout, parts.reward.score(rollout), read(rollout, parts, cfg), cfg, kl_coef=0.1)
        updates = optimise(parts.learner, batch, cfg, coefficients(), step=1)
        return updates, {n: p.detach().clone() for n, p in parts.learner.policy.trainable().items()}

    stopped, weights = run({"ppo": {"max_update_kl": 1e-4}})
    expected = run({"ppo": {"epochs": 1}})[1]
    assert [u.stopped for u in stopped.policy] == [False, True]
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert len(stopped.critic) == 3
    free, _ = run({"ppo": {"max_update_kl": 1e9}})
    assert not any(u.stopped for u in free.policy) and len(free.policy) == 3
    gradients_left = run({"ppo": {"max_update_kl": 1e-4}, "critic": {"kind": "shared"}})
    assert [u.stopped for u in gradients_left[0].policy] == [False, True]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_shared_head_however_wrong_leaves_the_size_of_the_policys_step_alone(
    models: dict[str, Path], kind: str
) -> None:
    """A head of zeros hands no gradient down: the policy's update is the same, bit for bit, whatever the error is."""
    rows, limit = rows_of(np.random.default_rng(4)), 1e-3
    sections = {
        "critic": {"kind": "shared"},
        "ppo": {"epochs": 1, "minibatches": 1, "value_clip": None},
        "optim": {"max_grad_norm": limit},
    }

    def run(factor: float) -> tuple[dict[str, Tensor], Any]:
        cfg = make_config(models[kind], **sections)
        parts = make_parts(cfg, score)
        batch = noisy_batch(parts, cfg, Rollout.of(rows))
        batch = replace(batch, returns=batch.returns * factor)
        update = optimise(parts.learner, batch, cfg, coefficients(), step=1).policy[0]
        return {n: p.detach().clone() for n, p in parts.learner.policy.trainable().items()}, update

    (right, small), (wrong, large) = run(1.0), run(1000.0)
    assert all(torch.equal(right[name], wrong[name]) for name in right)
    assert small.grad_norm == large.grad_norm > limit
    assert large.head_grad_norm == pytest.approx(1000 * small.head_grad_norm, rel=1e-5)


# -------------------------------------------------------------------------------------------------- the Llama oracle


def oracle() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ORACLES / "llama_ppo_gradients.json").read_text(encoding="utf-8"))
    return data


def oracle_parts(variant: dict[str, Any], optimiser: dict[str, Any], epochs: int) -> tuple[Config, Parts, Batch]:
    """The oracle's loss as a config, and its batch: prompts without their padding."""
    inputs, rows, columns = oracle()["inputs"], [], []
    folder = ORACLES / "models" / "llama"
    for b, (prompt, real) in enumerate(zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)):
        given = [t for t, m in zip(prompt, real, strict=True) if m]
        length = sum(inputs["response_mask"][b])
        rows.append(Trajectory(given + inputs["response_ids"][b][:length], [False] * len(given) + [True] * length))
        columns.append((len(given), length))
    rollout = Rollout.of(rows)
    cfg = make_config(
        folder,
        rollout={"temperature": variant["temperature"]},
        critic={"kind": "shared"},
        ppo={
            "epochs": epochs,
            "minibatches": 1,
            "clip_low": variant["clip"],
            "clip_high": variant["clip"],
            "value_clip": variant["value_clip"],
            "value_coef": variant["value_coef"],
            "entropy_coef": variant["entropy_coef"],
        },
        optim={
            "policy_lr": optimiser["lr"],
            "critic_lr": optimiser["lr"],
            "weight_decay": optimiser["weight_decay"],
            "max_grad_norm": optimiser["max_grad_norm"],
        },
    )
    parts = make_parts(cfg, score, vocabulary=128)
    with torch.no_grad():
        parts.learner.critic.head.weight.copy_(load_file(folder / "value_head.safetensors")["weight"])
    # The oracle clips policy and head in one norm.
    together = parts.learner.policy.trainable() | parts.learner.critic.trainable()
    parts.learner.policy_optimizer = Optimizer(
        [(optimiser["lr"], together)], cfg.optim, total_steps=cfg.optimizer_steps, max_skipped=1
    )

    def laid_out(name: str) -> Tensor:
        out = torch.zeros(rollout.tokens.shape, dtype=torch.float64)
        for b, (start, length) in enumerate(columns):
            out[b, start : start + length] = torch.tensor(inputs[name][b][:length], dtype=torch.float64)
        return out

    batch = noisy_batch(parts, cfg, rollout)
    batch = replace(
        batch,
        old_logp=laid_out("old_logprobs" if variant["temperature"] == 1 else "old_logprobs_for_temperature_0.7"),
        advantages=laid_out("advantages"),
        values=laid_out("old_values"),
        returns=laid_out("returns"),
    )
    return cfg, parts, batch


NO_CLIPPING = {"lr": 1e-4, "weight_decay": 0.0, "max_grad_norm": None}


@pytest.mark.parametrize("budget", [1, 10_000])
@pytest.mark.parametrize("name", ["combined", "policy", "policy_entropy", "policy_temperature_0.7"])
def test_gradients_of_the_llama_are_those_of_the_oracle(name: str, budget: int) -> None:
    stored = oracle()["variants"][name]
    cfg, parts, batch = oracle_parts(stored["config"], NO_CLIPPING, 1)
    parts.learner.policy.plan = replace(parts.learner.policy.plan, tokens=budget)
    seen = record_gradients(parts.learner.policy_optimizer)
    update = optimise(parts.learner, batch, cfg, Coefficients(), step=1).policy[0]
    assert update.policy_loss is not None and update.value_loss is not None
    total = update.policy_loss + stored["config"]["value_coef"] * update.value_loss
    assert total == pytest.approx(stored["losses"]["total"], abs=1e-6)
    assert update.value_loss == pytest.approx(stored["losses"]["value"], abs=1e-6)
    assert update.grad_norm == pytest.approx(stored["global_grad_norm"], rel=1e-5)
    ours = {oracle_name(n): g for n, g in seen[0].items()}
    for parameter, gradient in stored["full_gradients"].items():
        expected = torch.tensor(gradient, dtype=torch.float64).reshape(ours[parameter].shape)
        torch.testing.assert_close(ours[parameter], expected, rtol=1e-5, atol=1e-6)
    for parameter, samples in stored["sampled_gradients"].items():
        for index, value in samples.items():
            assert float(ours[parameter].flatten()[int(index)]) == pytest.approx(value, rel=1e-5, abs=1e-6)


def oracle_name(name: str) -> str:
    return "value_head.weight" if name == "head.weight" else name


@pytest.mark.parametrize("name", ["adam_combined", "adamw_combined_clipped"])
def test_three_optimizer_steps_of_the_llama_are_those_of_the_oracle(name: str) -> None:
    stored = oracle()["optimiser_steps"][name]
    cfg, parts, batch = oracle_parts(stored["variant"], stored["optimiser"], 3)
    optimizer = parts.learner.policy_optimizer
    start = {n: p.detach().clone() for n, p in optimizer.named.items()}
    after: list[dict[str, Tensor]] = []
    real = optimizer.step

    def step(loss: float) -> Any:
        outcome = real(loss)
        after.append({n: p.detach().clone() for n, p in optimizer.named.items()})
        return outcome

    optimizer.step = step  # type: ignore[method-assign]
    updates = optimise(parts.learner, batch, cfg, Coefficients(), step=1).policy
    for update, norm in zip(updates, stored["grad_norm_before_clipping"], strict=True):
        assert update.grad_norm == pytest.approx(norm, rel=1e-5)
    for number in (1, 3):
        for parameter, norm in stored["delta_norm_after_step"][str(number)].items():
            inner = next(n for n in start if oracle_name(n) == parameter)
            delta = after[number - 1][inner] - start[inner]
            assert float(delta.norm()) == pytest.approx(norm, rel=1e-3)
        for parameter, samples in stored["sampled_parameters_after_step"][str(number)].items():
            inner = next(n for n in start if oracle_name(n) == parameter)
            for index, value in samples.items():
                assert float(after[number - 1][inner].flatten()[int(index)]) == pytest.approx(value, abs=2e-6)
        if name == "adam_combined":
            expected = load_file(ORACLES / f"llama_adam_delta_after_{number}.safetensors")
            ours = {oracle_name(n): after[number - 1][n] - start[n] for n in start}
            off = sum(float((ours[n] - d).pow(2).sum()) for n, d in expected.items())
            whole = sum(float(d.pow(2).sum()) for d in expected.values())
            assert (off / whole) ** 0.5 < 1e-3
