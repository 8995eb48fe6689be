"""`tiles`: max-pooling of a matrix, in the memory of a block of its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arguments import as_flag
from headfit._base.arrays import as_count
from headfit._base.memory import require_memory
from headfit.plot._source import one_of_batch, source

_BLOCK_ENTRIES = 1 << 22  # how many entries of the matrix are in memory at a time


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
        Which entry of a batch to draw, for an `Attention` of shape (batch, n, d) or matrices of
        shape (batch, n, m).
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
    (M,) = one_of_batch(batch, M)
    matrix = source(M)
    cells = math.prod(min(size, pixels) for size in matrix.shape)
    require_memory(24 * cells, f"a picture of {cells} cells (pixels = {pixels})")
    pool = Pool(matrix.shape, pixels)
    if matrix.sparse is not None:
        pool.add_sparse(matrix.sparse, relative)
        return pool.cells
    for start, stop in pool.blocks():
        pool.add(start, matrix.block(start, stop), relative)
    return pool.cells


class Pool:
    """The tiles of a matrix of a given shape, which are filled by blocks of rows."""

    def __init__(self, shape: tuple[int, int], pixels: int) -> None:
        self.shape = shape
        self.row_edges, self.column_edges = (edges(size, pixels) for size in shape)
        self.cells = np.full((len(self.row_edges) - 1, len(self.column_edges) - 1), -np.inf)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of consecutive rows that have at most `_BLOCK_ENTRIES` entries in all."""
        rows = max(1, _BLOCK_ENTRIES // self.shape[1])
        for start in range(0, self.shape[0], rows):
            yield start, min(start + rows, self.shape[0])

    def add(self, start: int, block: NDArray[Any], relative: bool = False) -> None:
        """Pool a block of rows, along the rows first, which reduces it the most."""
        wide = np.maximum.reduceat(block, self.column_edges[:-1], axis=1).astype(np.float64)
        if relative:
            most = wide.max(axis=1, keepdims=True)
            wide /= np.where(most > 0, most, 1.0)
        # A tile may continue in the next block, so that its maximum is updated, not set.
        np.maximum.at(self.cells, tile_of(np.arange(len(block)) + start, self.row_edges), wide)

    def add_sparse(self, matrix: sp.csr_array, relative: bool) -> None:
        """Pool a whole sparse matrix in one pass over its nonzeros."""
        row = np.repeat(np.arange(self.shape[0]), np.diff(matrix.indptr))
        values = matrix.data.astype(np.float64)
        if relative:
            most = np.zeros(self.shape[0])
            np.maximum.at(most, row, values)
            values /= np.where(most > 0, most, 1.0)[row]
        tile = tile_of(row, self.row_edges), tile_of(matrix.indices, self.column_edges)
        stored = np.zeros(self.cells.shape, dtype=np.int64)
        np.add.at(stored, tile, 1)
        # A tile contains a zero unless all of its entries are stored.
        full = stored == np.outer(np.diff(self.row_edges), np.diff(self.column_edges))
        self.cells[~full] = 0.0
        np.maximum.at(self.cells, tile, values)


def edges(size: int, pixels: int) -> NDArray[np.int64]:
    """Return the first position of each tile along a side, and the end of the last tile."""
    count = min(size, pixels)
    return np.arange(count + 1, dtype=np.int64) * size // count


def tile_of(place: NDArray[Any], sides: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the tile that contains each position."""
    return np.searchsorted(sides, place, side="right") - 1


def largest(values: NDArray[Any], columns: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the largest of consecutive values along the last axis, and where these parts begin.

    There are at most `columns` parts.
    """
    starts = edges(values.shape[-1], columns)[:-1]
    return np.maximum.reduceat(values, starts, axis=-1), starts
