"""`attention`, `heads_grid`, `offsets`: attention as images, and its share at each distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headfit.plot._axes as _axes
from headfit._attention.attention import Attention, attention_in
from headfit._attention.describe import describe
from headfit._attention.head_table import HeadTable
from headfit._attention.heads import single_heads
from headfit._base.arguments import as_count, as_flag, shown
from headfit._fit.result import Fit
from headfit.errors import InputError
from headfit.plot._drawing import BLUE, Axes, AxesImage, BarContainer, matplotlib
from headfit.plot._tiles import entry_of_batch, one_of_batch, source, tiles

_STRIP = 4  # matrices with a larger ratio of sides are stretched to fill the axes
_PANEL = 1.35  # size of a picture of `heads_grid` in inches
_CELLS = 96  # the most tiles along a side of it
_MOST_PER_LINE = 8  # pictures in a row, if heads have no layers
_MOST_BARS = 48
_MOST_NAMES = 40


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
    _axes.check_tokens(tokens, source(M).shape)
    style = Style(relative, pixels, cmap, norm)
    colorbar = ax is None if colorbar is None else as_flag(colorbar, "colorbar")
    ax = _axes.axes_or_new(ax, 5.6, 5.0)
    (image,) = style.draw([ax], [M], _axes.half_pixels(ax))
    _axes.label_tokens(ax, tokens)
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
        _axes.check_colors(cmap=self.cmap, norm=self.norm)

    @property
    def label(self) -> str:
        """What a colour stands for."""
        return "weight / largest of its row" if self.relative else "attention weight"

    def draw(self, places: Sequence[Axes], matrices: Sequence[Any], pixels: int) -> list[AxesImage]:
        """Draw matrices on one scale of colours; `pixels` counts where the user chose no number."""
        cells = [tiles(M, self.pixels or pixels, relative=self.relative) for M in matrices]
        norm = common_norm(self.norm, *cells)
        drawn = zip(places, cells, matrices, strict=True)
        return [draw_cells(ax, part, source(M).shape, self.cmap, norm) for ax, part, M in drawn]


def draw_cells(
    ax: Axes, cells: NDArray[Any], shape: tuple[int, int], cmap: Any, norm: Any
) -> AxesImage:
    """Draw tiles on axes in token positions; a long narrow matrix is stretched to fill them."""
    aspect: Any = "auto" if max(shape) > _STRIP * min(shape) else "equal"
    extent = (-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5)
    image = ax.imshow(cells, cmap, norm, aspect=aspect, extent=extent, interpolation="nearest")
    ax.set(xlabel="key", ylabel="query")
    for side, bins in ((ax.xaxis, 5), (ax.yaxis, 7)):  # few enough for numbers of six digits
        side.set_major_locator(matplotlib().ticker.MaxNLocator(integer=True, nbins=bins))
    return image


def common_norm(norm: Any, *cells: NDArray[Any]) -> Any:
    """Return one scale for all cells; None is by square roots, from 0 to the largest."""
    finite = np.ma.masked_invalid(np.concatenate([each.ravel() for each in cells]))
    if norm is None:
        most = finite.max()
        return matplotlib().colors.PowerNorm(0.5, vmin=0.0, vmax=most if most > 0 else 1.0)
    common = matplotlib().cm.ScalarMappable(norm=norm).norm
    common.autoscale_None(finite)
    return common


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
        found, of which the first passage of each layer is drawn; a sequence of arrays, sparse
        arrays or heads that `attention` can draw; or one of such sequences for each layer.
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
    names: Any = _axes.head_names(shape) if titles is None else titles
    places: Any = names if axes is None else _axes.checked_axes(axes)
    for name, values in (("titles", names), ("axes", places)):
        if not isinstance(values, (Sequence, np.ndarray)) or len(values) != count:
            raise InputError(f"{name} must be one for each of {count} heads; got {shown(values)}")
    if axes is None:
        columns = shape[1] if len(shape) == 2 else min(count, _MOST_PER_LINE)
        rows = -(-count // columns)
        size = max(3.0, _PANEL * columns + 1), max(1.8, (_PANEL + 0.2) * rows)
        places = _axes.new_axes(rows, columns, size)
        for empty in places[count:]:
            empty.remove()
    drawn = style.draw(places[:count], matrices, _CELLS)
    for image, title in zip(drawn, names, strict=True):
        image.axes.set(xticks=[], yticks=[], xlabel="", ylabel="")
        image.axes.set_title(str(title), fontsize=8, pad=2)
    if axes is None:
        bar = {"fraction": 0.15 / columns, "pad": 0.02, "aspect": 12 * rows}
        places[0].figure.colorbar(drawn[0], ax=places[:count], label=style.label, **bar)
    return np.array(drawn, dtype=object).reshape(shape)


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


def offsets(
    heads: HeadTable | Attention | Fit | Any,
    *,
    batch: int | None = None,
    ax: Axes | None = None,
    cmap: Any = "viridis",
) -> BarContainer | AxesImage:
    """Draw the share of attention at each distance from a query back to its key, i + m - n - j.

    Where more than 48 distances occur, shares are added up over the distances 0, 1, 2, 3-4,
    5-8, ..., and the same for keys ahead of the query, with negative distances. The sums add up to
    `key_mass`, and are readable at any length; `HeadTable.offset_mass` has every distance.

    Parameters
    ----------
    heads : HeadTable, Attention or Fit
        The table of `describe`, or one or more heads.
    batch : int, optional
        Which entry of a batch to draw, for heads of shape (..., batch, heads, n, d), or
        (batch, n, d) of one head, or the table of such heads. All are drawn when None.
    ax : matplotlib Axes, optional
    cmap : optional
        The colour map of the image for several heads.

    Returns
    -------
    BarContainer or AxesImage
        Bars for one head; for several heads an image with a row per head.

    Raises
    ------
    InputError
        For shapes and arguments that do not fit together.

    Notes
    -----
    Takes the time of `describe` for heads, O(n m d) per head without storing an n x m array,
    and O(n + m) for a table.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> from matplotlib.figure import Figure
    >>> X = 8 * np.eye(16)
    >>> table = hf.describe(X, np.roll(X, -1, axis=0), mask="causal")  # row i reads key i - 1
    >>> bars = hf.plot.offsets(table, ax=Figure().subplots())
    >>> [f"{bar.get_height():.2f}" for bar in bars[:3]]
    ['0.06', '0.94', '0.00']
    """
    _axes.check_colors(cmap=cmap)
    distance, mass, shape = _shares(heads, batch)
    names = [f"{d}".replace("-", "\u2212") for d in distance]
    if distance.size > _MOST_BARS:
        names, mass = _doubling(distance, mass)
    ax = _axes.axes_or_new(ax, 7.0, min(9.0, max(2.6, 0.16 * len(mass) + 1.4)) if shape else 3.6)
    ax.set_xlabel("distance from query back to key")
    long = max(map(len, names)) > 3 and len(names) > 9
    sloped: Any = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if long else {}
    ax.set_xticks(range(len(names)), names, fontsize=8 if len(names) <= 24 else 7, **sloped)
    if not shape:
        ax.set_ylabel("share of attention")
        return ax.bar(np.arange(len(names)), mass[0], color=BLUE, width=0.85)
    image = ax.imshow(mass, cmap, common_norm(None, mass), aspect="auto", interpolation="nearest")
    labels = _axes.head_names(shape)
    step = -(-len(labels) // _MOST_NAMES)
    ax.set_yticks(range(0, len(labels), step), labels[::step], fontsize=8)
    ax.set_ylabel("head")
    add_colorbar(image, "share of attention")
    return image


def _shares(
    heads: Any, batch: Any
) -> tuple[NDArray[np.int64], NDArray[np.float64], tuple[int, ...]]:
    """Return the distances with any attention, its shares by head there, and the heads' shape."""
    head = attention_in(heads)
    if head is None and not isinstance(heads, HeadTable):
        raise InputError(f"heads must be a HeadTable, an Attention or a Fit; got {shown(heads)}")
    lead = heads.shape if head is None else head.lead
    if batch is not None and not lead:
        raise InputError("batch must not be given for one head without an axis of a batch")
    axis = max(-2, -len(lead))  # the axis before the heads, or that of one head
    if head is None:
        mass = heads.offset_mass
        if batch is not None:
            mass = np.take(mass, as_count(batch, "batch", 0, lead[axis] - 1), axis % len(lead))
        table, shape = heads, mass.shape[:-1]
    else:
        shape, single = (lead, [head]) if batch is None else entry_of_batch(head, batch, axis)
        tables = [describe(one, shares=()) for one in single]
        table, mass = tables[0], np.stack([table.offset_mass for table in tables])
    mass = np.nan_to_num(mass.reshape((-1, table.offsets.size)))
    some = np.flatnonzero((mass > 0).any(axis=0))
    part = slice(some[0], some[-1] + 1) if some.size else slice(table.n - 1, table.n)
    return table.offsets[part], mass[:, part], shape


def _doubling(
    distance: NDArray[np.int64], mass: NDArray[np.float64]
) -> tuple[list[str], NDArray[np.float64]]:
    """Return names and sums of the bins 0, 1, 2, 3-4, 5-8, ... behind and ahead of the query."""
    size = np.ceil(np.log2(2 * np.maximum(np.abs(distance), 0.5))).astype(int)
    octave = np.sign(distance) * size
    first = np.flatnonzero(np.diff(octave, prepend=octave[0] - 1))
    names = []
    for o in octave[first]:
        high = int(2.0 ** (abs(o) - 1))
        low = high // 2 + (o != 0)
        ends = [f"{end // 1024}k" if end >= 4096 else f"{end}" for end in sorted({low, high})]
        names.append(("\u2212" if o < 0 else "") + "\u2013".join(ends))
    return names, np.add.reduceat(mass, first, axis=1)
