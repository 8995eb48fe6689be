"""Reading of sparse matrices from files, as they are stored: they are not checked here.

Of Matrix Market files (Boisvert, Pozo and Remington, *The Matrix Market Exchange Formats*, NISTIR
5935), text with a header, a line of sizes, and entries with their coordinates, those that hold real
numbers by coordinates are read. SciPy's reader aborts the process on some damaged files.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.files import as_path, file_size, opened
from headfit._base.machine import require_memory
from headfit._base.stored_arrays import read_archive, unreadable

MATRIX_FILE = "must be a file of scipy.sparse.save_npz or a Matrix Market file"

# The arrays that scipy.sparse.save_npz writes for each format, besides the entries.
_PARTS = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}
_KINDS = {
    "layout": ("coordinate",),
    "field": ("real", "double", "integer", "unsigned-integer", "pattern"),
    "symmetry": ("general", "symmetric"),
}


@dataclass(frozen=True)
class StoredMatrix:
    """A sparse matrix as read from a file and not yet checked, with SciPy's attribute names."""

    format: str
    shape: tuple[int, int]
    data: NDArray[Any]
    indices: Any = None
    indptr: Any = None
    coords: Any = None
    offsets: Any = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the entries."""
        return self.data.dtype


def read_matrix(path: Any, name: str) -> StoredMatrix:
    """Read a file of `scipy.sparse.save_npz` or a Matrix Market file, without checking it."""
    text = as_path(path, name)
    with opened(text, name, MATRIX_FILE) as stream:
        try:
            if text.endswith(".mtx"):
                require_memory(4 * file_size(stream), "its text")
                return parse_market(stream.read())
            return _of_archive(read_archive(stream))
        except Exception as error:
            raise unreadable(text, name, MATRIX_FILE, error) from error


def _of_archive(arrays: dict[str, NDArray[Any]]) -> StoredMatrix:
    kind = arrays["format"].item()
    kind = kind.decode("ascii") if isinstance(kind, bytes) else kind
    if kind not in _PARTS:
        raise ValueError(f"the format {kind!r} is none of {', '.join(_PARTS)}")
    shape = arrays["shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or int(shape.min()) < 0:
        raise ValueError(f"the shape of a matrix is two integers; got {shape!r}")
    parts: dict[str, Any] = {part: arrays[part] for part in _PARTS[kind]}
    if kind == "coo":
        parts = {"coords": (parts["row"], parts["col"])}
    return StoredMatrix(kind, (int(shape[0]), int(shape[1])), arrays["data"], **parts)


def parse_market(text: bytes) -> StoredMatrix:
    """Return the matrix of a Matrix Market text, or raise a ValueError.

    Whether the coordinates lie within the shape is not checked here.
    """
    header, _, rest = text.partition(b"\n")
    words = header[:200].decode("ascii", "replace").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("it does not begin with the line of a Matrix Market matrix")
    for word, (what, known) in zip(words[2:], _KINDS.items(), strict=True):
        if word not in known:
            raise ValueError(f"its {what} must be {' or '.join(known)}; got {word}")
    field, symmetry = words[3:]
    comments = re.match(rb"(?:[ \t\r]*(?:%[^\n]*)?\n)*", rest)
    line, _, body = rest[comments.end() if comments else 0 :].partition(b"\n")
    sizes = [int(word) for word in line[:100].split()]
    if len(sizes) != 3 or min(sizes) < 0:
        raise ValueError(f"its sizes are {sizes}")
    rows, cols, count = sizes
    if symmetry == "symmetric" and rows != cols:
        raise ValueError(f"it is symmetric and of shape {(rows, cols)}")
    width = 2 if field == "pattern" else 3
    numbers = _numbers(body, count * width).reshape(count, width)
    places, values = numbers[:, :2], numbers[:, 2] if width == 3 else np.ones(count)
    if not (places == np.floor(places)).all() or not (np.abs(places) < 2**53).all():
        raise ValueError("its coordinates are not all integers")
    i, j = (places.T - 1).astype(np.int64)
    if "integer" in field and not (values == np.floor(values)).all():
        raise ValueError("its entries are not all integers")
    if symmetry == "symmetric":
        off = i != j
        i, j = np.concatenate([i, j[off]]), np.concatenate([j, i[off]])
        values = np.concatenate([values, values[off]])
    return StoredMatrix("coo", (rows, cols), values, coords=(i, j))


def _numbers(body: bytes, count: int) -> NDArray[np.float64]:
    """Return the numbers of a text, which must be `count`."""
    if count > len(body):  # every number takes at least one byte
        raise ValueError(f"it claims {count} numbers in {len(body)} bytes")
    if not body.strip():
        numbers = np.empty(0)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns of text that is not a number
            try:
                numbers = np.fromstring(body.decode("ascii"), dtype=np.float64, sep=" ")
            except DeprecationWarning as error:
                raise ValueError("it holds text that is no number") from error
    if numbers.size != count:
        raise ValueError(f"it claims {count} numbers and has {numbers.size}")
    return numbers
