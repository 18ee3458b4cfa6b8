"""Check numeric: how numbers are read, which one counts, and when they agree."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from surefoot.rewards.checks.numbers import find_numbers
from surefoot.rewards.checks.units import read_unit
from tests.rewards.checks.judged import judge

READ: list[tuple[str, list[str | None]]] = [
    ("42", ["42"]),
    ("-42", ["-42"]),
    ("\u221242", ["-42"]),  # a real minus sign
    ("it is 42.", ["42"]),
    ("(3,5)", [None]),
    ("1,234,567.5", ["1234567.5"]),
    ("12,34,567", ["1234567"]),  # Indian groups
    ("1_000 and 1'000 and 1\u202f000", ["1000", "1000", "1000"]),
    ("1{,}234", ["1234"]),
    ("1 234", ["1", "234"]),  # two numbers: a plain space groups nothing
    ("1,5", [None]),  # one and a half, or one and five
    ("1.234,5", [None]),
    ("1,2,3", [None]),
    ("1.2.3", [None]),
    (".5", ["0.5"]),
    ("5.", ["5"]),
    ("3-4", ["3", "4"]),
    ("5 - 3", ["5", "3"]),
    ("x = -3", ["-3"]),
    ("(-5)", ["-5"]),
    ("H2O, x2, v1.2", []),
    ("1/2", ["0.5"]),
    ("1 / 4", ["0.25"]),
    ("1 1/2", ["1.5"]),
    ("\u00bd, 2\u00be", ["0.5", "2.75"]),
    (r"\frac{3}{4}", ["0.75"]),
    (r"-\dfrac{3}{4}", ["-0.75"]),
    (r"2\frac{1}{2}", ["2.5"]),
    ("1/0", [None]),
    ("3/4/2020", [None]),  # a date
    ("75%", ["0.75"]),
    (r"75\%", ["0.75"]),
    ("75 percent", ["0.75"]),
    ("1.5e3", ["1500"]),
    ("2E-2", ["0.02"]),
    ("1.5 x 10^3", ["1500"]),
    ("1.5\u00d710\u00b3", ["1500"]),
    (r"1.5 \times 10^{-2}", ["0.015"]),
    ("10^6", ["1000000"]),
    ("2^10", [None]),  # an expression
    ("2 million", ["2000000"]),
    ("$1,000.50", ["1000.5"]),
    ("-$5 and $-5", ["-5", "-5"]),
    ("\u0663\u066b\u0665", ["3.5"]),  # Arabic digits
    ("\uff14\uff12", ["42"]),  # full-width digits
    ("\u0967\u0968", ["12"]),  # Devanagari
    ("\u7b54\u6848\u662f42\u3002", ["42"]),
    ("5 m^2 and 3 m\u00b2", ["5", "3"]),
    ("1e999999999", ["1E+999999999"]),
    ("9" * 1001, [None]),
    ("", []),
    ("no number", []),
    ("--", []),
]


@pytest.mark.parametrize(("text", "values"), READ)
def test_numbers_are_read_as_meant(text: str, values: list[str | None]) -> None:
    found = [number.value for number in find_numbers(text)]
    assert found == [None if value is None else Decimal(value) for value in values]


def test_with_a_decimal_comma() -> None:
    found = [number.value for number in find_numbers("1.234,5 und 1,5 und 1.000 und 1.5", decimal="comma")]
    assert found == [Decimal("1234.5"), Decimal("1.5"), Decimal(1000), None]


RIGHT: list[tuple[str, dict[str, Any], Any]] = [
    ("The answer is 42.", {}, 42),
    ("First 7, then 42", {}, "42"),
    ("42", {}, "She has 6 * 7 apples.\n#### 42"),
    ("42", {}, r"so \boxed{42} of 50"),
    (r"\boxed{42} (not 43)", {}, 42),
    (r"I try \boxed{1}, no: \boxed{x = 42}", {}, 42),
    ("#### 42 (checked twice: 6 * 7)", {"after": "####", "where": "first"}, 42),
    ("only 42 here", {"where": "only"}, 42),
    ("0.5", {}, "1/2"),
    ("1/3", {}, r"\frac{1}{3}"),
    ("0.333", {"tolerance": 0.001}, "1/3"),
    ("1010", {"relative": 0.01}, 1000),
    ("75%", {}, 0.75),
    ("0.75", {}, "75%"),
    ("75%", {"percent": "points"}, 75),
    ("75%", {"percent": "either"}, 75),
    ("75", {"percent": "either"}, "75%"),
    ("1,234", {}, 1234),
    ("1.234", {"decimal": "comma"}, 1234),
    ("5 km", {}, 5),
    ("5 km", {"units": "compare"}, "5 km"),
    ("5000 metres", {"units": "compare"}, "5 km"),
    ("90 min", {"units": "compare"}, "1.5 hours"),
    ("2 days", {"units": "compare"}, "48 h"),
    ("$5", {"units": "compare"}, "5 dollars"),
    ("5 apples", {"units": "compare"}, "5 apple"),
    ("5", {"units": "compare"}, 5),
    ("1e400", {}, "1e400"),
    ("-" + "1234567890" * 5, {}, "-" + "1234567890" * 5),
    ("\u0664\u0662", {}, 42),
    ("-0", {}, 0),
    ("0.1", {}, 0.1),
    ("x " * 6000 + "42", {}, 42),
]
WRONG: list[tuple[str, dict[str, Any], Any, str]] = [
    ("41", {}, 42, "'41' is not '42'"),
    ("-42", {}, 42, "is not"),
    ("", {}, 42, "no number in an empty response"),
    ("forty-two", {}, 42, "no number"),
    ("What is 6 times 7?", {}, 42, "'7' is not '42'"),
    ("42 or 43", {}, 42, "'43' is not"),
    ("1,5", {}, 1.5, "more than one way"),
    ("42 or 43", {"where": "only"}, 42, "more than one number"),
    ("42", {"where": "boxed"}, 42, "no \\boxed{}"),
    (r"\boxed{41 or 42}", {}, 42, "\\boxed{} holds more than one number"),
    (r"\boxed{}", {}, 42, "\\boxed{} holds no number"),
    ("75%", {}, 75, "75% is read as 0.75"),
    ("75%", {"percent": "points"}, 0.75, "is not"),
    ("0.7501", {}, 0.75, "is not"),
    ("0.333", {}, "1/3", "is not"),
    ("5 miles", {"units": "compare"}, "5 km", "is not"),
    ("5", {"units": "compare"}, "5 km", "the unit is 'missing'"),
    ("5 kg", {"units": "compare"}, "5 km", "the unit is 'kg', expected 'km'"),
    ("\u20ac5", {"units": "compare"}, "$5", "the unit is '\u20ac'"),
    ("9" * 5000, {}, 42, "no number"),
    ("-" + "1234567890" * 5, {}, "-" + "1234567890" * 4 + "1234567891", "is not"),
    ("1e999999999", {}, 42, "is not"),
    ("42", {"after": "####"}, 42, "nothing follows"),
    ("42\u00b9", {}, 42, "more than one way"),
]
UNJUDGED: list[tuple[Any, str]] = [
    (None, "nothing in column"),
    ("", "no number"),
    ("between 3 and 4", "more than one number"),
    ("1,5", "no number that can be read in one way"),
    (True, "no number but bool"),
    ([42], "no number but list"),
    (float("nan"), "holds nan"),
]


@pytest.mark.parametrize(("response", "options", "answer"), RIGHT)
def test_right(response: str, options: dict[str, Any], answer: Any) -> None:
    assert judge("numeric", response, options, answer=answer).value == 1.0


@pytest.mark.parametrize(("response", "options", "answer", "note"), WRONG)
def test_wrong_says_why(response: str, options: dict[str, Any], answer: Any, note: str) -> None:
    judged = judge("numeric", response, options, answer=answer)
    assert judged.value == 0.0
    assert note in str(judged.note)


@pytest.mark.parametrize(("answer", "reason"), UNJUDGED)
def test_an_answer_that_is_no_number_is_no_zero(answer: Any, reason: str) -> None:
    judged = judge("numeric", "42", {}, answer=answer)
    assert judged.value is None
    assert reason in str(judged.note)


@pytest.mark.parametrize(
    ("one", "other", "factor"),
    [("km", "m", 1000), ("hours", "minute", 60), ("feet", "inch", 12), ("lb", "oz", 16), ("litres", "ml", 1000)],
)
def test_units_convert(one: str, other: str, factor: int) -> None:
    assert read_unit(one).kind == read_unit(other).kind
    assert read_unit(one).factor == factor * read_unit(other).factor
