"""What comes and goes in the phases of a step, each at its fullest moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from surefoot.assembly.activations import (
    TrainedModel,
    backward_of_a_layer,
    cache_bytes,
    decoding_weights,
    drawing_bytes,
    kept_for_backward,
    layer_in_passing,
    logits_at_a_time,
)
from surefoot.assembly.model_shape import ModelShape
from surefoot.assembly.roles import (
    CRITIC,
    POLICY,
    REFERENCE,
    REWARD,
    VALUE_HEAD,
    Role,
    in_full,
    lora_of,
    made_for_use,
    width_of,
)
from surefoot.assembly.step_sizes import StepSizes
from surefoot.config import Config
from surefoot.rollout.decoding import PREFILL_TOKENS
from surefoot.training.offload import PART_BYTES


@dataclass(frozen=True)
class Phase:
    """A phase at its fullest.

    Attributes:
        who: whose pass it is; empty where that goes without saying.
        parts: bytes that come and go, by name.
    """

    who: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Holder:
    """Who holds what: the run with its models, by role.

    Attributes:
        config: the run.
        shapes, roles: of its models.
        device: where they are.
    """

    config: Config
    shapes: Mapping[str, ModelShape]
    roles: Mapping[str, Role]
    device: torch.device


def phases_of(run: Holder, sizes: StepSizes, held_out: Sequence[int] = ()) -> dict[str, Phase]:
    """The phases of a run, each at its fullest.

    Args:
        run: what is in memory.
        sizes: of its heaviest step.
        held_out: tokens of each prompt that is evaluated.
    """
    holes = _freed_gradients(run)
    phases = {
        "rollout": _fullest(_rollout(run, sizes), **holes),
        "score": _fullest(_score(run, sizes), **holes),
        "update": _fullest(_update(run, sizes)),
    }
    if held_out:
        phases["evaluate"] = _fullest(_evaluate(run, held_out), **holes)
    if run.config.model.quantize is not None:
        phases["load"] = _fullest(_load(run))
    # What is read again is of the gradients' sizes and fits into what those left.
    return phases | {"save": _fullest(_save(run))}


def largest_parts(run: Holder, sizes: StepSizes) -> dict[str, int]:
    """The most bytes of each part at any moment of a step, by name."""
    largest: dict[str, int] = {}
    for moments in (_rollout(run, sizes), _score(run, sizes), _update(run, sizes)):
        for moment in moments:
            largest |= {name: max(size, largest.get(name, 0)) for name, size in moment.parts.items()}
    return largest


def _fullest(moments: Iterable[Phase], **more: int) -> Phase:
    fullest = max(moments, key=lambda phase: phase.total)
    return Phase(fullest.who, {**fullest.parts, **more})


def _freed_gradients(run: Holder) -> dict[str, int]:
    """What the last update's gradients left behind, by name.

    On a CPU freed memory stays with the process. Gradients lie in pieces between what remains (moments, mostly), and
    larger blocks do not fit there (measured).
    """
    if run.device.type != "cpu":
        return {}
    gradients = [role.gradients for role in run.roles.values()]
    return {"freed_gradients": sum(gradients) if _side_by_side(run) else max(gradients)}


def _rollout(run: Holder, sizes: StepSizes) -> Iterable[Phase]:
    return _decoding(run, sizes.rows, sizes.longest + run.config.rollout.max_new_tokens, sizes.prefill)


def _evaluate(run: Holder, lengths: Sequence[int]) -> Iterable[Phase]:
    section = run.config.evaluate
    every = len(lengths) * section.samples_per_prompt
    rows = min(run.config.rollout.max_rows or every, every)
    longest = max(lengths) + (section.max_new_tokens or run.config.rollout.max_new_tokens)
    return _decoding(run, rows, longest, min(PREFILL_TOKENS, sum(lengths)))


def _decoding(run: Holder, rows: int, longest: int, prefill: int) -> Iterable[Phase]:
    """Prompts are read first; then tokens are drawn, one of each row at a time."""
    shape, width = run.shapes[POLICY], width_of(run.config)
    adapted = lora_of(run.config, POLICY) is not None
    cache = cache_bytes(shape, rows, longest, width)
    made = _made(run, POLICY)
    yield Phase("prompts", {"cache": cache, "activations": layer_in_passing(shape, prefill, width), **made})
    drawing = {"cache": cache, "logits": drawing_bytes(shape, rows, width)}
    if run.config.rollout.decode_weights == "laid_out":
        weights = decoding_weights(shape, rows, width, run.device, adapted=adapted)
        yield Phase("", {"decoding_weights": weights, **drawing})
    else:
        yield Phase("", {**drawing, **made})


def _score(run: Holder, sizes: StepSizes) -> Iterable[Phase]:
    """Each model reads the rollout by itself, a layer at a time."""
    width, laid = width_of(run.config), sizes.reading
    scaled = run.config.rollout.temperature != 1
    for name, shape in run.shapes.items():
        if name == VALUE_HEAD:
            continue
        yield Phase(name, {"activations": layer_in_passing(shape, laid.tokens, width), **_made(run, name)})
        if name in (POLICY, REFERENCE):
            states = (laid.tokens + laid.actions) * shape.hidden * width
            # The policy's entropies are read too.
            entropy = name == POLICY
            logits = logits_at_a_time(shape, laid.actions, width, scaled=scaled, entropy=entropy)
            yield Phase(name, {"activations": states, "logits": logits})


def _update(run: Holder, sizes: StepSizes) -> Iterable[Phase]:
    """Policy and critic are trained side by side, or one after the other with gradients dropped in between."""
    names = [name for name in (POLICY, CRITIC) if name in run.roles]
    moments = {name: list(_update_of(run, sizes, name)) for name in names}
    if _side_by_side(run):
        fullest = [max(of_one, key=lambda phase: phase.total) for of_one in moments.values()]
        parts: dict[str, int] = {}
        for phase in fullest:
            parts |= {part: size + parts.get(part, 0) for part, size in phase.parts.items()}
        yield Phase(" and ".join(names), parts)
    else:
        for of_one in moments.values():
            yield from of_one


def _side_by_side(run: Holder) -> bool:
    return CRITIC in run.roles and run.config.batch.side_by_side == "on"


def _update_of(run: Holder, sizes: StepSizes, name: str) -> Iterable[Phase]:
    """One model's moments.

    Its gradients count in full from the first on. With several micro-batches they are there; with one they come while
    activations go, but seldom fit into the holes that those leave (measured).
    """
    config, laid = run.config, sizes.training
    scaled, entropy = config.rollout.temperature != 1, config.ppo.entropy_coef > 0
    model = trained_model(run, name)
    heads = run.roles[VALUE_HEAD].gradients if name == POLICY and VALUE_HEAD in run.roles else 0
    gradients = run.roles[name].gradients + heads
    kept = {"activations": kept_for_backward(model, laid), "gradients": gradients, **_made(run, name)}
    if name == POLICY:
        logits = logits_at_a_time(model.shape, laid.actions, model.width, scaled=scaled, entropy=entropy)
        yield Phase(name, {**kept, "logits": logits})
    yield Phase(name, {**kept, "passing_gradients": backward_of_a_layer(model, laid)})
    if run.roles[name].offloaded:
        # A part is at least one parameter, and the embedding is the largest.
        largest = 0 if model.ranks else model.shape.vocabulary * model.shape.hidden * model.width
        yield Phase(name, {"gradients": gradients, "moments": 2 * max(min(PART_BYTES, gradients), largest)})
    if not model.ranks:
        # The embedding's gradient comes last, beside that of an output layer tied to it.
        embedding = model.shape.vocabulary * model.shape.hidden * model.width
        yield Phase(name, {"gradients": gradients, "passing_gradients": embedding})


def trained_model(run: Holder, name: str) -> TrainedModel:
    """How policy or critic is trained."""
    shape, lora = run.shapes[name], lora_of(run.config, name)
    adapted = [] if lora is None else shape.adapted(lora.targets)
    return TrainedModel(
        shape=shape,
        width=width_of(run.config),
        ranks=0 if lora is None else lora.rank * len(adapted),
        inputs=sum(inputs for _, inputs in adapted),
        checkpointing=run.config.model.gradient_checkpointing,
        readers=2 if name == POLICY and VALUE_HEAD in run.roles else 1,
    )


def _made(run: Holder, name: str) -> dict[str, int]:
    """A quantised weight in full, one at a time, by name; reward models are not quantised."""
    if run.config.model.quantize is None or name.startswith(REWARD):
        return {}
    return {"weight_in_use": made_for_use(run.config, run.shapes[name])}


def _load(run: Holder) -> Iterable[Phase]:
    """Models are read in full into the main memory, one after the other; a GPU sees one layer of them at a time."""
    size_of = in_full if run.device.type == "cpu" else made_for_use
    for name in (POLICY, CRITIC, REFERENCE):
        if name in run.roles:
            yield Phase(name, {"model_in_full": size_of(run.config, run.shapes[name])})


def _save(run: Holder) -> Iterable[Phase]:
    """A checkpoint is written from where everything lies; the aligned model is read again to prove it."""
    in_files = run.roles[POLICY].parameters
    if run.config.model.quantize is not None:
        in_files = in_full(run.config, run.shapes[POLICY])
    yield Phase("model", {"model_copy": in_files})
