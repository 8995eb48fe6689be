"""`curve`, `index`, `growth`: closeness by head size, gain by bytes of a key, size by tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import as_choice, as_finite, as_flag, shown
from headfit._compress.result import Compressed
from headfit._index.formats import key_bytes
from headfit._index.indexes import Indexes
from headfit._index.quality import IndexCurve
from headfit._index.result import Index
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes
from headfit.plot._drawing import BLUE, GREEN, GREY, INK, ORANGE, Axes, Line2D, matplotlib

# From the palette of Okabe and Ito, in an order in which neighbours differ in lightness too. There
# is one marker less, so that no pair of a colour and a marker comes twice among thirty series.
COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^v"
_WAYS = {"finds": ("index", "-"), "kq-svd": ("KQ-SVD", "--"), "loki": ("Loki", ":")}
_PROVED = (("--", INK), (":", GREY), ("-.", INK), ("--", GREY), (":", INK), ("-.", GREY))
_JUMP = 4  # a series that starts this many times above all smaller ones is named, not drawn
_CONFIDENCE = 0.95
_ROUNDING = 1 / 12  # the variance of rounding to an integer


def curve(
    result: TvCurve | ShrinkResult | Compressed, *, tv: float | None = None, ax: Axes | None = None
) -> tuple[Line2D, ...]:
    """Draw the total variation from an original head against the head size.

    Parameters
    ----------
    result : TvCurve, ShrinkResult or Compressed
        A curve, or what `shrink` or `compress` returned, whose baseline is drawn too.
    tv : float, optional
        A tolerance to mark.
    ax : matplotlib Axes, optional

    Returns
    -------
    tuple of matplotlib Line2D
        The mean and the worst row of the curve, then those of the baseline.

    Raises
    ------
    InputError
        For something else than such a result.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from matplotlib.figure import Figure
    >>> Q, K = np.random.default_rng(0).normal(size=(2, 30, 8)) * 2.0 ** -np.arange(8) * 4
    >>> small = hf.shrink(Q, K, dim=2, curve_dims=(2, 4))
    >>> [line.get_label() for line in hf.plot.curve(small.curve, ax=Figure().subplots())]
    ['smaller heads, mean row', 'smaller heads, worst row']
    """
    if tv is not None:
        tv = as_finite(tv, "tv", 0)
    if isinstance(result, TvCurve):
        curves = {"smaller heads": result}
    elif isinstance(result, ShrinkResult):
        curves = {"fitted": result.curve, "truncated SVD": result.baseline}
    elif isinstance(result, Compressed):
        curves = {"taken": result.curve, "closed form": result.baseline}
    else:
        raise InputError(
            f"result must be a TvCurve, a ShrinkResult or a Compressed; got {shown(result)}"
        )
    ax = axes_or_new(ax, 6.6, 4.6)
    lines = []
    for (name, points), color, marker in zip(curves.items(), (BLUE, GREY), "os", strict=False):
        for row, style, fill in (("mean", "-", color), ("worst", "--", "white")):
            lines += ax.plot(
                points.dim, getattr(points, f"tv_{row}"), style, color=color, marker=marker,
                markerfacecolor=fill, markersize=5, label=f"{name}, {row} row",
            )  # fmt: skip
    if tv is not None:
        ax.axhline(tv, color=INK, linewidth=1, linestyle=":", label=f"asked: {tv:g}")
    dims = np.concatenate([points.dim for points in curves.values()])
    label_sizes(ax, dims, log=bool(dims.size and dims.max() >= 8 * dims.min() > 0))
    ax.set_ylim(bottom=0)
    finish(ax, "head size d", "total variation from the original")
    return tuple(lines)


def index(result: Index | Indexes | IndexCurve, *, ax: Axes | None = None) -> tuple[Line2D, ...]:
    """Draw how much indexes find against the bytes of a key, beside KQ-SVD and Loki.

    The vertical axis is the gain: of the mass of the best keys beyond those that are kept anyway,
    the share that is found. Each format and number of keys has a colour.

    Parameters
    ----------
    result : Index, Indexes or IndexCurve
        What `headfit.index` returned with `curve_dims`, or its curve.
    ax : matplotlib Axes, optional

    Returns
    -------
    tuple of matplotlib Line2D
        Those of the index, of KQ-SVD and of Loki, for each format and number of keys.

    Raises
    ------
    InputError
        For something else, and for a result without a curve.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from matplotlib.figure import Figure
    >>> given = [*map(tuple, np.random.default_rng(0).normal(size=(4, 2, 50, 8)))]
    >>> found = hf.index(given, dim=2, window=8, keys=20, effort=0, curve_dims=(2, 4, 8))
    >>> hf.plot.index(found, ax=Figure().subplots())[0].get_xdata().tolist()
    [4.0, 6.0, 10.0]
    """
    curve = result.curve if isinstance(result, (Index, Indexes)) else result
    if not isinstance(curve, IndexCurve):
        raise InputError(f"result must be of index, with curve_dims; got {shown(result)}")
    ax = axes_or_new(ax, 6.6, 4.6)
    lines = list[Line2D]()
    formats = dict.fromkeys(at[1:] for at in curve.points)
    for (dtype, keys), color, marker in zip(formats, cycle(COLORS), cycle(MARKERS), strict=False):
        own = sorted(at for at in curve.points if at[1:] == (dtype, keys))
        sizes = [key_bytes(*at[:2]) for at in own]
        for way, (name, style) in _WAYS.items():
            lines += ax.plot(
                sizes, [curve.points[at][way].gain for at in own], style, color=color,
                marker=marker, markersize=5 if way == "finds" else 3,
                linewidth=1.8 if way == "finds" else 1,
                label=f"{name}, {dtype}, {keys} keys" if way == "finds" else "",
            )  # fmt: skip
    for name, style in [*_WAYS.values()][1:]:
        ax.plot([], [], style, color=GREY, label=f"{name}, the same")
    label_sizes(ax, [key_bytes(dim, dtype) for dim, dtype, _ in curve.points], log=True)
    finish(ax, "bytes of a key", "gain of the mass that is not kept anyway", columns=2)
    return tuple(lines)


def growth(table: Any, *, ax: Axes | None = None) -> SimpleNamespace:
    """Draw the head size against the number of tokens, linear over a logarithmic axis.

    A straight line is what d = O(log n) looks like. Each series of sizes that were found gets a
    least-squares line, and the legend says by how many dimensions it rises for every doubling of
    n. Series that would flatten all others, being many times larger, are in the legend alone.

    Parameters
    ----------
    table : Sweep, mapping of str to sequences, or pandas.DataFrame
        What `headfit.sweep` returns, or columns of one length: ``n``; ``dim``, the head size (or
        ``dim_found``, where it was searched for); and optionally ``certified`` (rows without it
        are left out), ``method`` and ``k``, which name a series, ``seed``, and ``kind``, which is
        "found" or "proved". For every n the
        smallest size of each seed counts, and the largest of these over the seeds; of a proved
        bound the largest.
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
    series = _series(table)
    ax = axes_or_new(ax, 8.2, 4.6)
    above = _far_above(series)
    drawn = [one for one in series if one.name not in above]
    points, fits, slopes = {}, {}, {}
    colors, markers, styles = cycle(COLORS), cycle(MARKERS), cycle(_PROVED)
    for one in sorted(drawn, key=lambda one: one.is_proved):
        label = one.name
        if one.is_proved:
            style, color = next(styles)
            look: dict[str, Any] = {"linestyle": style, "linewidth": 1.3, "zorder": 3.5}
        else:
            color, slope = next(colors), _slope(one)
            look = {"linestyle": "", "marker": next(markers), "markersize": 6, "zorder": 4}
            if slope is not None:
                slopes[one.name] = slope
                label += f"\n{slope}"
                ends = one.n[[0, -1]].astype(np.float64)
                heights = slope.at_one + slope.per_doubling * np.log2(ends)
                (fits[one.name],) = ax.plot(ends, heights, color=color, linewidth=1.6, zorder=3)
        (points[one.name],) = ax.plot(one.n, one.dim, color=color, label=label, **look)
    for one in series:
        if one.name in above:
            text = ", ".join(
                f"{one.dim[i]:,.0f} at n = {one.n[i]:,}" for i in sorted({0, one.n.size - 1})
            )
            ax.plot([], [], " ", label=f"far above, {one.name}:\n{text}")
    low, high = min(one.n[0] for one in drawn), max(one.n[-1] for one in drawn)
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    label_sizes(ax, 2.0 ** np.arange(first, last + 1, max(1, round((last - first) / 6))), log=True)
    top = 1.08 * max(float(one.dim.max()) for one in drawn)
    ax.set(xlim=(low / 1.25, high * 1.25), ylim=(0, top))
    ax.yaxis.set_major_locator(matplotlib().ticker.MaxNLocator(integer=True))
    finish(ax, "tokens n", "head size d", columns=1, loc="upper left", bbox_to_anchor=(1.01, 1.0))
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
    count, x = series.n.size, np.log2(series.n)
    if count < 3:
        return None
    from scipy import stats  # takes long to import

    line = stats.linregress(x, series.dim)
    error = max(line.stderr, math.sqrt(_ROUNDING / (count * np.var(x))))
    reach = error * stats.t.ppf((1 + _CONFIDENCE) / 2, count - 2)
    ends = line.slope, line.slope - reach, line.slope + reach, line.intercept
    return _Slope(*map(float, ends))


