"""`compare`: a target, the attention of a head, and where the two differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headfit._base.arguments import as_flag
from headfit._base.drawing import INK, ORANGE, matplotlib
from headfit._base.text import number
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._fit.result import Fit
from headfit.errors import InputError
from headfit.plot._axes import check_tokens, half_pixels, label_tokens, listed_axes, new_axes
from headfit.plot._errors import Errors, difference_errors, is_pattern, tolerance_errors
from headfit.plot._matrix import (
    add_colorbar,
    check_style,
    draw_cells,
    draw_matrices,
    root_norm,
    weight_name,
)
from headfit.plot._source import Source, one_of_batch, source

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_WORST_ROWS = 5
_RINGS = ("o", "\u25cb"), ("s", "\u25a1")  # markers of the worst entries, and as characters
_HUGE = 1e12  # stands for an infinite share of a tolerance, since colours need finite numbers


def compare(
    A: Any,
    M: Any,
    *,
    batch: int | None = None,
    axes: Sequence[Axes] | None = None,
    tokens: Sequence[Any] | None = None,
    relative: bool = True,
    leak: float | None = None,
    distortion: float | None = None,
    tolerances: Tolerances | None = None,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
    colorbar: bool | None = None,
) -> tuple[AxesImage, ...]:
    """Draw a target, the attention that should reproduce it, and where it leaks and distorts.

    The third picture shows which share of its tolerance each entry uses. Off the pattern this is
    the leak (its weight over the smallest weight of the row on the pattern), divided by the
    tolerance; on the pattern the distortion (how much larger its ratio of attention to target is
    than the smallest such ratio of the row), divided by the tolerance. Shares up to 1 are blue,
    larger ones orange. Markers show the worst entry of either kind, triangles at the right edge
    the worst rows. If the target is not sparse, the picture shows absolute differences of the
    weights, and the rows of largest total variation.

    Parameters
    ----------
    A : Target, Sparsified, sparse or dense matrix, Attention or a result with one
        The target. A matrix counts as sparse if at most half of its entries are nonzero.
    M : Attention, a result with one, sparse or dense matrix
        The attention.
    batch : int, optional
        Which entry to draw of those of `A` and `M` that are a batch, as in `attention`.
    axes : sequence of two or three matplotlib Axes, optional
        Two for target and attention alone.
    tokens, pixels, cmap, norm, colorbar : optional
        As in `attention`; `norm` is for the first two pictures, which share one scale.
    relative : bool, default True
        Draw each weight divided by the largest of its row. These ratios within a row are what a
        certificate is about. With False, mass off the support makes the support darker.
    leak, distortion : float, optional
        See `Tolerances`. When None those of `M` if it is a `Fit`, otherwise the defaults.
    tolerances : Tolerances, optional
        Both as one object, in their place.

    Returns
    -------
    tuple of matplotlib AxesImage
        One for each of the axes.

    Raises
    ------
    InputError
        For matrices of different shapes, stacks of heads without `batch`, or labels of another
        number.

    Notes
    -----
    Takes O(n m d) time for queries and keys, twice, and the memory of a block of rows, never
    n x m. The shares have the rounding errors of the arrays' dtype; `certify` proves them.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> A = hf.patterns.tree(32)
    >>> images = hf.plot.compare(A, hf.fit(A, 1024), axes=Figure().subplots(1, 3))
    >>> [image.axes.get_title() for image in images]
    ['target', 'attention', 'share of the tolerance used']
    """
    A, M = one_of_batch(batch, A, M)
    left, right = source(A), source(M)
    if left.shape != right.shape:
        raise InputError(f"A and M must have one shape; got {left.shape} and {right.shape}")
    check_style(relative, pixels, cmap, norm)
    check_tokens(tokens, left.shape)
    colorbar = axes is None if colorbar is None else as_flag(colorbar, "colorbar")
    allowed = as_tolerances(tolerances, leak=leak, distortion=distortion)
    if tolerances is None and isinstance(M, Fit):
        changed = {"leak": leak, "distortion": distortion}
        allowed = replace(M.tolerances, **{k: x for k, x in changed.items() if x is not None})
    places = new_axes(1, 3, (16.2, 4.8)) if axes is None else listed_axes(axes)
    if len(places) not in (2, 3):
        raise InputError(f"axes must be two or three; got {len(places)}")
    pixels = half_pixels(places[0]) if pixels is None else pixels
    drawn = draw_matrices(places[:2], [A, M], relative, pixels, cmap, norm)
    labels: list[tuple[str, dict[str, Any]]] = [(weight_name(relative), {})] * 2
    if len(places) == 3:
        draw = _draw_shares if is_pattern(left) else _draw_differences
        image, name, more = draw(places[2], left, right, allowed, pixels)
        drawn.append(image)
        labels.append((name, more))
    for image, title in zip(drawn, ("target", "attention"), strict=False):
        image.axes.set_title(title)
    for image, (name, more) in zip(drawn, labels, strict=True):
        if colorbar:
            add_colorbar(image, name, **more)
        label_tokens(image.axes, tokens)
    for ax in places[1:]:
        ax.set_ylabel("")
    return tuple(drawn)


def _draw_differences(
    ax: Axes, A: Source, M: Source, allowed: Tolerances, pixels: int
) -> tuple[AxesImage, str, dict[str, Any]]:
    errors = difference_errors(A, M, pixels)
    image = draw_cells(ax, errors.cells, M.shape, "Blues", root_norm(errors.cells))
    ax.set_title("absolute difference")
    _mark(ax, errors, {})
    return image, "|target - attention|", {}


def _draw_shares(
    ax: Axes, A: Source, M: Source, allowed: Tolerances, pixels: int
) -> tuple[AxesImage, str, dict[str, Any]]:
    limits = {"leak": allowed.leak, "distortion": allowed.distortion}
    errors = tolerance_errors(A, M, **limits, pixels=pixels)
    colors = matplotlib().colormaps["Blues"].with_extremes(over=ORANGE)
    norm = matplotlib().colors.Normalize(0.0, 1.0)
    image = draw_cells(ax, np.minimum(errors.cells, _HUGE), M.shape, colors, norm)
    ax.set_title("share of the tolerance used")
    _mark(ax, errors, limits)
    return image, "share of the tolerance", {"extend": "max"}


def _mark(ax: Axes, errors: Errors, limits: dict[str, float]) -> None:
    """Mark the worst entries and rows, and explain the marks below the labels of the axis."""
    lines = ["key"]
    for (kind, value, row, column), (shape, sign) in zip(errors.marks, _RINGS, strict=False):
        limit = f" of {limits[kind]:g}" if kind in limits else ""
        label = f"{kind} {number(value, 3)}{limit}"
        ax.plot(
            [column], [row], shape, ms=11, mfc="none", mec=INK, mew=1.4, clip_on=False, label=label
        )
        lines.append(f"{sign} {label} at row {row}, column {column}")
    worst = np.argsort(errors.rows, kind="stable")[::-1][:_WORST_ROWS]
    worst = worst[errors.rows[worst] > 0]
    if worst.size:
        ax.plot(
            np.ones(worst.size), worst, "<", transform=ax.get_yaxis_transform(), ms=6,
            color=ORANGE, clip_on=False, label="worst rows",
        )  # fmt: skip
        lines.append(f"\u25c2 {'worst rows' if worst.size > 1 else 'the only row with errors'}")
    ax.set_xlabel("\n".join(lines))
