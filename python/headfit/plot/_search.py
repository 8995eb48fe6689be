"""`search`: the head sizes that a search tried, and those that are proved too small."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from headfit._base.drawing import BLUE, GREY, INK, ORANGE
from headfit._fit.result import Fit, Trial
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes, plain_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.patches import Rectangle

_FAR = 1e4  # larger shares of a tolerance are drawn at this value


class _Picture(NamedTuple):
    """What `search` drew."""

    certified: PathCollection
    others: PathCollection
    impossible: Rectangle | None


def search(fit: Fit, *, ax: Axes | None = None) -> _Picture:
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
    named tuple
        ``certified`` and ``others``, the points of the sizes; ``impossible``, the area below the
        lower bound, None for a bound of 1.

    Raises
    ------
    InputError
        For a fit without a search.

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
    if not isinstance(fit, Fit) or fit.search is None:
        raise InputError("fit must be one whose size was searched for: fit(A) without dim")
    ax = axes_or_new(ax, 6.4, 4.0)
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
    ax.set(yscale="log")
    shares = [_share(t, fit) for t in trials]
    ax.set_ylim(min(0.5, min(shares) / 1.5), max(2.0, max(shares) * 1.5))
    label_sizes(ax, dims, log=wide)
    ax.set_xlim(limits)
    plain_numbers(ax.yaxis)
    finish(ax, "head size d", "largest share of a tolerance")
    ax.grid(False)
    dim = fit.search.dim
    ax.set_title("none certified" if dim is None else f"smallest certified: d = {dim}")
    return _Picture(drawn[0], drawn[1], area)


def _share(trial: Trial, fit: Fit) -> float:
    """Return the larger share of the two tolerances, clipped to the range of the axis."""
    asked = fit.tolerances
    leak = trial.leak / asked.leak
    ratio = trial.distortion / asked.distortion if asked.distortion > 0 else 0.0
    share = max(leak, ratio)
    return min(max(share, 1.0 / _FAR), _FAR) if math.isfinite(share) else _FAR
