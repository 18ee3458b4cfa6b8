"""Paths in a config: made absolute where something is there, and refused where no file can have them. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from surefoot.config.sections import RewardTerm
from surefoot.config.tree import Config
from surefoot.errors import ConfigError

FILE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".gz", ".parquet", ".py")
SHOWN = 100


def resolve_paths(config: Config, folder: Path) -> Config:
    """Make local paths of models, prompts and reward targets absolute.

    Args:
        config: as read.
        folder: of the config file, where paths are looked for first, then in the current one.
    Raises:
        ConfigError: a path is empty, or nothing can have it.
    """

    def found(key: str, value: str | None) -> str | None:
        return None if value is None else _found(key, value, folder)

    def target(key: str, value: str) -> str:
        file, colon, name = value.rpartition(":")
        is_function = colon and file.endswith(".py")
        return f"{_found(key, file, folder)}:{name}" if is_function else _found(key, value, folder)

    def section(name: str, *keys: str) -> Any:
        of = getattr(config, name)
        return of and of.model_copy(update={key: found(f"{name}.{key}", getattr(of, key)) for key in keys})

    terms = [_term(t, f"reward.terms.{n}", target, found) for n, t in enumerate(config.reward.terms)]
    names = {t.name for t in terms} | {"policy"}
    critic_init = config.critic.init if config.critic.init in names else found("critic.init", config.critic.init)
    model = {
        "policy": found("model.policy", config.model.policy),
        "reference": found("model.reference", config.model.reference),
        "chat_template": _template(config.model.chat_template, lambda value: found("model.chat_template", value)),
    }
    with _possible("run.dir", config.run.dir):
        runs = Path(config.run.dir).expanduser()
        _is_there(runs)
    name = config.run.name or "run"
    with _possible("run.name", name):
        _is_there(runs / name)
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "critic": config.critic.model_copy(update={"init": critic_init}),
            "reward": config.reward.model_copy(update={"terms": terms}),
            "data": section("data", "prompts"),
            "evaluate": section("evaluate", "prompts"),
            "sft": section("sft", "data", "held_out"),
            "reward_model": section("reward_model", "data", "held_out", "tasks", "init"),
            "sample": section("sample", "prompts"),
            "serve": section("serve", "reward"),
        }
    )


def _term(
    term: RewardTerm, key: str, target: Callable[[str, str], str], found: Callable[[str, str | None], str | None]
) -> RewardTerm:
    """A term with the file of its function, its model's folder or the files of its check's options made absolute."""
    if term.kind == "remote":
        return term
    if term.kind != "check":
        places = {"target": target(f"{key}.target", term.place), "report": found(f"{key}.report", term.report)}
        return term.model_copy(update=places)
    files = {
        name: found(f"{key}.options.{name}", value)
        for name, value in term.options.items()
        if name.endswith("_file") and isinstance(value, str)
    }
    return term.model_copy(update={"options": {**term.options, **files}}) if files else term


def _found(key: str, value: str, folder: Path) -> str:
    with _possible(key, value):
        path = Path(value).expanduser()
        for base in (folder, Path.cwd()):
            if _is_there(base / path):
                return str((base / path).resolve())
        # Named as a file, so it is no hub id: the message shall say where it was looked for.
        named = value.startswith((".", "~", "/")) or path.suffix in FILE_SUFFIXES
        return str((folder / path).resolve()) if named else value


def _is_there(path: Path) -> bool:
    """Whether there is such a path; errors other than its absence go on."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def _possible(key: str, value: str) -> Iterator[None]:
    """Refuse a text that nothing can be called, which the system finds when it looks there."""
    reason = "" if value.strip() else "it is empty"
    try:
        if not reason:
            yield
    except UnicodeEncodeError:
        reason = "it holds half a character"
    except ValueError:
        reason = "it holds a NUL"
    except OSError as error:
        reason = error.strerror or str(error)
    except RuntimeError as error:  # the home of nobody
        reason = str(error).rstrip(".")
    if reason:
        raise ConfigError(f"{key} cannot be used as a path: {reason}", got=shown(value), hint=f"correct {key}")


def shown(value: str) -> str:
    """A text as a message can hold it: printable, and not too long."""
    text = ascii(value) if any(not c.isprintable() for c in value) else value
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(value)} characters)"


def _template(value: str | None, found: Callable[[str | None], str | None]) -> str | None:
    """A template's file made absolute; Jinja source, which no path looks like, as it is."""
    return value if value is None or "{" in value or "\n" in value else found(value)
