"""Reading of arrays and matrices from files; claimed sizes are checked before memory is taken."""

from __future__ import annotations

import bz2
import gzip
import math
import zipfile
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from headfit._base import matrix_market
from headfit._base.files import as_path, file_size, opened
from headfit._base.memory import available_memory, require_memory
from headfit.errors import InputError

MATRIX_FILE = "must be a file of scipy.sparse.save_npz or a Matrix Market file"

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_PARTS = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("row", "col"),
    "dia": ("offsets",),
}


def read_array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array in .npy format that takes `size` bytes of a stream; refuse Python objects."""
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the .npy format is not read")
    before = stream.tell()
    shape, by_columns, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    count = math.prod(shape)
    left = size - npy.MAGIC_LEN - (stream.tell() - before)
    if min(shape, default=0) < 0 or count * dtype.itemsize != left or count > max(left, 1):
        raise ValueError(f"an array of shape {shape} and {dtype} does not take {left} bytes")
    array = np.empty(count, dtype)
    place: Any = memoryview(array.view(np.uint8).data) if left else b""
    while place:
        read = stream.readinto(place)  # type: ignore[attr-defined]
        if not read:
            raise ValueError("it ends too soon")
        place = place[read:]
    return array.reshape(shape, order="F" if by_columns else "C")


def read_archive(stream: IO[bytes]) -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file."""
    arrays = {}
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        require_memory(sum(m.file_size for m in members), "its arrays")
        for member in members:
            with archive.open(member) as part:
                name = member.filename.removesuffix(".npy")
                arrays[name] = read_array(part, member.file_size)
    return arrays


def load_arrays(path: Any, what: str, name: str = "path") -> dict[str, NDArray[Any]]:
    """Read all arrays of an .npz file; raise an InputError that names the file for others."""
    otherwise = f"is no {what}"
    with opened(path, name, otherwise) as stream:
        if stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise InputError(f"{name}: {path} {otherwise}: it holds a single array")
        try:
            return read_archive(stream)
        except Exception as error:  # damaged files make the readers raise errors of any class
            raise unreadable(path, name, otherwise, error) from error


def load_array(path: Any, what: str, name: str) -> NDArray[Any]:
    """Read the array of an .npy file; raise an InputError that names the file for others."""
    otherwise = f"is no {what}"
    with opened(path, name, otherwise) as stream:
        if stream.read(2) == b"PK":
            raise InputError(f"{name}: {path} must hold a single array, as numpy.save writes it")
        stream.seek(0)
        try:
            return read_array(stream, file_size(stream))
        except Exception as error:
            raise unreadable(path, name, otherwise, error) from error


def unreadable(path: Any, name: str, otherwise: str, error: Exception) -> InputError:
    """Return the error to raise for a file that cannot be read."""
    reason = str(error) or type(error).__name__
    return InputError(f"{name}: {path} {otherwise}: {reason}")


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

    @property
    def ndim(self) -> int:
        """Two, always."""
        return 2


def read_matrix(path: Any, name: str) -> StoredMatrix:
    """Read a file of `scipy.sparse.save_npz` or a Matrix Market file, without checking it."""
    text = as_path(path, name)
    with opened(text, name, MATRIX_FILE) as stream:
        try:
            if text.endswith((".mtx", ".mtx.gz", ".mtx.bz2")):
                shape, data, coords = matrix_market.parse(_market_text(stream, text))
                return StoredMatrix("coo", shape, data, coords=coords)
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
    parts, size = [], 0
    with opener(stream, "rb") as text:
        while part := text.read(2**22):
            parts.append(part)
            size += len(part)
            if size > room:
                raise ValueError(f"its text of more than {size / 2**30:.1f} GiB is too long")
    return b"".join(parts)
