"""The way in for matrices: a file, a sparse matrix or an array becomes a canonical csr_array.

SciPy's conversions trust offsets and indices: one that is out of range crashes the process or
moves an entry. Therefore every sparse argument and every sparse file is checked here first.
"""

from __future__ import annotations

import copy
import os
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import BFLOAT16, BLOCK, as_array, is_sparse, widened
from headfit._base.machine import require_memory
from headfit._base.matrix_files import read_matrix
from headfit.errors import InputError

# A matrix with more than MOST_EMPTY rows or columns must hold at least one entry for every
# EMPTY_PER_ENTRY of them, so that a small file cannot claim a huge shape and cost huge work.
MOST_EMPTY = 2**22
EMPTY_PER_ENTRY = 8

FORMATS = ("csr", "csc", "bsr", "coo", "dia", "dok", "lil")

Entries = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def as_csr(A: Any, name: str, error: type[InputError] = InputError) -> sp.csr_array:
    """Return a square matrix of real numbers as a canonical csr_array in float64, without zeros.

    `A` is a sparse matrix, an array, or the path of a file that `read_matrix` reads; `error` is the
    class of the error to raise for a matrix that cannot be used.
    """
    if isinstance(A, (str, os.PathLike)):
        matrix: Any = read_matrix(A, name)
    else:
        matrix = A if is_sparse(A) else as_array(A, name)
    shape, dtype = tuple(matrix.shape), matrix.dtype
    if len(shape) != 2 or shape[0] != shape[1]:
        raise error(f"{name} must be a square matrix; got shape {shape}")
    if not 1 <= shape[0] < 2**31:
        raise error(f"{name} must have at least one row and fewer than 2**31; got shape {shape}")
    if dtype.kind not in "fiub" and dtype != BFLOAT16:
        raise error(f"{name} must hold real numbers; got dtype {dtype}")
    if isinstance(matrix, np.ndarray):
        return _of_dense(matrix, name)
    return checked_csr(matrix, name, dtype=np.float64, keep_zeros=False, error=error)


