"""GGUF to a Hugging Face folder in float32, once: configuration, weights, tokenizer with chat template, manifest.

The folder is written aside and renamed, so that a kill leaves no half of it; ``surefoot.json`` in it says what it was
made from and what its files must be, and is what a later use verifies.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from surefoot.errors import ModelError
from surefoot.models.gguf_file import GGUFFile, gguf_package, read_gguf
from surefoot.models.gguf_llama import llama_config
from surefoot.models.gguf_weights import check_shapes, write_weights

logger = logging.getLogger("surefoot")

VERSION: Final = 1
MANIFEST: Final = "surefoot.json"
_WEIGHTS: Final = "model.safetensors"
_STALE_S: Final = 24 * 3600.0


def convert_gguf(gguf_path: Path, folder: Path) -> Path:
    """Converts a Llama in a GGUF file to a Hugging Face folder in float32.

    The tokenizer is what ``transformers`` makes of the file, except that a pad token which is missing or the same as
    EOS is replaced by another special token of the vocabulary (the unknown token, if there is one), whose size stays.

    Args:
        gguf_path: the file; block formats as the ``gguf`` package knows them.
        folder: to be made; replaced if it was made by this function before.

    Returns:
        ``folder``.

    Raises:
        ModelError: not a GGUF, not a Llama, damaged, a feature that cannot be carried over, or ``folder`` holds
            something else.
        MissingExtra: the ``gguf`` package is not installed.
    """
    gguf_package()
    if _is_somebody_elses(folder):
        raise ModelError(
            f"{folder} was not made by a conversion and is not replaced", hint="choose another folder, or remove it"
        )
    started = time.monotonic()
    file = read_gguf(gguf_path)
    config = llama_config(file)
    check_shapes(file, config)
    logger.info("converting %s to float32 in %s", gguf_path.name, folder)
    try:
        with _aside(folder) as work:
            digests = {_WEIGHTS: write_weights(file, config, work / _WEIGHTS)}
            _write_texts(file, config, work)
            _write_manifest(gguf_path, work, digests)
    except OSError as error:
        raise ModelError(
            f"{folder} cannot be written", got=str(error), hint="free some space there, or choose another folder"
        ) from error
    logger.info("converted %s in %.1f s", gguf_path.name, time.monotonic() - started)
    return folder


def conversion_problem(folder: Path, *, source_sha256: str | None = None, digests: bool = False) -> str | None:
    """Why a converted folder cannot be used, or None when it can.

    Args:
        folder: made by :func:`convert_gguf`.
        source_sha256: the GGUF it must have been made from.
        digests: also recompute every file's sha256 (a second for 500 MB); sizes are compared always.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, source, files = manifest["version"], manifest["source"]["sha256"], manifest["files"]
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in files.items()}
    except FileNotFoundError:
        return "there is no finished conversion"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"its {MANIFEST} cannot be read"
    if version != VERSION:
        return f"it was made by version {version} of the conversion, this is {VERSION}"
    if source_sha256 not in (None, source):
        return "it was made from another GGUF file"
    for name, (size, digest) in expected.items():
        try:
            if (folder / name).stat().st_size != size:
                return f"its {name} has another size"
            if digests and _sha256(folder / name) != digest:
                return f"its {name} has changed"
        except FileNotFoundError:
            return f"its {name} is missing"
    return None


def _is_somebody_elses(folder: Path) -> bool:
    if (folder / MANIFEST).is_file():
        return False
    try:
        occupied = any(folder.iterdir())
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
    # Asked again: another process may have put a finished folder there while this one looked.
    return occupied and folder.exists() and not (folder / MANIFEST).is_file()


def _write_texts(file: GGUFFile, config: dict[str, Any], folder: Path) -> None:
    tokenizer = _tokenizer(file.path)
    if len(tokenizer) > config["vocab_size"]:
        raise ModelError(
            f"{file.path} has more tokens than rows in its embedding", got=len(tokenizer), allowed=config["vocab_size"]
        )
    tokenizer.pad_token = _pad_token(tokenizer)
    tokenizer.save_pretrained(folder)
    ids = {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]}
    ids["pad_token_id"] = tokenizer.pad_token_id
    LlamaConfig(**(config | ids)).save_pretrained(folder)
    GenerationConfig(**ids).save_pretrained(folder)


def _tokenizer(gguf_path: Path) -> Any:
    # Alone in a folder: transformers prefers a tokenizer.json that happens to lie beside the file.
    with tempfile.TemporaryDirectory() as alone:
        (Path(alone) / "model.gguf").symlink_to(gguf_path.resolve())
        return PreTrainedTokenizerFast.from_pretrained(alone, gguf_file="model.gguf")


def _pad_token(tokenizer: Any) -> str | None:
    """A pad token that cannot be taken for the end of a response, out of the special tokens there are."""
    taken = {tokenizer.eos_token, tokenizer.bos_token, None}
    template = tokenizer.chat_template or ""
    special = [str(token) for _, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    unused = [token for token in special if token not in template]
    for token in (tokenizer.pad_token, tokenizer.unk_token, *unused):
        if token not in taken:
            return str(token)
    logger.warning("the vocabulary has no special token to pad with other than EOS")
    found: str | None = tokenizer.pad_token
    return found


def _write_manifest(gguf_path: Path, folder: Path, digests: dict[str, str]) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": digests.get(path.name) or _sha256(path)}
        for path in sorted(folder.iterdir())
    }
    source = {"file": gguf_path.name, "sha256": _sha256(gguf_path)}
    text = json.dumps({"version": VERSION, "source": source, "files": files}, indent=2)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place at the end, or is removed after a failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder)
    work = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    work.mkdir()
    try:
        yield work
        _put_in_place(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _put_in_place(work: Path, folder: Path) -> None:
    # Several processes may arrive at once. A folder is renamed only onto nothing: what stands there stays when it is
    # whole and the same (its readers are not disturbed), and is moved off otherwise.
    source = json.loads((work / MANIFEST).read_text(encoding="utf-8"))["source"]["sha256"]
    for _ in range(10):
        try:
            work.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if conversion_problem(folder, source_sha256=source, digests=True) is None:
            return
        old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
        try:
            folder.rename(old)
        except FileNotFoundError:
            continue
        shutil.rmtree(old, ignore_errors=True)
    raise ModelError(f"{folder} is replaced by other processes all the time", hint="convert it in one process")


def _remove_stale(folder: Path) -> None:
    for path in folder.parent.glob(f".{folder.name}.*.partial"):
        try:
            if time.time() - path.stat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        except FileNotFoundError:
            continue
