"""The supports of a target, row by row, as searches read them and as witnesses check them."""

from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]
Kind = Literal["rows", "columns"]
KINDS = get_args(Kind)


def line(m: sp.csr_array | sp.csc_array, at: int) -> Any:
    """Return the columns stored in a row of a csr_array, or the rows in a column of a csc_array."""
    return m.indices[m.indptr[at] : m.indptr[at + 1]]


def stored(table: Any) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Return a csr_array as the core reads it: offsets of rows, sorted columns, how many."""
    table.sort_indices()
    return table.indptr.astype(np.int64), table.indices.astype(np.int32), table.shape[1]


def off_diagonal(m: Any) -> sp.csr_array:
    """Return a square matrix without its diagonal, which is changed."""
    m.setdiag(0)
    m.eliminate_zeros()
    return sp.csr_array(m)


def are_places(n: int, *families: tuple[int, ...]) -> bool:
    """Return whether the numbers of each family are distinct and in the range 0 ... n - 1."""
    return all(len(set(f)) == len(f) and all(0 <= x < n for x in f) for f in families)
