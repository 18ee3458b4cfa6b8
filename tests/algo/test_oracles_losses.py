"""Agreement with other public PPO implementations on the same arrays: losses, KL, logits, weights, preferences.

Conventions followed: rows without an action token are left out of the sequence forms (verl, openrlhf), the other
denominators (nemo_rl, TRL) being reachable through ``count``; log ratio clamped to ±20 (verl, openrlhf); dual clip off
unless asked for (openrlhf), not always on (verl); nothing valid: 0 (areal, torchtune, nemo_rl), not nan; KL never
clamped (trl, areal and nemo_rl with their clamps off), not cut at ±10; truncated token weights (verl token, openrlhf,
nemo_rl tis), not zeroed or clamped from below, not per sequence.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from surefoot.algo import (
    AdaptiveKL,
    aggregate,
    clip_fraction,
    effective_sample_size,
    entropy,
    importance_weights,
    kl,
    policy_loss,
    preference_loss,
    token_logp,
    value_loss,
    zero_gradient_fraction,
)
from surefoot.errors import ConfigError

ORACLES = Path(__file__).parents[1] / "oracles"
FORM = {
    "token-mean": "token-mean",
    "seq-mean-token-mean": "sequence-mean",
    "seq-mean-token-sum": "sequence-sum",
    "seq-mean-token-sum-norm": "sequence-sum",
}


def load(name):
    return json.loads((ORACLES / f"{name}.json").read_text())


def array(x):
    return torch.tensor([[float(v) for v in row] for row in x] if isinstance(x[0], list) else x, dtype=torch.float64)


def boolean(x):
    return torch.tensor(x, dtype=torch.bool)


def agrees(got, want, tol=1e-8):
    got, want = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(want, dtype=torch.float64)
    assert got.shape == want.shape
    return bool(((got - want).abs() <= tol * want.abs().clamp(min=1)).all())


def group_of(groups, *names):
    """The numbers of the one group that holds a peer whose description starts with one of the names."""
    found = [g["values"] for g in groups if any(p.startswith(names) for p in g["peers"])]
    assert len(found) == 1
    return found[0]


POLICY = load("policy_loss")


def policy_inputs(case):
    i = POLICY[case["inputs"]] if isinstance(case["inputs"], str) else case["inputs"]
    tensors = [array(i[name]) for name in ("logprobs", "old_logprobs", "advantages")]
    return tensors[0].requires_grad_(), tensors[1], tensors[2], boolean(i["mask"])


def counts(case, mask):
    """(count to hand in, peers that use it) for each denominator in use."""
    rows, width = mask.shape
    if case["aggregation"].endswith("norm"):
        # verl divides by the width, once; TRL by rows and width.
        return [(width, ("verl",)), (rows * width, ("trl_installed",))]
    if case["case"] == "fully_masked_row" and case["aggregation"] != "token-mean":
        return [(None, ("verl",)), (rows, ("trl_installed",))]
    return [(None, ("nemo_rl",) if case["case"] == "everything_masked" else ("verl",))]


@pytest.mark.parametrize(
    "case",
    POLICY["cases"],
    ids=lambda c: f"{c['case']}-{c['aggregation']}-{c['clip_low']}-{c['clip_high']}-{c['dual_clip']}",
)
def test_policy_loss_and_gradient(case):
    logp, old, advantages, mask = policy_inputs(case)
    clips = {"clip_low": case["clip_low"], "clip_high": case["clip_high"]}
    checked = 0
    for count, names in counts(case, mask):
        wanted = [g["values"] for g in case["groups"] if any(p.startswith(names) for p in g["peers"])]
        if not wanted:
            continue  # TRL's form was not recorded with this clip
        per_token = policy_loss(logp, old, advantages, **clips, dual_clip=case["dual_clip"])
        loss = aggregate(per_token, mask, FORM[case["aggregation"]], count=count)
        (grad,) = torch.autograd.grad(loss, logp)
        assert agrees(loss.detach(), wanted[0]["loss"])
        assert agrees(grad, array(wanted[0]["grad_logprobs"]))
        checked += 1
    assert checked


REPORTED = [c for c in POLICY["cases"] if c["case"] != "everything_masked" and "openrlhf" in c["reported_metrics"]]


@pytest.mark.parametrize(
    "case", REPORTED, ids=lambda c: f"{c['case']}-{c['aggregation']}-{c['clip_high']}-{c['dual_clip']}"
)
def test_policy_metrics_as_peers_report_them(case):
    logp, old, advantages, mask = policy_inputs(case)
    logp = logp.detach()
    clips = {"clip_low": case["clip_low"], "clip_high": case["clip_high"]}
    reported = case["reported_metrics"]
    # Their clip fraction is the share of tokens where the clipped branch was strictly worse.
    silenced = zero_gradient_fraction(logp, old, advantages, mask, **clips).item()
    assert silenced == pytest.approx(reported["openrlhf"]["clip_fraction"], abs=1e-7)
    assert clip_fraction(logp, old, mask, **clips).item() >= silenced
    if "areal" in reported and case["dual_clip"]:
        both = zero_gradient_fraction(logp, old, advantages, mask, **clips, dual_clip=case["dual_clip"]).item()
        assert both - silenced == pytest.approx(reported["areal"]["dual_clip_fraction"], abs=1e-7)
    # openrlhf reports the mean of old − new, which has the other sign.
    assert -aggregate(kl(logp, old), mask).item() == pytest.approx(reported["openrlhf"]["approx_kl_reported"], abs=1e-7)
    if "trl_legacy" in reported:
        half_square = reported["trl_legacy"]["approx_kl_reported_half_square_masked"]
        assert aggregate(kl(logp, old, "k2"), mask).item() == pytest.approx(half_square, abs=1e-7)


def test_nothing_valid_reports_a_clip_fraction_of_zero():
    case = next(c for c in POLICY["cases"] if c["case"] == "everything_masked" and "areal" in c["reported_metrics"])
    logp, old, _, mask = policy_inputs(case)
    assert clip_fraction(logp, old, mask).item() == case["reported_metrics"]["areal"]["clip_fraction"] == 0


@pytest.mark.parametrize("result", POLICY["micro_batches"]["results"], ids=lambda r: r["aggregation"])
def test_micro_batches(result):
    d = POLICY["micro_batches"]
    x, mask, h = array(d["loss_matrix"]), boolean(d["mask"]), d["h"]
    how = FORM[result["aggregation"]]
    count = int(mask.sum()) if how == "token-mean" else int(mask.any(1).sum())
    parts = [aggregate(x[rows], mask[rows], how, count=count).item() for rows in (slice(0, h), slice(h, None))]
    assert parts == pytest.approx(result["verl_parts"], abs=1e-8)
    assert sum(parts) == pytest.approx(result["full"], abs=1e-8)
    assert aggregate(x, mask, how).item() == pytest.approx(result["full"], abs=1e-8)
    if how == "token-mean":
        local = sum(aggregate(x[rows], mask[rows], how).item() for rows in (slice(0, h), slice(h, None))) / 2
        wrong = result["mean_of_micro_batch_means (wrong when token counts differ)"]
        assert local == pytest.approx(wrong, abs=1e-8) and local != pytest.approx(result["full"], abs=1e-3)


def test_unfinished_rows_leave_loss_and_entropy_when_their_mask_is_cleared():
    d = POLICY["nemo_aligner_is_end"]
    i = d["inputs"]
    mask = boolean(i["mask"]) & (torch.tensor(i["is_end"]) > 0)[:, None]
    loss = policy_loss(array(i["logprobs"]), array(i["old_logprobs"]), array(i["advantages"]))
    h = entropy(torch.tensor(i["logits"], dtype=torch.float64)[:, :-1])
    assert d["entropy_bonus"] * aggregate(h, mask).item() == pytest.approx(d["scaled_entropy"], abs=1e-7)
    assert aggregate(loss - d["entropy_bonus"] * h, mask).item() == pytest.approx(d["loss"], abs=1e-7)


@pytest.mark.parametrize("case", load("value_loss")["cases"], ids=lambda c: str(c["value_clip"]))
@pytest.mark.parametrize(
    ("how", "name"), [("token-mean", "openrlhf"), ("sequence-mean", "openrlhf token_level_loss=False")]
)
def test_value_loss_and_gradient(case, how, name):
    i = load("value_loss")["inputs"]
    values = array(i["values"]).requires_grad_()
    per_token = value_loss(values, array(i["old_values"]), array(i["returns"]), clip=case["value_clip"])
    loss = aggregate(per_token, boolean(i["mask"]), how)
    loss.backward()
    (want,) = [g["values"] for g in case["groups"] if name in g["peers"]]
    assert agrees(loss.detach(), want["loss"], tol=1e-7)
    assert agrees(values.grad, array(want["grad_values"]), tol=1e-7)


KL = load("kl")


@pytest.mark.parametrize("case", KL["cases"], ids=lambda c: f"{c['case']}-{c['estimator']}")
def test_kl_and_gradient_ordinary_and_extreme(case):
    logp, ref = array(case["inputs"]["logprobs"]).requires_grad_(), array(case["inputs"]["ref_logprobs"])
    if case["estimator"] not in ("k1", "k2", "k3"):
        with pytest.raises(ConfigError):
            kl(logp, ref, case["estimator"])
        return
    got = kl(logp, ref, case["estimator"])
    got.sum().backward()
    want = group_of(case["groups"], "areal apply_clamp=False")
    assert agrees(got.detach(), array(want["kl"]), tol=1e-6)  # areal holds it in float32
    assert agrees(logp.grad, array(want["grad_logprobs"]), tol=1e-6)
    if case["case"] == "extreme":
        assert not agrees(got.detach(), array(group_of(case["groups"], "openrlhf")["kl"]), tol=0.1)


def test_kl_given_to_the_controller_by_every_rule():
    d = KL["kl_given_to_the_controller"]
    i = d["inputs"]
    per_token, mask = kl(array(i["logprobs"]), array(i["ref_logprobs"])), boolean(i["mask"])
    for how, name in (
        ("sequence-sum", "trl_legacy: mean over sequences of the token SUM (objective/kl)"),  # ours
        ("sequence-mean", "verl: mean over sequences of the token mean"),
        ("sequence-mean", "openrlhf, KL in the reward: mean over sequences of the token mean"),
        ("token-mean", "openrlhf, KL as a loss: token mean over the batch"),
    ):
        assert aggregate(per_token, mask, how).item() == pytest.approx(d[name], abs=1e-7)


@pytest.mark.parametrize("sequence", KL["adaptive_controller"]["sequences"], ids=lambda s: str(s["initial"]))
def test_adaptive_controller(sequence):
    controller = AdaptiveKL(sequence["initial"], sequence["target"], sequence["horizon"])
    seen = []
    for value in sequence["kl"]:
        controller.update(value, sequence["n_steps"])
        seen.append(controller.coef)
    assert seen == pytest.approx(sequence["coefficient_after_each_update"][0]["values"]["values"], rel=1e-12)


LOGITS = load("entropy_logprobs")


@pytest.mark.parametrize("case", LOGITS["cases"], ids=lambda c: str(c["temperature"]))
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_entropy_and_log_probabilities_and_gradients(case, offset):
    logits = (torch.tensor(LOGITS["inputs"]["logits"], dtype=torch.float64) + offset).requires_grad_()
    labels, mask, t = torch.tensor(LOGITS["inputs"]["labels"]), boolean(LOGITS["inputs"]["mask"]), case["temperature"]
    h, logp = entropy(logits / t), token_logp(logits, labels, temperature=t)
    want = group_of(case["groups"], "openrlhf")
    tol = 1e-10 if offset == 0 else 1e-8
    assert agrees(logp.detach(), array(want["logprobs"]), tol) and agrees(h.detach(), array(want["entropy"]), tol)
    for name, how in FORM.items():
        if name in case["aggregated_entropy"]:
            got = aggregate(h, mask, how).item()
            assert got == pytest.approx(case["aggregated_entropy"][name], abs=1e-7)
    (grad,) = torch.autograd.grad(aggregate(h, mask), logits, retain_graph=True)
    assert agrees(grad, torch.tensor(case["grad_token_mean_entropy_wrt_logits"], dtype=torch.float64), tol)
    (grad,) = torch.autograd.grad(torch.where(mask, logp, 0.0).sum(), logits)
    assert agrees(grad, torch.tensor(case["grad_sum_logprobs_wrt_logits"], dtype=torch.float64), tol)


TIS = load("importance_correction")
CORRECTED = [
    ("token weight truncated above (TIS): w = min(exp(old-rollout), u)", 2.0, "token-mean", 1e-8),
    ("decoupled PPO, weight exp(proximal-behaviour) not bounded", math.inf, "token-mean", 1e-6),
    (
        "areal without a rejection_sampling config: NO behaviour weight at all, plain PPO around the proximal policy",
        None,
        "token-mean",
        1e-6,
    ),
    ("per-sample mean instead of token mean, TIS [0,u]", 2.0, "sequence-mean", 1e-7),
]


def tis_inputs():
    i = TIS["inputs"]
    names = ("logprobs", "old_logprobs", "rollout_logprobs", "advantages")
    return *(array(i[name]) for name in names), boolean(i["mask"])


@pytest.mark.parametrize(("what", "cap", "how", "tol"), CORRECTED, ids=[c[0][:40] for c in CORRECTED])
def test_importance_corrected_losses_and_gradients(what, cap, how, tol):
    logp, old, engine, advantages, mask = tis_inputs()
    (case,) = [c for c in TIS["losses"] if c["what"] == what]
    (group,) = case["groups"]
    logp.requires_grad_()
    weights = 1.0 if cap is None else importance_weights(old, engine, cap=cap)
    loss = aggregate(weights * policy_loss(logp, old, advantages), mask, how)
    loss.backward()
    assert agrees(loss.detach(), group["values"]["loss"], tol)
    assert agrees(logp.grad, array(group["values"]["grad_logprobs"]), tol)


def test_other_corrections_give_other_losses():
    logp, old, engine, advantages, mask = tis_inputs()
    ours = aggregate(importance_weights(old, engine) * policy_loss(logp, old, advantages), mask).item()
    others = [c for c in TIS["losses"] if c["what"] not in [row[0] for row in CORRECTED]]
    assert len(others) == 8
    assert all(abs(ours - g["values"]["loss"]) > 1e-2 for c in others for g in c["groups"])


def test_importance_weights_and_their_metrics():
    _, old, engine, _, mask = tis_inputs()
    got = torch.where(mask, importance_weights(old, engine, cap=2.0), 0.0)
    verl = next(w for w in TIS["weights"] if w["peer"] == "verl" and w["level"] == "token" and not w["batch_normalize"])
    trl = next(w for w in TIS["weights"] if w.get("mode") == "token_truncate" and w["min"] is None)
    for case in (verl, trl):
        assert agrees(got, torch.where(mask, array(case["weights"]), 0.0))
    # verl clamps from below too before it takes this one.
    clamped = importance_weights(old, engine, cap=2.0).clamp(min=0.5)
    assert effective_sample_size(clamped, mask).item() == pytest.approx(
        verl["metrics"]["rollout_is_eff_sample_size"], abs=1e-6
    )
    untruncated = aggregate(importance_weights(old, engine, cap=math.inf), mask).item()
    assert untruncated == pytest.approx(verl["metrics"]["rollout_is_mean"], abs=1e-6)


def test_the_gap_between_engine_and_trainer_as_verl_measures_it():
    _, old, engine, _, mask = tis_inputs()
    metrics = TIS["offpolicy_metrics_verl"]
    assert aggregate(kl(engine, old), mask).item() == pytest.approx(metrics["kl"], abs=1e-7)
    assert aggregate(kl(engine, old, "k3"), mask).item() == pytest.approx(metrics["k3_kl"], abs=1e-7)
    assert aggregate(-old, mask, "sequence-mean").item() == pytest.approx(metrics["training_log_ppl"], abs=1e-6)
    assert aggregate(-engine, mask, "sequence-mean").item() == pytest.approx(metrics["rollout_log_ppl"], abs=1e-6)


@pytest.mark.parametrize(
    "case", load("reward_model")["cases"], ids=lambda c: f"{c['case']}-{c['uses_margin']}-{c['centre']}"
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_preference_loss_and_gradients(case, dtype):
    i = case["inputs"]
    chosen, rejected, margin = (torch.tensor(i[name], dtype=dtype) for name in ("chosen", "rejected", "margin"))
    chosen.requires_grad_(), rejected.requires_grad_()
    loss = preference_loss(chosen, rejected, margin=margin if case["uses_margin"] else None, centering=case["centre"])
    loss.backward()
    want, tol = group_of(case["groups"], "trl_installed"), 1e-7 if dtype is torch.float64 else 2e-6
    assert agrees(loss.detach(), want["loss"], tol)
    assert agrees(chosen.grad, array(want["grad_chosen"]), tol) and agrees(
        rejected.grad, array(want["grad_rejected"]), tol
    )
