"""Reading of sparse matrices from files, as they are stored: they are not checked here.

Matrix Market files are text: a header, a line of sizes, and numbers. The format is defined by
Boisvert, Pozo and Remington, *The Matrix Market Exchange Formats*, NISTIR 5935. SciPy's reader is
not used because it aborts the process on some damaged files.
"""

from __future__ import annotations

import bz2
import gzip
import re
import warnings
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.files import as_path, file_size, opened
from headfit._base.machine import available_memory, require_memory
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
    "layout": ("coordinate", "array"),
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
            if text.endswith((".mtx", ".mtx.gz", ".mtx.bz2")):
                return parse_market(_market_text(stream, text))
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


def _market_text(stream: IO[bytes], name: str) -> bytes:
    """Return the whole decompressed text; refuse one that is too long for the memory."""
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
    opener = openers.get(name[name.rindex(".") :])
    if opener is None:
        require_memory(4 * file_size(stream), "its text")
        return stream.read()
    room = (available_memory() or 2**40) // 8
    with opener(stream, "rb") as decompressed:
        text: bytes = decompressed.read(room + 1)
    if len(text) > room:
        raise ValueError(f"its text of more than {room / 2**30:.1f} GiB is too long")
    return text


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
    layout, field, symmetry = words[2:]
    comments = re.match(rb"(?:[ \t\r]*(?:%[^\n]*)?\n)*", rest)
    line, _, body = rest[comments.end() if comments else 0 :].partition(b"\n")
    sizes = [int(word) for word in line[:100].split()]
    if len(sizes) != (3 if layout == "coordinate" else 2) or min(sizes) < 0:
        raise ValueError(f"its sizes are {sizes}")
    rows, cols = sizes[:2]
    if symmetry == "symmetric" and rows != cols:
        raise ValueError(f"it is symmetric and of shape {(rows, cols)}")
    if layout == "coordinate":
        width = 2 if field == "pattern" else 3
        numbers = _numbers(body, sizes[2] * width).reshape(sizes[2], width)
        places, values = numbers[:, :2], numbers[:, 2] if width == 3 else np.ones(sizes[2])
        if not (places == np.floor(places)).all() or not (np.abs(places) < 2**53).all():
            raise ValueError("its coordinates are not all integers")
        i, j = (places.T - 1).astype(np.int64)
    elif field == "pattern":
        raise ValueError("a pattern has coordinates")
    else:  # all entries column by column, of a symmetric matrix the lower triangle
        is_general = symmetry == "general"
        values = _numbers(body, rows * cols if is_general else rows * (rows + 1) // 2)
        j, i = (
            np.divmod(np.arange(values.size), max(1, rows)) if is_general else np.triu_indices(rows)
        )
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
