"""`translation`: logits of a translation-invariant head against the offset, with its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._base.arguments import shown
from headfit._base.drawing import BLUE, GREEN, INK, ORANGE
from headfit._base.dtypes import DIGITS
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._filter.demand import Demand
from headfit._filter.rope_result import RopeFilter
from headfit._filter.stencil import Stencil
from headfit._fit.result import Fit
from headfit._target.target import as_target
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish
from headfit.plot._tiles import largest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import StepPatch

_ROWS = 16  # how many rows are compared with the logits drawn, to see that the head is a filter
_COLUMNS = 400  # the whole range is drawn as the least and largest logit of so many parts
_NEAR = 48  # the part near the pattern has at least so many offsets

Floats = NDArray[np.float64]


class _Picture(NamedTuple):
    """What `translation` drew."""

    logits: Line2D
    allowed: LineCollection | None
    limit: Line2D | None
    inset: Axes | None
    whole: StepPatch | None


def translation(
    head: Fit | RopeFilter | Attention | Any,
    A: Any = None,
    *,
    tolerances: Tolerances | None = None,
    ax: Axes | None = None,
) -> _Picture:
    """Draw the logits of a translation-invariant head against the offset, with its tolerances.

    Offsets i - j count back from the query: earlier keys have positive ones. Bars show where the
    logits of the pattern may lie, and a line the limit of all others. The axes show the offsets
    near the pattern, and an inset all of them where there are more.

    Parameters
    ----------
    head : Fit, Attention or RopeFilter
        The logits of heads are those of the last row, and of the first row for negative offsets.
    A : target, optional
        The pattern, which must be translation-invariant; it has the limits. A `RopeFilter` has its
        own.
    tolerances : Tolerances, optional
        Those of the fit or of the `RopeFilter` when None, else the default ones.
    ax : matplotlib Axes, optional

    Returns
    -------
    named tuple
        ``logits``, the line; ``allowed`` and ``limit``, the bars and the line of the limits, None
        where they are not known; ``inset`` and ``whole``, its axes and the area of all offsets, or
        None.

    Raises
    ------
    InputError
        For a head that is no filter: the logits at one offset differ between rows, beyond the
        rounding of its queries and keys, in one of 16 rows that are compared.

    Notes
    -----
    Takes O(n d) time.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> found = hf.rope.filter(4, n=128, dim=32, leak=0.3, distortion=0.5)
    >>> drawn = hf.plot.translation(found, ax=Figure().subplots())
    >>> len(drawn.allowed.get_segments())
    4
    """
    stencil, known = _asked(head, A)
    asked = as_tolerances(known if tolerances is None else tolerances)
    offsets, logits = _logits(head, stencil)
    demand = None
    if stencil is not None:
        demand = Demand(stencil, asked)
        _check_range(stencil, offsets)
    ax = axes_or_new(ax, 7.0, 4.4)
    near = _near(offsets, logits, stencil)
    (line,) = ax.plot(
        offsets[near], logits[near], color=BLUE, linewidth=1, marker=".", markersize=4,
        label="logit", zorder=3,
    )  # fmt: skip
    allowed = limit = None
    if demand is not None and stencil is not None:
        low, high, most = _limits(demand, logits[stencil.offsets - offsets[0]])
        allowed = ax.vlines(
            stencil.offsets, low, high, color=GREEN, alpha=0.5, linewidth=3,
            label="allowed in the pattern", zorder=2,
        )  # fmt: skip
        limit = ax.axhline(most, color=ORANGE, linewidth=1, linestyle="--", label="limit elsewhere")
    first, last = offsets[near][[0, -1]]
    ax.set_xlim(first - 0.02 * (last - first) - 0.5, last + 0.02 * (last - first) + 0.5)
    ax.margins(y=0.08)
    inset = whole = None
    below = 0.0
    if offsets.size > 1.2 * offsets[near].size:
        inset, whole = _whole(ax, offsets, logits, None if limit is None else most)
        below = 0.42
    low_y, high_y = ax.get_ylim()
    ax.set_ylim(low_y, high_y + below * (high_y - low_y) / (1 - below) * 0.9)
    inside = {"loc": "upper left", "bbox_to_anchor": None, "fontsize": 8}
    finish(ax, "offset from query back to key", "logit", columns=1, **inside)
    return _Picture(line, allowed, limit, inset, whole)


def _asked(head: Any, A: Any) -> tuple[Stencil | None, Tolerances | None]:
    """Return the pattern and the tolerances that are known."""
    known = head.tolerances if isinstance(head, (Fit, RopeFilter)) else None
    if A is not None:
        mask = None
        attention = attention_in(head)
        if attention is not None:
            mask = attention.mask
        elif isinstance(head, RopeFilter):
            mask = head.mask
        return Stencil.of(as_target(A, mask=mask)), known
    return head.stencil if isinstance(head, RopeFilter) else None, known


def _logits(head: Any, stencil: Stencil | None) -> tuple[NDArray[np.int64], Floats]:
    """Return offsets without gaps, and the logits of the head there."""
    attention = attention_in(head)
    if attention is not None:
        if stencil is not None and stencil.block > 1:
            raise InputError("A must be translation-invariant token by token; got blocks of tokens")
        return _logits_of_rows(attention)
    if not isinstance(head, RopeFilter) or stencil is None:
        raise InputError(f"head must be a Fit, Attention or RopeFilter; got {shown(head)}")
    if head.filter is None:
        raise InputError(f"head must hold a filter; the pattern of this one is {head.status}")
    first, last = stencil.first, stencil.last
    return np.arange(first, last + 1), head.filter.logits_between(first, last)


def _logits_of_rows(head: Attention) -> tuple[NDArray[np.int64], Floats]:
    """Return the logits of the last row and of the first, if others agree with them."""
    n = head.n
    if head.lead or head.m != n:
        raise InputError(f"head must be one head of as many queries as keys; got {head!r}")
    every = np.full(2 * n - 1, -np.inf)  # entry x + n - 1 is the logit at offset x
    every[: n - 1] = head.logits(rows=slice(0, 1), num_threads=1)[0, :0:-1]
    every[n - 1 :] = head.logits(rows=slice(n - 1, n), num_threads=1)[0, ::-1]
    room = _rounding(head)
    for row in np.unique(np.linspace(0, n - 1, _ROWS).astype(np.int64)):
        i = int(row)
        here = head.logits(rows=slice(i, i + 1), num_threads=1)[0].astype(np.float64)
        drawn = every[i + n - 1 - np.arange(n)]
        with np.errstate(invalid="ignore"):
            far = np.where(here == drawn, 0.0, np.abs(here - drawn)) > room
        if far.any():
            j = int(np.argmax(far))
            raise InputError(
                "head must be a filter, whose logits depend on the offset alone; at offset "
                f"{i - j} row {i} has {here[j]:.6g}, and another row {drawn[j]:.6g}"
            )
    finite = np.flatnonzero(np.isfinite(every))
    part = slice(finite[0], finite[-1] + 1)
    return np.arange(1 - n, n)[part], every[part]


def _rounding(head: Attention) -> float:
    """Return by how much logits at one offset may differ by rounding of queries and keys."""
    q, k = head.stored
    names = [str(x.dtype) if x.dtype.kind == "f" else "bfloat16" for x in (q, k)]
    unit = sum(2.0 ** -DIGITS[name] for name in names)
    unit += (head.dim + 4) * 2.0 ** -DIGITS[str(head.dtype)]
    longest = [float(np.linalg.norm(x.astype(np.float64), axis=1).max()) for x in (head.Q, head.K)]
    return 2 * unit * abs(head.scale) * longest[0] * longest[1]


def _check_range(stencil: Stencil, offsets: NDArray[np.int64]) -> None:
    if stencil.offsets[0] < offsets[0] or stencil.offsets[-1] > offsets[-1]:
        raise InputError(
            f"A must attend to offsets {offsets[0]} ... {offsets[-1]}, those of the head; it has "
            f"{stencil.offsets[0]} ... {stencil.offsets[-1]}"
        )


def _limits(demand: Demand, inside: Floats) -> tuple[Floats, Floats, float]:
    """Return where logits of the pattern may lie, given their level, and the limit elsewhere."""
    error = inside - demand.stencil.log_weights
    middle = (error.max() + error.min()) / 2
    centre = middle + demand.stencil.log_weights
    most = float(inside.min()) - demand.gap
    return centre - demand.spread / 2, centre + demand.spread / 2, most


def _near(offsets: NDArray[np.int64], logits: Floats, stencil: Stencil | None) -> slice:
    """Return the part of the offsets near the pattern, or near the largest logit."""
    peak = int(offsets[np.argmax(logits)])
    low, high = (peak, peak) if stencil is None else stencil.offsets[[0, -1]]
    reach = max(_NEAR, int(high - low + 1))
    first, last = max(0, low - reach - offsets[0]), high + reach - offsets[0] + 1
    return slice(int(first), int(min(last, offsets.size)))


def _whole(
    ax: Axes, offsets: NDArray[np.int64], logits: Floats, most: float | None
) -> tuple[Axes, StepPatch]:
    """Draw all offsets in an inset, as the range of the logits in each of some parts."""
    inset = ax.inset_axes((0.52, 0.63, 0.46, 0.3))
    high, starts = largest(logits, _COLUMNS)
    edges = np.append(offsets[starts], offsets[-1] + 1) - 0.5
    low = -largest(-logits, _COLUMNS)[0]
    area = inset.stairs(
        high, edges, baseline=low, fill=True, facecolor=BLUE, edgecolor=BLUE, linewidth=0.6
    )
    if most is not None:
        inset.axhline(most, color=ORANGE, linewidth=0.8, linestyle="--")
    inset.set_xlim(edges[0], edges[-1])
    inset.set_title("all offsets", fontsize=8, color=INK, pad=2)
    inset.tick_params(labelsize=7)
    return inset, area
