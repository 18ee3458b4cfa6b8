"""How many bytes of tensors live at a time, and which a forward pass keeps for its backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Within this block the storages that operations make are followed until they are freed.

    Attributes:
        now, peak: bytes alive, and the most so far; what was there before does not count.
    """

    def __init__(self, *before: Tensor) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = {t.untyped_storage().data_ptr() for t in before}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._follow(leaf.untyped_storage())
        return out

    def _follow(self, storage: Any) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self._known or not size:
            return
        self._known.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, place, size)

    def _freed(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


def saved_bytes(forward: Callable[[], Any], parameters: Iterable[Tensor]) -> int:
    """Bytes that a forward pass saves for its backward pass, each storage once and the parameters left out."""
    known = {p.untyped_storage().data_ptr() for p in parameters}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in known:
            kept.setdefault(place, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = forward()
    del out
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
