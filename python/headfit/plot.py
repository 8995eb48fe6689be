"""Pictures of attention: matrices of any size, large ones max-pooled so that no point is lost.

Matplotlib comes with the extra ``headfit[plot]`` and is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._arrays import as_matrix
from headfit.attention import Attention
from headfit.errors import InputError
from headfit.fit_result import Fit
from headfit.targets import Target

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

__all__ = ["attention", "compare", "tiles"]

MISSING = "plots need Matplotlib, which comes with the extra: pip install 'headfit[plot]'"
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
    colors = _colors()
    ax = _new_axes(1)[0] if ax is None else ax
    shape, _ = _source(M)
    cells = tiles(M, _cells(ax) if pixels is None else pixels, relative=relative)
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
    M: Any,
    *,
    axes: Sequence[Axes] | None = None,
    tokens: Sequence[Any] | None = None,
    relative: bool = True,
    pixels: int | None = None,
    cmap: Any = "viridis",
    norm: Any = None,
) -> tuple[AxesImage, AxesImage]:
    """Draw a target and the attention that should produce it side by side, in one scale.

    Parameters
    ----------
    A : Target, sparse or dense matrix
        The target.
    M : Attention, Fit, sparse or dense matrix
        The attention.
    axes : sequence of two matplotlib Axes, optional
        Where; a new figure's when None.
    relative : bool, default True
        Draw each weight divided by the largest of its row: the ratios within a row, which
        are what a certificate speaks of. With False, mass that strays dims the support.
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
    shapes = _source(A)[0], _source(M)[0]
    if shapes[0] != shapes[1]:
        raise InputError(f"A and M must have one shape; got {shapes[0]} and {shapes[1]}")
    left, right = _new_axes(2) if axes is None else axes
    drawn = []
    for ax, matrix, title in ((left, A, "target"), (right, M, "attention")):
        ax.set_title(title)
        drawn.append(
            attention(
                matrix,
                ax=ax,
                tokens=tokens,
                relative=relative,
                pixels=pixels,
                cmap=cmap,
                norm=norm,
            )
        )
    return drawn[0], drawn[1]


def tiles(M: Any, pixels: int, *, relative: bool = False) -> NDArray[np.float64]:
    """Return the largest entry of each tile of a matrix: at most `pixels` tiles a side.

    A single entry stays visible however large the matrix is, where taking every tenth
    would lose it. Time is that of the matrix, memory a block of its rows.

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
    (rows, columns), block_of = _source(M)
    row_edges, column_edges = _edges(rows, pixels), _edges(columns, pixels)
    pooled = np.zeros((len(row_edges) - 1, len(column_edges) - 1))
    for first, last in _blocks(row_edges, columns):
        start = int(row_edges[first])
        block = block_of(start, int(row_edges[last])).astype(np.float64, copy=False)
        if relative:
            most = block.max(axis=1, keepdims=True)
            block = block / np.where(most > 0, most, 1.0)
        block = np.maximum.reduceat(block, column_edges[:-1], axis=1)
        pooled[first:last] = np.maximum.reduceat(block, row_edges[first:last] - start, axis=0)
    return pooled


def _source(M: Any) -> tuple[tuple[int, int], Callable[[int, int], NDArray[Any]]]:
    """The shape of a matrix, and what returns its rows from one number to another, dense."""
    if isinstance(M, Target):
        M = M.matrix
    if isinstance(M, Fit):  # its Q and K are the module's products already
        M = Attention(M.Q, M.K, scale=M.scale, mask=M.mask)
    if isinstance(M, Attention):
        heads = M
        return _one(heads.Q.shape[:-1] + heads.K.shape[-2:-1]), (
            lambda start, stop: heads.matrix(rows=slice(start, stop))
        )
    if sp.issparse(M):
        sparse = sp.csr_array(cast("Any", M))
        return _one(sparse.shape), lambda start, stop: sparse[start:stop].toarray()
    dense = as_matrix(M, "M") if np.ndim(M) == 2 else np.asarray(M)
    return _one(dense.shape), lambda start, stop: dense[start:stop]


def _one(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2 or 0 in shape:
        raise InputError(f"a picture is of one attention matrix that is not empty; got {shape}")
    return shape[0], shape[1]


def _edges(size: int, pixels: int) -> NDArray[np.int64]:
    count = min(size, pixels)
    return np.arange(count + 1, dtype=np.int64) * size // count


def _blocks(row_edges: NDArray[np.int64], columns: int) -> Iterator[tuple[int, int]]:
    """Runs of rows of tiles that together hold few enough entries."""
    first, count = 0, len(row_edges) - 1
    while first < count:
        end = row_edges[first] + max(1, _BLOCK_ENTRIES // columns)
        last = max(first + 1, int(np.searchsorted(row_edges, end, side="right")) - 1)
        yield first, min(last, count)
        first = last


def _colors() -> Any:
    try:
        import matplotlib.colors
    except ImportError as error:
        raise ImportError(MISSING) from error
    return matplotlib.colors


def _new_axes(count: int) -> list[Axes]:
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, count, squeeze=False, layout="constrained", figsize=(5 * count, 5))
    return list(axes[0])


def _cells(ax: Axes) -> int:
    """Half as many cells as the axes have pixels: the points of a large matrix stay visible."""
    box = ax.get_window_extent()
    return max(64, int(min(box.width, box.height) / 2))


def _label(ax: Axes, tokens: Sequence[Any], shape: tuple[int, int]) -> None:
    if shape != (len(tokens), len(tokens)):
        raise InputError(
            f"tokens must label both sides of a square matrix; got {len(tokens)} for {shape}"
        )
    places = range(0, len(tokens), -(-len(tokens) // _MOST_LABELS))
    labels = [str(tokens[place]) for place in places]
    ax.set_xticks(places, labels, rotation=90)
    ax.set_yticks(places, labels)
