"""Sizes against the number of tokens, with the lines that d = O(log n) would make of them."""

from __future__ import annotations

import math
from itertools import cycle
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from scipy import stats

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Of Okabe and Ito, in an order in which neighbours differ in lightness too."""

MARKERS = "osD^v"
PROVED = ("--", ":", "-.")
JUMP = 4  # a series that starts this many times above all smaller ones is named, not drawn
ROUNDING = 1 / 12  # the variance of rounding to an integer


class Slope(NamedTuple):
    """A least-squares line of sizes over log2 n: its slope with an interval, its value at n = 1.

    The 95% interval is Student's, as if the differences from the line were independent and normal,
    with a variance of at least that of rounding to integers. It describes these points; it is no
    bound, and no law.
    """

    per_doubling: float
    low: float
    high: float
    at_one: float

    def __str__(self) -> str:
        return f"{self.per_doubling:+.2f} per doubling ({self.low:.2f} to {self.high:.2f})"


def slope_of(n, dim):
    """Return the line through the sizes; None for fewer than three n."""
    if len(n) < 3:
        return None
    x = np.log2(n)
    line = stats.linregress(x, dim)
    error = np.fmax(line.stderr, math.sqrt(ROUNDING / (len(n) * np.var(x))))
    reach = error * stats.t.ppf(0.975, len(n) - 2)
    return Slope(*map(float, (line.slope, line.slope - reach, line.slope + reach, line.intercept)))


def series_of(rows):
    """Return the rows of each method and k, by its name, as arrays n and dim in order of n."""
    found = {}
    for row in rows:
        names = [row["method"], "" if row["k"] is None else f"k = {row['k']}"]
        name, is_proved = ", ".join(filter(None, names)), row["kind"] == "proved"
        if is_proved and (name, False) in found:
            name += ", proved"
        found.setdefault((name, is_proved), []).append((row["n"], row["dim"]))
    return {name: np.array(sorted(sizes), dtype=float).T for name, sizes in found.items()}


def far_above(series):
    """Return the names of the series that would flatten those below them."""
    largest, above = math.inf, set()
    for name, (_, dim) in sorted(series.items(), key=lambda item: item[1][1].max()):
        if dim.min() > JUMP * largest:
            above.add(name)
        else:
            largest = dim.max()
    return above


def draw_growth(rows, axes):
    """Draw the sizes of rows with `method`, `k`, `n`, `dim` and `kind` ("found" or "proved").

    Returns the lines of ``points`` and of the ``fits``, and the ``slopes``, by the names of series.
    """
    series = series_of(rows)
    above = far_above(series)
    points, fits, slopes = {}, {}, {}
    colors, markers, styles = cycle(COLORS), cycle(MARKERS), cycle(PROVED)
    for (name, is_proved), (n, dim) in sorted(series.items(), key=lambda item: item[0][1]):
        if (name, is_proved) in above:
            continue
        label = name
        if is_proved:
            look = {"linestyle": next(styles), "linewidth": 1.3, "zorder": 3.5, "color": "#222222"}
        else:
            color, slope = next(colors), slope_of(n, dim)
            look = {"linestyle": "", "marker": next(markers), "zorder": 4, "color": color}
            if slope is not None:
                slopes[name] = slope
                label += f"\n{slope}"
                ends = n[[0, -1]]
                heights = slope.at_one + slope.per_doubling * np.log2(ends)
                (fits[name],) = axes.plot(ends, heights, color=color, linewidth=1.6, zorder=3)
        (points[name],) = axes.plot(n, dim, label=label, **look)
    for name, is_proved in sorted(above):
        n, dim = series[name, is_proved]
        text = ", ".join(f"{dim[i]:,.0f} at n = {n[i]:,.0f}" for i in sorted({0, n.size - 1}))
        axes.plot([], [], " ", label=f"far above, {name}:\n{text}")
    drawn = [sizes for name, sizes in series.items() if name not in above]
    low, high = min(n[0] for n, _ in drawn), max(n[-1] for n, _ in drawn)
    axes.set_xscale("log", base=2)
    first, last = math.floor(math.log2(low)), math.ceil(math.log2(high))
    ticks = 2 ** np.arange(first, last + 1, max(1, round((last - first) / 6)))
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlim=(low / 1.25, high * 1.25), ylim=(0, 1.08 * max(dim.max() for _, dim in drawn)))
    axes.set(xlabel="tokens n", ylabel="head size d")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.grid(color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    return SimpleNamespace(points=points, fits=fits, slopes=slopes)
