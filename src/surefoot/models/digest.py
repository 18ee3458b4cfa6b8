"""sha256 of weights as they are in memory: proof that what should be frozen did not move."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def digest_tensors(named: Iterable[tuple[str, Tensor]]) -> str:
    """sha256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named, key=lambda item: item[0]):
        flat = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {flat.dtype} {tuple(flat.shape)}\n".encode())
        digest.update(flat.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
