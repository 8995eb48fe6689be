"""Pictures of attention: matrices of any size, large ones max-pooled so that no point is lost.

Matplotlib comes with the extra ``headfit[plot]`` and is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._arrays import as_matrix
from headfit.attention import Attention
from headfit.errors import InputError
from headfit.targets import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["attention", "compare", "tiles"]

_BLOCK_ENTRIES = 1 << 22  # entries of the matrix in memory at a time
_MOST_LABELS = 40


def attention(
    M: Any,
    *,
    ax: Axes | None = None,
    tokens: Sequence[Any] | None = None,
    relative: bool = False,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
) -> AxesImage:
    """Draw an attention matrix: queries down, keys across.

    Parameters
    ----------
    M : Attention, Fit, Target, sparse or dense matrix
        What to draw. An `Attention` is evaluated by blocks of rows, never as a whole.
    ax : matplotlib Axes, optional
        Where; a new figure's when None.
    tokens : sequence, optional
        The labels of the positions, for a square matrix; thinned out where there are many.
    relative : bool, default False
        Draw each weight divided by the largest of its row, instead of the weight.
    pixels : int, optional
        Cells to draw along a side; a larger matrix is max-pooled to as many, see `tiles`.
        About one for two pixels of the axes when None.
    cmap, norm : optional
        As in ``Axes.imshow``. By default from 0 to 1 on a scale of square roots, which
        shows small weights beside large ones.

    Returns
    -------
    matplotlib AxesImage
        Its axes count tokens, pooled or not.

    Raises
    ------
    InputError
        For a stack of heads, which has no one picture, and for labels that do not fit.
    ImportError
        Without Matplotlib.

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> image = hf.plot.attention(hf.patterns.band(64, 1), ax=Figure().subplots())
    >>> image.get_array().shape
    (64, 64)
    """
    colors = _matplotlib().colors
    ax = _axes(1)[0] if ax is None else ax
    shape = _shape(M)
    cells = tiles(M, _pixels(ax) if pixels is None else pixels, relative=relative)
    image = ax.imshow(
        cells,
        cmap=cmap,
        norm=colors.PowerNorm(0.5, vmin=0.0, vmax=1.0) if norm is None else norm,
        interpolation="nearest",
        extent=(-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5),
    )
    if tokens is not None:
        _label(ax, tokens, shape)
    return image


def compare(
    A: Any,
    attention: Any,
    *,
    axes: Sequence[Axes] | None = None,
    tokens: Sequence[Any] | None = None,
    relative: bool = True,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
) -> tuple[AxesImage, AxesImage]:
    """Draw a target and the attention that should produce it, side by side, in one scale.

    Parameters
    ----------
    A : Target, sparse or dense matrix
        The target.
    attention : Attention, Fit, sparse or dense matrix
    axes : sequence of two matplotlib Axes, optional
        Where; a new figure's when None.
    relative : bool, default True
        Divide each row by its largest weight. That is what a certificate speaks of, ratios
        within a row; it takes the mass that strays out of the picture's scale, so state it.
    tokens, pixels, cmap, norm
        As in `attention`.

    Returns
    -------
    tuple of two matplotlib AxesImage

    Examples
    --------
    >>> import headfit as hf
    >>> from matplotlib.figure import Figure
    >>> A = hf.patterns.tree(32)
    >>> images = hf.plot.compare(A, hf.fit(A, 1024), axes=Figure().subplots(1, 2))
    >>> [image.axes.get_title() for image in images]
    ['target', 'attention']
    """
    if _shape(A) != _shape(attention):
        raise InputError(
            f"the target and the attention must have one shape; got {_shape(A)} and "
            f"{_shape(attention)}"
        )
    left, right = _axes(2) if axes is None else axes
    images = []
    for ax, what, title in ((left, A, "target"), (right, attention, "attention")):
        images.append(
            _draw(
                what, ax=ax, tokens=tokens, relative=relative, pixels=pixels, cmap=cmap, norm=norm
            )
        )
        ax.set_title(title)
    return images[0], images[1]


_draw = attention  # `compare` has a parameter of that name


def tiles(M: Any, pixels: int, *, relative: bool = False) -> NDArray[np.float64]:
    """Return the largest entry of each tile of a matrix: at most `pixels` tiles a side.

    A single entry stays visible however large the matrix is, where taking every tenth
    would lose it. Time is that of the matrix, memory a block of rows.

    Parameters
    ----------
    M : Attention, Fit, Target, sparse or dense matrix
    pixels : int
        A matrix that is smaller along a side keeps its entries there.
    relative : bool, default False
        Divide each row by its largest entry first.

    Returns
    -------
    ndarray, shape (min(n, pixels), min(m, pixels))

    Examples
    --------
    >>> import numpy as np
    >>> tiles(np.diag([1.0, 2.0, 3.0, 4.0]), 2)
    array([[2., 0.],
           [0., 4.]])
    """
    if pixels < 1:
        raise InputError(f"pixels must be at least 1; got {pixels!r}")
    rows, columns = _shape(M)
    row_edges, column_edges = _edges(rows, pixels), _edges(columns, pixels)
    pooled = np.zeros((len(row_edges) - 1, len(column_edges) - 1))
    for first, last in _blocks(row_edges, columns):
        start = row_edges[first]
        block = np.asarray(_rows(M, start, row_edges[last]), dtype=np.float64)
        if relative:
            most = block.max(axis=1, keepdims=True)
            block = block / np.where(most > 0, most, 1.0)
        block = np.maximum.reduceat(block, column_edges[:-1], axis=1)
        pooled[first:last] = np.maximum.reduceat(block, row_edges[first:last] - start, axis=0)
    return pooled


def _edges(size: int, pixels: int) -> NDArray[np.int64]:
    if size == 0:
        raise InputError("an attention matrix without rows or columns has no picture")
    count = min(size, pixels)
    return np.arange(count + 1, dtype=np.int64) * size // count


def _blocks(row_edges: NDArray[np.int64], columns: int) -> Iterator[tuple[int, int]]:
    """Runs of tile rows that together hold few enough entries."""
    first, count = 0, len(row_edges) - 1
    while first < count:
        end = row_edges[first] + max(1, _BLOCK_ENTRIES // columns)
        last = int(np.searchsorted(row_edges, end, side="right")) - 1
        last = min(count, max(first + 1, last))
        yield first, last
        first = last


def _matrix_of(M: Any) -> Any:
    if isinstance(M, Target):
        return M.matrix
    M = getattr(M, "Q", None) is not None and getattr(M, "attention", M) or M
    return M


def _shape(M: Any) -> tuple[int, int]:
    if isinstance(M, Attention):
        shape = (*M.Q.shape[:-1], M.K.shape[-2])
    else:
        shape = np.shape(M)
    if len(shape) != 2:
        raise InputError(f"a picture is of one attention matrix; got shape {shape}")
    return int(shape[0]), int(shape[1])


def _rows(M: Any, start: int, stop: int) -> NDArray[Any]:
    if isinstance(M, Attention):
        return M.matrix(rows=slice(start, stop))
    if sp.issparse(M):
        return sp.csr_array(M)[start:stop].toarray()
    return M[start:stop]
