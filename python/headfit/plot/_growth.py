"""`growth`: the head size against the number of tokens, with the slope of each series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headfit._base.drawing import BLUE, GREEN, GREY, INK, ORANGE, matplotlib
from headfit.plot._axes import axes_or_new, finish, label_sizes
from headfit.plot._growth_table import Series, Slope, as_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

# From the palette of Okabe and Ito, in an order in which neighbours differ in lightness too. There
# is one marker less, so that no pair of a colour and a marker comes twice among thirty series.
_COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
_MARKERS = "osD^v"
_DASHES = ("--", ":", "-.")
_JUMP = 4  # a series that starts this many times above all smaller ones is named, not drawn


class _Picture(NamedTuple):
    """What `growth` drew, by the names of the series."""

    points: dict[str, Line2D]
    fits: dict[str, Line2D]
    slopes: dict[str, Slope]
    beyond: Text | None


def growth(
    table: Any, *, by: str | Sequence[str] | None = None, ax: Axes | None = None
) -> _Picture:
    """Draw the head size against the number of tokens, linear over a logarithmic axis.

    A straight line is what d = O(log n) looks like. Each series of sizes that were found gets a
    least-squares line, and the legend says by how many dimensions it rises for every doubling of
    n. Series that would flatten all others, being many times larger, are named instead of drawn.

    Parameters
    ----------
    table : Sweep, mapping of str to sequences, or pandas.DataFrame
        What `headfit.sweep` found, or columns of one length: ``n``; ``dim``, the head size (or
        ``dim_found``, where it was searched for); and optionally ``certified`` (rows without it
        are left out), ``seed``, and ``kind``, which is "found" or "proved". For every n the
        smallest size of each seed counts, and the largest of these over the seeds; of a proved
        bound the largest.
    by : str or sequence of str, optional
        The columns whose values name a series; "method" and "k" when None, if there are such.
    ax : matplotlib Axes, optional

    Returns
    -------
    named tuple
        By the names of the series ``points``, the sizes of those that are drawn; ``fits``, the
        lines of those that were found and have three n or more; and ``slopes``, with
        ``per_doubling`` and the interval from ``low`` to ``high``. ``beyond`` is the sentence
        about series far above the others, or None.

    Raises
    ------
    InputError
        For a table without these columns, or with values that are no sizes.

    Notes
    -----
    The lines minimise the squared differences of d from a + b log2 n. The interval of the slope
    b is the 95% interval of Student's t, as if the differences were independent and normal, with a
    variance of at least 1/12, that of rounding to integers. The sizes are what searches found, so
    it is a description of these points: no bound, and no law. Takes O(rows) time.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> sizes = {"n": [64, 256, 1024, 4096], "dim": [5, 6, 7, 8], "method": ["learned"] * 4}
    >>> picture = hf.plot.growth(sizes, ax=Figure().subplots())
    >>> round(picture.slopes["learned"].per_doubling, 3)
    0.5
    """
    series = as_series(table, by)
    ax = axes_or_new(ax, 8.2, 4.6)
    drawn, above = _split(series)
    points, fits, slopes = {}, {}, {}
    found = [one for one in drawn if not one.is_proved]
    for index, one in enumerate(found):
        color, marker = _COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)]
        slope, label = one.slope(), one.name
        if slope is not None:
            slopes[one.name] = slope
            label += f"\n{slope}"
            ends = np.array([one.n[0], one.n[-1]], dtype=np.float64)
            (fits[one.name],) = ax.plot(ends, slope.at(ends), color=color, linewidth=1.6, zorder=3)
        (points[one.name],) = ax.plot(
            one.n, one.dim, marker, color=color, markersize=6, zorder=4, label=label
        )
    for index, one in enumerate(one for one in drawn if one.is_proved):
        (points[one.name],) = ax.plot(
            one.n, one.dim, _DASHES[index % len(_DASHES)], color=GREY if index % 2 else INK,
            linewidth=1.3, zorder=3.5, label=one.name,
        )  # fmt: skip
    _scale(ax, drawn)
    beyond = _name_those_above(ax, above)
    return _Picture(points, fits, slopes, beyond)


def _split(series: Sequence[Series]) -> tuple[list[Series], list[Series]]:
    """Return the series to draw, and those far above them, each in the order of the table."""
    largest = 0.0
    above: set[str] = set()
    for one in sorted(series, key=lambda one: one.dim.max()):
        if largest and one.dim.min() > _JUMP * largest:
            above.add(one.name)
        else:
            largest = max(largest, float(one.dim.max()))
    return [s for s in series if s.name not in above], [s for s in series if s.name in above]


def _scale(ax: Axes, drawn: Sequence[Series]) -> None:
    low, high = min(s.n[0] for s in drawn), max(s.n[-1] for s in drawn)
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    step = max(1, round((last - first) / 6))
    label_sizes(ax, [2.0**e for e in range(first, last + 1, step)], log=True)
    ax.set_xlim(low / 1.25, high * 1.25)
    ax.yaxis.set_major_locator(matplotlib().ticker.MaxNLocator(integer=True))
    ax.set_ylim(0, 1.08 * max(float(s.dim.max()) for s in drawn))
    beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    finish(ax, "tokens n", "head size d", columns=1, **beside)


def _name_those_above(ax: Axes, above: Sequence[Series]) -> Text | None:
    """Write the ends of series that are not drawn beside the lower end of the axes."""
    if not above:
        return None
    lines = [f"{s.name}:\n  {_ends(s)}" for s in above]
    return ax.text(
        1.03, 0.0, "Far above this picture:\n" + "\n".join(lines), transform=ax.transAxes,
        ha="left", va="bottom", fontsize=8, color=INK,
    )  # fmt: skip


def _ends(series: Series) -> str:
    places = sorted({0, series.n.size - 1})
    return ", ".join(f"{series.dim[i]:,.0f} at n = {series.n[i]:,}" for i in places)
