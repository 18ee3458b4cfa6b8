"""The files that a reward model's weights lie in, and their digest. Torch-free."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

HEADS_FILE: Final = "ensemble/heads.safetensors"
"""The heads whose mean the score layer is: ``weight`` ``[k, H]``, and ``bias`` ``[k]`` if there is one. In a folder of
their own, since some servers load every safetensors file that they find beside the model's."""


def digest_weights(folder: Path) -> str:
    """sha256 over the bytes of a folder's safetensors files, by name, and of an ensemble's heads."""
    digest = hashlib.sha256()
    heads = folder / HEADS_FILE
    for path in (*sorted(folder.glob("*.safetensors")), *([heads] if heads.is_file() else [])):
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
