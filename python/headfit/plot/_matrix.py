"""`attention`: an attention matrix as an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import as_flag
from headfit._base.arrays import as_count
from headfit._base.drawing import matplotlib
from headfit.plot._axes import axes_or_new, check_colors, check_tokens, half_pixels, label_tokens
from headfit.plot._source import one_of_batch, source
from headfit.plot._tiles import tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_STRIP = 4  # matrices with a larger ratio of sides are stretched to fill the axes


def attention(
    M: Any,
    *,
    batch: int | None = None,
    ax: Axes | None = None,
    tokens: Sequence[Any] | None = None,
    relative: bool = False,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
    colorbar: bool | None = None,
) -> AxesImage:
    """Draw an attention matrix, with queries as rows and keys as columns.

    Parameters
    ----------
    M : Attention, a result with one, Target, Sparsified, sparse or dense matrix
        The matrix to draw. An `Attention` is computed by blocks of rows, never as a whole.
    batch : int, optional
        Which entry of a batch to draw, for an `Attention` of shape (batch, n, d) or matrices of
        shape (batch, n, m).
    ax : matplotlib Axes, optional
    tokens : sequence, optional
        The labels of the positions, for a square matrix; if there are too many to read, only
        every second, third, ... is drawn.
    relative : bool, default False
        Draw each weight divided by the largest of its row, instead of the weight.
    pixels : int, optional
        The most tiles along a side, to which a larger matrix is max-pooled; see `tiles`. None
        takes one tile for two pixels of the axes.
    cmap, norm : optional
        As in ``Axes.imshow``. By default the colours are proportional to the square root of the
        weight, from 0 to the largest, which makes small weights visible beside large ones.
    colorbar : bool, optional
        Whether to draw a colour bar; None draws one in a new figure only.

    Returns
    -------
    matplotlib AxesImage
        The coordinates of its axes are token positions, also if it is pooled.

    Raises
    ------
    InputError
        For a stack of heads without `batch`, or labels of another number.

    Notes
    -----
    Takes the time and memory of `tiles`.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from matplotlib.figure import Figure
    >>> image = hf.plot.attention(hf.patterns.band(64, 1), ax=Figure().subplots())
    >>> image.get_array().shape
    (64, 64)
    >>> Q, K = np.random.default_rng(0).standard_normal((2, 5, 16, 4))  # a batch of 5
    >>> image = hf.plot.attention(hf.Attention(Q, K), batch=3, ax=Figure().subplots())
    """
    (M,) = one_of_batch(batch, M)
    check_tokens(tokens, source(M).shape)
    check_style(relative, pixels, cmap, norm)
    colorbar = ax is None if colorbar is None else as_flag(colorbar, "colorbar")
    ax = axes_or_new(ax, 5.6, 5.0)
    pixels = half_pixels(ax) if pixels is None else pixels
    (image,) = draw_matrices([ax], [M], relative, pixels, cmap, norm)
    label_tokens(ax, tokens)
    if colorbar:
        add_colorbar(image, weight_name(relative))
    return image


def check_style(relative: Any, pixels: Any, cmap: Any, norm: Any) -> None:
    """Raise an InputError for options of images that cannot be followed."""
    as_flag(relative, "relative")
    if pixels is not None:
        as_count(pixels, "pixels", 1)
    check_colors(cmap=cmap, norm=norm)


def draw_matrices(
    places: Sequence[Axes],
    matrices: Sequence[Any],
    relative: bool,
    pixels: int,
    cmap: Any,
    norm: Any,
) -> list[AxesImage]:
    """Draw matrices on one scale of colours."""
    cells = [tiles(M, pixels, relative=relative) for M in matrices]
    norm = root_norm(*cells) if norm is None else norm
    drawn = zip(places, cells, matrices, strict=True)
    return [draw_cells(ax, part, source(M).shape, cmap, norm) for ax, part, M in drawn]


def draw_cells(
    ax: Axes, cells: NDArray[Any], shape: tuple[int, int], cmap: Any, norm: Any
) -> AxesImage:
    """Draw tiles on axes in token positions; a long narrow matrix is stretched to fill them."""
    image = ax.imshow(
        cells,
        cmap=cmap,
        norm=norm,
        interpolation="nearest",
        aspect="auto" if max(shape) > _STRIP * min(shape) else "equal",
        extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5),
    )
    ax.set(xlabel="key", ylabel="query")
    for side, bins in ((ax.xaxis, 5), (ax.yaxis, 7)):  # few enough for numbers of six digits
        side.set_major_locator(matplotlib().ticker.MaxNLocator(integer=True, nbins=bins))
    return image


def root_norm(*cells: NDArray[Any]) -> Any:
    """Return a norm by square roots, from 0 to the largest of all cells."""
    most = max(float(np.max(each)) for each in cells)
    return matplotlib().colors.PowerNorm(0.5, vmin=0.0, vmax=most if most > 0 else 1.0)


def weight_name(relative: bool) -> str:
    """Return the label of the colour bar: what a colour stands for."""
    return "weight / largest of its row" if relative else "attention weight"


def add_colorbar(image: AxesImage, label: str, **more: Any) -> Any:
    """Draw a colour bar beside an image, about as high as the image."""
    figure: Any = image.axes.figure
    return figure.colorbar(image, ax=image.axes, label=label, fraction=0.046, pad=0.03, **more)
