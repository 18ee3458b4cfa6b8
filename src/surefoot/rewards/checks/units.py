"""Units that measure the same thing, for comparing ``5 km`` with ``5000 m``. Torch-free."""

from __future__ import annotations

from decimal import Decimal
from typing import Final, NamedTuple


class Unit(NamedTuple):
    """What a unit measures, and how much of the first one of its kind it is."""

    kind: str
    factor: Decimal


_KINDS: Final = {
    "length": "m 1, mm .001, millimeter .001, millimetre .001, cm .01, centimeter .01, centimetre .01, meter 1, "
    "metre 1, km 1000, kilometer 1000, kilometre 1000, inch .0254, in .0254, foot .3048, feet .3048, ft .3048, "
    "yard .9144, yd .9144, mile 1609.344, mi 1609.344",
    "mass": "g 1, gram 1, mg .001, milligram .001, kg 1000, kilogram 1000, kilo 1000, t 1000000, tonne 1000000, "
    "ounce 28.349523125, oz 28.349523125, pound 453.59237, lb 453.59237",
    "time": "s 1, sec 1, second 1, ms .001, millisecond .001, min 60, minute 60, h 3600, hr 3600, hour 3600, "
    "day 86400, week 604800",
    "volume": "l 1, liter 1, litre 1, ml .001, milliliter .001, millilitre .001, cl .01, dl .1",
    "area": "m^2 1, m2 1, cm^2 .0001, cm2 .0001, km^2 1000000, km2 1000000",
    "speed": "m/s 1, km/h .277777777777777777777777777777777777777777777777777777777778",
    "dollars": "$ 1, dollar 1, usd 1",
    "euros": "€ 1, euro 1, eur 1",
    "pounds sterling": "£ 1, gbp 1, quid 1",
    "degrees Celsius": "°c 1, celsius 1",
    "degrees Fahrenheit": "°f 1, fahrenheit 1",
}
_TABLE: Final = {
    name: Unit(kind, Decimal(factor))
    for kind, entries in _KINDS.items()
    for name, factor in (entry.split() for entry in entries.split(", "))
}


def read_unit(name: str) -> Unit:
    """What a unit's name stands for; a word that is not in the table is a kind of its own, without its plural's s."""
    plain = name.replace(" ", "").casefold().rstrip(".")
    for form in (plain, plain.removesuffix("s"), plain.removesuffix("es")):
        if form in _TABLE:
            return _TABLE[form]
    return Unit(plain.removesuffix("s") if len(plain) > 2 else plain, Decimal(1))
