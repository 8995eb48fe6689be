"""Reading of arrays from files; claimed sizes are checked before memory is taken."""

from __future__ import annotations

import math
import zipfile
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from headfit._base.files import file_size, opened
from headfit._base.machine import require_memory
from headfit.errors import InputError

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_array(stream: IO[bytes], size: int) -> NDArray[Any]:
    """Read an array in .npy format that takes `size` bytes of a stream; refuse Python objects."""
    start = stream.tell()
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the .npy format is not read")
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never read")
    count, left = math.prod(shape), size - (stream.tell() - start)
    if min(shape, default=0) < 0 or count * dtype.itemsize != left or count > max(left, 1):
        raise ValueError(f"an array of shape {shape} and {dtype} does not take {left} bytes")
    stream.seek(start)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


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
