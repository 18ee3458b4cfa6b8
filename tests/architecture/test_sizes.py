"""Files, functions and parameter lists stay small; exceptions are dated and may only shrink."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.architecture import checks
from tests.architecture.checks import Allowed

ALLOWED = Path(__file__).with_name("allowed_sizes.txt")


def test_nothing_is_larger_than_allowed() -> None:
    assert checks.size_breaks(checks.read_allowed(ALLOWED)) == []


def test_exceptions_are_dated_and_give_a_reason() -> None:
    for entry in checks.read_allowed(ALLOWED):
        assert datetime.date.fromisoformat(entry.date) <= datetime.datetime.now(datetime.UTC).date()
        assert entry.kind in ("file", "function", "parameters")
        assert len(entry.reason) > 10


# ------------------------------------------------------------------------------------ that these tests can fail


def lines(count: int) -> str:
    return "x = 1\n" * count


def function(length: int, parameters: str = "", name: str = "f", indent: str = "") -> str:
    body = f"{indent}    x = 1\n" * (length - 1)
    return f"{indent}def {name}({parameters}):\n{body}"


FEW = "".join(function(5, name=f"h{i}") for i in range(8))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in which everything is exactly as large as allowed."""
    package = tmp_path / "surefoot"
    (package / "algo").mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "algo" / "gae.py").write_text(lines(250), encoding="utf-8")
    (package / "big.py").write_text(lines(400), encoding="utf-8")
    for i in range(2):
        (package / f"middle{i}.py").write_text(lines(170), encoding="utf-8")
    (package / "small.py").write_text(function(60) + function(40, name="g") + FEW, encoding="utf-8")
    method = function(3, "self, a, /, b, c, *d, e, f=1, **g", "m", "    ")
    (package / "methods.py").write_text("class A:\n" + method, encoding="utf-8")
    return package


def test_what_is_exactly_as_large_as_allowed_passes(package: Path) -> None:
    assert checks.size_breaks((), package) == []


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("big.py", lines(401), "file surefoot/big.py: 401, at most 400"),
        ("__init__.py", lines(401), "file surefoot/__init__.py: 401, at most 400"),
        ("algo/gae.py", lines(251), "file surefoot/algo/gae.py: 251, at most 250"),
        ("small.py", function(61) + function(5) * 20, "function surefoot/small.py:f: 61, at most 60"),
        ("small.py", "class A:\n" + function(61, indent="    "), "function surefoot/small.py:A.f: 61, at most 60"),
        ("small.py", "async " + function(61), "function surefoot/small.py:f: 61, at most 60"),
        ("small.py", "if x:\n" + function(61, indent="    "), "function surefoot/small.py:f: 61, at most 60"),
        ("small.py", "def g():\n" + function(61, indent="    "), "function surefoot/small.py:g.f: 61, at most 60"),
        ("small.py", function(2, "a, b, c, d, e, f, g, h"), "parameters surefoot/small.py:f: 8, at most 7"),
        ("small.py", function(2, "a, /, b, *c, d, e, f, g, **h"), "parameters surefoot/small.py:f: 8, at most 7"),
        (
            "methods.py",
            "class A:\n" + function(2, "cls, a, b, c, d, e, f, g, h", indent="    "),
            "parameters surefoot/methods.py:A.f: 8, at most 7",
        ),
        ("middle0.py", lines(171), "median of files: 170.5 lines, at most 170"),
        ("small.py", function(60) + function(41, name="g") + FEW, "90th percentile of functions: 41 lines, at most 40"),
    ],
)
def test_what_is_too_large_is_seen(package: Path, file: str, text: str, complaint: str) -> None:
    (package / file).write_text(text, encoding="utf-8")
    assert complaint in checks.size_breaks((), package)


def test_an_exception_covers_exactly_its_value(package: Path) -> None:
    (package / "big.py").write_text(lines(450), encoding="utf-8")
    assert checks.size_breaks([entry("surefoot/big.py", 450)], package) == []
    assert checks.size_breaks([entry("surefoot/big.py", 449)], package) == ["file surefoot/big.py: 450, at most 449"]
    assert checks.size_breaks([entry("surefoot/big.py", 451)], package) == [
        "file surefoot/big.py: shrank to 450, lower its entry from 451"
    ]


def test_an_exception_that_is_not_needed_is_seen(package: Path) -> None:
    assert checks.size_breaks([entry("surefoot/big.py", 400)], package) == [
        "file surefoot/big.py: 400 is within 400, take it off the allow-list"
    ]
    assert checks.size_breaks([entry("surefoot/gone.py", 500)], package) == [
        "file surefoot/gone.py: on the allow-list and not in the tree"
    ]


def test_the_list_is_read(tmp_path: Path) -> None:
    file = tmp_path / "allowed.txt"
    file.write_text(
        "# a comment\n\n2026-01-02 function surefoot/a.py:A.f 70 the table is one thing\n", encoding="utf-8"
    )
    expected = Allowed("2026-01-02", "function", "surefoot/a.py:A.f", 70, "the table is one thing")
    assert checks.read_allowed(file) == [expected]
    file.write_text("function surefoot/a.py:f 70\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not enough values"):
        checks.read_allowed(file)


def entry(subject: str, value: int) -> Allowed:
    return Allowed("2026-01-02", "file", subject, value, "for the test")
