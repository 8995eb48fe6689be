"""The way in for matrices: a file, a sparse matrix or an array becomes a canonical csr_array.

SciPy's conversions trust offsets and indices: one that is out of range crashes the process or
moves an entry. Therefore every sparse argument and every sparse file is checked here first.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import BFLOAT16, BLOCK, as_array, is_sparse, widened
from headfit._base.machine import require_memory
from headfit._base.matrix_files import read_matrix
from headfit.errors import InputError

Coordinates = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]

# A matrix with more than MOST_EMPTY rows or columns must hold at least one entry for every
# EMPTY_PER_ENTRY of them, so that a small file cannot claim a huge shape and cost huge work.
MOST_EMPTY = 2**22
EMPTY_PER_ENTRY = 8


def as_csr(A: Any, name: str, error: type[InputError] = InputError) -> sp.csr_array:
    """Return a square matrix of real numbers as a canonical csr_array in float64, without zeros.

    Parameters
    ----------
    A : sparse matrix, array_like or path
        A path names a file of `scipy.sparse.save_npz` or a Matrix Market file.
    name : str
        The name of the argument, for error messages.
    error : type
        The class of the error to raise for a matrix that cannot be used.
    """
    if isinstance(A, (str, os.PathLike)):
        matrix: Any = read_matrix(A, name)
    else:
        matrix = A if is_sparse(A) else as_array(A, name)
    shape, dtype = tuple(matrix.shape), matrix.dtype
    if len(shape) != 2 or shape[0] != shape[1]:
        raise error(f"{name} must be a square matrix; got shape {shape}")
    if shape[0] == 0:
        raise error(f"{name} must have at least one row; got shape (0, 0)")
    if shape[0] >= 2**31:
        raise error(f"{name} must have fewer than 2**31 rows; got {shape[0]}")
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
    """Check a SciPy sparse matrix of any format and return it as a canonical csr_array.

    The result shares no memory with `x`, which is copied before anything is checked: another thread
    may write into it meanwhile.

    Parameters
    ----------
    x : sparse matrix or array, or a StoredMatrix
    name : str
        The name of the argument, for error messages.
    dtype : dtype, optional
        The dtype of the result's entries; None keeps that of `x`. Entries must be real numbers.
    keep_zeros : bool, default True
        Whether zeros that are stored explicitly are kept.
    error : type
        The class of the error to raise when an offset or an index is out of range, or lengths
        differ.
    """
    check = _Check(name, error)
    if len(x.shape) != 2:
        raise error(f"{name} must be a matrix; got shape {x.shape}")
    if x.dtype.kind not in "fiub":
        raise error(f"{name} must hold real numbers; got dtype {x.dtype}")
    convert = _CONVERSIONS.get(x.format)
    if convert is None:
        raise error(f"{name} must be in one of the formats {', '.join(_CONVERSIONS)}")
    # A dok array is read into new arrays, and nobody else has those of a file.
    own = x if x.format == "dok" or not sp.issparse(x) else copy.deepcopy(x)
    csr = convert(own, check, x.dtype if dtype is None else np.dtype(dtype))
    if not csr.has_canonical_format:
        csr.sum_duplicates()
    if not keep_zeros and not csr.data.all():
        csr.eliminate_zeros()
    return csr


class _Check:
    """Checks of the arrays of one sparse argument; each raises an error that names it."""

    def __init__(self, name: str, error: type[InputError]) -> None:
        self.name, self.error = name, error

    def fail(self, problem: str) -> InputError:
        return self.error(f"{self.name} {problem}")

    def integers(self, values: Any, what: str) -> NDArray[Any]:
        array = as_array(values, f"{self.name}'s {what}")
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise self.fail(
                f"must have {what} that are a vector of integers; "
                f"got shape {array.shape} of {array.dtype}"
            )
        return array if array.size else array.astype(np.int32)

    def size(self, shape: tuple[int, ...], entries: int) -> None:
        """Refuse shapes that are far too large for the number of entries, see `MOST_EMPTY`."""
        if max(shape) > MOST_EMPTY + EMPTY_PER_ENTRY * entries:
            raise self.fail(
                f"claims the shape {shape} and holds {entries} entries: expected at least one "
                f"for every {EMPTY_PER_ENTRY} rows and columns"
            )
        require_memory(
            16 * (max(shape) + entries), f"{self.name} of shape {shape} with {entries} entries"
        )

    def offsets(self, values: Any, lines: int, most: int) -> NDArray[Any]:
        offsets = self.integers(values, "offsets")
        if offsets.size != lines + 1:
            raise self.fail(f"must have {lines + 1} offsets; got {offsets.size}")
        if offsets[0] != 0:
            raise self.fail(f"has a first offset of {offsets[0]}; expected 0")
        falling = offsets[1:] < offsets[:-1]
        if falling.any():
            raise self.fail(f"has decreasing offsets at row or column {int(falling.argmax())}")
        if offsets[-1] > most:
            raise self.fail(f"has offsets up to {offsets[-1]}; it holds {most} entries")
        return offsets

    def within(self, values: NDArray[Any], size: int, place: Callable[[int], str]) -> None:
        """Refuse indices outside 0 ... size - 1; `place` describes an index by its position."""
        if values.size and not (int(values.min()) >= 0 and int(values.max()) < size):
            first = int(((values < 0) | (values >= size)).argmax())
            raise self.fail(f"has {place(first)}; expected 0 ... {size - 1}")


def _compressed(
    x: Any, check: _Check, dtype: Any, *, by_rows: bool, block: tuple[int, int] = (1, 1)
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Check a matrix in CSR, CSC or BSR format and return its data, indices and offsets."""
    data = as_array(x.data, check.name)
    indices = check.integers(x.indices, "indices")
    if len(data) != len(indices):
        raise check.fail(f"must have as many entries as indices; got {len(data)}, {len(indices)}")
    counts = [size // part for size, part in zip(x.shape, block, strict=True)]
    lines, width = counts if by_rows else reversed(counts)
    offsets = check.offsets(x.indptr, lines, len(indices))
    check.size(x.shape, data.size)
    indices, data = indices[: int(offsets[-1])], data[: int(offsets[-1])]
    line, other = ("row", "column") if by_rows else ("column", "row")
    if block != (1, 1):
        line, other = f"block {line}", f"block {other}"

    def place(at: int) -> str:
        return f"{other} {indices[at]} in {line} {np.searchsorted(offsets, at, 'right') - 1}"

    check.within(indices, width, place)
    return data.astype(dtype, copy=False), indices, offsets


def _from_csr(x: Any, check: _Check, dtype: Any) -> sp.csr_array:
    return sp.csr_array(_compressed(x, check, dtype, by_rows=True), shape=x.shape)


def _from_csc(x: Any, check: _Check, dtype: Any) -> sp.csr_array:
    return sp.csc_array(_compressed(x, check, dtype, by_rows=False), shape=x.shape).tocsr()


def _from_bsr(x: Any, check: _Check, dtype: Any) -> sp.csr_array:
    block = as_array(x.data, check.name).shape[1:]
    if len(block) != 2 or 0 in block or any(s % b for s, b in zip(x.shape, block, strict=True)):
        raise check.fail(f"must have blocks that divide its shape {x.shape}; got {block}")
    parts = _compressed(x, check, dtype, by_rows=True, block=(block[0], block[1]))
    return sp.bsr_array(parts, shape=x.shape).tocsr()


def _from_coordinates(parts: Coordinates, shape: Any, check: _Check, dtype: Any) -> sp.csr_array:
    data, *places = parts
    if data.ndim != 1 or any(len(p) != len(data) for p in places):
        raise check.fail("must have a row and a column for every entry")
    check.size(shape, data.size)
    rows, columns = places
    check.within(rows, shape[0], lambda at: f"row {rows[at]} in column {columns[at]}")
    check.within(columns, shape[1], lambda at: f"column {columns[at]} in row {rows[at]}")
    return sp.coo_array((data.astype(dtype, copy=False), (rows, columns)), shape=shape).tocsr()


def _from_coo(x: Any, check: _Check, dtype: Any) -> sp.csr_array:
    rows, columns = (check.integers(c, "coordinates") for c in x.coords)
    return _from_coordinates((as_array(x.data, check.name), rows, columns), x.shape, check, dtype)


def _from_dok(x: Any, check: _Check, dtype: Any) -> sp.csr_array:
    places = list(x.keys())
    if any(len(place) != 2 for place in places):
        raise check.fail("must have a row and a column for every entry")
    rows, columns = (check.integers([p[axis] for p in places], "coordinates") for axis in (0, 1))
    data = np.array(list(x.values()), dtype=x.dtype)
    return _from_coordinates((data, rows, columns), x.shape, check, dtype)


def _from_lil(x: Any, check: _Check, dtype: Any) -> sp.csr_array:
    lists = [as_array(part, check.name) for part in (x.rows, x.data)]
    if any(part.shape != x.shape[:1] or part.dtype != object for part in lists):
        raise check.fail(f"must have a list of columns and one of entries for {x.shape[0]} rows")
    counts, entries = ([len(line) for line in part] for part in lists)
    if counts != entries:
        raise check.fail("must have a column for every entry")
    columns = check.integers(list(chain.from_iterable(lists[0])), "columns")
    rows = np.repeat(np.arange(x.shape[0]), counts)
    data = np.array(list(chain.from_iterable(lists[1])), dtype=x.dtype)
    return _from_coordinates((data, rows, columns), x.shape, check, dtype)


def _from_dia(x: Any, check: _Check, dtype: Any) -> sp.csr_array:
    data, offsets = as_array(x.data, check.name), check.integers(x.offsets, "diagonals")
    if data.ndim != 2 or len(data) != len(offsets):
        raise check.fail(
            f"must have a row of entries for each of {len(offsets)} diagonals; got {data.shape}"
        )
    outside = (offsets <= -x.shape[0]) | (offsets >= x.shape[1])
    if outside.any():
        raise check.fail(
            f"has a diagonal {offsets[outside][0]}; expected {1 - x.shape[0]} ... {x.shape[1] - 1}"
        )
    if np.unique(offsets).size != offsets.size:
        raise check.fail("must have each diagonal once")
    check.size(x.shape, data.size)
    parts = data.astype(dtype, copy=False), offsets.astype(np.int64)
    return sp.dia_array(parts, shape=x.shape).tocsr()


_CONVERSIONS: dict[str, Callable[[Any, _Check, Any], sp.csr_array]] = {
    "csr": _from_csr,
    "csc": _from_csc,
    "bsr": _from_bsr,
    "coo": _from_coo,
    "dia": _from_dia,
    "dok": _from_dok,
    "lil": _from_lil,
}