def _series(table: Any) -> list[_Series]:
    """Return the series of a table, in the order of their first rows."""
    columns = _table(table)
    size = "dim" if "dim_found" not in columns else "dim_found"
    sizes: dict[tuple[str, bool], dict[int, dict[str, float]]] = {}
    for cells in zip(*columns.values(), strict=True):
        row = dict(zip(columns, cells, strict=True))
        certified = row.get("certified", True)  # None where a point of a sweep failed
        if certified is None or not as_flag(certified, "table's certified"):
            continue
        labels = [x if isinstance(x, str) else f"{name} = {x}" for name in ("method", "k")
                  if (x := row.get(name)) is not None]  # fmt: skip
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
        largest = np.array([max(by_n[n].values()) for n in ns])
        title = f"{name}, proved" if is_proved and (name, False) in sizes else name
        series.append(_Series(title, np.array(ns), largest, is_proved))
    return series


def _table(table: Any) -> dict[str, list[Any]]:
    """Return the columns of a table as lists of one length; n and dim must be among them."""
    try:
        if isinstance(getattr(table, "columns", None), Mapping):  # what a sweep found
            table = table.columns
        columns = {name: list(table[name]) for name in table.keys()}  # noqa: SIM118
    except Exception as error:
        raise InputError(
            f"table must be a mapping of columns, n and dim among them; got {shown(table)}"
        ) from error
    for options in ({"n"}, {"dim", "dim_found"}):
        if not options & columns.keys():
            raise InputError(f"table must have a column {min(options)!r}; got {list(columns)}")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise InputError(f"table must have columns of one length; got {lengths}")
    return columns


def _far_above(series: Sequence[_Series]) -> set[str]:
    """Return the names of the series that would flatten those below them."""
    largest, above = math.inf, set()
    for one in sorted(series, key=lambda one: float(one.dim.max())):
        if one.dim.min() > _JUMP * largest:
            above.add(one.name)
        else:
            largest = float(one.dim.max())
    return above
