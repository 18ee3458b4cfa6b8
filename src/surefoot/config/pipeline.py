"""A pipeline file: stages in order, each with an ordinary config, and what they take from each other. Torch-free.

A value ``stage:NAME/PATH`` in a stage's config is that path in the folder of an earlier stage,
``pipeline:NAME/STAGE/PATH`` one in another pipeline's folder that lies beside this one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, field_validator

from surefoot.config.composites import with_composite
from surefoot.config.load import apply_override, build_config, read_tree
from surefoot.config.paths import resolve_paths
from surefoot.config.pipeline_kinds import LEAVES, UNREAD, read_by
from surefoot.config.pipeline_references import nearest_of, replaced_by_path
from surefoot.config.sections import Section
from surefoot.config.tree import Config, require
from surefoot.errors import ConfigError

Kind = Literal["sft", "reward-model", "train", "sample", "eval-reward-model", "command"]
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


class PipelineSection(Section):
    """What the pipeline is called and where it lies."""

    name: str = Field(pattern=NAME)
    """Its folder's name."""
    dir: str = "runs"
    """The folder that holds its folder, relative to the current one."""


class StageEntry(Section):
    """One stage."""

    name: str = Field(pattern=NAME)
    """What it is called, and its folder."""
    kind: Kind
    """Which command it is; `command`: one of your own."""
    config: str | None = None
    """The config file of the command, relative to the pipeline file."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys to set in it, as `model.policy: stage:sft/model`."""
    model: str | None = None
    """Of `eval-reward-model`: the reward model."""
    pairs: str | None = None
    """Of `eval-reward-model`: preferences that it was not trained on."""
    settings: list[str] = Field(default_factory=list)
    """Of `eval-reward-model`: its settings, as `shift.length=0.5`."""
    run: list[str] = Field(default_factory=list)
    """Of `command`: program and arguments; `python` is the interpreter that runs the pipeline. No shell is involved."""
    inputs: list[str] = Field(default_factory=list)
    """Of `command`: files and folders that decide what it makes; the stage is done again when one changes."""
    outputs: list[str] = Field(default_factory=list)
    """Of `command`: what it makes in its own folder, `stage:NAME`."""

    @field_validator("outputs")
    @classmethod
    def _inside(cls, outputs: list[str]) -> list[str]:
        for output in outputs:
            if Path(output).is_absolute() or ".." in Path(output).parts or not output.strip():
                raise ValueError(f"{output!r} is not a path inside the stage's folder; hint: outputs: [report.json]")
        return outputs


class PipelineFile(Section):
    """A pipeline file."""

    pipeline: PipelineSection
    defaults: dict[str, Any] = Field(default_factory=dict)
    """Sections that every stage's config has unless it says otherwise."""
    stages: list[StageEntry] = Field(min_length=1)
    """The stages, in the order in which they run."""


@dataclass(frozen=True)
class Stage:
    """A stage with everything filled in.

    Attributes:
        entry: as it stands in the file, references replaced.
        folder: its own.
        config: of a command of Surefoot's; None for the others.
        takes: names of the earlier stages that it takes something from.
        borrows: folders in other pipelines' that it takes something from: a stage's, or a whole pipeline's.
    """

    entry: StageEntry
    folder: Path
    config: Config | None
    takes: frozenset[str]
    borrows: frozenset[Path] = frozenset()

    @property
    def name(self) -> str:
        """What it is called."""
        return self.entry.name


@dataclass(frozen=True)
class Pipeline:
    """A pipeline, checked.

    Attributes:
        name: what it is called.
        file: where it was read from.
        folder: where it lies.
        stages: in order.
    """

    name: str
    file: Path
    folder: Path
    stages: tuple[Stage, ...]


