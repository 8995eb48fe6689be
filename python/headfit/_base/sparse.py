"""The way in for matrices: a file, a sparse matrix or an array becomes a canonical csr_array.

SciPy's conversions trust offsets and indices: one that is out of range crashes the process or
moves an entry. Therefore every sparse argument and every sparse file is checked here first.
"""

import copy
import os
from itertools import chain
from typing import IO, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import BFLOAT16, BLOCK, as_array, is_sparse, widened
from headfit._base.files import as_path, checked_archive, read_file
from headfit._base.machine import require_memory
from headfit.errors import InputError

# A matrix with more than MOST_EMPTY rows or columns must hold at least one entry for every
# EMPTY_PER_ENTRY of them, so that a small file cannot claim a huge shape and cost huge work.
MOST_EMPTY = 2**22
EMPTY_PER_ENTRY = 8

MATRIX_FILE = "must be a file of scipy.sparse.save_npz or a Matrix Market file"

# The arrays of a format that may be replaced after SciPy has checked them, besides coordinates.
_ARRAYS: dict[str, tuple[str, ...]] = {"coo": ("data",), "dia": ("data", "offsets")}
_ARRAYS |= dict.fromkeys(("csr", "csc", "bsr"), ("data", "indices", "indptr"))

# What stands in the first line of the Matrix Market files that are read.
_MARKET = {
    "layout": ("coordinate",),
    "field": ("real", "double", "integer", "unsigned-integer", "pattern"),
    "symmetry": ("general", "symmetric"),
}


def as_csr(A: Any, name: str, error: type[InputError] = InputError) -> sp.csr_array:
    """Return a square matrix of real numbers as a canonical csr_array in float64, without zeros.

    `A` is a sparse matrix, an array, or the path of a file that `read_matrix` reads; `error` is the
    class of the error to raise for a matrix that cannot be used.
    """
    if isinstance(A, (str, os.PathLike)):
        matrix: Any = read_matrix(A, name)
    else:
        matrix = A if is_sparse(A) else as_array(A, name)
    shape = tuple(matrix.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise error(f"{name} must be a square matrix; got shape {shape}")
    if not 1 <= shape[0] < 2**31:
        raise error(f"{name} must have at least one row and fewer than 2**31; got shape {shape}")
    if isinstance(matrix, np.ndarray):
        if matrix.dtype.kind not in "fiub" and matrix.dtype != BFLOAT16:
            raise error(f"{name} must hold real numbers; got dtype {matrix.dtype}")
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


def checked_csr(
    x: Any,
    name: str,
    *,
    dtype: Any = None,
    keep_zeros: bool = True,
    error: type[InputError] = InputError,
) -> sp.csr_array:
    """Return a SciPy sparse matrix of any format as a canonical csr_array of real numbers.

    `dtype` is that of the result's entries, None that of `x`. The result shares no memory with `x`,
    which is copied before anything is checked: another thread may write into it meanwhile. An
    `error` that names the argument is raised for lengths that differ, and for offsets and indices
    out of range.
    """
    if len(x.shape) != 2:
        raise error(f"{name} must be a matrix; got shape {x.shape}")
    try:
        own = x.copy() if x.format == "dok" else copy.deepcopy(x)  # which reads dok by its index
        for part in _ARRAYS.get(x.format, ()):  # somebody may have put lists or masked arrays there
            setattr(own, part, as_array(getattr(own, part), f"{name}: its {part}"))
        if own.dtype.kind not in "fiub":
            raise error(f"{name} must hold real numbers; got dtype {own.dtype}")
        dtype = own.dtype.newbyteorder("=") if dtype is None else dtype
        own = _with_checked_indices(own)
    except error:
        raise
    except (ValueError, TypeError, IndexError, OverflowError, AttributeError) as problem:
        raise error(f"{name} has damaged arrays in its format {x.format!r}: {problem}") from problem
    if max(x.shape) > MOST_EMPTY + EMPTY_PER_ENTRY * own.nnz:
        raise error(
            f"{name} claims the shape {x.shape} and holds {own.nnz} entries: expected at least one "
            f"for every {EMPTY_PER_ENTRY} rows and columns"
        )
    require_memory(16 * (max(x.shape) + own.nnz), f"{name} of shape {x.shape}")
    # Duplicates are added in the dtype of the result.
    csr = sp.csr_array(own.astype(dtype, copy=False))
    if not csr.has_canonical_format:
        csr.sum_duplicates()
    if not keep_zeros and not csr.data.all():
        csr.eliminate_zeros()
    return csr


def csr_of(
    values: NDArray[Any], columns: NDArray[Any], offsets: NDArray[Any], shape: tuple[int, int]
) -> sp.csr_array:
    """Return a matrix in CSR format, whose indices are in int32 where they fit."""
    index = np.int32 if offsets[-1] < 2**31 else np.int64
    parts = (values, columns.astype(index, copy=False), offsets.astype(index, copy=False))
    return sp.csr_array(parts, shape=shape)


def _with_checked_indices(x: Any) -> Any:
    """Return a sparse matrix, in its format or as a coo_array, whose indices SciPy may trust."""
    if x.format in ("csr", "csc", "bsr"):
        block = x.data.shape[1:] if x.format == "bsr" else (1, 1)
        if 0 in block or any(size % b for size, b in zip(x.shape, block, strict=True)):
            raise ValueError(f"its blocks of {block} do not divide its shape {x.shape}")
        for what, array in (("offsets", x.indptr), ("indices", x.indices)):
            _integers(array, what)
        if (x.indptr[1:] < x.indptr[:-1]).any():
            raise ValueError("its offsets must not decrease")
        x.check_format(full_check=True)  # which sees no such fall where offsets are unsigned
        return x
    if x.format == "lil" and (
        len(x.rows) != x.shape[0] or [*map(len, x.rows)] != [*map(len, x.data)]
    ):
        raise ValueError(f"it must have {x.shape[0]} rows, and a column for every entry")
    if x.format == "dia":  # SciPy reads as many diagonals as there are offsets, or crashes
        if x.data.ndim != 2 or x.offsets.shape != x.data.shape[:1]:
            raise ValueError("it must have a row of entries for each diagonal")
        columns = np.broadcast_to(np.arange(x.data.shape[1]), x.data.shape)
        offsets = _integers(x.offsets, "diagonals")
        if ((offsets <= -x.shape[0]) | (offsets >= x.shape[1])).any():
            raise ValueError(f"its diagonals must lie in {1 - x.shape[0]} ... {x.shape[1] - 1}")
        rows = columns - offsets[:, np.newaxis].astype(np.int64)
        inside = (rows >= 0) & (rows < x.shape[0]) & (columns < x.shape[1])
        data, coords = x.data[inside], (rows[inside], columns[inside])
    else:
        if x.format == "lil":
            _integers([*chain.from_iterable(x.rows)], "columns")
        for place in zip(*x.keys(), strict=True) if x.format == "dok" else ():
            _integers(list(place), "coordinates")
        data, coords = (entries := x.tocoo()).data, entries.coords
        for axis in coords:
            _integers(axis, "coordinates")
    return sp.coo_array((data, coords), shape=x.shape)  # this checks that indices lie in the shape


def _integers(values: Any, what: str) -> NDArray[Any]:
    """Return numbers of rows or columns, or raise a ValueError: SciPy cuts fractions off."""
    if np.ma.is_masked(values):
        raise ValueError(f"its {what} must not be masked")
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"its {what} must be integers; got {array.dtype}")
    return array


