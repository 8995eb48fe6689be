"""Reader of Matrix Market files: text with one header line, one line of sizes, and numbers.

SciPy's reader is not used because it aborts the process on some damaged files. The format is
defined by Boisvert, Pozo and Remington, *The Matrix Market Exchange Formats*, NISTIR 5935.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

# How many numbers an entry has besides its coordinates.
_FIELDS = {"real": 1, "double": 1, "integer": 1, "unsigned-integer": 1, "complex": 2, "pattern": 0}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")

Entries = tuple[tuple[int, int], NDArray[Any], tuple[NDArray[np.int64], NDArray[np.int64]]]


def parse(text: bytes) -> Entries:
    """Return the shape, the entries and their coordinates, or raise a ValueError.

    The coordinates are zero-based; whether they lie within the shape is not checked here.
    """
    layout, field, symmetry = _banner(text)
    sizes, body = _sizes(text)
    if len(sizes) != (3 if layout == "coordinate" else 2) or min(sizes) < 0:
        raise ValueError(f"its sizes are {sizes}")
    shape = (sizes[0], sizes[1])
    if symmetry != "general" and shape[0] != shape[1]:
        raise ValueError(f"it is {symmetry} and of shape {shape}")
    if layout == "coordinate":
        width = 2 + _FIELDS[field]
        numbers = _numbers(body, sizes[2] * width).reshape(sizes[2], width)
        places, values = numbers[:, :2], _values(numbers[:, 2:], field)
        if not (places == np.floor(places)).all() or not (np.abs(places) < 2**53).all():
            raise ValueError("its coordinates are not all integers")
        rows, columns = (places.T - 1).astype(np.int64)
    else:
        rows, columns = _lines(shape, symmetry, len(body))
        width = _FIELDS[field]
        if not width:
            raise ValueError("a pattern has coordinates")
        values = _values(_numbers(body, rows.size * width).reshape(rows.size, width), field)
        some = values != 0
        rows, columns, values = rows[some], columns[some], values[some]
    if symmetry == "general":
        return shape, values, (rows, columns)
    off = rows != columns
    mirrored = {"symmetric": values, "skew-symmetric": -values, "hermitian": np.conj(values)}
    return (
        shape,
        np.concatenate([values, mirrored[symmetry][off]]),
        (np.concatenate([rows, columns[off]]), np.concatenate([columns, rows[off]])),
    )


def _banner(text: bytes) -> tuple[str, str, str]:
    words = text[: max(0, text.find(b"\n"))][:200].decode("ascii", "replace").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise ValueError("it does not begin with the line of a Matrix Market matrix")
    layout, field, symmetry = words[2:]
    if layout not in ("coordinate", "array") or field not in _FIELDS or symmetry not in _SYMMETRIES:
        raise ValueError(f"it is a matrix {layout} {field} {symmetry}, which is no known kind")
    return layout, field, symmetry


def _sizes(text: bytes) -> tuple[list[int], bytes]:
    """Return the numbers of the first line that is not a comment, and the text after it."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        line = text[start:end].strip()
        if line and not line.startswith(b"%"):
            if len(line) > 100:
                raise ValueError("its line of sizes is too long")
            return [int(word) for word in line.split()], text[end:]
        start = end + 1
    raise ValueError("it has no line of sizes")


def _numbers(body: bytes, count: int) -> NDArray[np.float64]:
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


def _values(numbers: NDArray[np.float64], field: str) -> NDArray[Any]:
    if field == "pattern":
        return np.ones(len(numbers))
    if field == "complex":
        return numbers[:, 0] + 1j * numbers[:, 1]
    values = numbers[:, 0]
    if "integer" not in field:
        return values
    if not ((values == np.floor(values)) & (np.abs(values) < 2**53)).all():
        raise ValueError("its entries are not all integers below 2**53")
    return values.astype(np.int64)


def _lines(
    shape: tuple[int, int], symmetry: str, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the coordinates of the entries that a dense matrix lists, column by column.

    A symmetric matrix lists its lower triangle only. `size` is the length of the text in bytes.
    """
    # An entry takes two bytes at least, and half of the entries at least are listed.
    if shape[0] * shape[1] - sum(shape) > size:
        raise ValueError(f"it claims the shape {shape} in {size} bytes")
    columns, rows = np.divmod(np.arange(shape[0] * shape[1], dtype=np.int64), max(1, shape[0]))
    if symmetry == "general":
        return rows, columns
    half = rows > columns if symmetry == "skew-symmetric" else rows >= columns
    return rows[half], columns[half]
