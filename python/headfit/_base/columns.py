"""Columns that users name, and what `exempt_columns` means in every function that takes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import shown
from headfit._base.arrays import as_array
from headfit.errors import InputError


def as_columns(columns: Any, n: int, name: str = "columns") -> NDArray[np.int64]:
    """Return sorted column numbers, or raise an InputError that names one out of range."""
    array = np.atleast_1d(as_array(columns, name))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name} must be a sequence of integers; got shape {array.shape} of {array.dtype}"
        )
    outside = (array < 0) | (array >= n)
    if outside.any():
        raise InputError(f"{name} must lie in 0 ... {n - 1}; got {array[outside][0]}")
    return np.unique(array).astype(np.int64)


def as_exempt(columns: Any, n: int) -> NDArray[np.int64] | None:
    """Return the exempt columns that a user names, none of n for None; None for "auto".

    What "auto" stands for is chosen by each function that takes it.
    """
    if not isinstance(columns, str):
        return as_columns(() if columns is None else columns, n, "exempt_columns")
    if columns != "auto":
        raise InputError(
            'exempt_columns must be "auto", a sequence of column numbers or None; '
            f"got {shown(columns)}"
        )
    return None
