"""`plan`: the largest logit of the heads that a plan tried, over n or over the head size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headfit._base.arguments import shown
from headfit._base.drawing import BLUE, GREEN, GREY, INK, ORANGE
from headfit._plan.attempt import PlanAttempt
from headfit._plan.result import Plan
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

_RELAXED = ("float32", "float32 logits", "free logits", "looser")
_FLOOR = 0.05  # where heads without a certificate are drawn, as a share of the axes' height


class _Picture(NamedTuple):
    """What `plan` drew."""

    certified: PathCollection
    relaxed: PathCollection
    others: PathCollection
    trend: Line2D | None
    impossible: Rectangle | None


def plan(plan: Plan, *, ax: Axes | None = None) -> _Picture:
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
    named tuple
        ``certified``, ``relaxed``, ``others``: the points of the certified heads as asked (also
        smaller ones), of those with one demand relaxed, and of the attempts that did not certify,
        at the lower edge; ``trend``, the line over n, and ``impossible``, the area of head sizes
        that are proved to be too small, or None.

    Raises
    ------
    InputError
        For something else than a plan.

    Notes
    -----
    Takes O(attempts) time.

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
    by_n = any(a.n != plan.n for a in tried)
    held = [a for a in tried if a.holds]
    relaxed = [a for a in held if a.purpose in _RELAXED]
    as_asked = [a for a in held if a.purpose not in _RELAXED]
    certified = _points(ax, as_asked, by_n, BLUE, "o", f"certified in {plan.dtype}")
    others = _failed(ax, [a for a in tried if not a.holds], by_n)
    with_less = _points(ax, relaxed, by_n, GREEN, "D", "certified with a demand relaxed")
    _label_relaxed(ax, relaxed, by_n)
    line = _trend(ax, plan) if by_n else None
    area = None if by_n else _impossible(ax, plan)
    ax.axvline(plan.n if by_n else plan.dim, color=INK, linewidth=1, linestyle=":", label="asked")
    _scale(ax, plan, held, tried, by_n)
    ax.set_title({"yes": "Yes", "no": "No (proved)", "not found": "Not found"}[plan.verdict]
                 + f": d = {plan.dim}, {plan.dtype}, {plan.name}", fontsize=10)  # fmt: skip
    finish(ax, "tokens n" if by_n else "head size d", "largest |logit|")
    return _Picture(certified, with_less, others, line, area)


def _place(attempt: PlanAttempt, by_n: bool) -> int:
    return attempt.n if by_n else attempt.dim


def _points(
    ax: Axes, attempts: Sequence[PlanAttempt], by_n: bool, color: str, marker: str, label: str
) -> PathCollection:
    return ax.scatter(
        [_place(a, by_n) for a in attempts], [a.max_logit for a in attempts],
        s=56, color=color, marker=marker, zorder=3, label=label if attempts else None,
    )  # fmt: skip


def _failed(ax: Axes, attempts: Sequence[PlanAttempt], by_n: bool) -> PathCollection:
    """Draw attempts without a certificate at the lower edge: their logits say nothing."""
    return ax.scatter(
        [_place(a, by_n) for a in attempts], [_FLOOR] * len(attempts),
        s=56, color=ORANGE, marker="X", zorder=3, transform=ax.get_xaxis_transform(),
        label="not certified: no logit to show" if attempts else None,
    )  # fmt: skip


def _label_relaxed(ax: Axes, attempts: Sequence[PlanAttempt], by_n: bool) -> None:
    for a in attempts:
        asked = a.tolerances
        text: str = a.purpose
        if text == "looser":
            text = f"leak {asked.leak:.2g}, distortion {asked.distortion:.2g}"
        ax.annotate(
            text, (_place(a, by_n), a.max_logit), xytext=(-7, 0), textcoords="offset points",
            ha="right", va="center", fontsize=8, color=INK,
        )  # fmt: skip


def _trend(ax: Axes, plan: Plan) -> Line2D | None:
    trend = plan.trend
    if trend is None:
        return None
    sizes = [*trend.sizes, trend.n]
    (line,) = ax.plot(
        sizes, [trend.value(n) for n in sizes], "--", color=BLUE, linewidth=1,
        label="trend, no proof",
    )  # fmt: skip
    return line


def _impossible(ax: Axes, plan: Plan) -> Rectangle | None:
    bound = plan.lower_bound
    if bound is None or bound.dim < 2:
        return None
    return ax.axvspan(
        0.5, bound.dim - 0.5, color=GREY, alpha=0.25, linewidth=0,
        label=f"proved too small: d < {bound.dim}",
    )  # fmt: skip


def _scale(
    ax: Axes, plan: Plan, held: Sequence[PlanAttempt], tried: Sequence[PlanAttempt], by_n: bool
) -> None:
    """Set the axes: both logarithmic, with ticks at the values that were tried."""
    places = sorted({_place(a, by_n) for a in tried} | {plan.n if by_n else plan.dim})
    low = min(places[0], 1 if plan.lower_bound is None else plan.lower_bound.dim)
    label_sizes(ax, places, log=True)
    ax.set_xlim((places[0] if by_n else low) / 1.6, places[-1] * 1.4)
    logits = [a.max_logit for a in held if math.isfinite(a.max_logit)]
    if plan.trend is not None and plan.trend.at_n > 0:
        logits.append(plan.trend.at_n)
    if logits:
        ax.set_yscale("log", base=2)
        ax.set_ylim(min(logits) / 3, max(logits) * 2.2)
        plain_numbers(ax.yaxis)
    else:  # nothing certified: there is no logit to show
        ax.set_ylim(0, 1)
        ax.set_yticks([])
