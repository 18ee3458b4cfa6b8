"""The mathematics of PPO for language models: pure functions on tensors.

Per-token arrays are ``[B, T]`` (B trajectories, T tokens of the longest); column t speaks about token t; a mask is
boolean and True on action tokens. Statistics are taken in float32 at least; float64 stays float64. Whatever stands off
the mask (NaN and infinity included) changes no result and no gradient. This package knows no models, devices, ranks or
files.

Three conventions hold throughout:

* what is a target or a weight (advantages, returns, shaped rewards, importance weights) comes back without a graph;
* a loss over an empty mask is 0 and still connected to its input, so that every rank can call backward;
* a statistic that is not defined is ``nan``; callers write it as null.
"""

from surefoot.algo.advantages import gae
from surefoot.algo.aggregation import aggregate
from surefoot.algo.controllers import AdaptiveKL, AdaptivePenalty, FixedKL
from surefoot.algo.diagnostics import clip_fraction, effective_sample_size, explained_variance, zero_gradient_fraction
from surefoot.algo.divergence import kl
from surefoot.algo.importance import importance_weights
from surefoot.algo.logits import entropy, token_logp
from surefoot.algo.losses import kl_policy_loss, policy_loss, value_loss
from surefoot.algo.mean_variance import Moments, merge_moments, moments
from surefoot.algo.preference import preference_loss
from surefoot.algo.shaping import shape_rewards
from surefoot.algo.whitening import whiten

__all__ = [
    "AdaptiveKL",
    "AdaptivePenalty",
    "FixedKL",
    "Moments",
    "aggregate",
    "clip_fraction",
    "effective_sample_size",
    "entropy",
    "explained_variance",
    "gae",
    "importance_weights",
    "kl",
    "kl_policy_loss",
    "merge_moments",
    "moments",
    "policy_loss",
    "preference_loss",
    "shape_rewards",
    "token_logp",
    "value_loss",
    "whiten",
    "zero_gradient_fraction",
]
