"""`curve` and `growth`: closeness against the head size, and the size against the tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import as_choice, as_finite, as_flag, shown
from headfit._base.arrays import as_array
from headfit._base.drawing import BLUE, GREEN, GREY, INK, ORANGE, matplotlib
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# From the palette of Okabe and Ito, in an order in which neighbours differ in lightness too. There
# is one marker less, so that no pair of a colour and a marker comes twice among thirty series.
_COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osD^v"
_PROVED = (("--", INK), (":", GREY), ("-.", INK), ("--", GREY), (":", INK), ("-.", GREY))
_JUMP = 4  # a series that starts this many times above all smaller ones is named, not drawn
_CONFIDENCE = 0.95
_ROUNDING = 1 / 12  # the variance of rounding to an integer


def curve(
    result: Any,
    *,
    tv: float | None = None,
    ax: Axes | None = None,
    names: tuple[str, str] = ("fitted", "truncated SVD"),
) -> tuple[Line2D, ...]:
    """Draw the total variation from an original head against the head size.

    Parameters
    ----------
    result : object
        An object such as `ShrinkResult`, with an attribute `curve` and optionally `baseline`.
        Each has sequences `dim`, `tv_mean` and `tv_worst` of the same length, as attributes or
        keys: head sizes, and the mean and largest total variation of the rows.
    tv : float, optional
        A tolerance to mark.
    ax : matplotlib Axes, optional
    names : tuple of two str
        The names of curve and baseline in the legend.

    Returns
    -------
    tuple of matplotlib Line2D
        The mean and the worst row of the curve, then those of the baseline.

    Raises
    ------
    InputError
        If the result has no such curve.

    Examples
    --------
    >>> import headfit as hf
    >>> from types import SimpleNamespace as Result
    >>> from matplotlib.figure import Figure
    >>> fitted = {"dim": [2, 4, 8], "tv_mean": [0.2, 0.1, 0.0], "tv_worst": [0.4, 0.2, 0.1]}
    >>> result = Result(curve=fitted, baseline=None)
    >>> [line.get_label() for line in hf.plot.curve(result, ax=Figure().subplots())]
    ['fitted, mean row', 'fitted, worst row']
    """
    if tv is not None:
        tv = as_finite(tv, "tv", 0)
    if not isinstance(names, (tuple, list)) or [type(name) for name in names] != [str, str]:
        raise InputError(f"names must be two texts; got {shown(names)}")
    if getattr(result, "curve", None) is None:
        raise InputError("result must have a curve with dim, tv_mean and tv_worst")
    parts = [("curve", names[0], BLUE, "o"), ("baseline", names[1], GREY, "s")]
    parts = [part for part in parts if getattr(result, part[0], None) is not None]
    columns = [_columns(getattr(result, part), part) for part, *_ in parts]
    ax = axes_or_new(ax, 6.6, 4.6)
    lines = []
    for (_, name, color, marker), (dim, *values) in zip(parts, columns, strict=True):
        looks = (("mean", "-", color), ("worst", "--", "white"))
        for (row, style, fill), tvs in zip(looks, values, strict=True):
            lines += ax.plot(
                dim, tvs, style, color=color, marker=marker, markerfacecolor=fill, markersize=5,
                label=f"{name}, {row} row",
            )  # fmt: skip
    if tv is not None:
        ax.axhline(tv, color=INK, linewidth=1, linestyle=":", label=f"asked: {tv:g}")
    dims = np.concatenate([dim for dim, *_ in columns])
    label_sizes(ax, dims, log=bool(dims.size and dims.max() >= 8 * dims.min() > 0))
    ax.set_ylim(bottom=0)
    finish(ax, "head size d", "total variation from the original")
    return tuple(lines)


def _columns(data: Any, part: str) -> list[NDArray[Any]]:
    """Return the sequences `dim`, `tv_mean` and `tv_worst`, sorted by `dim`."""
    names = ("dim", "tv_mean", "tv_worst")
    try:
        values = [data[n] if isinstance(data, dict) else getattr(data, n) for n in names]
    except (AttributeError, KeyError) as error:
        raise InputError(f"{part} must have dim, tv_mean and tv_worst; lacks {error}") from error
    arrays = [as_array(value, part) for value in values]
    shapes = [array.shape for array in arrays]
    if arrays[0].ndim != 1 or len(set(shapes)) != 1:
        raise InputError(f"{part} must have sequences of one length; got {shapes}")
    if any(array.dtype.kind not in "fiu" for array in arrays):
        raise InputError(f"{part} must hold numbers")
    order = np.argsort(arrays[0], kind="stable")
    return [array[order] for array in arrays]


def growth(
    table: Any, *, by: str | Sequence[str] | None = None, ax: Axes | None = None
) -> SimpleNamespace:
    """Draw the head size against the number of tokens, linear over a logarithmic axis.

    A straight line is what d = O(log n) looks like. Each series of sizes that were found gets a
    least-squares line, and the legend says by how many dimensions it rises for every doubling of
    n. Series that would flatten all others, being many times larger, are in the legend alone.

    Parameters
    ----------
    table : Sweep, mapping of str to sequences, or pandas.DataFrame
        What `headfit.sweep` returns, or columns of one length: ``n``; ``dim``, the head size (or
        ``dim_found``, where it was searched for); and optionally ``certified`` (rows without it
        are left out), ``seed``, and ``kind``, which is "found" or "proved". For every n the
        smallest size of each seed counts, and the largest of these over the seeds; of a proved
        bound the largest.
    by : str or sequence of str, optional
        The columns whose values name a series; "method" and "k" when None, if there are such.
    ax : matplotlib Axes, optional

    Returns
    -------
    SimpleNamespace
        By the names of the series ``points``, the sizes of those that are drawn; ``fits``, the
        lines of those that were found and have three n or more; and ``slopes``, with
        ``per_doubling`` and the interval from ``low`` to ``high``.

    Raises
    ------
    InputError
        For a table without these columns, or with values that are no sizes.

    Notes
    -----
    The lines minimise the squared differences of d from a + b log2 n. The interval of the slope
    b is the 95% interval of Student's t, as if the differences were independent and normal, with a
    variance of at least 1/12, that of rounding to integers. The sizes are what searches found, so
    it is a description of these points: no bound, and no law.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> sizes = {"n": [64, 256, 1024, 4096], "dim": [5, 6, 7, 8], "method": ["learned"] * 4}
    >>> picture = hf.plot.growth(sizes, ax=Figure().subplots())
    >>> round(picture.slopes["learned"].per_doubling, 3)
    0.5
    """
    series = _series(table, by)
    ax = axes_or_new(ax, 8.2, 4.6)
    drawn, above = _split(series)
    points, fits, slopes = {}, {}, {}
    found = [one for one in drawn if not one.is_proved]
    for one, color, marker in zip(found, cycle(_COLORS), cycle(_MARKERS)):
        slope, label = _slope(one), one.name
        if slope is not None:
            slopes[one.name] = slope
            label += f"\n{slope}"
            ends = np.array([one.n[0], one.n[-1]], dtype=np.float64)
            heights = slope.at_one + slope.per_doubling * np.log2(ends)
            (fits[one.name],) = ax.plot(ends, heights, color=color, linewidth=1.6, zorder=3)
        (points[one.name],) = ax.plot(
            one.n, one.dim, marker, color=color, markersize=6, zorder=4, label=label
        )
    proved = [one for one in drawn if one.is_proved]
    for one, (style, color) in zip(proved, cycle(_PROVED)):
        (points[one.name],) = ax.plot(
            one.n, one.dim, style, color=color, linewidth=1.3, zorder=3.5, label=one.name
        )
    for one in above:
        both = sorted({0, one.n.size - 1})
        text = ", ".join(f"{one.dim[i]:,.0f} at n = {one.n[i]:,}" for i in both)
        ax.plot([], [], " ", label=f"far above, {one.name}:\n{text}")
    low, high = min(one.n[0] for one in drawn), max(one.n[-1] for one in drawn)
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    step = max(1, round((last - first) / 6))
    label_sizes(ax, [2.0**e for e in range(first, last + 1, step)], log=True)
    ax.set_xlim(low / 1.25, high * 1.25)
    ax.yaxis.set_major_locator(matplotlib().ticker.MaxNLocator(integer=True))
    ax.set_ylim(0, 1.08 * max(float(one.dim.max()) for one in drawn))
    beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    finish(ax, "tokens n", "head size d", columns=1, **beside)
    return SimpleNamespace(points=points, fits=fits, slopes=slopes)


class _Series(NamedTuple):
    """The sizes of one name, sorted by n, one for each n."""

    name: str
    n: NDArray[np.int64]
    dim: NDArray[np.float64]
    is_proved: bool


class _Slope(NamedTuple):
    """A least-squares line of sizes over log2 n: its slope with an interval, its value at n = 1."""

    per_doubling: float
    low: float
    high: float
    at_one: float

    def __str__(self) -> str:
        return f"{self.per_doubling:+.2f} per doubling ({self.low:.2f} to {self.high:.2f})"


def _slope(series: _Series) -> _Slope | None:
    """Return the line through the sizes; None for fewer than three n."""
    count = series.n.size
    if count < 3:
        return None
    from scipy.special import stdtrit  # takes long to import

    x = np.log2(series.n)
    rise, at_one = (float(c) for c in np.polyfit(x, series.dim, 1))
    left = series.dim - at_one - rise * x
    variance = max(float(left @ left) / (count - 2), _ROUNDING)
    error = math.sqrt(variance / (count * float(np.var(x))))
    reach = float(stdtrit(count - 2, (1 + _CONFIDENCE) / 2)) * error
    return _Slope(rise, rise - reach, rise + reach, at_one)


def _series(table: Any, by: str | Sequence[str] | None) -> list[_Series]:
    """Return the series of a table, in the order of their first rows."""
    columns = _table(table)
    by = [name for name in ("method", "k") if name in columns] if by is None else by
    by = [by] if isinstance(by, str) else by
    if not isinstance(by, (list, tuple)) or not all(name in columns for name in by):
        raise InputError(f"by must name columns of the table; got {shown(by)}")
    size = "dim" if "dim_found" not in columns else "dim_found"
    sizes: dict[tuple[str, bool], dict[int, dict[str, float]]] = {}
    for cells in zip(*columns.values(), strict=True):
        row = dict(zip(columns, cells, strict=True))
        certified = row.get("certified", True)  # None where a point of a sweep failed
        if certified is None or not as_flag(certified, "table's certified"):
            continue
        labels = [x if isinstance(x, str) else f"{name} = {x}" for name in by
                  if (x := row[name]) is not None]  # fmt: skip
        kind = as_choice(row.get("kind", "found"), "table's kinds", ("found", "proved"))
        n, dim = as_finite(row["n"], "table's n", 1), as_finite(row[size], f"table's {size}", 1)
        if n != int(n):
            raise InputError(f"table's n must be integers; got {n}")
        key = ", ".join(labels) or "sizes", kind == "proved"
        of_seeds = sizes.setdefault(key, {}).setdefault(int(n), {})
        best, seed = max if key[1] else min, repr(row.get("seed"))
        of_seeds[seed] = best(dim, of_seeds.get(seed, dim))
    if not sizes:
        raise InputError("table must have a row that is certified; got none")
    series = []
    for (name, is_proved), by_n in sizes.items():
        ns = sorted(by_n)
        largest = np.array([max(by_n[n].values()) for n in ns], dtype=np.float64)
        title = f"{name}, proved" if is_proved and (name, False) in sizes else name
        series.append(_Series(title, np.array(ns), largest, is_proved))
    return series


def _table(table: Any) -> dict[str, list[Any]]:
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
    for options in ({"n"}, {"dim", "dim_found"}):
        if not options & columns.keys():
            raise InputError(f"table must have a column {min(options)!r}; got {sorted(columns)}")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(f"table must have columns of one length; got {lengths}")
    return columns


def _split(series: Sequence[_Series]) -> tuple[list[_Series], list[_Series]]:
    """Return the series to draw, and those far above them, each in the order of the table."""
    largest, above = 0.0, set()
    for one in sorted(series, key=lambda one: float(one.dim.max())):
        if largest and one.dim.min() > _JUMP * largest:
            above.add(one.name)
        else:
            largest = max(largest, float(one.dim.max()))
    return [s for s in series if s.name not in above], [s for s in series if s.name in above]
