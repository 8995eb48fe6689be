"""Common parts of all pictures: import of Matplotlib, new figures, colours, token labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headfit._base.arguments import shown
from headfit._base.drawing import matplotlib
from headfit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS_PER_LABEL = 7.5  # the least distance of labels, in points, at which they can be read


def check_axes(ax: Any, name: str = "ax") -> None:
    """Raise an InputError unless `ax` is None or Matplotlib axes."""
    if ax is not None and not isinstance(ax, matplotlib().axes.Axes):
        raise InputError(f"{name} must be Matplotlib axes; got {shown(ax)}")


def listed_axes(axes: Any) -> list[Any]:
    """Return axes, given as a sequence or an array of any shape, as a list."""
    try:
        places = list(axes.flat) if hasattr(axes, "flat") else list(axes)
    except TypeError as error:
        raise InputError(f"axes must be a sequence of axes; got {shown(axes)}") from error
    for place in places:
        if place is None:
            raise InputError("axes must be Matplotlib axes; got None among them")
        check_axes(place, "axes")
    return places


def check_colors(cmap: Any, norm: Any) -> None:
    """Raise an InputError for a colour map or a norm that Matplotlib does not know."""
    package = matplotlib()
    known = isinstance(cmap, package.colors.Colormap)
    if not known and not (isinstance(cmap, str) and cmap in package.colormaps):
        raise InputError(f"cmap must be a colour map or the name of one; got {shown(cmap)}")
    if norm is not None and not isinstance(norm, (package.colors.Normalize, str)):
        raise InputError(f"norm must be a Normalize or None; got {shown(norm)}")
    if isinstance(norm, str) and norm not in package.scale.get_scale_names():
        raise InputError(f"norm must be a Normalize or the name of a scale; got {norm!r}")


def check_tokens(tokens: Any, shape: tuple[int, ...]) -> None:
    """Raise an InputError unless there is a label for each position of a square matrix."""
    try:
        count = len(tokens)
    except TypeError as error:
        raise InputError(f"tokens must be a sequence of labels; got {shown(tokens)}") from error
    if shape != (count, count):
        raise InputError(
            f"tokens must label both sides of a square matrix; got {count} for {shape}"
        )


def new_axes(count: int = 1, size: tuple[float, float] = (5.0, 5.0)) -> list[Axes]:
    """Return axes of a new figure, side by side, each of `size` (width and height in inches)."""
    matplotlib()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False, figsize=(size[0] * count, size[1]))
    # The constrained layout makes room for labels. The padding is larger than the default since
    # Matplotlib computes the layout only approximately before the first drawing.
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    return list(axes[0])


def half_pixels(ax: Axes) -> int:
    """Return half the axes' size in pixels: tiles of two pixels keep single entries visible."""
    box = ax.get_window_extent()
    return max(64, int(min(box.width, box.height) / 2))


def count_ticks(ax: Axes) -> None:
    """Put ticks at integers only, since the axes count tokens, and few enough for six digits."""
    for side, bins in ((ax.xaxis, 5), (ax.yaxis, 7)):
        side.set_major_locator(matplotlib().ticker.MaxNLocator(integer=True, nbins=bins))


def label_tokens(ax: Axes, tokens: Sequence[Any], shape: tuple[int, int]) -> None:
    """Label the positions on both axes with tokens, as many as can be read."""
    check_tokens(tokens, shape)
    box = ax.get_window_extent()
    points = 72 * min(box.width, box.height) / float(ax.figure.dpi)
    step = max(1, -(-len(tokens) * _POINTS_PER_LABEL // points))
    places = range(0, len(tokens), int(step))
    labels = [str(tokens[place]) for place in places]
    size = min(10.0, 0.85 * points * step / len(tokens))
    rotation = 90 if max(len(label) for label in labels) > 2 else 0
    ax.set_xticks(places, labels, rotation=rotation, fontsize=size)
    ax.set_yticks(places, labels, fontsize=size)
