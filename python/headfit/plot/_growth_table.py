"""The table that `growth` draws: its checks, its series, and the slope of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import as_finite, shown
from headfit.errors import InputError

_CONFIDENCE = 0.95
_ROUNDING = 1 / 12  # the variance of rounding to an integer
_DEFAULT_BY = ("method", "k")


class Slope(NamedTuple):
    """A least-squares line of sizes over log2 n, with the interval of its slope.

    Attributes
    ----------
    per_doubling : float
        By how many dimensions the line rises when n is doubled.
    low, high : float
        The 95% interval of Student's t for it.
    at_one : float
        Where the line is at n = 1.
    """

    per_doubling: float
    low: float
    high: float
    at_one: float

    def at(self, n: Any) -> Any:
        """Return where the line is at some n."""
        return self.at_one + self.per_doubling * np.log2(n)

    def __str__(self) -> str:
        return f"{self.per_doubling:+.2f} per doubling ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Series:
    """The sizes of one name, sorted by n, one for each n."""

    name: str
    n: NDArray[np.int64]
    dim: NDArray[np.float64]
    is_proved: bool

    def slope(self) -> Slope | None:
        """Return the line through the sizes; None for fewer than three n."""
        count = self.n.size
        if count < 3:
            return None
        from scipy.special import stdtrit  # takes long to import

        x = np.log2(self.n)
        about = x - x.mean()
        rise = float(about @ self.dim / (about @ about))
        at_one = float(self.dim.mean() - rise * x.mean())
        left = self.dim - at_one - rise * x
        variance = max(float(left @ left) / (count - 2), _ROUNDING)
        error = math.sqrt(variance / float(about @ about))
        reach = float(stdtrit(count - 2, (1 + _CONFIDENCE) / 2)) * error
        return Slope(rise, rise - reach, rise + reach, at_one)


def as_series(table: Any, by: str | Sequence[str] | None) -> list[Series]:
    """Return the series of a table, in the order of their first rows."""
    columns = _as_columns(table)
    named = _named(by, columns)
    size = "dim" if "dim_found" not in columns else "dim_found"
    sizes: dict[tuple[str, bool], dict[int, dict[Any, float]]] = {}
    for row in range(len(columns["n"])):
        values = {name: column[row] for name, column in columns.items()}
        if not _flag(values.get("certified", True)):
            continue
        labels = [_label(name, values[name]) for name in named if values[name] is not None]
        key = ", ".join(labels) or "sizes", _proved(values)
        n, dim = _number("n", values["n"]), _number(size, values[size])
        of_seeds = sizes.setdefault(key, {}).setdefault(int(n), {})
        best = max if key[1] else min
        seed = _hashable(values.get("seed"))
        of_seeds[seed] = best(dim, of_seeds.get(seed, dim))
    if not sizes:
        raise InputError("table must have a row that is certified; got none")
    found = {name for name, is_proved in sizes if not is_proved}
    return [
        _series(f"{name}, proved" if is_proved and name in found else name, by_n, is_proved)
        for (name, is_proved), by_n in sizes.items()
    ]


def _series(name: str, by_n: dict[int, dict[Any, float]], is_proved: bool) -> Series:
    ordered = sorted(by_n)
    largest = [max(by_n[n].values()) for n in ordered]
    return Series(name, np.array(ordered), np.array(largest, dtype=np.float64), is_proved)


def _as_columns(table: Any) -> dict[str, list[Any]]:
    """Return the columns of a table as lists of one length; n and dim must be among them."""
    try:
        if isinstance(getattr(table, "columns", None), Mapping):  # what a sweep found
            table = table.columns
        names = [name for name in table.keys() if isinstance(name, str)]  # noqa: SIM118
        columns = {name: list(table[name]) for name in names}
    except Exception as error:
        raise InputError(
            f"table must be a mapping of columns, n and dim among them; got {shown(table)}"
        ) from error
    for options in (("n",), ("dim", "dim_found")):
        if not any(name in columns for name in options):
            raise InputError(f"table must have a column {options[0]!r}; got {sorted(columns)}")
    if len({len(column) for column in columns.values()}) != 1:
        lengths = {name: len(column) for name, column in columns.items()}
        raise InputError(f"table must have columns of one length; got {lengths}")
    return columns


def _named(by: str | Sequence[str] | None, columns: dict[str, list[Any]]) -> list[str]:
    """Return the columns whose values name a series."""
    if by is None:
        return [name for name in _DEFAULT_BY if name in columns]
    names = [by] if isinstance(by, str) else by
    if not isinstance(names, (list, tuple)) or any(not isinstance(n, str) for n in names):
        raise InputError(f"by must be the name of a column or several; got {shown(by)}")
    for name in names:
        if name not in columns:
            raise InputError(f"by must name columns of the table; got {name!r}")
    return list(names)


def _label(name: str, value: Any) -> str:
    """Return what a value adds to the name of its series: a text itself, a number with its name."""
    return value if isinstance(value, str) else f"{name} = {value}"


def _proved(values: dict[str, Any]) -> bool:
    kind = values.get("kind", "found")
    if kind not in ("found", "proved"):
        raise InputError(f'table must have "found" or "proved" as kinds; got {shown(kind)}')
    return bool(kind == "proved")


def _flag(value: Any) -> bool:
    if value is None:  # a point of a sweep that failed
        return False
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"table must have True or False as certified; got {shown(value)}")
    return bool(value)


def _number(name: str, value: Any) -> float:
    """Return a size, which is a positive number, and for n an integer."""
    number = as_finite(value, f"table's {name}", 1)
    if name == "n" and number != int(number):
        raise InputError(f"table's n must be integers; got {shown(value)}")
    return number


def _hashable(seed: Any) -> Any:
    if seed is not None and not isinstance(seed, (int, float, str, np.integer)):
        raise InputError(f"table must have numbers or texts as seeds; got {shown(seed)}")
    return seed