def read_matrix(path: Any, name: str) -> Any:
    """Read a file of `scipy.sparse.save_npz` or a Matrix Market file; indices are not checked."""
    text = as_path(path, name)
    is_market = text.endswith(".mtx")
    read = parse_market if is_market else lambda stream: sp.load_npz(checked_archive(stream))
    return read_file(read, text, name, MATRIX_FILE)


def parse_market(stream: IO[bytes]) -> sp.coo_array:
    """Read a Matrix Market file of real numbers by coordinates, or raise a ValueError.

    The format is that of Boisvert, Pozo and Remington, *The Matrix Market Exchange Formats*, NISTIR
    5935. SciPy's reader aborts the process on some damaged files.
    """
    words = stream.readline(200).decode("ascii", "replace").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("it does not begin with the line of a Matrix Market matrix")
    for word, (what, known) in zip(words[2:], _MARKET.items(), strict=True):
        if word not in known:
            raise ValueError(f"its {what} must be {' or '.join(known)}; got {word}")
    field, is_symmetric = words[3], words[4] == "symmetric"
    sizes = next((line for line in stream if line.strip() and line[:1] != b"%"), b"")
    rows, columns, count = (int(word) for word in sizes.split())
    if is_symmetric and rows != columns:
        raise ValueError(f"it is symmetric and of shape {(rows, columns)}")
    width = 2 if field == "pattern" else 3
    if count == 0 and stream.read().strip():
        raise ValueError("it claims no entries and has more lines")
    numbers = np.loadtxt(stream, comments="%", ndmin=2) if count else np.empty((0, width))
    if numbers.shape != (count, width):
        raise ValueError(f"it claims {count} entries and has numbers of shape {numbers.shape}")
    must_be_whole = numbers if "integer" in field else numbers[:, :2]
    if not (must_be_whole == np.floor(must_be_whole)).all():
        raise ValueError("its coordinates, or its entries, are not all integers")
    places = numbers[:, :2].T.astype(np.int64) - 1
    values = np.ones(count) if width == 2 else numbers[:, 2]
    if is_symmetric:
        off = places[0] != places[1]
        places = np.hstack([places, places[::-1, off]])
        values = np.concatenate([values, values[off]])
    return sp.coo_array((values, tuple(places)), shape=(rows, columns))
