"""`curve`: how close heads are to an original at each size, compared with a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import as_finite, shown
from headfit._base.arrays import as_array
from headfit._base.drawing import BLUE, GREY, INK
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


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
    parts = [("curve", names[0], BLUE, "o"), ("baseline", names[1], GREY, "s")]
    given = []
    for part, name, color, marker in parts:
        data = getattr(result, part, None)
        if data is not None:
            given.append((_columns(data, part), name, color, marker))
        elif part == "curve":
            raise InputError("result must have a curve with dim, tv_mean and tv_worst")
    ax = axes_or_new(ax, 6.6, 4.6)
    lines = []
    for (dim, mean, worst), name, color, marker in given:
        for values, style, fill, row in (
            (mean, "-", color, "mean"),
            (worst, "--", "white", "worst"),
        ):
            lines += ax.plot(
                dim, values, style, color=color, marker=marker, markerfacecolor=fill, markersize=5,
                label=f"{name}, {row} row",
            )  # fmt: skip
    if tv is not None:
        ax.axhline(tv, color=INK, linewidth=1, linestyle=":", label=f"asked: {tv:g}")
    dims = np.concatenate([columns[0] for columns, *_ in given])
    label_sizes(ax, dims, log=bool(dims.size and dims.max() >= 8 * dims.min() > 0))
    ax.set_ylim(bottom=0)
    finish(ax, "head size d", "total variation from the original")
    return tuple(lines)


def _columns(data: Any, part: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return the sequences `dim`, `tv_mean` and `tv_worst`, sorted by `dim`."""
    try:
        dim, mean, worst = (
            as_array(data[key] if isinstance(data, dict) else getattr(data, key), part)
            for key in ("dim", "tv_mean", "tv_worst")
        )
    except (AttributeError, KeyError) as error:
        raise InputError(f"{part} must have dim, tv_mean and tv_worst; lacks {error}") from error
    if not dim.ndim == 1 or not dim.shape == mean.shape == worst.shape:
        raise InputError(
            f"{part} must have sequences of one length; "
            f"got {dim.shape}, {mean.shape} and {worst.shape}"
        )
    if any(x.dtype.kind not in "fiu" for x in (dim, mean, worst)):
        raise InputError(f"{part} must hold numbers")
    order = np.argsort(dim, kind="stable")
    return dim[order], mean[order], worst[order]
