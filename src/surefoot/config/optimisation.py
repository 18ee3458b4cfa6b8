"""The sections of a config that say how the policy and the critic are updated. Torch-free."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from surefoot.config.sections import Natural, Positive, PositiveFloat, Section, Share


class KLSection(Section):
    """The pull towards the reference."""

    coef: Annotated[float, Field(ge=0)] = 0.05
    """Coefficient (the initial one, when adaptive)."""
    place: Literal["reward", "loss"] = "reward"
    """`reward`: a per-token penalty (k1); `loss`: a differentiable term (k3)."""
    estimator: Literal["k1", "k2", "k3"] | None = None
    """Null: k1 in the reward, k3 in the loss. k2 and k3 as rewards are biased and refused."""
    controller: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive`: the coefficient follows a target KL per trajectory (Ziegler et al. 2019)."""
    target: PositiveFloat | None = None
    """Adaptive: target KL in nats per trajectory."""
    horizon: PositiveFloat | None = None
    """Adaptive: trajectories over which the coefficient adapts."""

    @property
    def used_estimator(self) -> Literal["k1", "k2", "k3"]:
        """The estimator in use."""
        return self.estimator or ("k1" if self.place == "reward" else "k3")

    @model_validator(mode="after")
    def _sound(self) -> KLSection:
        if self.place == "reward" and self.used_estimator != "k1":
            raise ValueError(
                f"{self.estimator} as a reward is biased: its gradient is not that of the KL, and the optimum moves "
                "(measured total variation 0.27 to 0.77 to the right optimum, against 0.01 with k1); "
                "hint: estimator: k1, or place: loss for a differentiable k3"
            )
        if self.place == "loss" and self.used_estimator == "k1":
            raise ValueError(
                "k1 as a loss has a gradient that is zero on average, so it restrains nothing; hint: estimator: k3"
            )
        if self.controller == "adaptive" and (self.target is None or self.horizon is None):
            raise ValueError("an adaptive controller needs target and horizon; hint: target: 6.0, horizon: 10000")
        return self


class SurrogateKLSection(Section):
    """The paper's other form: a penalty on the KL between the old and the new policy instead of clipping."""

    coef: PositiveFloat = 1.0
    """Initial coefficient of the penalty."""
    target: PositiveFloat = 0.01
    """Wanted KL per token and step: the coefficient halves below target / 1.5 and doubles above 1.5 x target."""


class PPOSection(Section):
    """The algorithm."""

    epochs: Positive = 2
    """Passes over each rollout."""
    minibatches: Positive = 2
    """Optimizer steps per epoch."""
    gamma: Share = 1.0
    """Discount per action token."""
    lam: Share = 0.95
    """Lambda of GAE: 0 one-step, 1 Monte Carlo."""
    surrogate: Literal["clip", "kl"] = "clip"
    """`clip`: the clipped objective; `kl`: a penalty on KL(old, new) with an adaptive coefficient."""
    surrogate_kl: SurrogateKLSection = SurrogateKLSection()
    """Settings of `surrogate: kl`."""
    clip_low: Annotated[float, Field(gt=0, le=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bounds the loss of negative advantages at this ratio; null: off."""
    value_clip: PositiveFloat | None = 0.2
    """Values may move this far from the old ones before the value loss stops rewarding it; null: off."""
    value_coef: Annotated[float, Field(ge=0)] = 0.5
    """Factor of the value loss."""
    entropy_coef: Annotated[float, Field(ge=0)] = 0.0
    """Factor of the entropy bonus."""
    old_logp: Literal["sampled", "read"] = "sampled"
    """Log-probabilities before the update: the sampler's own where it is the trainer's code and agrees with it to 1e-4
    on some rows checked at each step; or, where not and with `read`, from reading the rollout once more."""
    cut_off: Literal["terminal", "bootstrap", "penalise"] = "terminal"
    """A trajectory cut off by the token limit: ends there, goes on with the critic's value, or loses the penalty."""
    missing_eos_penalty: Annotated[float, Field(ge=0)] = 1.0
    """Taken off the score of cut-off trajectories with `cut_off: penalise`."""
    whiten: bool = True
    """Whiten advantages over all action tokens of the step."""
    aggregate: Literal["token-mean", "sequence-mean", "sequence-sum"] = "token-mean"
    """How per-token losses become one number; the count is that of the whole optimizer batch."""
    max_update_kl: PositiveFloat | None = None
    """End a step's policy updates once KL(old, new) per token passes this; null: off."""
    kl: KLSection = KLSection()
    """KL to the reference."""


class OptimSection(Section):
    """AdamW for policy and critic; schedules are counted in optimizer steps."""

    policy_lr: PositiveFloat = 1.0e-6
    """Learning rate of the policy."""
    critic_lr: PositiveFloat = 1.0e-5
    """Learning rate of the critic, or of the value head on a shared trunk."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From the full rate to 0 at the run's last optimizer step, or constant."""
    warmup_steps: Natural = 0
    """Optimizer steps over which the rate rises from 0."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Adam's decay rates."""
    eps: PositiveFloat = 1.0e-8
    """Adam's epsilon (early PPO codes used 1e-5)."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_grad_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this norm, the policy's and the critic's (or a shared critic's head's) each by
    themselves; null: off."""
    offload: bool = False
    """On a GPU: keep Adam's moments, twice the bytes of what is trained, in the machine's memory and bring them over a
    part at a time. Costs their way over the bus and back at each optimizer step. The same numbers."""


class BatchSection(Section):
    """How a minibatch is cut for memory; changes neither losses nor gradients."""

    tokens: Positive = 8192
    """Tokens per micro-batch at most, padding included; one trajectory always fits."""
    packing: Literal["auto", "on", "off"] = "auto"
    """Lay rows end to end without padding, where the model's attention allows it."""
    side_by_side: Literal["on", "off"] = "off"
    """`on`: train policy and separate critic at the same time, half of the CPU threads each; both models' activations
    are in memory at once. Faster where other processes are busy too; on two quiet cores no faster."""


class CheckpointSection(Section):
    """When the run is saved, and what is kept."""

    every: Natural = 10
    """Steps between checkpoints; 0: only at the end and on a signal."""
    keep: Positive = 3
    """Newest checkpoints kept."""
    best_by: str | None = None
    """A metric: the checkpoint where it was highest is kept as well."""


class StopSection(Section):
    """What ends a run before its last step."""

    patience: Positive | None = None
    """Evaluations without a better held-out score."""
    kl_budget: PositiveFloat | None = None
    """KL to the reference in nats per trajectory."""
    score: float | None = None
    """Held-out score that is good enough."""


class TrackSection(Section):
    """What is recorded besides metrics.jsonl."""

    tensorboard: bool = False
    """Also write TensorBoard event files into the run folder."""
    samples_every: Natural = 10
    """Steps between rollout records in samples/; the first and last step are always recorded; 0: none."""


class GuardSection(Section):
    """When to give up."""

    max_skipped: Positive = 5
    """Optimizer steps in a row that may be skipped for a non-finite loss or gradient."""
