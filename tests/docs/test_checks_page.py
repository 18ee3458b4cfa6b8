"""docs/checks.md: every check and option is there with its default, and every example is one that a config takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from surefoot.config import RewardTerm, build_config
from surefoot.records import digest_of
from surefoot.rewards.checks import CHECKS, Options, make_check
from surefoot.rewards.checks.instructions import KINDS
from surefoot.rewards.checks.options import option_names, read_options

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z_]+)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def entries() -> dict[str, str]:
    """The text below each heading that names a check."""
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    named = (part.partition("\n") for part in parts)
    return {heading.strip("`"): text for heading, _, text in named if heading.startswith("`")}


def documented(text: str) -> dict[str, Any]:
    """Options and defaults of the table below the heading of options."""
    table = text.partition("| option | default | meaning |")[2].partition("\n\n")[0]
    return {name: json.loads(default.strip("`")) for name, default, _ in ROW.findall(table)}


def defaults(model: type[BaseModel]) -> dict[str, Any]:
    common = option_names(Options)
    fields = {f.alias or n: f.get_default(call_default_factory=True) for n, f in model.model_fields.items()}
    return {name: value for name, value in fields.items() if name not in common}


def test_every_check_has_an_entry_and_every_entry_a_check() -> None:
    assert set(entries()) == set(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_every_option_is_documented_with_its_default_and_every_documented_one_exists(name: str) -> None:
    text = entries()[name]
    assert documented(text) == defaults(CHECKS[name].options_type)
    assert "*Limits.*" in text
    assert all(field.description for field in CHECKS[name].options_type.model_fields.values())


def test_the_common_options_are_documented() -> None:
    before = PAGE.partition("\n## ")[0]
    assert documented(before) == dict.fromkeys(option_names(Options))


@pytest.mark.parametrize("name", CHECKS)
def test_every_example_is_what_a_config_takes(name: str, tmp_path: Path) -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", entries()[name], re.DOTALL)
    term = RewardTerm.model_validate(yaml.safe_load(example))
    assert (term.kind, term.target) == ("check", name)
    files = {}
    for option, value in term.options.items():
        if option.endswith("_file"):
            files[option] = str(tmp_path / value)
            Path(files[option]).write_text("{}")
    read_options(CHECKS[name].options_type, {**term.options, **files})


def test_the_first_example_is_what_a_config_takes() -> None:
    example = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0])
    terms = [RewardTerm.model_validate(term) for term in example["reward"]["terms"]]
    assert [read_options(CHECKS[term.target].options_type, term.options) is not None for term in terms] == [True, True]


def test_every_kind_of_constraint_is_documented_with_its_keys() -> None:
    tables = entries()["instructions"].split("| kind |")[1:]
    found = {}
    for table in tables:
        for names, keys in re.findall(r"^\| (`[^|]+`) \|([^|]*)\|", table, re.MULTILINE):
            for name in re.findall(r"`([a-z_]+)`", names):
                found[name] = set(re.findall(r"`([a-z_]+)`", keys))
    bounds = {"at_least", "at_most", "exactly"}
    assert found == {name: set(kind.model_fields) - bounds for name, kind in KINDS.items()}


def test_the_python_example_says_what_the_page_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "value=0.0" in done.stdout and "more than one number" in done.stdout


REWARDS = (Path(__file__).resolve().parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(reward:.*?)```", REWARDS, re.DOTALL))
def test_the_rewards_of_the_page_on_rewards_are_what_a_config_takes(example: str) -> None:
    terms = build_config(yaml.safe_load(example)).reward.terms
    for term in terms:
        if term.kind == "check":
            make_check(term.target, term.options)
    assert terms


def test_the_page_on_rewards_digests_as_the_code_does() -> None:
    shown = re.search(r'"digest": "([0-9a-f]+)\.\.\."', REWARDS)
    assert shown is not None
    assert digest_of("p:", "yes").startswith(shown[1])
