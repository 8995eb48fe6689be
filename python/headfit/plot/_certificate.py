"""`certificate`: the leak and distortion of all rows, compared with the tolerances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.drawing import BLUE, ORANGE
from headfit._base.text import number
from headfit._fit.result import Fit
from headfit._target.certificate import Certificate
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D


def certificate(c: Certificate | Fit, *, ax: Axes | None = None) -> tuple[Line2D, Line2D]:
    """Draw how many rows have at least a given leak or distortion, with the tolerances.

    Both axes are logarithmic, so that one row in 100,000 is visible. Dotted lines mark the
    tolerances. If a curve ends to the left of its line, every row meets the tolerance; otherwise
    the height at which it crosses the line is the number of rows that do not.

    Parameters
    ----------
    c : Certificate or Fit
        The certificate, or a fit with one.
    ax : matplotlib Axes, optional

    Returns
    -------
    tuple of two matplotlib Line2D
        For leak and for distortion: the values of the rows in increasing order, and the number
        of rows with at least that value. Rows with the value 0 cannot be drawn on a logarithmic
        axis and are counted in the legend. Infinite values are drawn at the right edge.

    Raises
    ------
    InputError
        If `c` is not a certificate or a fit.

    Notes
    -----
    Takes O(n log n) time.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> A = hf.patterns.band(64, 1)
    >>> head = hf.fit(A, dim=4, rng=0)
    >>> leak, distortion = hf.plot.certificate(head, ax=Figure().subplots())
    >>> bool(leak.get_xdata().max() == head.certificate.leak)
    True
    """
    judged = c.certificate if isinstance(c, Fit) else c
    if not isinstance(judged, Certificate):
        raise InputError(f"c must be a Certificate or a Fit; got {type(c).__name__}")
    ax = axes_or_new(ax, 6.4, 4.6)
    kinds = (
        ("leak", judged.row_leak, judged.tolerances.leak, ORANGE, "-"),
        ("distortion", judged.row_distortion, judged.tolerances.distortion, BLUE, "-."),
    )
    least, most = _limits([part for _, rows, asked, *_ in kinds for part in (rows, [asked])])
    lines = []
    for name, rows, asked, color, style in kinds:
        lines.append(_draw(ax, name, rows, asked, color, style, most))
        if asked > 0:
            ax.axvline(asked, color=color, linestyle=":", linewidth=1.6)
    ax.set(xscale="log", yscale="log", xlim=(least, most), ylim=(0.7, 1.5 * judged.n))
    plain_numbers(ax.yaxis, "{x:,.0f}")
    ax.set_title(_verdict(judged))
    finish(ax, "leak or distortion of a row", "rows with as much or more", columns=2)
    return lines[0], lines[1]


def _limits(values: list[Any]) -> tuple[float, float]:
    """Return the limits of the axis: those of the positive finite values, with some margin."""
    every = np.concatenate([np.asarray(v, dtype=np.float64).ravel() for v in values])
    every = every[(every > 0) & np.isfinite(every)]
    if not every.size:
        return 1e-3, 1.0
    most = float(every.max())
    return max(float(every.min()), most * 1e-4) / 1.5, most * 2.0


def _draw(
    ax: Axes,
    name: str,
    rows: NDArray[np.float64],
    asked: float,
    color: str,
    style: str,
    edge: float,
) -> Line2D:
    some = np.sort(np.minimum(rows[rows > 0], edge))
    zeros = rows.size - some.size
    label = f"{name}: worst {number(float(rows.max()), 3)}, asked {asked:g}"
    if zeros:
        label += f" (0 in {zeros:,} rows)" if some.size else " (0 in every row)"
    count = np.arange(some.size, 0, -1)
    # The last step goes below one row, so that the curve visibly ends at the worst row.
    x = np.append(some, some[-1:])
    y = np.append(count, np.full(min(1, some.size), 0.1))
    return ax.plot(x, y, style, drawstyle="steps-pre", color=color, linewidth=1.8, label=label)[0]


def _verdict(c: Certificate) -> str:
    if c.status == "holds":
        return f"holds for all {c.n:,} rows"
    left = f"{c.undecided_rows.size:,} undecided"
    if c.status == "undecided":
        return f"{left} of {c.n:,} rows"
    more = f", {left}" if c.undecided_rows.size else ""
    return f"fails in {c.failed_rows.size:,} of {c.n:,} rows{more}"
