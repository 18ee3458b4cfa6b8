"""What a model folder says about its text side: tokenizer, chat template, and which tokens end a response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from surefoot.errors import ModelError

TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "tekken.json",
)
# Entries of generation_config.json that are no sampling settings.
_BOOKKEEPING: Final = frozenset(
    {"eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version", "use_cache"}
)


def text_folder(folder: str) -> str:
    """The folder or hub id with the tokenizer: that of the base model for an adapter that came without one."""
    path = Path(folder)
    adapter = path / "adapter_config.json"
    if not adapter.is_file() or any((path / name).exists() for name in TOKENIZER_FILES):
        return folder
    base = _read_json(adapter).get("base_model_name_or_path")
    return str(base) if base else folder


def load_tokenizer(folder: str, *, trust_remote_code: bool = False) -> Any:
    """The transformers tokenizer of a folder or hub id.

    Raises:
        ModelError: there is none, or it needs code of its own that may not run.
    """
    # These load torch, which prompt files and validation do without.
    from transformers import AutoTokenizer

    from surefoot.models.load import first_line, quiet_library

    path = Path(folder)
    if path.is_absolute() and not path.exists():
        raise ModelError("the model folder does not exist", got=folder, hint="check the path")
    if path.is_dir() and not any((path / name).exists() for name in TOKENIZER_FILES):
        raise ModelError(
            "the model folder has no tokenizer",
            got=folder,
            allowed=f"a folder with one of {', '.join(TOKENIZER_FILES)}",
            hint="save the tokenizer that belongs to the model into the same folder",
        )
    try:
        with quiet_library():
            return AutoTokenizer.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=path.is_dir()
            )
    except MemoryError:
        raise
    except Exception as error:  # The library raises whatever its code stumbles over in a broken file.
        remote = "trust_remote_code" in str(error)
        hint = (
            "read that code, and set model.trust_remote_code: true if you trust it"
            if remote
            else "the folder's files must be whole; a hub id needs a network or a filled cache"
        )
        raise ModelError(f"the tokenizer of {folder} could not be loaded", got=first_line(error), hint=hint) from error


def read_template(value: str) -> str:
    """A chat template from ``model.chat_template``: Jinja source, or the path of a file with it.

    Raises:
        ModelError: it is neither.
    """
    if "{" in value or "\n" in value:
        return value
    file = Path(value).expanduser()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            "model.chat_template is neither a Jinja template nor a readable file",
            got=value,
            hint="check the path; a template has parts in {{ }} or {% %}",
        ) from error


def stop_settings(folder: str) -> tuple[tuple[int, ...], dict[str, Any]]:
    """End-of-sequence ids of a folder's configs, and the generation settings that are not followed.

    Returns:
        ids from ``generation_config.json`` and ``config.json``, and every sampling setting of the former. Training
        samples with the settings of the run's config alone, so the latter are for the log.
    """
    generation, config = _folder_json(folder, "generation_config.json"), _folder_json(folder, "config.json")
    nested = config.get("text_config")
    sources = [generation, config, nested if isinstance(nested, dict) else {}]
    ids: list[int] = []
    for source in sources:
        value = source.get("eos_token_id")
        ids += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int) and one >= 0]
    settings = {
        key: value
        for key, value in generation.items()
        if key not in _BOOKKEEPING and not key.startswith(("_", "output_", "return_")) and value is not None
    }
    return tuple(dict.fromkeys(ids)), settings


def _folder_json(folder: str, name: str) -> dict[str, Any]:
    if Path(folder).is_dir():
        file = Path(folder) / name
        return _read_json(file) if file.is_file() else {}
    from transformers.utils import cached_file

    try:
        found = cached_file(folder, name)
    except OSError:
        return {}
    return _read_json(Path(found)) if found else {}


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not valid JSON", got=" ".join(str(error).split())) from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} must hold an object", got=type(content).__name__)
    return content
