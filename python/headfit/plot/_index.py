"""`index`: what indexes find, by what they store of a key."""

from __future__ import annotations

from itertools import cycle

from headfit._base.arguments import shown
from headfit._index.formats import key_bytes
from headfit._index.indexes import Indexes
from headfit._index.quality import IndexCurve
from headfit._index.result import Index
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes
from headfit.plot._curves import COLORS, MARKERS
from headfit.plot._drawing import GREY, Axes, Line2D

_WAYS = {"finds": ("index", "-"), "kq-svd": ("KQ-SVD", "--"), "loki": ("Loki", ":")}


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
