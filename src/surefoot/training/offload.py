"""Adam's moments in the machine's memory, brought to the device a part at a time. The same numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

PART_BYTES: Final = 256 * 1024**2
"""Of parameters whose moments are on the device at once; the moments take twice that."""
MOMENTS: Final = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")
"""What is moved. The step count is a number, and stays where the kernel wants it."""


def step_in_parts(adam: torch.optim.Optimizer, *, home: torch.device, part_bytes: int = PART_BYTES) -> None:
    """A step of an optimizer whose moments live elsewhere; afterwards they are there again.

    Args:
        adam: with gradients on its parameters. They are gone afterwards.
        home: where the moments live between steps.
        part_bytes: of parameters that are stepped at once; one parameter always is.
    """
    parameters: list[nn.Parameter] = [p for group in adam.param_groups for p in group["params"] if p.grad is not None]
    gradients = [p.grad for p in parameters]
    for p in parameters:
        p.grad = None  # the optimizer leaves out what has no gradient
    for start, end in _parts(parameters, part_bytes):
        for p, gradient in zip(parameters[start:end], gradients[start:end], strict=True):
            p.grad = gradient
            fetch(adam.state.get(p, {}), p.device)
        adam.step()
        for number in range(start, end):
            put_away(adam.state[parameters[number]], home)
            parameters[number].grad = gradients[number] = None


def fetch(state: dict[str, Any], device: torch.device) -> None:
    """Bring a parameter's moments to a device."""
    for name in MOMENTS:
        if isinstance(state.get(name), Tensor):
            state[name] = state[name].to(device, non_blocking=True)


def put_away(state: dict[str, Any], home: torch.device) -> None:
    """Take a parameter's moments home, into page-locked memory where they come from a GPU."""
    for name in MOMENTS:
        moment = state.get(name)
        if isinstance(moment, Tensor) and moment.device != home:
            kept = torch.empty_like(moment, device=home, pin_memory=moment.is_cuda and home.type == "cpu")
            state[name] = kept.copy_(moment)


def _parts(parameters: Sequence[Tensor], part_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of parameters of at most so many bytes, in order."""
    start = size = 0
    for number, p in enumerate(parameters):
        own = p.numel() * p.element_size()
        if number > start and size + own > part_bytes:
            yield start, number
            start, size = number, 0
        size += own
    if start < len(parameters):
        yield start, len(parameters)
