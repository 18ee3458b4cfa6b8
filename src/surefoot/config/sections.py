"""The sections of a config that say what is trained, on what, against what. Torch-free.

Each key's docstring is its documentation: ``docs/config.md`` is generated from here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from surefoot.config.addresses import Address, TokenVariable, http_address
from surefoot.config.composites import with_composite

Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Base of all sections: frozen, unknown keys refused, NaN and infinity refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, protected_namespaces=()
    )


class RunSection(Section):
    """What the run is called, how long it goes and where it runs."""

    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder; the config file's name when left out."""
    dir: str = "runs"
    """Folder that holds run folders."""
    seed: Natural = 0
    """Seeds every draw, together with purpose, rank and step."""
    steps: Positive | None = None
    """Number of PPO steps. Required by `train`."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads; the machine's default when null. Kept on resume, since results on CPU depend on it."""
    time_budget_s: PositiveFloat | None = None
    """Stop, with a checkpoint, before a step that would end after this many seconds."""


class LoraSection(Section):
    """Low-rank adapters instead of full fine-tuning."""

    rank: Positive = 16
    """Rank of the adapters."""
    alpha: PositiveFloat = 32.0
    """Scale: the adapter's output is multiplied by alpha / rank."""
    targets: str | list[str] = "all-linear"
    """`all-linear` or a list of module names."""

    @field_validator("targets")
    @classmethod
    def _a_pattern(cls, targets: str | list[str]) -> str | list[str]:
        """A text other than `all-linear` is a regular expression for whole names."""
        try:
            re.compile(targets if isinstance(targets, str) else "")
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}; hint: a list of module names, as [q_proj]") from error
        return targets


class ModelSection(Section):
    """The policy and its reference."""

    policy: str | None = None
    """Folder or hub id of a Hugging Face causal LM, or of a LoRA adapter. Required."""
    reference: str | None = None
    """The frozen policy that KL is measured against; null: the policy as it is at the start."""
    dtype: Literal["float32", "float64", "bfloat16", "float16"] = "float32"
    """Type of the weights in memory. On a CPU without AMX, float32 is the fastest."""
    lora: LoraSection | None = None
    """Train adapters instead of all weights."""
    quantize: Literal["int8", "nf4"] | None = None
    """Store the frozen weights of policy, critic and reference in 8 or 4 bits: [quantisation.md](quantisation.md).
    Needs `lora`; `nf4` also needs `pip install 'surefoot[quantize]'`."""
    chat_template: str | None = None
    """A Jinja chat template, or a file with one, for a model that has none."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you read that code."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


class CriticSection(Section):
    """The value function."""

    kind: Literal["separate", "shared"] = "separate"
    """`separate`: a model of its own; `shared`: a value head on the policy's trunk."""
    init: str = "policy"
    """`policy`, the name of a reward term of kind model, or a folder. A reward model brings its head along."""
    url: Address | None = None
    """Address of a service (`surefoot serve`) that holds and trains the critic; null: in the trainer's process."""
    token_env: TokenVariable | None = None
    """Name of the environment variable with the service's token."""
    timeout_s: PositiveFloat = 120.0
    """Time limit for one request to the service."""
    patience_s: PositiveFloat = 300.0
    """How long a request is repeated while the service cannot be reached, before the run stops."""
    overlap: bool = True
    """With a service: send it trajectories as they end, while others are still decoded, and let it train while the
    policy trains. Off: one request for a whole rollout, one thing after the other."""
    warmup_steps: Natural = 0
    """Steps in which only the critic is trained."""
    warmup_explained_variance: Annotated[float, Field(le=1)] | None = None
    """End the warm-up early once the critic explains this share of the returns' variance."""


