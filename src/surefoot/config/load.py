"""Reading a config: YAML, overrides, unknown keys refused with the nearest known one. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from surefoot.config.composites import with_composite
from surefoot.config.faults import describe, known_keys
from surefoot.config.sections import RewardTerm
from surefoot.config.tree import Config
from surefoot.config.yaml_text import read_yaml, write_yaml
from surefoot.errors import ConfigError

__all__ = ["apply_override", "build_config", "dump_config", "known_keys", "load_config", "resolve_paths"]

FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".gz", ".parquet", ".py")


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
    tree = _read_yaml(file)
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


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        tree = read_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("the config file does not exist", got=str(file), hint="check the path") from None
    except IsADirectoryError:
        raise ConfigError("the config is a folder", got=str(file), hint="name the YAML file in it") from None
    except OSError as error:
        raise ConfigError(
            "the config file cannot be read", got=f"{file} ({error.strerror})", hint="check its permissions"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
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
    tree = {k: ({} if v is None and k != "cluster" else v) for k, v in tree.items()}
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        problems, hints = describe(error)
    count = f"{len(problems)} faults" if len(problems) > 1 else "1 fault"
    hint = "; ".join(hints) or "docs/config.md explains every key"
    raise ConfigError(f"{origin} has {count}: " + " | ".join(problems), hint=hint)


def resolve_paths(config: Config, folder: Path) -> Config:
    """Make local paths of models, prompts, reward targets and a check's options that name a file absolute."""

    def found(value: str | None) -> str | None:
        if value is None:
            return None
        for base in (folder, Path.cwd()):
            candidate = (base / Path(value).expanduser()).resolve()
            if candidate.exists():
                return str(candidate)
        # Named as a file, so it is no hub id: the message shall say where it was looked for.
        named = value.startswith((".", "~", "/")) or Path(value).suffix in FILE_SUFFIXES
        return str((folder / Path(value).expanduser()).resolve()) if named else value

    def target(value: str) -> str:
        file, colon, name = value.rpartition(":")
        return f"{found(file)}:{name}" if colon and file.endswith(".py") else (found(value) or value)

    def term(t: RewardTerm) -> RewardTerm:
        if t.kind != "check":
            return t.model_copy(update={"target": target(t.target)})
        files = {k: found(v) for k, v in t.options.items() if k.endswith("_file") and isinstance(v, str)}
        return t.model_copy(update={"options": {**t.options, **files}}) if files else t

    terms = [term(t) for t in config.reward.terms]
    names = {t.name for t in terms} | {"policy"}
    critic_init = config.critic.init if config.critic.init in names else found(config.critic.init)
    model = {
        "policy": found(config.model.policy),
        "reference": found(config.model.reference),
        "chat_template": _template(config.model.chat_template, found),
    }
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "critic": config.critic.model_copy(update={"init": critic_init}),
            "reward": config.reward.model_copy(update={"terms": terms}),
            "data": config.data.model_copy(update={"prompts": found(config.data.prompts)}),
            "evaluate": config.evaluate.model_copy(update={"prompts": found(config.evaluate.prompts)}),
            "sft": _resolved(config.sft, found, "data", "held_out"),
            "reward_model": _resolved(config.reward_model, found, "data", "held_out", "tasks", "init"),
            "sample": _resolved(config.sample, found, "prompts"),
        }
    )


def _resolved(section: Any, found: Callable[[str | None], str | None], *keys: str) -> Any:
    """A section with the paths under these keys looked for."""
    return section.model_copy(update={key: found(getattr(section, key)) for key in keys})


def _template(value: str | None, found: Callable[[str | None], str | None]) -> str | None:
    """A template's file made absolute; Jinja source, which no path looks like, as it is."""
    return value if value is None or "{" in value or "\n" in value else found(value)


def dump_config(config: Config) -> str:
    """The complete config as YAML, every key written out."""
    return write_yaml(config.model_dump(mode="json"))
