"""Reading a GGUF file: metadata, the table of tensors, and one tensor at a time as float32.

The header is parsed here with ``struct``, since the ``gguf`` package takes three seconds to walk a vocabulary of
50 thousand strings that the conversion does not need; the block formats are left to that package.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from surefoot.errors import ModelError, missing_extra

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_DIMENSIONS: Final = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies and how it is stored; ``shape`` in the order of Hugging Face (rows first)."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A parsed header.

    Attributes:
        path: the file.
        metadata: every key; an array of strings is represented by its length.
        tensors: by name, ``offset`` counted from the start of the file.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """One tensor, dequantised, in its own shape.

        Raises:
            ModelError: a block format that the ``gguf`` package cannot dequantise, or the file ends too early.
            MissingExtra: the ``gguf`` package is not installed.
        """
        tensor, gguf = self.tensors[name], gguf_package()
        try:
            kind = gguf.GGMLQuantizationType(tensor.kind)
            raw_shape = _raw_shape(gguf, tensor, kind)
        except ValueError as error:
            raise ModelError(f"tensor {name!r} of {self.path} cannot be read", got=str(error)) from error
        raw = np.memmap(self.path, np.uint8, "r")[tensor.offset : tensor.offset + prod(raw_shape)]
        if raw.size != prod(raw_shape):
            raise _truncated(self.path)
        blocks: npt.NDArray[Any] = np.asarray(raw).reshape(raw_shape)
        # The package takes these two as numbers and everything else as bytes.
        if kind.name in ("F32", "F16"):
            blocks = blocks.view("<f4" if kind.name == "F32" else "<f2")
        try:
            values = gguf.dequantize(blocks, kind)
        except NotImplementedError as error:
            raise ModelError(f"tensor {name!r} of {self.path} has a block format not known", got=kind.name) from error
        return np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape)


def gguf_package() -> ModuleType:
    """The optional ``gguf`` package.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import gguf
    except ImportError as error:
        raise missing_extra("gguf", "quickstart", "converting a GGUF file") from error
    package: ModuleType = gguf
    return package


def _raw_shape(gguf: ModuleType, tensor: GGUFTensor, kind: Any) -> tuple[int, ...]:
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    if tensor.shape[-1] % per_block:
        raise ValueError(f"rows of {tensor.shape[-1]} values are not whole blocks of {kind.name}")
    return (*tensor.shape[:-1], tensor.shape[-1] // per_block * block_bytes)


def read_gguf(path: Path) -> GGUFFile:
    """Parses the header of a GGUF file; no tensor data is read.

    Raises:
        ModelError: no such file, not a GGUF, a version or byte order not known, or cut short.
    """
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as blob:
            return _Parser(path, blob).file()
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{path} cannot be read as a GGUF file", got=str(error)) from error
    except (struct.error, IndexError) as error:
        raise _truncated(path) from error


def _truncated(path: Path) -> ModelError:
    return ModelError(
        f"{path} ends before its contents do", hint="the file is damaged or half downloaded: get it again"
    )


class _Parser:
    def __init__(self, path: Path, blob: mmap.mmap) -> None:
        self.path, self.blob, self.at = path, blob, 0

    def file(self) -> GGUFFile:
        if self.blob[:4] != b"GGUF":
            raise ModelError(f"{self.path} is not a GGUF file", got=repr(bytes(self.blob[:4])), allowed="b'GGUF'")
        self.at = 4
        version = self.scalar("I")
        if version not in (2, 3):
            raise ModelError(f"{self.path} has a GGUF version or byte order not known", got=version, allowed="2, 3")
        tensor_count, key_count = self.scalar("Q"), self.scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self.string()
            metadata[key] = self.value(self.scalar("I"))
        tensors = [self.tensor() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", 32))
        start = -(-self.at // alignment) * alignment
        return GGUFFile(
            self.path, metadata, {t.name: GGUFTensor(t.name, t.shape, t.kind, start + t.offset) for t in tensors}
        )

    def scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.blob, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        raw = self.blob[self.at : self.at + length]
        if len(raw) != length:
            raise _truncated(self.path)
        self.at += length
        return raw.decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(self.scalar("I"), self.scalar("Q"))
        if kind not in _SCALARS:
            raise ModelError(f"{self.path} has metadata of a type not known", got=kind)
        return self.scalar(_SCALARS[kind])

    def array(self, kind: int, count: int) -> Any:
        if kind in _SCALARS:
            form = f"<{count}{_SCALARS[kind]}"
            values = list(struct.unpack_from(form, self.blob, self.at))
            self.at += struct.calcsize(form)
            return values
        if kind != _STRING:
            return [self.value(kind) for _ in range(count)]
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", self.blob, self.at)
            self.at += 8 + length
        return count

    def tensor(self) -> GGUFTensor:
        name, dimensions = self.string(), self.scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise _truncated(self.path)
        shape = tuple(reversed([self.scalar("Q") for _ in range(dimensions)]))
        return GGUFTensor(name, shape, self.scalar("I"), self.scalar("Q"))
