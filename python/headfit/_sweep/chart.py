"""One chart of a report: what is drawn against what, and the numbers in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headfit._sweep.rows import Row, order


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
        return "".join(c if c.isalnum() else "-" for c in f"{self.y}-against-{self.x}")

    def rows(self) -> list[Row]:
        """Return its numbers, one row for each spot."""
        return [
            {
                **dict(zip(self.split, values, strict=True)),
                self.x: spot.x,
                ("share" if self.is_share else "median"): spot.y,
                **({} if self.is_share else {"least": spot.low, "most": spot.high}),
                "points": spot.count,
            }
            for values, spots in self.lines.items()
            for spot in spots
        ]


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
    middle = float(numbers.mean() if share else np.median(numbers))
    return Spot(x, middle, float(numbers.min()), float(numbers.max()), len(values))


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, (list, dict)) else value
