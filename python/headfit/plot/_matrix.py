"""`attention` and `heads_grid`: attention matrices as images, one or many on a common scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.heads import single_heads
from headfit._base.arguments import as_count, as_flag, shown
from headfit.errors import InputError
from headfit.plot._axes import (
    axes_or_new,
    check_colors,
    check_tokens,
    checked_axes,
    half_pixels,
    head_names,
    label_tokens,
    new_axes,
)
from headfit.plot._drawing import matplotlib
from headfit.plot._tiles import entry_of_batch, one_of_batch, source, tiles
from headfit.plot._types import Axes, AxesImage

_STRIP = 4  # matrices with a larger ratio of sides are stretched to fill the axes
_PANEL = 1.35  # size of a picture of `heads_grid` in inches
_CELLS = 96  # the most tiles along a side of it
_MOST_PER_LINE = 8  # pictures in a row, if heads have no layers


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
        Which entry of a batch to draw, for an `Attention` of shape (batch, n, d).
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
    style = Style(relative, pixels, cmap, norm)
    colorbar = ax is None if colorbar is None else as_flag(colorbar, "colorbar")
    ax = axes_or_new(ax, 5.6, 5.0)
    (image,) = style.draw([ax], [M], half_pixels(ax))
    label_tokens(ax, tokens)
    if colorbar:
        add_colorbar(image, style.label)
    return image


@dataclass(frozen=True)
class Style:
    """How matrices are drawn; the options are those of `attention`."""

    relative: bool
    pixels: int | None
    cmap: Any
    norm: Any

    def __post_init__(self) -> None:
        as_flag(self.relative, "relative")
        if self.pixels is not None:
            as_count(self.pixels, "pixels", 1)
        check_colors(cmap=self.cmap, norm=self.norm)

    @property
    def label(self) -> str:
        """What a colour stands for."""
        return "weight / largest of its row" if self.relative else "attention weight"

    def draw(self, places: Sequence[Axes], matrices: Sequence[Any], pixels: int) -> list[AxesImage]:
        """Draw matrices on one scale of colours; `pixels` counts where the user chose no number."""
        pixels = pixels if self.pixels is None else self.pixels
        cells = [tiles(M, pixels, relative=self.relative) for M in matrices]
        norm = root_norm(*cells) if self.norm is None else self.norm
        drawn = zip(places, cells, matrices, strict=True)
        return [draw_cells(ax, part, source(M).shape, self.cmap, norm) for ax, part, M in drawn]


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


def add_colorbar(image: AxesImage, label: str) -> None:
    """Draw a colour bar beside an image, about as high as the image."""
    figure: Any = image.axes.figure
    figure.colorbar(image, ax=image.axes, label=label, fraction=0.046, pad=0.03)


def heads_grid(
    heads: Any,
    *,
    batch: int | None = None,
    axes: Any = None,
    titles: Sequence[str] | None = None,
    relative: bool = False,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
) -> NDArray[Any]:
    """Draw the attention of many heads as small pictures on a common scale.

    Parameters
    ----------
    heads : Attention, captured heads or sequence
        Heads of shape (layers, heads, n, d) or (heads, n, d); what `headfit.torch.capture`
        found, of which the first passage of each layer is drawn; a sequence of matrices or heads
        that `attention` can draw; or a sequence of such sequences, one for each layer.
    batch : int, optional
        Which entry of a batch to draw, for an `Attention` of shape (layers, batch, heads, n, d) or
        (batch, heads, n, d).
    axes : array of matplotlib Axes, optional
        One for each head in order; those of a new figure, with a row per layer, when None.
    titles : sequence of str, optional
        A title for each head in order; their indices when None.
    relative, pixels, cmap, norm
        As in `attention`, the same for all heads.

    Returns
    -------
    ndarray of matplotlib AxesImage, shape (layers, heads) or (heads,)

    Raises
    ------
    InputError
        For shapes that do not fit together, no heads, or another number of axes or titles.

    Notes
    -----
    Takes O(n m d) time per head, and memory for a block of rows and the tiles of all heads.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> import matplotlib.pyplot as plt
    >>> Q, K = np.random.default_rng(0).standard_normal((2, 2, 3, 16, 4))  # 2 layers, 3 heads
    >>> images = hf.plot.heads_grid(hf.Attention(Q, K, mask="causal"))
    >>> images.shape, images[1, 2].axes.get_title()
    ((2, 3), '1.2')
    >>> plt.close("all")
    """
    shape, matrices = _listed(heads, batch)
    count = len(matrices)
    if not count:
        raise InputError("heads must have at least one; got none")
    style = Style(relative, pixels, cmap, norm)
    for M in matrices:
        source(M)  # all are checked before any is drawn
    names: Any = head_names(shape) if titles is None else titles
    places: Any = names if axes is None else checked_axes(axes)
    for name, values in (("titles", names), ("axes", places)):
        if not isinstance(values, (Sequence, np.ndarray)) or len(values) != count:
            raise InputError(f"{name} must be one for each of {count} heads; got {shown(values)}")
    if axes is None:
        columns = shape[1] if len(shape) == 2 else min(count, _MOST_PER_LINE)
        rows = -(-count // columns)
        size = max(3.0, _PANEL * columns + 1), max(1.8, (_PANEL + 0.2) * rows)
        places = new_axes(rows, columns, size)
        for empty in places[count:]:
            empty.remove()
    drawn = style.draw(places[:count], matrices, _CELLS)
    for image, title in zip(drawn, names, strict=True):
        image.axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
        image.axes.set_title(str(title), fontsize=8, pad=2)
    if axes is None:
        bar = {"fraction": 0.15 / columns, "pad": 0.02, "aspect": 12 * rows}
        places[0].figure.colorbar(drawn[0], ax=places[:count], label=style.label, **bar)
    images = np.empty(count, dtype=object)
    images[:] = drawn
    return images.reshape(shape)


def _listed(heads: Any, batch: Any) -> tuple[tuple[int, ...], list[Any]]:
    """Return the shape of the grid, and its matrices in order."""
    if hasattr(heads, "first_passages"):  # what was captured
        heads = heads.first_passages()
    if isinstance(heads, Attention):
        if len(heads.lead) - (batch is not None) not in (1, 2):
            raise InputError(
                "heads must have shape (layers, heads, n, d) or (heads, n, d), or one axis more "
                f"and batch=; got {heads.stored[0].shape} and batch = {shown(batch)}"
            )
        if batch is not None:
            return entry_of_batch(heads, batch, -2)
        return heads.lead, single_heads(heads)
    if batch is not None:
        raise InputError(f"batch must not be given without an Attention; got {shown(batch)}")
    if getattr(heads, "ndim", 3 if isinstance(heads, (list, tuple)) else 0) < 3:
        raise InputError("heads must be an Attention of several, or a sequence of matrices")
    layers = [line for line in heads if isinstance(line, (list, tuple))]
    if not layers:
        return (len(heads),), list(heads)
    if len(layers) != len(heads) or len(set(map(len, layers))) > 1:
        raise InputError("heads must have as many matrices in each layer")
    return (len(layers), len(layers[0])), [M for line in layers for M in line]
