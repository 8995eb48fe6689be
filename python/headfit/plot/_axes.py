"""Common parts of all pictures: axes, checks of options, ticks and legends."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from headfit._base.arguments import shown
from headfit.errors import InputError
from headfit.plot._drawing import GREY, Axes, Rectangle, matplotlib

_POINTS_PER_LABEL = 7.5  # the least distance of labels, in points, at which they can be read


def axes_or_new(ax: Any, width: float, height: float) -> Axes:
    """Return `ax`, or the axes of a new figure of that size in inches when it is None."""
    if ax is None:
        return new_axes(1, 1, (width, height))[0]
    _check_axes(ax, "ax")
    return ax  # type: ignore[no-any-return]


def _check_axes(ax: Any, name: str) -> None:
    if not isinstance(ax, matplotlib().axes.Axes):
        raise InputError(f"{name} must be Matplotlib axes; got {shown(ax)}")


def new_axes(rows: int, columns: int, size: tuple[float, float]) -> list[Axes]:
    """Return the axes of a new figure, row by row; `size` is that of the figure in inches."""
    matplotlib()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, squeeze=False, figsize=size)
    # The constrained layout makes room for labels. The padding is larger than the default since
    # Matplotlib computes the layout only approximately before the first drawing.
    figure.set_layout_engine("constrained", w_pad=0.12 if rows == 1 else 0.05, h_pad=0.06)
    return list(axes.ravel())


def checked_axes(axes: Any) -> list[Axes]:
    """Return axes, which may be a sequence or an array of any shape, as a list."""
    try:
        places = list(np.ravel(axes))
    except (TypeError, ValueError):  # such as lists of different lengths
        places = [axes]
    for place in places:
        _check_axes(place, "axes")
    return places


def check_colors(**options: Any) -> None:
    """Raise an InputError for a `cmap` or a `norm` that Matplotlib does not know."""
    package = matplotlib()
    for name, value in options.items():
        try:
            package.cm.ScalarMappable(**{name: value})
        except Exception as error:  # of any kind: Matplotlib's message has the repr of the value
            raise InputError(
                f"{name} must be what Axes.imshow takes; got {shown(value)}"
            ) from error


def check_tokens(tokens: Any, shape: tuple[int, ...]) -> None:
    """Raise an InputError unless there is a label for each position of a square matrix, or None."""
    if tokens is None:
        return
    try:
        count = len([tokens[place] for place in range(len(tokens))])
    except (TypeError, LookupError) as error:
        raise InputError(f"tokens must be a sequence of labels; got {shown(tokens)}") from error
    if shape != (count, count):
        raise InputError(
            f"tokens must label both sides of a square matrix; got {count} for {shape}"
        )


def label_tokens(ax: Axes, tokens: Sequence[Any] | None) -> None:
    """Label the positions on both axes with tokens, as many as can be read."""
    if tokens is None:
        return
    points = 72 * _least_side_in_pixels(ax) / float(ax.figure.dpi)
    step = max(1, int(-(-len(tokens) * _POINTS_PER_LABEL // points)))
    places = range(0, len(tokens), step)
    labels = [str(tokens[place]) for place in places]
    size = min(10.0, 0.85 * points * step / len(tokens))
    rotation = 90 if max(len(label) for label in labels) > 2 else 0
    ax.set_xticks(places, labels, rotation=rotation, fontsize=size, parse_math=False)
    ax.set_yticks(places, labels, fontsize=size, parse_math=False)


def _least_side_in_pixels(ax: Axes) -> float:
    return float(min(ax.get_window_extent().size))


def half_pixels(ax: Axes) -> int:
    """Return half the axes' size in pixels: tiles of two pixels keep single entries visible."""
    return max(64, int(_least_side_in_pixels(ax) / 2))


def head_names(shape: tuple[int, ...]) -> list[str]:
    """Return the indices of heads, such as 0.3 for head 3 of layer 0."""
    return [".".join(map(str, index)) for index in np.ndindex(shape)]


def label_sizes(ax: Axes, sizes: Any, *, log: bool) -> None:
    """Put ticks on the horizontal axis at sizes, of those too near each other at the first."""
    places = np.unique(np.asarray(sizes, dtype=np.float64))
    if log:
        ax.set_xscale("log", base=2)
    at = np.log(places) if log else places
    chosen: list[int] = []
    for place in range(at.size):
        if not chosen or at[place] - at[chosen[-1]] >= (at[-1] - at[0]) / 16:
            chosen.append(place)
    ax.set_xticks(places[chosen], [f"{place:,.10g}" for place in places[chosen]])
    ax.set_xticks([], minor=True)


def mark_impossible(ax: Axes, dim: int) -> Rectangle | None:
    """Shade the head sizes below a proved lower bound, from the left edge of the axes on."""
    if dim < 2:
        return None
    label = f"proved too small: d < {dim}"
    limits = ax.get_xlim()
    area = ax.axvspan(limits[0], dim - 0.5, color=GREY, alpha=0.25, linewidth=0, label=label)
    ax.set_xlim(limits)
    return area


def plain_numbers(axis: Any, form: str = "{x:g}") -> None:
    """Write the numbers of a logarithmic axis as they are, at its powers only."""
    axis.set_major_formatter(form)
    axis.set_minor_formatter(matplotlib().ticker.NullFormatter())


def finish(ax: Axes, x: str, y: str, *, columns: int = 3, inside: str | None = None) -> None:
    """Name both axes, draw a grid, and the legend `inside`, or below, where it hides nothing."""
    ax.set(xlabel=x, ylabel=y)
    ax.grid(alpha=0.25, linewidth=0.6)
    below: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": columns}
    ax.legend(fontsize=8 if inside else 9, frameon=False, **({"loc": inside} if inside else below))
