"""Agreement with the numbers other public PPO implementations gave on the same arrays (``tests/oracles/``).

Inputs and outputs only; which peer follows which convention is written in the files. Every group whose convention is
ours is checked; where peers part, the test names the groups that are NOT followed and, where it can, shows that they
differ, so that agreement means something. This file: estimation (GAE, whitening, rewards, the whole chain, masks). The
losses are in ``test_oracles_losses.py``.

Conventions followed: score on the last action token (verl, openrlhf, nemo_rl, ...), not one place behind it (trl_head,
torchtune's recipe, dschat); KL signed, not its absolute value (nemo_aligner's default); given tokens passed over
without decay (verl, nemo_rl), not walked through; population variance with 1e-8 added (nemo_aligner), the sample
variance being reachable by handing in its moments.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from surefoot.algo import aggregate, gae, kl, moments, shape_rewards, whiten

ORACLES = Path(__file__).parents[1] / "oracles"


def load(name):
    return json.loads((ORACLES / f"{name}.json").read_text())


def array(x):
    return torch.tensor(
        [[float(v) for v in row] for row in x] if x and isinstance(x[0], list) else x, dtype=torch.float64
    )


def boolean(x):
    return torch.tensor(x, dtype=torch.bool)


def from_lengths(lengths, width):
    return torch.arange(width)[None] < torch.tensor(lengths)[:, None]


def peer(groups, name):
    """The numbers of the group that holds exactly this peer."""
    found = [g["values"] for g in groups if name in g["peers"]]
    assert len(found) == 1, f"{name} stands in {len(found)} groups"
    return found[0]


def agrees(got, want, mask=None, tol=1e-8):
    got, want = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(want, dtype=torch.float64)
    assert got.shape == want.shape
    if mask is not None:
        assert (got[~mask] == 0).all()
        got, want = got[mask], want[mask]
    return bool(((got - want).abs() <= tol * want.abs().clamp(min=1)).all())


def sample_moments(x, mask):
    """Moments whose variance is divided by N − 1, as most peers do."""
    n, mean, variance = moments(x, mask)
    return n, mean, variance * n / (n - 1)


GAE = [(c, r) for c in load("gae")["cases"] for r in c["results"]]


@pytest.mark.parametrize(("case", "result"), GAE, ids=[f"{c['case']}-{r['gamma']}-{r['lambda']}" for c, r in GAE])
def test_gae(case, result):
    i = case["inputs"]
    mask = boolean(i["mask"])
    got = gae(array(i["rewards"]), array(i["values"]), mask, gamma=result["gamma"], lam=result["lambda"])
    ours = peer(result["groups"], "verl")
    assert ours is peer(result["groups"], "nemo_rl")
    for name, ones in zip(("advantages", "returns"), got, strict=True):
        assert agrees(ones, array(ours[name]), mask, tol=1e-12)
    for group in result["groups"]:
        if group["values"] is not ours:
            assert not agrees(got[0], array(group["values"]["advantages"]), mask, tol=1e-6)


def test_gae_oracles_tell_the_conventions_apart():
    assert max(len(r["groups"]) for _, r in GAE) == 3
    assert sum(len(r["groups"]) > 1 for _, r in GAE) == 3


WHITENING = {c["case"]: c for c in load("whitening")["cases"]}
SAMPLE = "trl_legacy masked_whiten"


@pytest.mark.parametrize("case", ["general", "small_scale", "two_valid_tokens", "batch_of_one"])
def test_whitening_by_population_and_by_sample_variance(case):
    c = WHITENING[case]
    x, mask = array(c["inputs"]["x"]), boolean(c["inputs"]["mask"])
    # nemo_aligner sums in float32.
    assert agrees(
        whiten(x, mask), array(peer(c["groups"], "nemo_aligner normalize_tensor")["whitened"]), mask, tol=1e-5
    )
    by_sample = sample_moments(x, mask)
    # Some peers of these groups add 1e-8 to a count.
    assert agrees(whiten(x, mask, moments=by_sample), array(peer(c["groups"], SAMPLE)["whitened"]), mask, tol=1e-7)
    kept = whiten(x, mask, moments=by_sample, shift_mean=False)
    assert agrees(kept, array(peer(c["groups"], f"{SAMPLE} shift_mean=False")["whitened"]), mask, tol=1e-7)
    # Not followed: the mean kept by default (torchtune), the mask ignored (trlx).
    for other in ("torchtune whiten(shift_mean=True), its default", "trlx whiten (ignores the mask, one process)"):
        if other not in next(g["peers"] for g in c["groups"] if SAMPLE in g["peers"]):
            wanted = array(peer(c["groups"], other)["whitened"])
            assert not agrees(whiten(x, mask, moments=by_sample), wanted, mask, tol=1e-6)


def test_whitening_epsilon_is_added_to_the_variance_not_a_floor_of_it():
    # With values of 3e-5 the two rules part: openrlhf takes max(variance, 1e-8).
    c = WHITENING["small_scale"]
    x, mask = array(c["inputs"]["x"]), boolean(c["inputs"]["mask"])
    assert not agrees(
        whiten(x, mask), array(peer(c["groups"], "openrlhf (statistics in float32)")["whitened"]), mask, 1e-3
    )
    c = WHITENING["general"]
    x, mask = array(c["inputs"]["x"]), boolean(c["inputs"]["mask"])
    assert agrees(whiten(x, mask), array(peer(c["groups"], "openrlhf (statistics in float32)")["whitened"]), mask, 1e-5)


def test_whitening_a_row_at_a_time_is_openrlhfs_per_row_rule():
    c = WHITENING["general"]
    want = array(peer(c["groups"], "openrlhf masked_normalize(dim=1): per row, not per batch")["whitened"])
    for x, mask, row in zip(array(c["inputs"]["x"]), boolean(c["inputs"]["mask"]), want, strict=True):
        if mask.sum() > 1:
            assert agrees(whiten(x[None], mask[None]), row[None], mask[None], tol=1e-5)


def test_whitening_without_the_mask_is_trlx():
    c = WHITENING["general"]
    x, mask = array(c["inputs"]["x"]), boolean(c["inputs"]["mask"])
    everything = sample_moments(x, torch.ones_like(mask))
    want = array(peer(c["groups"], "trlx whiten (ignores the mask, one process)")["whitened"])
    assert agrees(whiten(x, mask, moments=everything), want, mask)


def test_whitening_of_equal_values_is_exactly_zero_where_peers_divide_rounding_noise():
    c = WHITENING["constant"]
    x, mask = array(c["inputs"]["x"]), boolean(c["inputs"]["mask"])
    assert (whiten(x, mask) == 0).all()
    assert agrees(whiten(x, mask), array(peer(c["groups"], "nemo_aligner normalize_tensor")["whitened"]), mask, tol=0)
    kept = whiten(x, mask, shift_mean=False)
    assert agrees(kept, array(peer(c["groups"], "trl_head masked_whiten shift_mean=False")["whitened"]), mask, tol=0)


def test_whitening_one_token_follows_no_peer():
    # An error in verl, nan in trl and torchtune, 0 or nearly 0 in the others; ours is left as it is.
    c = WHITENING["one_valid_token"]
    x, mask = array(c["inputs"]["x"]), boolean(c["inputs"]["mask"])
    assert whiten(x, mask)[mask].tolist() == x[mask].tolist()


REWARDS = load("rewards")["cases"]


@pytest.mark.parametrize("case", REWARDS, ids=[f"{c['kl_estimator']}-{c['beta']}-{c['score_clip']}" for c in REWARDS])
def test_rewards(case):
    i = case["inputs"]
    logp, ref = array(i["logprobs"]), array(i["ref_logprobs"])
    mask = from_lengths(i["lengths"], logp.shape[1])
    per_token = kl(logp, ref, case["kl_estimator"])
    settings = {"kl_coef": case["beta"], "clip_score": case["score_clip"]}
    got = shape_rewards(array(i["scores"]), per_token, mask, **settings)
    ours = peer(case["groups"], "verl")
    assert ours is peer(case["groups"], "openrlhf")
    assert agrees(got, array(ours["rewards"]), mask, tol=5e-7)  # openrlhf and areal hold the KL in float32
    assert aggregate(per_token, mask, "sequence-mean").item() == pytest.approx(case["verl_current_kl"], abs=1e-7)
    for group in case["groups"]:
        if "nemo_aligner use_absolute_kl=True (function default)" in group["peers"]:
            absolute = shape_rewards(array(i["scores"]), per_token.abs(), mask, **settings)
            assert agrees(absolute, array(group["values"]["rewards"]), mask, tol=5e-7)
        elif group["values"] is not ours:
            # trl_head, dschat and torchtune's recipe put the score one place further.
            assert not agrees(got, array(group["values"]["rewards"]), mask, tol=1e-3)


CHAIN = load("rollout_to_advantages")["cases"]


@pytest.mark.parametrize("case", CHAIN, ids=[f"{c['beta']}-{c['gamma']}-{c['lambda']}" for c in CHAIN])
def test_from_log_probabilities_to_whitened_advantages(case):
    i = case["inputs"]
    logp, values, scores = array(i["logprobs"]), array(i["values"]), array(i["scores"])
    mask = from_lengths(i["lengths"], logp.shape[1])
    rewards = shape_rewards(scores, kl(logp, array(i["ref_logprobs"])), mask, kl_coef=case["beta"])
    discounts = {"gamma": case["gamma"], "lam": case["lambda"]}
    advantages, returns = gae(rewards, values, mask, **discounts)
    for name, used, tol in (
        ("nemo_aligner use_absolute_kl=False", moments(advantages, mask), 1e-5),
        ("openrlhf (float32 KL and statistics)", moments(advantages, mask), 1e-5),
        ("verl", sample_moments(advantages, mask), 1e-7),
        ("nemo_rl", sample_moments(advantages, mask), 1e-7),
        ("trl_legacy", sample_moments(advantages, mask), 1e-7),
    ):
        want = peer(case["groups"], name)
        assert boolean(want["policy_mask"]).equal(mask) and boolean(want["value_mask"]).equal(mask)
        for ours, theirs in (
            (rewards, "rewards"),
            (returns, "returns"),
            (whiten(advantages, mask, moments=used), "advantages"),
        ):
            assert agrees(ours, array(want[theirs]), mask, tol=tol), f"{name} {theirs}"
    # areal divides by the standard deviation plus 1e-5: its rewards and returns are ours, its advantages nearly.
    want = peer(case["groups"], "areal nobody_truncated")
    assert agrees(rewards, array(want["rewards"]), mask, tol=1e-6) and agrees(
        returns, array(want["returns"]), mask, tol=1e-6
    )
    by_sample = whiten(advantages, mask, moments=sample_moments(advantages, mask))
    assert agrees(by_sample, array(want["advantages"]), mask, tol=1e-4)
    # Its bootstrap of the row that fills the width.
    name = "areal row0_truncated (row 0 fills the width: bootstrapped with V(last state)=0.4321)"
    after = torch.zeros(len(mask), dtype=torch.float64)
    after[0] = 0.4321
    advantages, cut = gae(rewards, values, mask, **discounts, bootstrap=after)
    assert agrees(cut, array(peer(case["groups"], name)["returns"]), mask, tol=1e-6)
    for other in ("trl_head", "torchtune (recipe chain)", "trl_legacy whiten_rewards", "trl_head whiten_rewards"):
        assert not agrees(returns, array(peer(case["groups"], other)["returns"]), mask, tol=1e-3), other


def test_the_score_sits_on_the_end_token_of_masks_made_from_lengths():
    d = load("response_masks")
    ids, eos = torch.tensor(d["inputs"]["response_ids"]), d["eos"]
    first_end = [row.index(eos) + 1 if eos in row else len(row) for row in ids.tolist()]
    mask = from_lengths(first_end, ids.shape[1])
    for name in ("verl get_response_mask", "torchtune: not padding_mask"):
        assert boolean(d["masks"][name]).equal(mask)
    rewards = shape_rewards(torch.ones(len(ids)), torch.zeros(ids.shape), mask, kl_coef=1.0)
    assert rewards.argmax(1).tolist() == [length - 1 for length in first_end]
    assert all(ids[b, t] == eos for b, t in enumerate(rewards.argmax(1).tolist()) if eos in ids[b])
    # Not followed: a mask from token identity, which leaves the end token out when padding equals it.
    part = boolean(d["masks"]["trl_head policy mask when pad == eos"])
    moved = shape_rewards(torch.ones(len(ids)), torch.zeros(ids.shape), part, kl_coef=1.0)
    assert [b for b in range(len(ids)) if not moved[b].equal(rewards[b])] == [1, 2, 3, 4, 5]


def test_no_group_was_read_as_nan():
    assert all(
        math.isfinite(v) for c in REWARDS for v in array(peer(c["groups"], "verl")["rewards"]).flatten().tolist()
    )
