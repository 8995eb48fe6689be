"""What pictures read: one matrix of a batch by blocks of rows, and its max-pooling (`tiles`)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.heads import single_heads
from headfit._attention.sparsify import Sparsified
from headfit._base.arguments import as_count, as_flag, shown
from headfit._base.arrays import as_stored_array, is_sparse, widened
from headfit._base.machine import require_memory
from headfit._base.sparse import checked_csr
from headfit._target.target import Target
from headfit.errors import InputError

_BLOCK_ENTRIES = 1 << 22  # how many entries of the matrix are in memory at a time


@dataclass(frozen=True)
class Source:
    """A matrix to draw, whose rows ``start`` to ``stop - 1`` are ``block(start, stop)``.

    `sparse` holds its nonzeros if it is sparse, `attention` the head if it is one.
    """

    shape: tuple[int, int]
    block: Callable[[int, int], NDArray[Any]]
    sparse: sp.csr_array | None = None
    attention: Attention | None = None

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of consecutive rows that have at most `_BLOCK_ENTRIES` entries in all."""
        rows = max(1, _BLOCK_ENTRIES // self.shape[1])
        for start in range(0, self.shape[0], rows):
            yield start, min(start + rows, self.shape[0])


def source(M: Any, name: str = "M") -> Source:
    """Return the matrix that `M` is, holds (`Target`, `Sparsified`) or computes (heads)."""
    if isinstance(M, (Target, Sparsified)):
        M = M.matrix
    heads = attention_in(M)
    if heads is not None:
        shape = _one((*heads.lead, heads.n, heads.m))
        return Source(shape, lambda a, b: heads.matrix(rows=slice(a, b)), attention=heads)
    if is_sparse(M):
        shape, sparse = _one(M.shape), checked_csr(M, name, dtype=np.float64)
        return Source(shape, lambda a, b: sparse[a:b].toarray(), sparse=sparse)
    dense = as_stored_array(M, name, ndim=0)
    return Source(_one(dense.shape), lambda a, b: widened(dense[a:b]))


def _one(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2 or 0 in shape:
        raise InputError(
            "a picture is of one attention matrix that is not empty, or of the entry batch= of a "
            f"batch; got {shape}"
        )
    return shape[0], shape[1]


def entry_of_batch(
    heads: Attention, batch: Any, axis: int
) -> tuple[tuple[int, ...], list[Attention]]:
    """Return the heads at an entry of a leading axis: the shape of their axes, and the heads."""
    entry = as_count(batch, "batch", 0, heads.lead[axis] - 1)
    places = np.arange(math.prod(heads.lead)).reshape(heads.lead).take(entry, axis)
    single = single_heads(heads)
    return places.shape, [single[i] for i in places.ravel()]


def one_of_batch(batch: Any, *matrices: Any) -> list[Any]:
    """Return matrices or heads, with an entry in the place of each batch if `batch` is not None.

    Then at least one of them must be one head for a batch.
    """
    if batch is None:
        return list(matrices)
    heads = [attention_in(M) for M in matrices]
    stacks = [head if head is not None and len(head.lead) == 1 else None for head in heads]
    if not any(stacks):
        raise InputError(
            "batch must not be given without an Attention of shape (batch, n, d); got "
            f"{', '.join(map(shown, matrices))}"
        )
    entries = zip(matrices, stacks, strict=True)
    return [M if stack is None else entry_of_batch(stack, batch, 0)[1][0] for M, stack in entries]


def tiles(
    M: Any, pixels: int, *, batch: int | None = None, relative: bool = False
) -> NDArray[np.float64]:
    """Return the largest entry of each tile of a matrix, with at most `pixels` tiles per side.

    A single large entry stays visible in a matrix of any size, while taking every tenth entry
    would lose it. But if there are more random nonzeros than tiles, most tiles will have one.

    Parameters
    ----------
    M : Attention, a result with one, Target, Sparsified, sparse or dense matrix
        The matrix, shape (n, m).
    pixels : int
        The most tiles along each side. A side that is shorter is not pooled.
    batch : int, optional
        Which entry of a batch to draw, for an `Attention` of shape (batch, n, d).
    relative : bool, default False
        Whether to divide each row by its largest entry first.

    Returns
    -------
    ndarray of float64, shape (min(n, pixels), min(m, pixels))

    Raises
    ------
    InputError
        For a stack of heads without `batch`, an empty matrix, or if `pixels` is not a positive
        integer.

    Notes
    -----
    Takes O(nonzeros) time for a sparse matrix, O(n m) for a dense one and O(n m d) for queries
    and keys. Besides the tiles it needs the memory of a block of rows, never n x m.

    Examples
    --------
    >>> import numpy as np
    >>> tiles(np.diag([1.0, 2.0, 3.0, 4.0]), 2)
    array([[2., 0.],
           [0., 4.]])
    """
    pixels, relative = as_count(pixels, "pixels", 1), as_flag(relative, "relative")
    matrix = source(*one_of_batch(batch, M))
    cells = math.prod(min(size, pixels) for size in matrix.shape)
    require_memory(24 * cells, f"a picture of {cells} cells (pixels = {pixels})")
    pool = Pool(matrix.shape, pixels)
    if matrix.sparse is not None:
        pool.add_sparse(matrix.sparse, relative)
    else:
        for start, stop in matrix.blocks():
            pool.add(start, matrix.block(start, stop), relative)
    return pool.cells


class Pool:
    """The tiles of a matrix of a given shape, which are filled by blocks of rows."""

    def __init__(self, shape: tuple[int, int], pixels: int) -> None:
        self._rows, self._columns = (_edges(size, pixels) for size in shape)
        self.cells = np.full((len(self._rows) - 1, len(self._columns) - 1), -np.inf)

    def add(self, start: int, block: NDArray[Any], relative: bool = False) -> None:
        """Pool a block of rows, along the rows first, which reduces it the most."""
        wide = np.maximum.reduceat(block, self._columns[:-1], axis=1).astype(np.float64)
        if relative:
            most = wide.max(axis=1, keepdims=True)
            wide /= np.where(most > 0, most, 1.0)
        # A tile may continue in the next block, so that its maximum is updated, not set.
        np.maximum.at(self.cells, _tile_of(np.arange(len(block)) + start, self._rows), wide)

    def add_sparse(self, matrix: sp.csr_array, relative: bool) -> None:
        """Pool a whole sparse matrix in one pass over its nonzeros."""
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        values = matrix.data.astype(np.float64)
        if relative:
            most = matrix.max(axis=1).toarray().ravel()
            values /= np.where(most > 0, most, 1.0)[row]
        tile = _tile_of(row, self._rows), _tile_of(matrix.indices, self._columns)
        stored = np.zeros(self.cells.shape, dtype=np.int64)
        np.add.at(stored, tile, 1)
        # A tile contains a zero unless all of its entries are stored.
        self.cells[stored < np.outer(np.diff(self._rows), np.diff(self._columns))] = 0.0
        np.maximum.at(self.cells, tile, values)


def _edges(size: int, pixels: int) -> NDArray[np.int64]:
    """Return the first position of each tile along a side, and the end of the last tile."""
    count = min(size, pixels)
    return np.arange(count + 1, dtype=np.int64) * size // count


def _tile_of(place: NDArray[Any], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(edges, place, side="right") - 1


def largest(values: NDArray[Any], parts: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the largest of consecutive values along the last axis in parts, and their starts."""
    starts = _edges(values.shape[-1], parts)[:-1]
    return np.maximum.reduceat(values, starts, axis=-1), starts