def _of_dense(matrix: NDArray[Any], name: str) -> sp.csr_array:
    """Read a dense matrix a few rows at a time, so that Ctrl-C is seen between them."""
    require_memory(matrix.size, f"the nonzeros of {name} of shape {matrix.shape}")
    count = int(np.count_nonzero(matrix))
    require_memory(32 * count, f"the {count} nonzeros of {name} of shape {matrix.shape}")
    step = max(1, BLOCK // matrix.shape[1])
    # Each block is copied first: another thread may write into the matrix meanwhile.
    native = matrix.dtype.newbyteorder("=")
    parts = (matrix[first : first + step].astype(native) for first in range(0, len(matrix), step))
    csr = sp.csr_array(sp.vstack([sp.csr_array(widened(p)) for p in parts], "csr", np.float64))
    csr.has_canonical_format = True
    return csr


def load_matrix(path: str | os.PathLike[str]) -> sp.csr_array:
    """Read a matrix of any shape and dtype from a file, as a canonical csr_array."""
    return checked_csr(read_matrix(path, "path"), f"path: the matrix in {path}")


def checked_csr(
    x: Any,
    name: str,
    *,
    dtype: Any = None,
    keep_zeros: bool = True,
    error: type[InputError] = InputError,
) -> sp.csr_array:
    """Return a SciPy sparse matrix of any format, or a StoredMatrix, as a canonical csr_array.

    It must hold real numbers; `dtype` is that of the result's entries, None that of `x`. The result
    shares no memory with `x`, which is copied before anything is checked: another thread may write
    into it meanwhile. An `error` that names the argument is raised for lengths that differ and for
    offsets and indices out of range.
    """
    if len(x.shape) != 2:
        raise error(f"{name} must be a matrix; got shape {x.shape}")
    if x.dtype.kind not in "fiub":
        raise error(f"{name} must hold real numbers; got dtype {x.dtype}")
    if x.format not in FORMATS:
        raise error(f"{name} must be in one of the formats {', '.join(FORMATS)}")
    try:
        # Those of a dok array are read into new arrays, and nobody else has the arrays of a file.
        own: Any = x if x.format == "dok" or not sp.issparse(x) else copy.deepcopy(x)
        data, rows, columns = _entries(own)
        if max(x.shape) > MOST_EMPTY + EMPTY_PER_ENTRY * len(data):
            raise ValueError(
                f"claims the shape {x.shape} and holds {len(data)} entries: expected at least one "
                f"for every {EMPTY_PER_ENTRY} rows and columns"
            )
    except ValueError as problem:
        raise error(f"{name} {problem}") from problem
    require_memory(16 * (max(x.shape) + len(data)), f"{name} of shape {x.shape}")
    numbers = data.astype(x.dtype if dtype is None else dtype, copy=False)
    if x.format == "csr":
        csr = sp.csr_array((numbers, columns, own.indptr), shape=x.shape)
    else:
        csr = sp.coo_array((numbers, (rows, columns)), shape=x.shape).tocsr()
    if not csr.has_canonical_format:
        csr.sum_duplicates()
    if not keep_zeros and not csr.data.all():
        csr.eliminate_zeros()
    return csr


def _entries(x: Any) -> Entries:
    """Return the stored entries of a sparse matrix, and their rows and columns within its shape.

    A ValueError says what is wrong with its arrays.
    """
    if x.format in ("csr", "csc", "bsr"):
        return _of_compressed(x)
    if x.format == "dia":
        return _of_diagonals(x)
    if x.format == "coo":
        data, (rows, columns) = as_array(x.data, "data"), x.coords
    elif x.format == "dok":
        items = list(x.items())
        if any(len(place) != 2 for place, _ in items):
            raise ValueError("must have a row and a column for every entry")
        rows, columns = ([place[axis] for place, _ in items] for axis in (0, 1))
        data = np.array([value for _, value in items], dtype=x.dtype)
    else:
        counts, filled = ([len(line) for line in part] for part in (x.rows, x.data))
        if counts != filled or len(counts) != x.shape[0]:
            raise ValueError(f"must have a column for every entry of {x.shape[0]} rows")
        rows, columns = np.repeat(np.arange(len(counts)), counts), list(chain(*x.rows))
        data = np.array(list(chain(*x.data)), dtype=x.dtype)
    return _within(data, _integers(rows, "rows"), _integers(columns, "columns"), x.shape)


def _of_compressed(x: Any) -> Entries:
    """Return the entries of a matrix in CSR, CSC or BSR format."""
    data, indices = as_array(x.data, "data"), _integers(x.indices, "indices")
    block, axis = data.shape[1:] if x.format == "bsr" else (1, 1), int(x.format == "csc")
    if len(block) != 2 or 0 in block or any(s % b for s, b in zip(x.shape, block, strict=True)):
        raise ValueError(f"must have blocks that divide its shape {x.shape}; got {block}")
    shape = x.shape[0] // block[0], x.shape[1] // block[1]
    offsets = _integers(x.indptr, "offsets")
    if offsets.size != shape[axis] + 1 or offsets[0] != 0 or offsets[-1] > len(indices):
        raise ValueError(
            f"must have {shape[axis] + 1} offsets, from 0 to at most its {len(indices)} indices"
        )
    falling = offsets[1:] < offsets[:-1]
    if falling.any():
        raise ValueError(f"has decreasing offsets at {('row', 'column')[axis]} {falling.argmax()}")
    counts: Any = np.diff(offsets.astype(np.int64))
    lines = np.repeat(np.arange(shape[axis], dtype=np.int32), counts)
    others = indices[: len(lines)]
    rows, columns = (lines, others) if axis == 0 else (others, lines)
    data, rows, columns = _within(data[: len(lines)], rows, columns, shape)
    if x.format == "bsr":
        inner_row, inner_column = np.indices(block).reshape(2, 1, -1)
        rows = (rows[:, np.newaxis] * block[0] + inner_row).ravel()
        columns = (columns[:, np.newaxis] * block[1] + inner_column).ravel()
    return data.ravel(), rows, columns


def _of_diagonals(x: Any) -> Entries:
    data, offsets = as_array(x.data, "data"), _integers(x.offsets, "diagonals")
    if data.ndim != 2 or len(data) != len(offsets):
        raise ValueError(f"must have a row of entries for each diagonal; got {data.shape}")
    outside = (offsets <= -x.shape[0]) | (offsets >= x.shape[1])
    if outside.any():
        raise ValueError(
            f"has a diagonal {offsets[outside][0]}; expected {1 - x.shape[0]} ... {x.shape[1] - 1}"
        )
    columns = np.broadcast_to(np.arange(data.shape[1]), data.shape)
    rows = columns - offsets[:, np.newaxis].astype(np.int64)
    inside = (rows >= 0) & (rows < x.shape[0]) & (columns < x.shape[1])
    return data[inside], rows[inside], columns[inside]


def _integers(values: Any, what: str) -> NDArray[Any]:
    array = as_array(values, what)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"must have {what} that are a vector of integers; "
            f"got shape {array.shape} of {array.dtype}"
        )
    return array if array.size else array.astype(np.int32)


def _within(
    data: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int]
) -> Entries:
    """Return the entries if they have a row and a column each, within the shape."""
    if not len(data) == len(rows) == len(columns):
        raise ValueError(
            f"must have a row and a column for every entry; got {len(data)} entries, "
            f"{len(rows)} rows and {len(columns)} columns"
        )
    for values, size in ((rows, shape[0]), (columns, shape[1])):
        if values.size and not (int(values.min()) >= 0 and int(values.max()) < size):
            at = int(((values < 0) | (values >= size)).argmax())
            raise ValueError(
                f"has an entry in row {rows[at]}, column {columns[at]}; expected a row within "
                f"0 ... {shape[0] - 1} and a column within 0 ... {shape[1] - 1}"
            )
    return data, rows, columns
