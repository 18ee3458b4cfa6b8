"""What YAML knows and JSON does not is refused in words; dates are texts; no config file ends in a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from surefoot.config import apply_override, load_config
from surefoot.config.yaml_text import read_yaml, write_yaml
from surefoot.errors import ConfigError

LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize("text", ["2024-01-01", "2024-01-01 10:00:00", "2001-12-14t21:59:43.10-05:00", "2024-99-99"])
def test_a_date_is_a_text(text: str, tmp_path: Path) -> None:
    assert read_yaml(f"a: {text}") == {"a": text}
    assert read_yaml(write_yaml({"a": text})) == yaml.safe_load(write_yaml({"a": text})) == {"a": text}
    file = tmp_path / "c.yaml"
    file.write_text("run: {name: 2024-01-01}\nrollout: {stop: [2024-01-01]}\n")
    config = load_config(file)
    assert (config.run.name, config.rollout.stop) == ("2024-01-01", ["2024-01-01"])


def test_a_date_where_a_number_belongs_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("run: {steps: 2024-01-01}\n")
    with pytest.raises(ConfigError, match=r"run\.steps: must be a valid integer.*'2024-01-01'"):
        load_config(tmp_path / "c.yaml")


ODD: dict[str, tuple[str, str]] = {
    "bytes": ("run: {name: !!binary aGFsbG8=}", "'binary' cannot be used"),
    "broken bytes": ("run: {name: !!binary a}", "'binary' cannot be used"),
    "set": ("rollout: {stop: !!set {a, b}}", "'set' cannot be used"),
    "ordered map": ("data: !!omap [a: 1]", "'omap' cannot be used"),
    "pairs": ("data: !!pairs [a: 1]", "'pairs' cannot be used"),
    "a date by its tag": ("run: {name: !!timestamp 2024-01-01}", "'a date' cannot be used"),
    "Python": ("run: {name: !!python/object/apply:os.getcwd []}", "could not determine a constructor"),
    "a tag of nobody": ("run: {name: !mine x}", "could not determine a constructor"),
    "no int": ("run: {steps: !!int abc}", "not the value that its tag or form says"),
    "no float": ("optim: {policy_lr: !!float x}", "not the value that its tag or form says"),
    "no bool": ("data: {shuffle: !!bool abc}", "not the value that its tag or form says"),
    "a number without end": (f"run: {{steps: {'9' * 5000}}}", "not the value that its tag or form says"),
    "a number too large": (f"run: {{steps: {'9' * 30}}}", "a whole number of 30 digits in run.steps"),
    "half a character": (r'rollout: {stop: ["\ud800"]}', "half a character (a surrogate) in rollout.stop.0"),
    "half a character as a key": (r'serve: {"\ud800": 1}', "half a character"),
    "a number as a key": ("data: {1: 2}", "the key '1' is no text"),
    "a date as a key": ("data: {!!timestamp 2024-01-01: 2}", "no text"),
    "null as a key": ("data: {null: 2}", "the key 'null' is no text"),
    "a list as a key": ("data: {[a]: 2}", "unhashable key"),
    "itself": ("data: &a [*a]", "nested too deeply, or within itself"),
    "too deep": (f"data: {'[' * 3000}{']' * 3000}", "nested too deeply"),
    "a few anchors": (LAUGHS, "more than 100,000 values"),
    "no anchor": ("data: *a", "undefined alias"),
    "a merge of nothing": ("data: {<<: 3}", "expected a mapping"),
    "two documents": ("a: 1\n---\nb: 2", "expected a single document"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_is_no_json_is_refused(name: str, tmp_path: Path) -> None:
    text, words = ODD[name]
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is not valid YAML") as caught:
        load_config(file)
    assert words in str(caught.value)


@pytest.mark.parametrize("value", ["!!binary aGFsbG8=", "!!int abc", "9" * 5000, "&a [*a]", r'"\ud800"', "[" * 3000])
def test_an_override_with_such_a_value(value: str) -> None:
    with pytest.raises(ConfigError, match="an override's value is not valid YAML"):
        apply_override({}, f"run.name={value}")


def test_a_merge_is_yaml_as_users_mean_it() -> None:
    assert read_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}") == {"a": {"x": 1}, "b": {"x": 1, "y": 2}}


def test_more_threads_than_any_machine_has(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("run: {threads: 100000000}\n")
    with pytest.raises(ConfigError, match=r"run\.threads"):
        load_config(tmp_path / "c.yaml")


def test_a_pattern_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: {lora: {targets: '('}}\n")
    with pytest.raises(ConfigError, match=r"model\.lora\.targets: is no regular expression"):
        load_config(tmp_path / "c.yaml")
