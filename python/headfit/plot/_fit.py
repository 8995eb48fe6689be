"""`certificate`, `search` and `plan`: the rows of a fit, and the sizes and heads it tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from headfit._base.arguments import shown
from headfit._base.display import number
from headfit._fit.result import Fit, Trial
from headfit._plan.result import Plan, PlanAttempt
from headfit._target.certificate import Certificate
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes, mark_impossible, plain_numbers
from headfit.plot._drawing import BLUE, GREEN, INK, ORANGE, Axes, Line2D, PathCollection

_FAR = 1e4  # larger shares of a tolerance are drawn at this value
_RELAXED = ("float32", "float32 logits", "free logits", "looser")
_FLOOR = 0.05  # where heads without a certificate are drawn, as a share of the axes' height
_VERDICTS = {"yes": "Yes", "no": "No (proved)", "not found": "Not found"}


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
    least, most = values.min(), min(values.max(), 1e270)  # which leaves room for margins
    edge = 2.0 * most
    lines = []
    for name, rows, limit, color, style in kinds:
        label = f"{name}: worst {number(float(rows.max()), 3)}, asked {limit:g}"
        x = np.sort(np.minimum(rows[rows > 0], edge))
        if x.size < rows.size:
            zeros = f"{rows.size - x.size:,} rows" if x.size else "every row"
            label += f" (0 in {zeros})"
        # The last step goes below one row, so that the curve visibly ends at the worst row.
        y = np.append(np.arange(x.size, 0.0, -1.0), [0.1] * bool(x.size))
        lines += ax.plot(
            np.append(x, x[-1:]), y, style, drawstyle="steps-pre", color=color, linewidth=1.8,
            label=label,
        )  # fmt: skip
        if limit > 0:
            ax.axvline(limit, color=color, linestyle=":", linewidth=1.6)
    left = max(least, 1e-4 * min(x for x in (allowed.leak, allowed.distortion) if x > 0)) / 1.5
    ax.set(xscale="log", yscale="log", xlim=(left, edge), ylim=(0.7, 1.5 * judged.n))
    ax.set_title(str(judged).splitlines()[0].partition(" (")[0], size=10)
    plain_numbers(ax.yaxis, "{x:,.0f}")
    finish(ax, "leak or distortion of a row", "rows with as much or more", columns=2)
    return lines[0], lines[1]


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
    trials = fit.search.trials
    dims, shares = np.array([(trial.dim, _share(trial, fit)) for trial in trials]).T
    holds = np.array([trial.holds for trial in trials])
    points = partial(ax.scatter, s=64, zorder=3, clip_on=False)
    certified = points(dims[holds], shares[holds], label="certified", color=BLUE)
    others = points(dims[~holds], shares[~holds], label="not certified", color=ORANGE, marker="X")
    ax.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    needs = 1 if fit.lower_bound is None else fit.lower_bound.dim
    low, high = min(needs - 1 or dims.min(), dims.min()), dims.max()
    wide = high > 4 * dims.min() and high > 16
    ax.set(yscale="log", ylim=(min(0.5, shares.min() / 1.5), max(2.0, shares.max() * 1.5)))
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
    share = max(trial.leak / allowed.leak, trial.distortion / allowed.distortion)
    return min(max(share, 1.0 / _FAR), _FAR) if math.isfinite(share) else _FAR


def plan(plan: Plan, *, ax: Axes | None = None) -> SimpleNamespace:
    """Draw the largest |logit| of the heads that a plan tried.

    The horizontal axis is n where the plan tried several, with the trend as a dashed line, and the
    head size d otherwise.

    Parameters
    ----------
    plan : Plan
        What `headfit.plan` returned.
    ax : matplotlib Axes, optional

    Returns
    -------
    SimpleNamespace
        ``certified``, ``relaxed``, ``others``: the points of the certified heads as asked (also
        smaller ones), of those with one demand relaxed, and of the attempts that did not certify,
        at the lower edge; ``trend``, the line over n, and ``impossible``, the area of head sizes
        that are proved to be too small, or None.

    Raises
    ------
    InputError
        For something else than a plan.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> found = hf.plan(hf.patterns.band(48, 1), dim=8, time_limit=4)
    >>> picture = hf.plot.plan(found, ax=Figure().subplots())
    >>> len(picture.certified.get_offsets()) >= 1
    True
    """
    if not isinstance(plan, Plan):
        raise InputError(f"plan must be what headfit.plan returned; got {shown(plan)}")
    ax = axes_or_new(ax, 6.6, 4.4)
    tried = [a for a in plan.attempts if not a.purpose.startswith("rounded")]
    axis = "n" if any(a.n != plan.n for a in tried) else "dim"
    held = [a for a in tried if a.holds]

    def points(attempts: Sequence[PlanAttempt], label: str, **more: Any) -> PathCollection:
        at = [getattr(a, axis) for a in attempts]
        heights = [_FLOOR if "transform" in more else a.max_logit for a in attempts]
        return ax.scatter(at, heights, s=56, zorder=3, label=label if attempts else "", **more)

    as_asked = [a for a in held if a.purpose not in _RELAXED]
    certified = points(as_asked, f"certified in {plan.dtype}", color=BLUE)
    # The logits of heads without a certificate say nothing: these are at the edge of the axes.
    others = points(
        [a for a in tried if not a.holds], "not certified: no logit to show", color=ORANGE,
        marker="X", transform=ax.get_xaxis_transform(),
    )  # fmt: skip
    relaxed = [a for a in held if a.purpose in _RELAXED]
    with_less = points(relaxed, "certified with a demand relaxed", color=GREEN, marker="D")
    for a in relaxed:
        ax.annotate(
            a.change, (getattr(a, axis), a.max_logit), xytext=(-7, 0), textcoords="offset points",
            ha="right", va="center", fontsize=8, color=INK,
        )  # fmt: skip
    line = area = None
    if axis == "n" and plan.trend is not None:
        sizes = [*plan.trend.sizes, plan.trend.n]
        (line,) = ax.plot(
            sizes, [plan.trend.value(n) for n in sizes], "--", color=BLUE, linewidth=1,
            label="trend, no proof",
        )  # fmt: skip
    ax.axvline(getattr(plan, axis), color=INK, linewidth=1, linestyle=":", label="asked")
    needs = 1 if plan.lower_bound is None else plan.lower_bound.dim
    places = sorted({getattr(a, axis) for a in (*tried, plan)})
    label_sizes(ax, places, log=True)
    ax.set_xlim((min(places[0], needs) if axis == "dim" else places[0]) / 1.6, places[-1] * 1.4)
    if axis == "dim":
        area = mark_impossible(ax, needs)
    heights = [a.max_logit for a in held] + [plan.trend.at_n if plan.trend is not None else 0.0]
    if ends := [height for height in heights if 0 < height < math.inf]:
        ax.set_yscale("log", base=2)
        ax.set_ylim(min(ends) / 3, max(ends) * 2.2)
        plain_numbers(ax.yaxis)
    else:  # there are no logits to show
        ax.set(ylim=(0, 1), yticks=[])
    ax.set_title(f"{_VERDICTS[plan.verdict]}: d = {plan.dim}, {plan.dtype}, {plan.name}", size=10)
    finish(ax, "tokens n" if axis == "n" else "head size d", "largest |logit|")
    return SimpleNamespace(
        certified=certified, relaxed=with_less, others=others, trend=line, impossible=area
    )
