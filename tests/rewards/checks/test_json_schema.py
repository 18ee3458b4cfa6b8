"""Check json_schema: JSON found, read strictly, and validated with the path that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surefoot.errors import ConfigError
from tests.rewards.checks.judged import judge

ITEM = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
SCHEMA = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": ITEM}, "name": {"type": "string", "pattern": "^[a-z]+$"}},
    "required": ["name"],
    "additionalProperties": False,
}
GOOD = '{"name": "tea", "items": [{"price": 1.5}]}'

# Without a schema: is there JSON, and where?
JSON: list[tuple[str, str, str | None]] = [  # response, where, and None or what is wrong
    (GOOD, "auto", None),
    ("  [1, 2]\n", "auto", None),
    ("3", "auto", None),
    ("null", "auto", None),
    (f"```json\n{GOOD}\n```", "auto", None),
    (f"Here:\n\n```\n{GOOD}\n```\nDone.", "auto", None),
    (f"~~~\n{GOOD}\n~~~", "auto", None),
    (f"````\n{GOOD}\n````", "auto", None),
    ("```json\n{}\n```\n```json\n[]\n```", "auto", "2 fenced blocks"),
    ("```json\n{}\n```\n```json\nx\n```", "first_fence", None),
    ("```json\n{}\n```\n```json\nx\n```", "last_fence", "no JSON"),
    ("````\n```json\n{}\n```\n````", "auto", "no JSON"),  # the inner fence is text of the outer block
    ('```json\n{"a": "```"}\n```', "auto", None),  # ticks inside a string
    ("```json\n{}", "auto", None),  # never closed
    ("{}", "first_fence", "no fenced block"),
    (f"Sure! {GOOD} Anything else?", "auto", "no JSON"),
    (f"Sure! {GOOD} Anything else?", "embedded", None),
    ("set {a, b} and [1]", "embedded", None),
    ("nothing here", "embedded", "no object and no list"),
    ("{" * 200 + "[1]", "embedded", "no object and no list"),  # looked for in the first places only
    (f"```\n{GOOD}\n```", "whole", "no JSON"),
    ("", "auto", "empty"),
    (" \n", "embedded", "empty"),
    ("Name the price of tea as JSON.", "auto", "no JSON"),
    ("{'a': 1}", "auto", "no JSON"),
    ('{"a": 1,}', "auto", "no JSON"),
    ('{"a": 1} {"b": 2}', "auto", "Extra data"),
    ('{"a": NaN}', "auto", "NaN is not JSON"),
    ('{"a": -Infinity}', "auto", "-Infinity is not JSON"),
    ('{"a": 1e999}', "auto", "too large"),
    ('{"a": 1, "a": 2}', "auto", "key 'a' stands twice"),
    ("[" * 100_000, "auto", "nested too deeply"),
    ("9" * 5000, "auto", "a number of 5000 digits"),
    ("9" * 1000, "auto", None),
    ('{"a": "\u0664\u0662"}', "auto", None),
    ("\u0664\u0662", "auto", "no JSON"),  # digits of another script are none
]


@pytest.mark.parametrize(("response", "where", "fault"), JSON)
def test_json_is_found_and_read(response: str, where: str, fault: str | None) -> None:
    judged = judge("json_schema", response, {"where": where})
    assert judged.value == (0.0 if fault else 1.0)
    assert (fault in str(judged.note)) if fault else judged.note is None


VALIDATED: list[tuple[str, str | None]] = [
    (GOOD, None),
    ('{"name": "tea"}', None),
    ("{}", "$: 'name' is a required property"),
    ('{"name": "Tea"}', "$.name: 'Tea' does not match"),
    ('{"name": "tea", "items": [{"price": 1}, {"price": "2"}]}', "$.items[1].price: '2' is not of type 'number'"),
    ('{"name": "tea", "items": [{}, {}]}', "and 1 more"),
    ('{"items": [{"price": "2"}]}', "$: 'name' is a required property; and 1 more"),  # the outermost first
    ('{"name": "tea", "cost": 1}', "$: Additional properties are not allowed"),
    ("[]", "$: [] is not of type 'object'"),
    ('{"name": "' + "A" * 5000 + '"}', "..."),
]


@pytest.mark.parametrize(("response", "fault"), VALIDATED)
@pytest.mark.parametrize("given", ["inline", "file", "column", "column as text"])
def test_the_path_that_failed_is_named(response: str, fault: str | None, given: str, tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    options: dict[str, Any] = {"inline": {"schema": SCHEMA}, "file": {"schema_file": str(file)}}.get(
        given, {"column": "schema"}
    )
    column = json.dumps(SCHEMA) if given == "column as text" else SCHEMA
    judged = judge("json_schema", response, options, **({"schema": column} if "column" in given else {}))
    assert judged.value == (0.0 if fault else 1.0)
    assert (fault in str(judged.note)) if fault else judged.note is None


@pytest.mark.parametrize(
    ("column", "reason", "missing"),
    [
        (None, "nothing in column", True),
        ("{", "no JSON", False),
        (3, "no object but int", False),
        ({"type": "thing"}, "the schema is none", False),
        ({"$ref": "https://example.org/schema.json"}, "cannot be resolved", False),  # nothing is fetched
    ],
)
def test_a_schema_that_is_none_is_no_zero(column: Any, reason: str, missing: bool) -> None:
    pytest.importorskip("jsonschema")
    judged = judge("json_schema", "{}", {"column": "schema"}, schema=column)
    assert (judged.value, judged.missing) == (None, missing)
    assert reason in str(judged.note)


def test_formats_are_checked_when_asked_for() -> None:
    pytest.importorskip("jsonschema")
    schema = {"type": "string", "format": "date"}
    assert judge("json_schema", '"2020-13-01"', {"schema": schema}).value == 1.0
    assert judge("json_schema", '"2020-13-01"', {"schema": schema, "formats": True}).value == 0.0
    assert judge("json_schema", '"2020-12-01"', {"schema": schema, "formats": True}).value == 1.0


def test_what_cannot_be_a_schema_is_refused_at_once(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    file = tmp_path / "schema.json"
    file.write_text("{")
    for options, message in (
        ({"schema": {"type": "thing"}}, "the schema is none"),
        ({"schema_file": str(file)}, "the schema is no JSON"),
        ({"schema_file": str(tmp_path / "gone.json")}, "there is no file"),
        ({"schema": {}, "column": "schema"}, "one of schema, schema_file and column"),
        ({"shema": {}}, "unknown option 'shema', did you mean schema"),
    ):
        with pytest.raises(ConfigError, match=message):
            judge("json_schema", "{}", options)
