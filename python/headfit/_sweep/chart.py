"""One chart of a report: what is drawn against what, and the numbers in it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headfit._sweep.rows import Row, order

LONGEST = 50
"""Characters of a file's name that tell a chart; a longer name ends with its hash."""

FLAGS = (str(False), str(True))
"""How a flag is written as a value of an axis."""


@dataclass(frozen=True)
class Spot:
    """One place of a line: the median of some rows, their range, and how many there are."""

    x: Any
    y: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Chart:
    """Lines of a measure against an axis, one for each combination of values of other axes.

    Attributes
    ----------
    y, x : str
        Names of columns.
    split : tuple of str
        The axes that tell lines apart.
    pooled : tuple of str
        Axes that are neither drawn nor tell lines apart.
    lines : dict
        A list of spots for each combination of the values of `split`.
    is_share : bool
        Whether it shows how many rows of a place have a property.
    """

    y: str
    x: str
    split: tuple[str, ...]
    pooled: tuple[str, ...]
    lines: dict[tuple[Any, ...], list[Spot]]
    is_share: bool

    @property
    def name(self) -> str:
        """The name of its file of numbers, without its suffix."""
        whole = f"{self.y}-against-{self.x}"
        plain = "".join(c if c.isalnum() else "-" for c in whole)
        if len(plain) <= LONGEST:
            return plain
        mark = hashlib.sha256(whole.encode("utf-8", "backslashreplace")).hexdigest()[:8]
        return f"{plain[:LONGEST]}-{mark}"

    def rows(self) -> list[Row]:
        """Return its numbers, one row for each spot.

        A statistic whose name an axis has is called after the measure as well.
        """

        def named(**statistics: float) -> Row:
            axes = (*self.split, self.x)
            return {f"{k}_of_{self.y}" if k in axes else k: v for k, v in statistics.items()}

        rows = []
        for values, spots in self.lines.items():
            for spot in spots:
                row = {**dict(zip(self.split, values, strict=True)), self.x: spot.x}
                if self.is_share:
                    row |= named(share=spot.y, points=spot.count)
                else:
                    row |= named(median=spot.y, least=spot.low, most=spot.high, points=spot.count)
                rows.append(row)
        return rows


def make_chart(
    rows: Sequence[Row], y: str, x: str, split: tuple[str, ...], pooled: tuple[str, ...]
) -> Chart:
    """Return the chart of rows that have a value of `y`: their medians, or shares if it is true."""
    groups: dict[tuple[Any, ...], dict[Any, list[Any]]] = {}
    for row in rows:
        if row.get(y) is not None and row.get(x) is not None:
            line = groups.setdefault(tuple(_plain(row.get(name)) for name in split), {})
            line.setdefault(_plain(row[x]), []).append(row[y])
    share = all(isinstance(v, bool) for line in groups.values() for vs in line.values() for v in vs)
    lines = {
        values: [_spot(at, line[at], share) for at in sorted(line, key=order)]
        for values, line in sorted(groups.items(), key=lambda item: [order(v) for v in item[0]])
    }
    return Chart(y, x, split, pooled, lines, share)


def _spot(x: Any, values: list[Any], share: bool) -> Spot:
    numbers = np.array(values, dtype=np.float64)
    with np.errstate(over="ignore"):  # no chart is drawn of numbers so large
        middle = float(numbers.mean() if share else np.median(numbers))
    return Spot(x, middle, float(numbers.min()), float(numbers.max()), len(values))


def _plain(value: Any) -> Any:
    """Return a value that tells a place of an axis: True is another place than 1."""
    return str(value) if isinstance(value, (list, dict, bool)) else value
