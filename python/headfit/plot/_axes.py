"""What every picture shares: Matplotlib when there, new figures, colours, token labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headfit.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = "plots need Matplotlib, which comes with the extra: pip install 'headfit[plot]'"

# Of the palette of Okabe and Ito, told apart by colour-blind eyes.
BLUE, ORANGE, GREEN, INK, GREY = "#0072B2", "#D55E00", "#009E73", "#1b1b1b", "#8a8f94"

_POINTS_A_LABEL = 7.5  # labels in a smaller pitch cannot be read


def matplotlib() -> Any:
    """Return the package with what pictures need, or say which extra has it."""
    try:
        import matplotlib
        import matplotlib.colors
        import matplotlib.ticker
    except ImportError as error:
        raise ImportError(MISSING) from error
    return matplotlib


def new_axes(count: int = 1, size: tuple[float, float] = (5.0, 5.0)) -> list[Axes]:
    """Return the axes of a new figure, side by side, each `size` inches large."""
    matplotlib()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, squeeze=False, figsize=(size[0] * count, size[1]))
    roomy(figure)
    return list(axes[0])


def roomy(figure: Any) -> None:
    """Let labels make room for themselves, with air at the edges for a layout not yet exact."""
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)


def half_pixels(ax: Axes) -> int:
    """Half as many cells as the axes have pixels: the points of a large matrix stay visible."""
    box = ax.get_window_extent()
    return max(64, int(min(box.width, box.height) / 2))


def count_ticks(ax: Axes) -> None:
    """Put ticks at whole numbers only, few enough for six digits: the axes count tokens."""
    for side, bins in ((ax.xaxis, 5), (ax.yaxis, 7)):
        side.set_major_locator(matplotlib().ticker.MaxNLocator(integer=True, nbins=bins))


def label_tokens(ax: Axes, tokens: Sequence[Any], shape: tuple[int, int]) -> None:
    """Name the positions, as many as can be read."""
    if shape != (len(tokens), len(tokens)):
        raise InputError(
            f"tokens must label both sides of a square matrix; got {len(tokens)} for {shape}"
        )
    box = ax.get_window_extent()
    points = 72 * min(box.width, box.height) / float(ax.figure.dpi)
    step = max(1, -(-len(tokens) * _POINTS_A_LABEL // points))
    places = range(0, len(tokens), int(step))
    labels = [str(tokens[place]) for place in places]
    size = min(10.0, 0.85 * points * step / len(tokens))
    turned = 90 if max(len(label) for label in labels) > 2 else 0
    ax.set_xticks(places, labels, rotation=turned, fontsize=size)
    ax.set_yticks(places, labels, fontsize=size)
