"""Plain text tables and numbers: readable without colour, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: int = 0) -> str:
    """Columns as wide as their widest cell, two blanks apart.

    Args:
        head: names of the columns.
        rows: cells, one per column; line ends in them become blanks.
        right: columns whose cells stand on the right.
        indent: blanks before each row, the head excepted.
    """
    table = [[" ".join(str(cell).split()) for cell in row] for row in (head, *rows)]
    for row in table[1:]:
        row[0] = " " * indent + row[0]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        return "  ".join(cells).rstrip()

    return "".join(f"{line(row)}\n" for row in table)


def number(value: float | int | None) -> str:
    """A number in four figures; a dash for what is not known."""
    if value is None:
        return "-"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}"
    return f"{value:.4g}"
