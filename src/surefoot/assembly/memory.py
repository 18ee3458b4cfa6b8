"""How much memory a run will need, from configs and prompts alone, and what the machine has. Nothing is loaded.

Weights, gradients and optimizer state are counted by role. What comes and goes is counted for each phase at its
fullest moment; the largest of these, on top of what always stays, is the peak.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from surefoot.assembly.model_shape import ModelShape
from surefoot.assembly.models import choose_device
from surefoot.assembly.phases import Holder, Phase, largest_parts, phases_of
from surefoot.assembly.roles import POLICY, REWARD, Role, in_full, lora_of, roles_of, shapes_of, width_of
from surefoot.assembly.step_sizes import StepSizes, step_sizes
from surefoot.config import Config

PROCESS_BYTES: Final = 430 * 10**6
"""Python, torch and transformers before any weights. On a GPU they take nothing of its memory."""
TOKENIZER_BYTES: Final = 700
"""Per entry of a tokenizer's vocabulary."""


@dataclass(frozen=True)
class Estimate:
    """Bytes that a run needs.

    Attributes:
        process: before any weights.
        roles: policy, critic or value head, reference, each reward model.
        phases: rollout, score, update, evaluate (where held-out prompts are known), load (where models are quantised),
            save.
        largest: the most bytes of each part that comes and goes in a step.
        sizes: of the step that it was made for.
        checkpoint, model: bytes on disk of a checkpoint and of the aligned model.
        counts: parameters of the policy, and those trained of policy and critic.
    """

    process: int
    roles: Mapping[str, Role]
    phases: Mapping[str, Phase]
    largest: Mapping[str, int]
    sizes: StepSizes
    checkpoint: int
    model: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def fixed(self) -> dict[str, int]:
        """What always stays: the process, and each role's weights and moments."""
        return {"process": self.process} | {name: r.parameters + r.optimizer for name, r in self.roles.items()}

    @property
    def rollout(self) -> int:
        """What comes and goes while tokens are drawn."""
        return self.phases["rollout"].total

    @property
    def update(self) -> int:
        """What comes and goes while the models are trained, gradients included."""
        return self.phases["update"].total

    @property
    def fullest(self) -> str:
        """The phase that the peak falls in."""
        return max(self.phases, key=lambda name: self.phases[name].total)

    @property
    def total(self) -> int:
        """The peak."""
        return self.peak(self.phases)

    @property
    def training(self) -> int:
        """The peak of all phases but ``save``: of a run before its model is saved."""
        return self.peak(name for name in self.phases if name != "save")

    def peak(self, phases: Iterable[str]) -> int:
        """The most at one time in some phases."""
        return sum(self.fixed.values()) + max(self.phases[name].total for name in phases)

    def as_json(self) -> dict[str, Any]:
        """All of it in bytes, for programs."""
        return {
            "peak": self.total,
            "phase": self.fullest,
            "training_peak": self.training,
            "process": self.process,
            "roles": {name: role.as_json() for name, role in self.roles.items()},
            "phases": {
                name: {"who": phase.who, "parts": dict(phase.parts), "peak": self.peak((name,))}
                for name, phase in self.phases.items()
            },
            "largest": dict(self.largest),
            "sizes": {
                "rows": self.sizes.rows,
                "longest_prompt": self.sizes.longest,
                "reading_tokens": self.sizes.reading.tokens,
                "training_tokens": self.sizes.training.tokens,
            },
        }


def memory_for(
    config: Config, model_config: Any, prompts: Sequence[Sequence[int]], held_out: Sequence[Sequence[int]] = ()
) -> Estimate:
    """Estimate the memory of a run with these prompts.

    Args:
        config: the run.
        model_config: the policy's transformers config.
        prompts: token ids of those that are trained on, at least one.
        held_out: of those that are evaluated; none: evaluations are left out.
    """
    device = choose_device(config.run.device)
    sizes = step_sizes(config, prompts, device)
    shapes = shapes_of(config, model_config)
    roles = roles_of(config, shapes, device)
    trained, width, lora = sum(role.gradients for role in roles.values()), width_of(config), lora_of(config, POLICY)
    parameters = shapes[POLICY].parameters + (0 if lora is None else lora.copies * lora.parameters(shapes[POLICY]))
    run = Holder(config, shapes, roles, device)
    return Estimate(
        process=_process_bytes(shapes) if device.type == "cpu" else 0,
        roles=roles,
        phases=phases_of(run, sizes, [len(ids) for ids in held_out]),
        largest=largest_parts(run, sizes),
        sizes=sizes,
        checkpoint=3 * trained,
        model=max(roles[POLICY].parameters, in_full(config, shapes[POLICY])),
        counts={"parameters": parameters, "trained": trained // (width if lora is None else max(width, 4))},
    )


def _process_bytes(shapes: Mapping[str, ModelShape]) -> int:
    """The policy and each reward model have a tokenizer."""
    readers = [shape for name, shape in shapes.items() if name == POLICY or name.startswith(REWARD)]
    return PROCESS_BYTES + TOKENIZER_BYTES * sum(shape.vocabulary for shape in readers)


def memory_of(device: torch.device) -> tuple[int, int]:
    """(bytes free now, bytes in all) of a GPU, or of this machine as far as this process may use it."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(free), int(total)
    fields = _meminfo()
    total = fields.get("MemTotal", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    free = fields.get("MemAvailable", total)
    limit, used = _container_limit()
    if limit is not None and limit < total:
        return min(free, max(limit - used, 0)), limit
    return free, total


def _meminfo() -> dict[str, int]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in pairs if rest.split()[:1]}


def _container_limit() -> tuple[int | None, int]:
    """The control group's limit and what it uses, where there is one (version 2, then version 1)."""
    root = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return int((root / limit).read_text()), int((root / used).read_text())
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return None, 0


def free_disk(folder: Path) -> int:
    """Bytes free where a folder is or will be."""
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
