"""`plan`: the largest logit of the heads that a plan tried, over n or over the head size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headfit._base.arguments import shown
from headfit._base.drawing import BLUE, GREEN, INK, ORANGE
from headfit._plan.attempt import PlanAttempt
from headfit._plan.result import Plan
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes, mark_impossible, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection

_RELAXED = ("float32", "float32 logits", "free logits", "looser")
_FLOOR = 0.05  # where heads without a certificate are drawn, as a share of the axes' height
_VERDICTS = {"yes": "Yes", "no": "No (proved)", "not found": "Not found"}


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
    relaxed = [a for a in held if a.purpose in _RELAXED]

    def points(attempts: Sequence[PlanAttempt], label: str, **more: Any) -> PathCollection:
        at = [getattr(a, axis) for a in attempts]
        heights = [_FLOOR if "transform" in more else a.max_logit for a in attempts]
        label = label if attempts else ""
        return ax.scatter(at, heights, s=56, zorder=3, label=label, **more)

    as_asked = [a for a in held if a.purpose not in _RELAXED]
    certified = points(as_asked, f"certified in {plan.dtype}", color=BLUE)
    # The logits of heads without a certificate say nothing: these are at the edge of the axes.
    failed, edge = [a for a in tried if not a.holds], ax.get_xaxis_transform()
    label = "not certified: no logit to show"
    others = points(failed, label, color=ORANGE, marker="X", transform=edge)
    label = "certified with a demand relaxed"
    with_less = points(relaxed, label, color=GREEN, marker="D")
    for a in relaxed:
        text: str = a.purpose
        if text == "looser":
            text = f"leak {a.tolerances.leak:.2g}, distortion {a.tolerances.distortion:.2g}"
        ax.annotate(
            text, (getattr(a, axis), a.max_logit), xytext=(-7, 0), textcoords="offset points",
            ha="right", va="center", fontsize=8, color=INK,
        )  # fmt: skip
    line = area = None
    if axis == "n" and plan.trend is not None:
        sizes = [*plan.trend.sizes, plan.trend.n]
        heights = [plan.trend.value(n) for n in sizes]
        label = "trend, no proof"
        (line,) = ax.plot(sizes, heights, "--", color=BLUE, linewidth=1, label=label)
    ax.axvline(getattr(plan, axis), color=INK, linewidth=1, linestyle=":", label="asked")
    needs = 1 if plan.lower_bound is None else plan.lower_bound.dim
    places = sorted({getattr(a, axis) for a in tried} | {getattr(plan, axis)})
    label_sizes(ax, places, log=True)
    low = places[0] if axis == "n" else min(places[0], needs)
    ax.set_xlim(low / 1.6, places[-1] * 1.4)
    if axis == "dim":
        area = mark_impossible(ax, needs)
    _scale_logits(ax, plan, [a.max_logit for a in held])
    ax.set_title(f"{_VERDICTS[plan.verdict]}: d = {plan.dim}, {plan.dtype}, {plan.name}", size=10)
    finish(ax, "tokens n" if axis == "n" else "head size d", "largest |logit|")
    return SimpleNamespace(
        certified=certified, relaxed=with_less, others=others, trend=line, impossible=area
    )


def _scale_logits(ax: Axes, plan: Plan, logits: Sequence[float]) -> None:
    """Make the axis of the logits logarithmic, if there are any to show."""
    ends = [logit for logit in logits if math.isfinite(logit)]
    if plan.trend is not None and plan.trend.at_n > 0:
        ends.append(plan.trend.at_n)
    if ends:
        ax.set_yscale("log", base=2)
        ax.set_ylim(min(ends) / 3, max(ends) * 2.2)
        plain_numbers(ax.yaxis)
    else:
        ax.set_ylim(0, 1)
        ax.set_yticks([])
