"""`translation` and `rope`: logits by offset, and what rotary positions reach without content."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from headfit._attention.attention import Attention, attention_in
from headfit._base.arguments import shown
from headfit._base.arrays import DIGITS
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._filter.demand import Demand
from headfit._filter.rope_result import RopeFilter
from headfit._filter.stencil import Floats, Offsets, Stencil
from headfit._fit.result import Fit
from headfit._target.target import as_target
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes
from headfit.plot._drawing import BLUE, GREEN, GREY, INK, ORANGE, Axes
from headfit.plot._tiles import largest

_ROWS = 16  # how many rows are compared with the logits drawn, to see that the head is a filter
_PARTS = 400  # the whole range is drawn as the least and largest logit of so many parts
_NEAR = 48  # the part near the pattern has at least so many offsets
_COLORS = (BLUE, ORANGE, GREEN, INK, GREY)
_STYLES = ("-", "--", ":", "-.")
_MARKERS = "os^vD"


def translation(
    head: Fit | RopeFilter | Attention | Any,
    A: Any = None,
    *,
    tolerances: Tolerances | None = None,
    ax: Axes | None = None,
) -> SimpleNamespace:
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
    SimpleNamespace
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
    known = head.tolerances if isinstance(head, (Fit, RopeFilter)) else None
    allowed = as_tolerances(known if tolerances is None else tolerances)
    attention = attention_in(head)
    stencil = head.stencil if isinstance(head, RopeFilter) else None
    if A is not None:
        mask = getattr(head if attention is None else attention, "mask", None)
        stencil = Stencil.of(as_target(A, mask=mask))
    offsets, logits = _logits(head, attention, stencil)
    low, high = stencil.offsets[[0, -1]] if stencil else offsets[[np.argmax(logits)] * 2]
    if low < offsets[0] or high > offsets[-1]:
        raise InputError(
            f"A must attend to offsets {offsets[0]} ... {offsets[-1]}, those of the head; it has "
            f"{low} ... {high}"
        )
    ax = axes_or_new(ax, 7.0, 4.4)
    reach = max(_NEAR, int(high - low + 1))
    near = (offsets >= low - reach) & (offsets <= high + reach)
    drawn = SimpleNamespace(allowed=None, limit=None, inset=None, whole=None)
    (drawn.logits,) = ax.plot(
        offsets[near], logits[near], color=BLUE, linewidth=1, marker=".", markersize=4,
        label="logit", zorder=3,
    )  # fmt: skip
    limit: dict[str, Any] = {"color": ORANGE, "linestyle": "--"}
    if stencil is not None:
        demand, inside = Demand(stencil, allowed), logits[stencil.offsets - offsets[0]]
        error = inside - stencil.log_weights
        centre = (error.max() + error.min()) / 2 + stencil.log_weights
        half, most = demand.spread / 2, float(inside.min()) - demand.gap
        drawn.allowed = ax.vlines(
            stencil.offsets, centre - half, centre + half, color=GREEN, alpha=0.5, linewidth=3,
            label="allowed in the pattern", zorder=2,
        )  # fmt: skip
        drawn.limit = ax.axhline(most, linewidth=1, label="limit elsewhere", **limit)
    first, last = offsets[near][[0, -1]]
    ax.set_xlim(first - 0.02 * (last - first) - 0.5, last + 0.02 * (last - first) + 0.5)
    ax.margins(y=0.08)
    if offsets.size > 1.2 * np.count_nonzero(near):  # all offsets, in the upper part of the axes
        bottom, top = ax.get_ylim()
        ax.set_ylim(bottom, top + 0.65 * (top - bottom))
        drawn.inset = ax.inset_axes((0.52, 0.63, 0.46, 0.3))
        upper, starts = largest(logits, _PARTS)
        lower = -largest(-logits, _PARTS)[0]
        edges = np.append(offsets[starts], offsets[-1] + 1) - 0.5
        style = {"facecolor": BLUE, "edgecolor": BLUE, "linewidth": 0.6}
        drawn.whole = drawn.inset.stairs(upper, edges, baseline=lower, fill=True, **style)
        if stencil is not None:
            drawn.inset.axhline(most, linewidth=0.8, **limit)
        drawn.inset.set_xlim(edges[0], edges[-1])
        drawn.inset.set_title("all offsets", fontsize=8, color=INK, pad=2)
        drawn.inset.tick_params(labelsize=7)
    finish(ax, "offset from query back to key", "logit", inside="upper left")
    return drawn


def _logits(
    head: Any, attention: Attention | None, stencil: Stencil | None
) -> tuple[Offsets, Floats]:
    """Return offsets without gaps, and the logits of a head or filter there."""
    if stencil is not None and stencil.block > 1:
        raise InputError("A must be translation-invariant token by token; got blocks of tokens")
    if attention is not None:
        return _logits_of_rows(attention)
    if not isinstance(head, RopeFilter) or stencil is None:
        raise InputError(f"head must be a Fit, Attention or RopeFilter; got {shown(head)}")
    if head.filter is None:
        raise InputError(f"head must hold a filter; the pattern of this one is {head.status}")
    first, last = stencil.first, stencil.last
    return np.arange(first, last + 1), head.filter.logits_between(first, last)


def _logits_of_rows(head: Attention) -> tuple[Offsets, Floats]:
    """Return the logits of the last row and of the first, if others agree with them."""
    n = head.n
    if head.lead or head.m != n:
        raise InputError(f"head must be one head of as many queries as keys; got {head!r}")
    rows = np.unique(np.linspace(0, n - 1, _ROWS).astype(np.int64))
    logits = head.logits(rows=rows, num_threads=1).astype(np.float64)
    every = np.concatenate([logits[0, :0:-1], logits[-1, ::-1]])  # at offsets 1 - n ... n - 1
    drawn = every[rows[:, np.newaxis] + n - 1 - np.arange(n)]
    with np.errstate(invalid="ignore"):
        far = (logits != drawn) & ~(np.abs(logits - drawn) <= _rounding(head))
    if far.any():
        at, j = np.argwhere(far)[0]
        raise InputError(
            "head must be a filter, whose logits depend on the offset alone; at offset "
            f"{rows[at] - j} row {rows[at]} has {logits[at, j]:.9g}, and another row "
            f"{drawn[at, j]:.9g}"
        )
    finite = np.flatnonzero(np.isfinite(every))
    if not finite.size:
        raise InputError(f"head must allow a key; got {head!r}")
    part = slice(finite[0], finite[-1] + 1)
    return np.arange(1 - n, n)[part], every[part]


def _rounding(head: Attention) -> float:
    """Return by how much logits at one offset may differ by rounding of queries and keys.

    Angles of rotary positions are rounded in proportion to the position.
    """
    names = [str(x.dtype) if x.dtype.kind == "f" else "bfloat16" for x in head.stored]
    unit = sum(2.0 ** -DIGITS[name] for name in names)
    unit += (head.dim + head.n) * 2.0 ** -DIGITS[str(head.dtype)]
    longest = [float(np.linalg.norm(x.astype(np.float64), axis=1).max()) for x in (head.Q, head.K)]
    return 2 * unit * abs(head.scale) * longest[0] * longest[1]


def rope(found: RopeFilter | Iterable[RopeFilter], *, ax: Axes | None = None) -> SimpleNamespace:
    """Draw the norm that windows of each width need without content, for rotary embeddings.

    Bases differ by colour, sizes, tolerances and kinds of windows by line. A triangle above the
    dotted line marks that a norm above it is proved to be needed; a question mark that neither a
    filter nor a proof was found. The line is the least `max_norm` of those with triangles.

    Parameters
    ----------
    found : RopeFilter or iterable of RopeFilter
        What `rope.windows` or calls of `rope.filter` returned, for windows.
    ax : matplotlib Axes, optional

    Returns
    -------
    SimpleNamespace
        For each embedding ``lines``, the filters; ``out_of_reach``, the marks of widths that are
        proved to be so; and ``undecided``, those of the others.

    Raises
    ------
    InputError
        If there is nothing to draw, or something else than windows.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> found = hf.rope.windows([2, 4, 32], n=64, dims=[16], bases=[1e4], max_norm=1e4)
    >>> drawn = hf.plot.rope(found, ax=Figure().subplots())
    >>> [line.get_label() for line in drawn.lines], len(drawn.out_of_reach[0].get_offsets())
    (['base 10,000, size 16'], 1)
    """
    series = _by_embedding(found)
    ax = axes_or_new(ax, 6.6, 4.8)
    every = [f for filters in series.values() for f in filters]
    bases, _, tolerances, sizes, _ = (list(dict.fromkeys(x)) for x in zip(*series, strict=True))
    others = list(dict.fromkeys(key[1:] for key in series))
    given = [base for base in bases if isinstance(base, bytes)]
    top = 1.5 * max(f.max_norm for f in every)
    drawn = SimpleNamespace(lines=[], out_of_reach=[], undecided=[])
    for place, ((base, dim, allowed, n, mask), filters) in enumerate(series.items()):
        color = _COLORS[bases.index(base) % len(_COLORS)]
        number = given.index(base) + 1 if len(given) > 1 and base in given else ""
        label = f"given frequencies {number}".strip() if base in given else f"base {base:,.10g}"
        label += f", size {dim}" + f", n = {n:,}" * (len(sizes) > 1) + ", both sides" * (not mask)
        label += f", {filters[0]._limits}" * (len(tolerances) > 1)
        kind = others.index((dim, allowed, n, mask))
        fill = color if kind == 0 else "white"
        reached = [f for f in filters if f.filter is not None]
        drawn.lines += ax.plot(
            [f.width for f in reached], [f.norm for f in reached], _STYLES[kind % len(_STYLES)],
            color=color, marker=_MARKERS[tolerances.index(allowed) % len(_MARKERS)], markersize=5,
            label=label, markerfacecolor=fill,
        )  # fmt: skip
        for marks, marker, status in (
            (drawn.out_of_reach, "^", "out of reach"),
            (drawn.undecided, "$?$", "undecided"),
        ):
            at = [f.width for f in filters if f.status == status]
            heights = [top * 1.45**place] * len(at)  # so that no embedding's marks hide another's
            marks.append(ax.scatter(at, heights, 26, fill, marker=marker, edgecolors=color))
    widths = [f.width for f in every]
    label_sizes(ax, widths, log=True)
    ax.set(yscale="log", xlim=(min(widths) / 1.3, max(widths) * 1.3))
    if proved := [f.max_norm for f in every if f.status == "out of reach"]:
        ax.axhline(min(proved), color=GREY, linewidth=1, linestyle=":")
        ax.annotate(
            "content is needed: no norm below this line is enough", (0.02, min(proved)),
            xycoords=("axes fraction", "data"), xytext=(0, 4), textcoords="offset points",
            fontsize=8, color=INK,
        )  # fmt: skip
    label = "least scale · ‖q‖ · ‖k‖ without content"
    finish(ax, "width of the window (keys)", label, inside="lower right")
    return drawn


def _by_embedding(found: Any) -> dict[Any, list[Any]]:
    """Return filters sorted by width, for each embedding, tolerances and kind of window."""
    filters = [found] if isinstance(found, RopeFilter) else found
    filters = list(filters) if isinstance(filters, Iterable) else []
    if not filters or not all(isinstance(f, RopeFilter) for f in filters):
        raise InputError(f"found must be RopeFilters, at least one; got {shown(found)}")
    series: dict[Any, list[Any]] = {}
    for f in filters:
        if f.width is None:
            raise InputError(f"found must be RopeFilters of windows, which have widths; got {f!r}")
        embedding = f.frequencies.tobytes() if f.base is None else f.base
        series.setdefault((embedding, f.dim, f.tolerances, f.n, f.mask), []).append(f)
    return {key: sorted(each, key=lambda f: f.width) for key, each in series.items()}
