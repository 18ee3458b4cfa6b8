"""Reading a config: YAML, overrides, unknown keys refused with the nearest known one. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from surefoot.config.composites import with_composite
from surefoot.config.faults import describe, known_keys
from surefoot.config.paths import resolve_paths, shown
from surefoot.config.tree import Config
from surefoot.config.yaml_text import read_yaml, write_yaml
from surefoot.errors import ConfigError

__all__ = ["apply_override", "build_config", "dump_config", "known_keys", "load_config", "resolve_paths"]

OPTIONAL = ("serve", "cluster")
"""Sections that a config may be without: null is not the same as one with the defaults."""


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML config and apply ``a.b=c`` overrides, in order.

    Paths of models and prompts are looked for beside the config file first, then in the current folder; what is
    found is stored as an absolute path. What is not found and is no file by its name is left as it is (a hub id).

    Args:
        path: the YAML file.
        overrides: texts like ``ppo.kl.coef=0.02``; the value is read as YAML.
    Raises:
        ConfigError: naming every unknown key with the nearest known one, and every value out of range.
    """
    file = Path(path)
    tree = read_tree(file)
    # A composite first: its terms are written out, so that overrides find them.
    for override in sorted(overrides, key=lambda text: not text.strip().startswith("reward.composite=")):
        if isinstance(tree.get("reward"), dict):
            tree["reward"] = with_composite(tree["reward"])
        apply_override(tree, override)
    name_missing = not (isinstance(tree.get("run"), dict) and tree["run"].get("name"))
    config = build_config(tree, origin=str(file))
    if name_missing:
        plain = (c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in file.stem)
        stem = "".join(plain).lstrip("._-") or "run"
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": stem})})
    return resolve_paths(config, file.resolve().parent)


def read_tree(file: Path) -> dict[str, Any]:
    """The sections of a YAML file, as they stand.

    Raises:
        ConfigError: it cannot be read, or holds none.
    """
    try:
        tree = read_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("the config file does not exist", got=shown(str(file)), hint="check the path") from None
    except IsADirectoryError:
        raise ConfigError("the config is a folder", got=str(file), hint="name the YAML file in it") from None
    except OSError as error:
        raise ConfigError(
            "the config file cannot be read",
            got=f"{shown(str(file))} ({error.strerror})",
            hint="check the path and its permissions",
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
        raise ConfigError(
            f"{file} is not valid YAML", got=reason, hint="look at indentation, colons and quotes around that place"
        ) from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} must hold sections", got=type(tree).__name__, hint="start with 'run:'")
    return tree


def apply_override(tree: dict[str, Any], override: str) -> None:
    """Set one ``a.b=c`` in a nested dict."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError("an override must look like section.key=value", got=override, hint="ppo.kl.coef=0.02")
    try:
        value = read_yaml(text) if text.strip() else None
    except yaml.YAMLError as error:
        raise ConfigError(
            "an override's value is not valid YAML", got=override, hint="put it in quotes, as run.name='\"a: b\"'"
        ) from error
    *sections, last = key.strip().split(".")
    node: Any = tree
    for section in sections:
        node = _child(node, section, override)
    if isinstance(node, list):
        node[_index(node, last, override)] = value
    else:
        node[last] = value


def _child(node: Any, key: str, override: str) -> Any:
    if isinstance(node, list):
        child = node[_index(node, key, override)]
    else:
        child = node.get(key)
        if child is None:
            child = node[key] = {}
    if not isinstance(child, (dict, list)):
        raise ConfigError(
            f"{key!r} in the override is not a section",
            got=override,
            hint="write section.key=value, as ppo.kl.coef=0.02",
        )
    return child


def _index(node: list[Any], key: str, override: str) -> int:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in node]
    if key in names:
        return names.index(key)
    if not key.isdigit() or int(key) >= len(node):
        called = ", ".join(str(name) for name in names if name is not None)
        raise ConfigError(
            f"{key!r} in the override is not the index of an entry",
            got=override,
            allowed=f"0 to {len(node) - 1}{f', or a name: {called}' if called else ''}"
            if node
            else "none: the list is empty",
            hint="entries count from 0, as in reward.terms.0.weight=2",
        )
    return int(key)


def build_config(tree: dict[str, Any], *, origin: str = "the config") -> Config:
    """Validate a nested dict.

    Raises:
        ConfigError: all faults at once.
    """
    tree = {k: ({} if v is None and k not in OPTIONAL else v) for k, v in tree.items()}
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        problems, hints = describe(error)
    count = f"{len(problems)} faults" if len(problems) > 1 else "1 fault"
    hint = "; ".join(hints) or "docs/config.md explains every key"
    raise ConfigError(f"{origin} has {count}: " + " | ".join(problems), hint=hint)


def dump_config(config: Config) -> str:
    """The complete config as YAML, every key written out."""
    return write_yaml(config.model_dump(mode="json"))
