"""`certificate` and `search`: what a fit says about its rows, and about the sizes it tried."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from headfit._base.drawing import BLUE, INK, ORANGE
from headfit._base.text import number
from headfit._fit.result import Fit, Trial
from headfit._target.certificate import Certificate
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes, mark_impossible, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

_FAR = 1e4  # larger shares of a tolerance are drawn at this value


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
    allowed = judged.tolerances
    kinds = (
        ("leak", judged.row_leak, allowed.leak, ORANGE, "-"),
        ("distortion", judged.row_distortion, allowed.distortion, BLUE, "-."),
    )
    values = np.concatenate([np.append(rows, limit) for _, rows, limit, *_ in kinds])
    values = values[(values > 0) & np.isfinite(values)]
    least, most = (values.min(), values.max()) if values.size else (1e-3, 1.0)
    edge = 2.0 * most
    lines = []
    for name, rows, limit, color, style in kinds:
        label = f"{name}: worst {number(float(rows.max()), 3)}, asked {limit:g}"
        some = np.sort(np.minimum(rows[rows > 0], edge))
        if some.size < rows.size:
            zeros = f"{rows.size - some.size:,} rows" if some.size else "every row"
            label += f" (0 in {zeros})"
        # The last step goes below one row, so that the curve visibly ends at the worst row.
        x, y = np.append(some, some[-1:]), np.arange(some.size, -1.0, -1.0)
        y[-1] = 0.1
        lines += ax.plot(
            x, y[: x.size], style, drawstyle="steps-pre", color=color, linewidth=1.8, label=label
        )
        if limit > 0:
            ax.axvline(limit, color=color, linestyle=":", linewidth=1.6)
    ax.set(xscale="log", yscale="log", xlim=(max(least, most * 1e-4) / 1.5, edge))
    ax.set(ylim=(0.7, 1.5 * judged.n), title=_verdict(judged))
    plain_numbers(ax.yaxis, "{x:,.0f}")
    finish(ax, "leak or distortion of a row", "rows with as much or more", columns=2)
    return lines[0], lines[1]


def _verdict(c: Certificate) -> str:
    if c.status == "holds":
        return f"holds for all {c.n:,} rows"
    undecided = f"{c.undecided_rows.size:,} undecided"
    if c.status == "undecided":
        return f"{undecided} of {c.n:,} rows"
    more = f", {undecided}" if c.undecided_rows.size else ""
    return f"fails in {c.failed_rows.size:,} of {c.n:,} rows{more}"


def search(fit: Fit, *, ax: Axes | None = None) -> SimpleNamespace:
    """Draw the sizes that a search tried, certified or not, and those that are proved too small.

    The vertical axis is the larger of leak and distortion in the certificate of a size, each
    divided by its tolerance; it is at most 1 if the certificate holds.

    Parameters
    ----------
    fit : Fit
        A fit whose size was searched for, by `headfit.fit` without `dim`.
    ax : matplotlib Axes, optional

    Returns
    -------
    SimpleNamespace
        ``certified`` and ``others``, the points of the sizes; ``impossible``, the area below the
        lower bound, None for a bound of 1.

    Raises
    ------
    InputError
        For a fit without a search.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> head = hf.fit(hf.patterns.band(32, 1), time_limit=2, rng=0)
    >>> picture = hf.plot.search(head, ax=Figure().subplots())
    >>> len(picture.certified.get_offsets()) == sum(t.holds for t in head.search.trials)
    True
    """
    if not isinstance(fit, Fit) or fit.search is None:
        raise InputError("fit must be one whose size was searched for: fit(A) without dim")
    ax = axes_or_new(ax, 6.4, 4.0)
    dims = [trial.dim for trial in fit.search.trials]
    shares = [_share(trial, fit) for trial in fit.search.trials]
    holds = np.array([trial.holds for trial in fit.search.trials])
    certified, others = (
        ax.scatter(
            np.array(dims)[which], np.array(shares)[which], s=64, color=color, marker=marker,
            zorder=3, label=label, clip_on=False,
        )
        for which, color, marker, label in (
            (holds, BLUE, "o", "certified"),
            (~holds, ORANGE, "X", "not certified"),
        )
    )  # fmt: skip
    ax.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    bound = fit.lower_bound
    needs = 1 if bound is None else int(bound["dim"] if isinstance(bound, dict) else bound.dim)
    low, high = min([*dims, needs - 1] if needs > 1 else dims), max(dims)
    wide = high > 4 * min(dims) and high > 16
    ax.set_yscale("log")
    ax.set_ylim(min(0.5, min(shares) / 1.5), max(2.0, max(shares) * 1.5))
    label_sizes(ax, dims, log=wide)
    limits = (low / 1.25, high * 1.25) if wide else (low - 0.6, high + 0.6)
    ax.set_xlim(max(0.4, limits[0]), limits[1])
    area = mark_impossible(ax, needs)
    plain_numbers(ax.yaxis)
    finish(ax, "head size d", "largest share of a tolerance")
    ax.grid(False)
    dim = fit.search.dim
    ax.set_title("none certified" if dim is None else f"smallest certified: d = {dim}")
    return SimpleNamespace(certified=certified, others=others, impossible=area)


def _share(trial: Trial, fit: Fit) -> float:
    """Return the larger share of the two tolerances, clipped to the range of the axis."""
    allowed = fit.tolerances
    ratio = trial.distortion / allowed.distortion if allowed.distortion > 0 else 0.0
    share = max(trial.leak / allowed.leak, ratio)
    return min(max(share, 1.0 / _FAR), _FAR) if math.isfinite(share) else _FAR