class RewardTerm(Section):
    """One term of the reward."""

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")
    """Name of the term in metrics (`score/NAME`)."""
    kind: Literal["function", "model", "check", "human", "remote"] = "function"
    """`function`: Python; `model`: a sequence-classification model; `check`: a verifiable reward that comes with
    Surefoot; `human`: people's ratings from a file; `remote`: a service at an address."""
    target: str | list[str]
    """`file.py:name` (relative to the config) or `package.module:name`; for a model its folder or hub id; for a check
    its name (docs/checks.md); for human ratings a JSONL file, or a folder of them; for a remote reward its address, or
    a list of the addresses of replicas."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a check, as docs/checks.md lists them."""
    weight: float = 1.0
    """Factor in the weighted sum."""
    center: float = 0.0
    """Subtracted from the term before anything else: what counts as neither good nor bad."""
    scale: PositiveFloat = 1.0
    """The centred term is divided by this, its standard deviation for instance, before it is clipped."""
    clip: tuple[float, float] | PositiveFloat | None = None
    """Clip this term to [-c, c] or [low, high], after center and scale, before weighting."""
    missing: Literal["fail", "skip", "model", "wait"] | None = None
    """For a row that a check has no column for, or a person no rating: `fail`, `skip` the term, take a `model` (the
    term `stand_in`), or, for people, `wait`: fail, and ask for a judgement. Null: `wait` for people, else `fail`."""
    stand_in: str | None = None
    """The term that counts in a row where this one is missing, with `missing: model`."""
    ensemble: Literal["mean", "min", "lower"] = "mean"
    """Of a reward model with several heads (`reward_model.heads`): the `mean` of their scores, the `min`, or `lower`:
    mean minus `ensemble_c` times their deviation. The deviation is logged as `score/NAME_spread`."""
    ensemble_c: Annotated[float, Field(ge=0)] = 1.0
    """What the heads' disagreement costs with `ensemble: lower`."""
    report: str | None = None
    """Of a reward model: the report that `surefoot eval reward-model` wrote, or its folder. The run is refused unless
    the report is of this model and it passed."""
    token_env: TokenVariable | None = None
    """Remote: name of the environment variable with the service's token."""
    timeout_s: PositiveFloat = 60.0
    """Remote: time limit for one request."""
    patience_s: PositiveFloat = 300.0
    """Remote: how long a request is repeated while the service cannot be reached, before its rows have failed."""
    rows: Positive = 64
    """Remote: most trajectories in a request."""
    concurrency: Positive = 4
    """Remote: most requests at once."""
    overlap: bool = True
    """Remote: send trajectories as they end, while others are still decoded."""

    @property
    def place(self) -> str:
        """The target of any kind but `remote`: one text."""
        assert isinstance(self.target, str)
        return self.target

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of a remote reward, at least one."""
        return (self.target,) if isinstance(self.target, str) else tuple(self.target)

    @field_validator("target")
    @classmethod
    def _fits_the_kind(cls, target: str | list[str], info: ValidationInfo) -> str | list[str]:
        kind = info.data.get("kind")
        if kind == "remote":
            if isinstance(target, str):
                return http_address(target)
            addresses = [http_address(address) for address in target]
            if not addresses or len(set(addresses)) < len(addresses):
                raise ValueError("a remote reward needs at least one address, and each once")
            return addresses
        if kind is not None and not isinstance(target, str):
            raise ValueError(f"a list of addresses is for kind: remote, and this is kind: {kind}")
        return target

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name in RESERVED_TERMS:
            raise ValueError(
                f"{name!r} is a metric's name; choose another (reserved: {', '.join(sorted(RESERVED_TERMS))})"
            )
        return name

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> RewardTerm:
        if self.options and self.kind != "check":
            raise ValueError(f"options are for terms of kind check, and {self.name} is of kind {self.kind}")
        if self.missing is not None and self.kind not in ("check", "human"):
            raise ValueError(f"missing is for terms of kind check and human, and {self.name} is of kind {self.kind}")
        if self.missing == "wait" and self.kind != "human":
            raise ValueError(f"only people's judgements can be waited for; {self.name} may fail, skip or take a model")
        if (self.missing == "model") != (self.stand_in is not None):
            raise ValueError(
                f"{self.name}: missing: model and stand_in: TERM go together, one without the other does not"
            )
        return self

    @model_validator(mode="after")
    def _ensemble_and_report_are_of_a_model(self) -> RewardTerm:
        if self.ensemble != "mean" and self.kind != "model":
            raise ValueError(f"ensemble is for terms of kind model, and {self.name} is of kind {self.kind}")
        if self.report is not None and self.kind != "model":
            raise ValueError(f"report is for terms of kind model, and {self.name} is of kind {self.kind}")
        return self

    @property
    def when_missing(self) -> Literal["fail", "skip", "model", "wait"]:
        """What becomes of a row that the term has nothing to say about."""
        return self.missing or ("wait" if self.kind == "human" else "fail")


RESERVED_TERMS = frozenset({"mean", "std", "min", "max", "failed_share", "failed", "count"})


class RewardSection(Section):
    """What is rewarded, and what happens when scoring fails."""

    composite: Literal["handbook"] | None = None
    """Start from terms that come with Surefoot; an entry of `terms` with the name of one changes its keys."""
    terms: list[RewardTerm] = Field(default_factory=list)
    """The terms of the weighted sum. Required by `train`."""
    on_failure: Literal["drop", "stop"] = "drop"
    """A failed score: leave the trajectory out of the step (counted), or stop the run."""
    max_failures: Share = 0.05
    """Stop the run when a larger share of a step's scores fails."""
    timeout_s: PositiveFloat = 60.0
    """Time limit for one call of a reward function; what exceeds it is ended and counted as failed."""
    clip: PositiveFloat | None = None
    """Clip the (normalised) score to [-c, c]."""
    normalise: bool | Literal["running", "reference"] = False
    """Scale scores to mean 0 and deviation 1: `running` (or true) statistics, or those of step 1, the `reference`'s."""

    @model_validator(mode="before")
    @classmethod
    def _with_composite(cls, given: Any) -> Any:
        return with_composite(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _stand_ins_exist(self) -> RewardSection:
        terms = {term.name: term for term in self.terms}
        for term in self.terms:
            other = terms.get(term.stand_in or "")
            if term.stand_in is not None and (other is None or other is term or other.stand_in is not None):
                raise ValueError(
                    f"stand_in of {term.name} must name another term that has no stand-in itself, not {term.stand_in!r}"
                )
        return self


class DataSection(Section):
    """The prompts."""

    prompts: str | None = None
    """A JSONL or Parquet file, a folder of them, or a hub id (`NAME` or `NAME:SPLIT`). Required by `train`."""
    column: str = "prompt"
    """Column with the prompt: a string, used as it stands, or a list of chat messages."""
    max_prompt_tokens: Positive = 1024
    """Longest prompt, measured on the rendered prompt."""
    overlong: Literal["drop", "left", "right", "error"] = "drop"
    """Longer prompts: drop (counted), cut the `left` or the `right` end off, or refuse."""
    bad_rows: Literal["error", "skip"] = "error"
    """Rows that cannot be used: refuse the file, or skip and report them."""
    shuffle: bool = True
    """A new order each epoch, from the seed."""
    drop_last: bool = False
    """Leave out the last, smaller batch of an epoch; refused when that leaves nothing."""
    allow: list[Literal["pending", "rejected", "restricted", "personal"]] = Field(default_factory=list)
    """Data that is trained on although its card says so (docs/data.md): approval `pending` or `rejected`, privacy
    class `restricted` or `personal`. Of all commands that train."""
    require_card: bool = False
    """Refuse data without a card."""


class RolloutSection(Section):
    """How trajectories are sampled."""

    engine: Literal["native", "vllm"] = "native"
    """`native`: the trainer's own code. `vllm` is not available in this version."""
    prompts_per_step: Positive = 32
    """Prompts per step."""
    samples_per_prompt: Positive = 1
    """Trajectories per prompt."""
    max_new_tokens: Positive = 128
    """Action tokens per response at most."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; every log-probability of the run is under it."""
    top_k: Natural = 0
    """Must be 0 (off) in training: the trained distribution is the sampled one."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Must be 1 (off) in training."""
    stop: list[str] = Field(default_factory=list)
    """Strings that end a response; a response that ends in one counts as finished."""
    max_rows: Positive | None = None
    """Rows decoded at once; null: all of a step. Fewer rows need less memory for the cache."""
    decode_weights: Literal["laid_out", "stored"] = "laid_out"
    """`laid_out`: a copy of the weights, in full and laid out for decoding, while a rollout lasts. `stored`: the
    layers' own, quantised ones made anew for each token: slower, no copy. The same numbers up to rounding."""


class EvaluateSection(Section):
    """Held-out prompts, scored before step 1, every N steps and after the last."""

    prompts: str | None = None
    """Held-out prompts, as `data.prompts`. Null: no evaluation."""
    every: Natural = 0
    """Steps between evaluations; 0: only before the first step and after the last."""
    max_prompts: Positive | None = None
    """Use at most this many prompts, the first ones."""
    samples_per_prompt: Positive = 1
    """Responses per prompt."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature of the evaluation; 0: greedy."""
    top_k: Natural = 0
    """Sample from the k most likely tokens; 0: off."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of tokens with this probability; 1: off."""
    max_new_tokens: Positive | None = None
    """Null: as in training."""
    seed: Natural = 0
    """Seed of the evaluation's draws; the same at each evaluation, so that curves compare."""


Clip = tuple[float, float] | float | None
