"""Number formats that heads are stored in, and that logits may be rounded to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headfit._base.arguments import shown
from headfit._base.arrays import FLOAT8 as FLOAT8
from headfit._base.arrays import FloatArray, narrow_dtype
from headfit.errors import InputError

# Significant bits of each format, including the implicit leading one.
DIGITS = {
    "float64": 53,
    "float32": 24,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3fn": 4,
    "float8_e5m2": 3,
}
DTYPES = ("float32", "float64", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
HEAD_DTYPES = (*DTYPES, *FLOAT8)
"""The formats that `fit` and `plan` store heads in. Other functions take `DTYPES`."""

NARROW = (*HALVES, *FLOAT8)


def check_dtype(dtype: Any, allowed: Sequence[str] = DTYPES) -> str:
    """Return the name of a dtype that arrays are stored in, or raise an InputError."""
    name = _name(dtype)
    if name not in allowed:
        raise InputError(f"dtype must be one of {tuple(allowed)}; got {shown(dtype)}")
    return name


def _name(dtype: Any) -> str:
    """Return the name of a dtype given as a string or as a dtype or scalar type of NumPy."""
    if isinstance(dtype, type) and issubclass(dtype, np.generic):
        return dtype.__name__
    return str(dtype) if isinstance(dtype, (str, np.dtype)) else ""


def array_dtype(name: str) -> Any:
    """Return the NumPy dtype of arrays that hold numbers of a format: float32 or float64."""
    return np.dtype(np.float64 if name == "float64" else np.float32)


def round_to(x: Any, name: str) -> FloatArray:
    """Round to the nearest numbers of a format, ties to even.

    The result has the dtype `array_dtype`. Numbers beyond the range of a narrow format are an
    InputError: nothing is saturated.
    """
    with np.errstate(over="ignore"):
        wide = np.ascontiguousarray(x, dtype=array_dtype(name))
        if name in NARROW:
            wide = wide.astype(narrow_dtype(name)).astype(np.float32)
    if name in NARROW and not np.isfinite(wide).all():
        raise InputError(
            f"Q and K do not fit {name}: they hold numbers up to {np.abs(x).max():.3g}"
        )
    return wide


def spacing_below(bound: float, name: str) -> float:
    """Return the largest distance between neighbouring numbers of a format up to a bound."""
    return float(2.0 ** (math.ceil(math.log2(bound)) - DIGITS[name]))
