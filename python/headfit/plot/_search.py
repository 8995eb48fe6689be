"""`search`: the head sizes that a search tried, and those that are proved too small."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from headfit._base.drawing import BLUE, GREY, INK, ORANGE, matplotlib
from headfit._fit.result import Fit, Trial
from headfit.errors import InputError
from headfit.plot._axes import check_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.patches import Rectangle

_FAR = 1e4  # larger shares of a tolerance are drawn at this value


class SearchPicture(NamedTuple):
    """The Matplotlib objects that `search` drew; `impossible` is None for a lower bound of 1."""

    certified: PathCollection
    others: PathCollection
    impossible: Rectangle | None


def search(fit: Fit, *, ax: Axes | None = None) -> SearchPicture:
    """Draw the sizes that a search tried, certified or not, and those that are proved too small.

    The vertical axis is the larger of leak and distortion in the certificate of a size, each
    divided by its tolerance; it is at most 1 if the certificate holds.

    Parameters
    ----------
    fit : Fit
        A fit whose size was searched for, by `headfit.fit` without `dim`.
    ax : matplotlib Axes, optional
        The axes to draw on; those of a new figure when None.

    Returns
    -------
    SearchPicture
        The points of the certified sizes and of the others, and the area below the lower bound.

    Raises
    ------
    InputError
        For a fit without a search.
    ImportError
        If Matplotlib is not installed.

    Notes
    -----
    Takes O(trials) time.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> head = hf.fit(hf.patterns.band(32, 1), time_limit=2, rng=0)
    >>> picture = hf.plot.search(head, ax=Figure().subplots())
    >>> len(picture.certified.get_offsets()) == sum(t.holds for t in head.search.trials)
    True
    """
    ticker = matplotlib().ticker
    if not isinstance(fit, Fit) or fit.search is None:
        raise InputError("fit must be one whose size was searched for: fit(A) without dim")
    check_axes(ax)
    ax = new_axes(size=(6.4, 4.0))[0] if ax is None else ax
    trials = fit.search.trials
    dims = [t.dim for t in trials]
    low, high = min(dims), max(dims)
    wide = high > 4 * low and high > 16
    bound = fit.lower_bound
    needs = 1 if bound is None else int(bound["dim"] if isinstance(bound, dict) else bound.dim)
    left = min(low, needs - 1 if needs > 1 else low)
    limits = (left / 1.25, high * 1.25) if wide else (left - 0.6, high + 0.6)
    limits = (max(limits[0], 0.4), limits[1])
    drawn = [
        ax.scatter(
            [t.dim for t in trials if t.holds is holds],
            [_share(t, fit) for t in trials if t.holds is holds],
            s=64, color=color, marker=marker, zorder=3, label=label, clip_on=False,
        )
        for holds, color, marker, label in (
            (True, BLUE, "o", "certified"),
            (False, ORANGE, "X", "not certified"),
        )
    ]  # fmt: skip
    ax.axhline(1.0, color=INK, linewidth=1, linestyle="--")
    area = None
    if needs > 1:
        area = ax.axvspan(
            limits[0], needs - 0.5, color=GREY, alpha=0.25, linewidth=0,
            label=f"proved too small: d < {needs}",
        )  # fmt: skip
    ax.set(xscale="log" if wide else "linear", yscale="log", xlim=limits)
    shares = [_share(t, fit) for t in trials]
    ax.set_ylim(min(0.5, min(shares) / 1.5), max(2.0, max(shares) * 1.5))
    if wide:
        ax.xaxis.set_major_locator(ticker.FixedLocator(_labelled_sizes(dims)))
        ax.xaxis.set_minor_locator(ticker.NullLocator())
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    else:
        ax.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())
    ax.set(xlabel="head size d", ylabel="largest share of a tolerance")
    found = fit.search.dim
    ax.set_title("none certified" if found is None else f"smallest certified: d = {found}")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, fontsize=9, frameon=False)
    return SearchPicture(drawn[0], drawn[1], area)


def _share(trial: Trial, fit: Fit) -> float:
    """Return the larger share of the two tolerances, clipped to the range of the axis."""
    asked = fit.tolerances
    leak = trial.leak / asked.leak
    ratio = trial.distortion / asked.distortion if asked.distortion > 0 else 0.0
    share = max(leak, ratio)
    return min(max(share, 1.0 / _FAR), _FAR) if math.isfinite(share) else _FAR


def _labelled_sizes(dims: list[int]) -> list[Any]:
    """Return sizes whose labels do not overlap on a logarithmic axis, including the smallest."""
    chosen: list[int] = []
    for dim in sorted(set(dims)):
        if not chosen or dim > 1.2 * chosen[-1]:
            chosen.append(dim)
    return chosen
