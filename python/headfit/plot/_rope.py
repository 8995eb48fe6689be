"""`rope`: the norm that rotary positions need for a window without content, against its width."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from headfit._base.arguments import shown
from headfit._base.drawing import BLUE, GREEN, GREY, INK, ORANGE
from headfit._filter.rope_result import RopeFilter
from headfit.errors import InputError
from headfit.plot._axes import axes_or_new, finish, label_sizes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D

_COLORS = (BLUE, ORANGE, GREEN, INK, GREY)
_STYLES = ("-", "--", ":", "-.")
_MARKERS = "os^vD"


class _Picture(NamedTuple):
    """What `rope` drew for each embedding."""

    lines: tuple[Line2D, ...]
    out_of_reach: tuple[PathCollection, ...]
    undecided: tuple[PathCollection, ...]


def rope(found: RopeFilter | Iterable[RopeFilter], *, ax: Axes | None = None) -> _Picture:
    """Draw the norm that windows of each width need without content, for rotary embeddings.

    Bases differ by colour, sizes and tolerances by line. Where it is proved that a norm above
    `max_norm` is needed, a triangle above the dotted line says so; a question mark where neither a
    filter nor a proof was found.

    Parameters
    ----------
    found : RopeFilter or iterable of RopeFilter
        What `rope.windows` or calls of `rope.filter` returned, for windows.
    ax : matplotlib Axes, optional

    Returns
    -------
    named tuple
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
    series = _series(found)
    ax = axes_or_new(ax, 6.6, 4.8)
    every = [f for filters in series.values() for f in filters]
    limit = max(f.max_norm for f in every)
    tolerances = list(dict.fromkeys(key[2] for key in series))
    bases, dims = (list(dict.fromkeys(key[i] for key in series)) for i in (0, 1))
    lines, marks = [], []
    for place, ((base, dim, asked), filters) in enumerate(series.items()):
        color = _COLORS[bases.index(base) % len(_COLORS)]
        label = "given frequencies" if base is None else f"base {base:,.10g}"
        label += f", size {dim}"
        if len(tolerances) > 1:
            label += f", leak {asked.leak:.3g}, distortion {asked.distortion:.3g}"
        kind = dims.index(dim) if len(dims) > 1 else tolerances.index(asked)
        reached = [f for f in filters if f.filter is not None]
        lines += ax.plot(
            [_width(f) for f in reached], [f.norm for f in reached], _STYLES[kind % len(_STYLES)],
            color=color, marker=_MARKERS[tolerances.index(asked) % len(_MARKERS)], markersize=5,
            label=label, markerfacecolor=color if kind == 0 else "white",
        )  # fmt: skip
        # Rows of triangles, one for each embedding, so that none hides another.
        height = limit * 1.5 * 1.45**place
        missing = [f for f in filters if f.filter is None]
        for marker, status in (("^", "out of reach"), ("$?$", "undecided")):
            at = [_width(f) for f in missing if f.status == status]
            marks.append(
                ax.scatter(
                    at, [height] * len(at), s=26, marker=marker, edgecolors=color,
                    facecolors=color if kind == 0 else "white",
                )
            )  # fmt: skip
    widths = sorted({_width(f) for f in every})
    label_sizes(ax, widths, log=True)
    ax.set_yscale("log")
    ax.set_xlim(widths[0] / 1.3, widths[-1] * 1.3)
    if any(f.filter is None for f in every):
        ax.axhline(limit, color=GREY, linewidth=1, linestyle=":")
        ax.annotate(
            "content is needed: no norm below this line is enough", (0.02, limit),
            xycoords=("axes fraction", "data"), xytext=(0, 4), textcoords="offset points",
            fontsize=8, color=INK,
        )  # fmt: skip
    y = "least scale · ‖q‖ · ‖k‖ without content"
    inside = {"loc": "lower right", "bbox_to_anchor": None, "fontsize": 8}
    finish(ax, "width of the window (keys)", y, columns=1, **inside)
    return _Picture(tuple(lines), tuple(marks[0::2]), tuple(marks[1::2]))


def _series(found: Any) -> dict[Any, list[RopeFilter]]:
    """Return filters sorted by width, for each base, size and tolerances."""
    try:
        filters = [found] if isinstance(found, RopeFilter) else list(found)
    except TypeError as error:
        raise InputError(f"found must be RopeFilters; got {shown(found)}") from error
    if not filters or not all(isinstance(f, RopeFilter) for f in filters):
        raise InputError(f"found must be RopeFilters, at least one; got {shown(found)}")
    series: dict[Any, list[RopeFilter]] = {}
    for f in filters:
        series.setdefault((f.base, f.dim, f.tolerances), []).append(f)
    return {key: sorted(each, key=_width) for key, each in series.items()}


def _width(found: RopeFilter) -> int:
    if found.width is None:
        raise InputError(f"found must be RopeFilters of windows, which have widths; got {found!r}")
    return found.width
