"""What holds for the whole package: its names, its signatures, its docstrings, and that nothing is changed in place."""

from __future__ import annotations

import inspect
import itertools
import math
import subprocess
import sys

import pytest
import torch

from surefoot import algo

SIGNATURES = {
    "gae": "rewards, values, mask, *, gamma=1.0, lam=0.95, bootstrap=None",
    "whiten": "x, mask, *, shift_mean=True, moments=None",
    "kl": "logp, ref_logp, estimator='k1'",
    "shape_rewards": "scores, kl, mask, *, kl_coef, step_rewards=None, clip_score=None",
    "policy_loss": "logp, old_logp, advantages, *, clip_low=0.2, clip_high=0.2, dual_clip=None",
    "kl_policy_loss": "logp, old_logp, advantages, *, coef",
    "value_loss": "values, old_values, returns, *, clip=0.2",
    "entropy": "logits",
    "token_logp": "logits, tokens, *, temperature=1.0",
    "importance_weights": "train_logp, engine_logp, *, cap=2.0",
    "aggregate": "x, mask, how='token-mean', *, count=None",
    "preference_loss": "chosen, rejected, *, margin=None, centering=0.0",
    "explained_variance": "values, returns, mask",
    "clip_fraction": "logp, old_logp, mask, *, clip_low=0.2, clip_high=0.2, count=None",
    "zero_gradient_fraction": "logp, old_logp, advantages, mask, *, clip_low=0.2, clip_high=0.2, dual_clip=None",
    "effective_sample_size": "weights, mask",
    "moments": "x, mask",
    "merge_moments": "parts",
    "AdaptiveKL": "coef, target, horizon",
    "AdaptivePenalty": "coef, target",
    "FixedKL": "coef",
}


def bare(signature):
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))[1:-1]


@pytest.mark.parametrize("name", SIGNATURES)
def test_callers_can_rely_on_the_signature(name):
    assert bare(inspect.signature(getattr(algo, name))) == SIGNATURES[name]


def test_public_names_are_exactly_these():
    assert sorted(algo.__all__) == sorted([*SIGNATURES, "Moments"])
    assert all(hasattr(algo, name) for name in algo.__all__)


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name != "FixedKL"])
def test_docstrings_give_formula_arguments_and_result(name):
    text = inspect.getdoc(getattr(algo, name))
    assert "::" in text and "Args:" in text
    if name[0].islower():
        assert "Returns:" in text
    if name not in ("moments", "token_logp"):
        assert "Source:" in text


def test_importing_the_package_loads_no_model_library():
    code = "import sys, surefoot.algo; print([m for m in ('transformers', 'peft', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_inputs_are_never_changed_in_place(batch, poisoned):
    b = batch(7)
    tensors = {
        name: poisoned(x, b.mask, 1) for name, x in vars(b).items() if name in ("logp", "old_logp", "advantages")
    }
    tensors |= {"mask": b.mask, "scores": b.scores, "logits": torch.stack([b.logp, b.values], -1)}
    before = {name: x.clone() for name, x in tensors.items()}
    logp, old, advantages, mask = (tensors[n] for n in ("logp", "old_logp", "advantages", "mask"))
    algo.gae(logp, old, mask, bootstrap=tensors["scores"])
    algo.whiten(logp, mask)
    algo.shape_rewards(tensors["scores"], logp, mask, kl_coef=0.1, step_rewards=old, clip_score=0.1)
    algo.policy_loss(logp, old, advantages, dual_clip=2.0)
    algo.kl_policy_loss(logp, old, advantages, coef=1.0)
    algo.value_loss(logp, old, advantages)
    algo.kl(logp, old, "k3")
    algo.importance_weights(logp, old)
    algo.entropy(tensors["logits"])
    algo.token_logp(tensors["logits"], torch.zeros_like(mask, dtype=torch.long), temperature=0.5)
    algo.aggregate(logp, mask)
    algo.explained_variance(logp, old, mask)
    for name, x in tensors.items():
        assert torch.equal(x.nan_to_num(nan=12345.0), before[name].nan_to_num(nan=12345.0)), name


LARGEST = torch.finfo(torch.float32).max
KINDS = (math.nan, math.inf, -math.inf, LARGEST, -LARGEST, LARGEST / 2, 1.9e19, -1.9e19, 89.0, -89.0, 20.5, 0.5, 0.0)
PER_TOKEN = {
    "policy_loss": lambda a, b, c: algo.policy_loss(a, b, c),
    "policy_loss, dual clip": lambda a, b, c: algo.policy_loss(a, b, c, dual_clip=3.0),
    "kl_policy_loss": lambda a, b, c: algo.kl_policy_loss(a, b, c, coef=1.0),
    "value_loss": lambda a, b, c: algo.value_loss(a, b, c),
    "value_loss, no clip": lambda a, b, c: algo.value_loss(a, b, c, clip=None),
    "k1": lambda a, b, c: algo.kl(a, b, "k1"),
    "k2": lambda a, b, c: algo.kl(a, b, "k2"),
    "k3": lambda a, b, c: algo.kl(a, b, "k3"),
    "weighted": lambda a, b, c: algo.importance_weights(b, c, cap=math.inf) * algo.policy_loss(a, b, c),
}


@pytest.mark.parametrize("name", PER_TOKEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_no_combination_of_garbage_off_the_mask_sends_a_gradient(name, dtype):
    garbage = torch.tensor(list(itertools.product(KINDS, repeat=3))).to(dtype)
    first, second, third = torch.nn.functional.pad(garbage, (0, 0, 1, 0), value=-0.3).T[:, None]
    x = first.clone().requires_grad_()
    mask = torch.zeros_like(x, dtype=torch.bool)
    mask[0, 0] = True
    for how in ("token-mean", "sequence-sum"):
        total = algo.aggregate(PER_TOKEN[name](x, second, third), mask, how)
        (grad,) = torch.autograd.grad(total, x)
        assert total.isfinite() and grad[0, 0].isfinite()
        spoiled = (grad[0, 1:] != 0).nonzero().flatten().tolist()
        assert not spoiled, garbage[spoiled[0]].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 3.0])
def test_no_combination_of_garbage_logits_sends_a_gradient(dtype, temperature):
    logits = torch.tensor(list(itertools.product(KINDS, repeat=3))).to(dtype).requires_grad_()
    for token in range(3):
        tokens = torch.full(logits.shape[:1], token)
        read = algo.token_logp(logits, tokens, temperature=temperature) + algo.entropy(logits)
        (grad,) = torch.autograd.grad(torch.where(torch.zeros_like(tokens, dtype=torch.bool), read, 0.0).sum(), logits)
        assert (grad == 0).all()
