"""`curve` and `index`: closeness by head size, and gain by bytes of a key."""

from __future__ import annotations

from itertools import cycle

import numpy as np

from headfit._base.arguments import as_finite, shown
from headfit._compress.result import Compressed
from headfit._index.indexes import Indexes
from headfit._index.quality import IndexCurve, key_bytes
from headfit._index.result import Index
from headfit._shrink.result import ShrinkResult, TvCurve
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes
from headfit.plot._drawing import BLUE, GREEN, GREY, INK, ORANGE, Axes, Line2D

# From the palette of Okabe and Ito, in an order in which neighbours differ in lightness too. There
# is one marker less, so that no pair of a colour and a marker comes twice among thirty series.
COLORS = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = "osD^v"
_WAYS = {"finds": ("index", "-"), "kq-svd": ("KQ-SVD", "--"), "loki": ("Loki", ":")}


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
    tv = None if tv is None else as_finite(tv, "tv", 0)
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
