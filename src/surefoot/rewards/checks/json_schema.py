"""Check ``json_schema``: the response holds JSON that a schema allows. Torch-free.

Validation is the ``jsonschema`` package's (extra ``checks``), in a process of its own: its patterns and comparisons
can take long. Nothing is fetched: a reference to another address cannot be resolved.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import Field, field_validator, model_validator

from surefoot.errors import ConfigError, MissingExtra
from surefoot.rewards.checks.check import Answer, CannotJudge, Check, Judgement, Options
from surefoot.rewards.checks.json_text import NoJson, Where, find_json

SHOWN: Final = 160


class JsonSchemaOptions(Options):
    """Options of check ``json_schema``; without a schema any JSON will do."""

    schema_: dict[str, Any] | None = Field(None, alias="schema")
    """The schema, written out."""
    schema_file: str | None = None
    """A JSON file with the schema, relative to the config."""
    column: str | None = Field(None, min_length=1)
    """Column with a schema of the row's own, an object or its JSON text."""
    where: Where = "auto"
    """Where the JSON stands: `whole`: nothing else; `first_fence`, `last_fence`; `embedded`: the first object or list
    in the text; `auto`: the whole response, or its only fenced block."""
    formats: bool = False
    """Whether `format` (date, email, ...) is checked, as far as the installed packages can."""

    @model_validator(mode="after")
    def _one_schema(self) -> JsonSchemaOptions:
        if sum(given is not None for given in (self.schema_, self.schema_file, self.column)) > 1:
            raise ValueError("takes one of schema, schema_file and column")
        return self

    @field_validator("schema_file")
    @classmethod
    def _readable(cls, path: str | None) -> str | None:
        if path is not None and not Path(path).is_file():
            raise ValueError(f"there is no file {path}")
        return path


class JsonSchemaCheck(Check[JsonSchemaOptions]):
    """1 when there is JSON and the schema allows it; else 0, with the path that failed."""

    name: ClassVar[str] = "json_schema"
    options_type: ClassVar[type[Options]] = JsonSchemaOptions
    isolated: ClassVar[bool] = True

    def __init__(self, options: JsonSchemaOptions) -> None:
        super().__init__(options)
        self._validator: Any = None
        schema = options.schema_
        if options.schema_file is not None:
            try:
                schema = json.loads(Path(options.schema_file).read_text(encoding="utf-8"))
            except ValueError as error:
                raise ConfigError("the schema is no JSON", got=f"{options.schema_file}: {error}") from None
        if schema is not None or options.column is not None:
            _package()
        if schema is not None:
            try:
                self._validator = self._validator_of(schema)
            except CannotJudge as error:
                raise ConfigError(str(error), hint="see json-schema.org for what a schema may hold") from None

    @property
    def columns(self) -> tuple[str, ...]:
        """The column with the schema."""
        return (self.options.column,) if self.options.column is not None else ()

    def judge(self, answer: Answer) -> Judgement:
        """Read and validate."""
        validator = self._validator
        if self.options.column is not None:
            validator = self._validator_of(self._row_schema(answer.column(self.options.column)))
        try:
            value = find_json(answer.response, self.options.where)
        except NoJson as error:
            return Judgement(0.0, str(error))
        if validator is None:
            return Judgement(1.0)
        try:
            faults = sorted(validator.iter_errors(value), key=lambda fault: (len(fault.absolute_path), fault.json_path))
        except _package("referencing.exceptions").Unresolvable as error:
            raise CannotJudge(f"a reference in the schema cannot be resolved: {error}"[:SHOWN]) from None
        except RecursionError:
            raise CannotJudge("the schema or the JSON is nested too deeply") from None
        if not faults:
            return Judgement(1.0)
        first, more = faults[0], f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
        message = first.message if len(first.message) <= SHOWN else f"{first.message[:SHOWN]}..."
        return Judgement(0.0, f"{first.json_path}: {message}{more}")

    def _row_schema(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            raise CannotJudge(f"column {self.options.column!r} holds no JSON: {error}") from None

    def _validator_of(self, schema: Any) -> Any:
        package = _package()
        if not isinstance(schema, dict | bool):
            raise CannotJudge(f"the schema is no object but {type(schema).__name__}")
        kind = package.validators.validator_for(schema, default=package.Draft202012Validator)
        try:
            kind.check_schema(schema)
        except package.SchemaError as error:
            raise CannotJudge(f"the schema is none: {error.json_path}: {error.message}"[:SHOWN]) from None
        return kind(
            schema,
            registry=_package("referencing").Registry(),  # an empty one: nothing is fetched from anywhere
            format_checker=kind.FORMAT_CHECKER if self.options.formats else None,
        )


def _package(name: str = "jsonschema") -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtra(
            "check json_schema validates with the package jsonschema, which is not installed",
            hint="pip install 'surefoot[checks]'",
        ) from None