def load_pipeline(path: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Read a pipeline file, and every config that it names.

    Args:
        path: the YAML file.
        overrides: ``STAGE.section.key=value``, or ``pipeline.key=value``.
    Raises:
        ConfigError: anything in it that cannot work, before any stage runs.
    """
    file = Path(path)
    tree = read_tree(file)
    own: list[str] = []
    others: list[str] = []
    for override in overrides:
        (own if override.split(".")[0] in ("pipeline", "defaults") else others).append(override)
    for override in own:
        apply_override(tree, override)
    try:
        found = PipelineFile.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{file} cannot be used: {_faults(error)}", hint="docs/pipeline.md has an example") from None
    names = [entry.name for entry in found.stages]
    if len(set(names)) < len(names):
        raise ConfigError("two stages have the same name", got=", ".join(names), hint="give each its own")
    folder = (Path(found.pipeline.dir).expanduser() / found.pipeline.name).absolute()
    by_stage: dict[str, list[str]] = {name: [] for name in names}
    for override in others:
        stage, _, rest = override.partition(".")
        if stage not in by_stage:
            raise ConfigError(
                "no stage has this name", got=override, allowed=", ".join(names), hint=nearest_of(stage, names)
            )
        by_stage[stage].append(rest)
    leaves = {entry.name: LEAVES.get(entry.kind) or tuple(entry.outputs) for entry in found.stages}
    stages = tuple(
        _stage(
            entry,
            found,
            file.resolve().parent,
            folder,
            {name: leaves[name] for name in names[:number]},
            by_stage[entry.name],
        )
        for number, entry in enumerate(found.stages)
    )
    return Pipeline(found.pipeline.name, file.resolve(), folder, stages)


def _faults(error: ValidationError) -> str:
    """Each fault once: where, what, and which key was meant."""
    known = [*PipelineFile.model_fields, *StageEntry.model_fields, *PipelineSection.model_fields]
    said = []
    for fault in error.errors():
        place = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden":
            meant = nearest_of(str(fault["loc"][-1]), known)
            said.append(f"unknown key {place!r}{f', {meant}' if meant else ''}")
        else:
            said.append(f"{place}: {fault['msg']}")
    return " | ".join(dict.fromkeys(said))


def _stage(
    entry: StageEntry,
    found: PipelineFile,
    base: Path,
    folder: Path,
    earlier: Mapping[str, Sequence[str]],
    overrides: Sequence[str],
) -> Stage:
    taken: set[str] = set()
    borrowed: set[Path] = set()

    def replaced(text: str) -> str:
        return replaced_by_path(text, entry.name, folder, earlier, taken, borrowed)

    own = StageEntry.model_validate(_mapped(entry.model_dump(), replaced))
    _fits(own)
    if own.kind in ("command", "eval-reward-model"):
        if overrides and own.kind == "command":
            raise ConfigError(f"stage {own.name} has no config to override", got=overrides[0], hint="change the file")
        placed = {
            "inputs": [str(_place(base, one)) for one in own.inputs],
            "pairs": own.pairs and str(_place(base, own.pairs)),
            "model": own.model and str(_place(base, own.model)),
            "settings": [*own.settings, *overrides],
        }
        return Stage(own.model_copy(update=placed), folder / own.name, None, frozenset(taken), frozenset(borrowed))
    beside = _beside(base / own.config, replaced) if own.config else {}
    tree = read_by(own.kind, _merged(found.defaults, beside))
    for key, value in own.set.items():
        _set(tree, key, value, own.name)
    for override in overrides:
        apply_override(tree, override)
    tree = _mapped(tree, replaced)
    for key in (*own.set, *overrides):
        if (section := key.partition("=")[0].partition(".")[0].strip()) in UNREAD[own.kind]:
            raise ConfigError(f"stage {own.name}: {own.kind} does not read the section {section}", got=key)
    tree.setdefault("run", {})
    if isinstance(tree["run"], dict):
        tree["run"] |= {"name": own.name, "dir": str(folder)}
    config = resolve_paths(build_config(tree, origin=f"stage {own.name}"), base)
    if own.kind == "sample":
        out = folder / own.name / LEAVES["sample"][0]
        config = config.model_copy(update={"sample": config.sample.model_copy(update={"file": str(out)})})
    try:
        require(config, own.kind)  # type: ignore[arg-type]  # the kinds with a config are commands
    except ConfigError as error:
        raise ConfigError(
            f"stage {own.name}: {error.what}", got=error.got, allowed=error.allowed, hint=error.hint
        ) from None
    return Stage(own, folder / own.name, config, frozenset(taken), frozenset(borrowed))


def _beside(file: Path, replaced: Callable[[str], str]) -> dict[str, Any]:
    """A stage's config file, with the paths that are found beside it absolute, as for its command alone."""
    tree: dict[str, Any] = _mapped(read_tree(file), replaced)
    if isinstance(tree.get("reward"), dict):
        tree["reward"] = with_composite(tree["reward"])
    config = build_config(tree, origin=str(file))
    before, after = config.model_dump(mode="json"), resolve_paths(config, file.resolve().parent).model_dump(mode="json")
    return {key: _placed(value, before.get(key), after.get(key)) for key, value in tree.items()}


def _placed(value: Any, before: Any, after: Any) -> Any:
    """A tree with what differs between two others."""
    if isinstance(value, Mapping) and isinstance(before, Mapping):
        return {key: _placed(one, before.get(key), after.get(key)) for key, one in value.items()}
    if isinstance(value, list) and isinstance(before, list) and len(value) == len(before):
        return [_placed(*three) for three in zip(value, before, after, strict=True)]
    return after if isinstance(value, str) and before != after else value


def _fits(entry: StageEntry) -> None:
    """Whether an entry has the keys of its kind, and no others."""
    keys = {"eval-reward-model": ("model", "pairs", "settings"), "command": ("run", "inputs", "outputs")}
    allowed = keys.get(entry.kind, ("config", "set"))
    given = [key for key in ("config", "set", *keys["eval-reward-model"], *keys["command"]) if getattr(entry, key)]
    stray = [key for key in given if key not in allowed]
    if stray:
        raise ConfigError(
            f"stage {entry.name} is of kind {entry.kind} and has keys of another",
            got=", ".join(stray),
            allowed=", ".join(allowed),
        )
    needed = {"eval-reward-model": ("model", "pairs"), "command": ("run", "outputs")}.get(entry.kind, ())
    missing = [key for key in needed if not getattr(entry, key)]
    if missing:
        raise ConfigError(f"stage {entry.name} of kind {entry.kind} needs {', '.join(missing)}", hint="add them")


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    return value


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts as one; what is above counts."""
    found = {key: _mapped(value, str) for key, value in below.items()}
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = _merged(found[key], value) if both else value
    return found


def _set(tree: dict[str, Any], key: str, value: Any, stage: str) -> None:
    apply_override(tree, f"{key}=0")  # finds or refuses the place
    *sections, last = key.split(".")
    node: Any = tree
    for section in sections:
        node = node[_number(node, section)] if isinstance(node, list) else node[section]
    if isinstance(node, list):
        node[_number(node, last)] = value
    else:
        node[last] = value


def _number(entries: Sequence[Any], key: str) -> int:
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    return names.index(key) if key in names else int(key)


def _place(base: Path, text: str) -> Path | str:
    """A path beside the pipeline file; a hub id as it is."""
    path = base / Path(text).expanduser()
    return path if path.exists() or Path(text).is_absolute() or Path(text).suffix or "/" not in text else text


def places_of(config: Config) -> Iterator[tuple[str, str, str]]:
    """Key, path and kind of every file and folder that decides what a command makes.

    Kinds as :func:`surefoot.training.lineage.describe_input` has them; hub ids are among them.
    """
    found: list[tuple[str, str | None, str]] = [
        ("model.policy", config.model.policy, "model"),
        ("model.reference", config.model.reference, "model"),
        ("model.chat_template", _template_file(config), "code"),
        ("data.prompts", config.data.prompts, "data"),
        ("evaluate.prompts", config.evaluate.prompts, "data"),
        ("sft.data", config.sft.data, "data"),
        ("sft.held_out", config.sft.held_out, "data"),
        ("reward_model.data", config.reward_model.data, "data"),
        ("reward_model.held_out", config.reward_model.held_out, "data"),
        ("reward_model.tasks", config.reward_model.tasks, "data"),
        ("reward_model.init", config.reward_model.init, "model"),
        ("sample.prompts", config.sample.prompts, "data"),
    ]
    names = {term.name for term in config.reward.terms} | {"policy"}
    if config.critic.init not in names:
        found.append(("critic.init", config.critic.init, "model"))
    for term in config.reward.terms:
        key = f"reward.{term.name}"
        if term.kind == "function":
            place = term.place.rpartition(":")[0]
            found.append((key, place, "code" if place.endswith(".py") else "module"))
        elif term.kind in ("model", "human"):
            found.append((key, term.place, "model" if term.kind == "model" else "data"))
        found.append((f"{key}.report", term.report, "report"))
        found += [(f"{key}.{k}", v, "code") for k, v in term.options.items() if k.endswith("_file")]
    yield from ((key, place, kind) for key, place, kind in found if place)


def _template_file(config: Config) -> str | None:
    """The chat template where it is a file, not its text."""
    value = config.model.chat_template
    return value if value is not None and "\n" not in value and Path(value).is_absolute() else None
