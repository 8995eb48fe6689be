"""Arrays: their conversion to what the core reads, and the formats that numbers are stored in."""

import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from headfit._base.arguments import as_share, shown
from headfit._base.types import FloatArray as FloatArray
from headfit.errors import InputError, NonFiniteError, input_errors

# bfloat16, which NumPy lacks, as a record of 16 bits: arithmetic on it by mistake is an error.
BFLOAT16 = np.dtype([("bfloat16", np.uint16)])

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")

# Significant bits of each format, including the implicit leading one.
DIGITS = {
    "float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "float8_e4m3fn": 4,
    "float8_e5m2": 3,
}  # fmt: skip
DTYPES = ("float32", "float64", "bfloat16", "float16")
HALVES = ("bfloat16", "float16")
# The formats that `fit` and `plan` store heads in. Other functions take `DTYPES`.
HEAD_DTYPES = (*DTYPES, *FLOAT8)

NARROW = (*HALVES, *FLOAT8)

# How many entries of a stored array are widened at a time, to bound the memory taken.
BLOCK = 2**19


def is_sparse(x: Any) -> bool:
    """Return whether `x` is a SciPy sparse matrix or array.

    SciPy's own function is a type guard in some versions of its stubs and not in others; a plain
    bool gives the same types everywhere.
    """
    return bool(scipy.sparse.issparse(x))


def narrow_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a format of 16 or 8 bits: NumPy's own, or that of ml_dtypes."""
    # Registers its dtypes with NumPy; imported where one is needed, since few programs do.
    import ml_dtypes  # noqa: F401

    return np.dtype(name)


def widened(array: NDArray[Any]) -> FloatArray:
    """Return 16-bit floats as float32, in a new array; other dtypes as they are."""
    if array.dtype == BFLOAT16:  # its bits are the upper half of a float32
        wide = array.view(np.uint16).astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def blocks_of_rows(array: NDArray[Any]) -> Iterator[tuple[slice, FloatArray]]:
    """Yield slices of rows of a matrix, with their widened entries."""
    step = max(1, BLOCK // max(1, array.shape[1]))
    for first in range(0, array.shape[0], step):
        rows = slice(first, first + step)
        yield rows, widened(array[rows])


def computed_in(*arrays: NDArray[Any]) -> np.dtype[Any]:
    """Return the dtype in which the core computes: float64 if any array has it, else float32."""
    return np.dtype(np.float64 if any(a.dtype == np.float64 for a in arrays) else np.float32)


def as_array(x: Any, name: str) -> NDArray[Any]:
    """Return an array of any library that supports DLPack, or a sequence, as a NumPy array.

    Arrays in bfloat16 become views with the dtype `BFLOAT16`, and those in float8_e4m3fn and
    float8_e5m2 become float32.
    """
    is_usual = type(x) is np.ndarray and x.dtype.kind in "fiub"
    if is_usual and (x.dtype.kind != "f" or x.dtype.itemsize > 1):  # this needs no other check
        return x  # type: ignore[no-any-return]
    if hasattr(x, "detach") and hasattr(x, "dtype"):  # torch does not export tensors with a graph
        x = x.detach()
        x = x.resolve_neg() if hasattr(x, "resolve_neg") else x  # nor the sign of views
    kind = str(getattr(x, "dtype", "")).removeprefix("torch.")
    if kind in ("bfloat16", *FLOAT8):  # what NumPy lacks is read as the integers of its bits
        bits = "int16" if kind == "bfloat16" else "uint8"
        if hasattr(x, "detach"):
            x = as_array(x.view(getattr(sys.modules["torch"], bits)), name)
        codes = np.asarray(x).view(bits)
        if kind == "bfloat16":
            return codes.view(BFLOAT16)
        return codes.view(narrow_dtype(kind)).astype(np.float32)
    if np.ma.is_masked(x):
        raise InputError(f"{name} must not be a masked array with masked entries: they lack values")
    if isinstance(x, np.ndarray):
        return np.asarray(x)  # subclasses such as np.matrix have other rules of indexing
    if is_sparse(x):
        raise InputError(f"{name} must be a dense array; got a sparse {type(x).__name__}")
    if hasattr(x, "__dlpack__"):
        expected = f"{name} must be an array on the CPU of a dtype that NumPy knows"
        with input_errors(expected, BufferError, RuntimeError, TypeError, ValueError):
            return np.from_dlpack(x)
    expected = f"{name} must be an array"  # ragged lists are none
    with input_errors(expected, ValueError, TypeError, OverflowError, RuntimeError):
        return np.asarray(x)


def as_stored_array(x: Any, name: str, *, ndim: int = 2) -> NDArray[Any]:
    """Return `x` with at least `ndim` axes in a dtype that the core reads without a copy.

    These dtypes are float64, float32, float16 and `BFLOAT16`; integers and booleans become
    float64, which holds all up to 2**53: larger ones are an InputError.
    """
    array = as_array(x, name)
    if array.dtype.kind not in "fiub" and array.dtype != BFLOAT16:
        found = f"dtype {array.dtype}" if array.ndim else shown(x)
        raise InputError(f"{name} must hold real numbers; got {found}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in (np.float32, np.float16, BFLOAT16):
        if array.dtype.kind == "f" and array.dtype.itemsize > 8:
            raise InputError(
                f"{name} must be float16, bfloat16, float32 or float64; got {array.dtype}"
            )
        if array.dtype.kind in "iu" and ((array > 2**53) | (array < -(2**53))).any():
            raise InputError(f"{name} must hold integers up to 2**53, or floats of those beyond")
        array = array.astype(np.float64, copy=False)
    if array.ndim < ndim:
        raise InputError(f"{name} must have at least {ndim} axes; got shape {array.shape}")
    return array


def as_float_array(x: Any, name: str, *, ndim: int = 2) -> FloatArray:
    """Return `x` as float32 or float64 with at least `ndim` axes.

    float32 stays float32, float16 and bfloat16 become float32, integers and booleans float64.
    """
    return widened(as_stored_array(x, name, ndim=ndim))


def as_stored_matrix(x: Any, name: str) -> NDArray[Any]:
    """Return `x` as `as_stored_array` does; it must have exactly two axes."""
    array = as_stored_array(x, name)
    if array.ndim != 2:
        raise InputError(f"{name} must be a matrix; got shape {array.shape}")
    return array


def as_matrix(x: Any, name: str) -> FloatArray:
    """Return `x` as a two-dimensional float array with contiguous rows."""
    return as_contiguous(widened(as_stored_matrix(x, name)))


def as_items(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array with every item at a multiple of its size, in memory and in strides.

    The core counts strides in items and reads aligned numbers; other arrays are copied. NumPy calls
    records aligned wherever they lie, and bfloat16 comes as records.
    """
    size = max(1, array.dtype.itemsize)
    whole = array.flags.aligned and all(stride % size == 0 for stride in array.strides)
    if array.dtype.kind == "V":
        whole = whole and array.__array_interface__["data"][0] % size == 0
    return array if whole else array.copy()


def as_contiguous(array: Any, dtype: Any = None) -> NDArray[Any]:
    """Return the array C-contiguous and aligned, as the core reads it.

    NumPy's `ascontiguousarray` alone leaves a contiguous array at whatever address it has.
    """
    return as_items(np.ascontiguousarray(array, dtype=dtype))


def as_stack(array: NDArray[Any]) -> NDArray[Any]:
    """Flatten the leading axes into one; copy only if rows are not contiguous."""
    stack = as_items(array.reshape((math.prod(array.shape[:-2]), *array.shape[-2:])))
    rows_contiguous = stack.shape[-1] <= 1 or stack.strides[-1] == stack.dtype.itemsize
    return stack if rows_contiguous else np.ascontiguousarray(stack)


def by_heads(
    array: NDArray[Any], lead: tuple[int, ...], own: tuple[int, ...], name: str, hint: str = ""
) -> NDArray[Any]:
    """Broadcast an array to the axes (*lead, *own), and return it with the leading ones as one.

    What all heads share is not copied; where some of several leading axes are broadcast and others
    are not, it is.
    """
    try:
        whole = np.broadcast_to(array, (*lead, *own))
    except ValueError as error:
        raise InputError(
            f"{name} must broadcast to {(*lead, *own)}; got shape {array.shape}{hint}"
        ) from error
    batch = max(0, array.ndim - len(own))
    if math.prod(array.shape[:batch]) == 1:
        return np.broadcast_to(array.reshape(array.shape[batch:]), (math.prod(lead), *own))
    return whole.reshape((math.prod(lead), *own))


def check_finite(array: NDArray[Any], name: str) -> None:
    """Raise a NonFiniteError that names the first NaN or infinity; rows count over all axes."""
    for rows, block in blocks_of_rows(array.reshape(math.prod(array.shape[:-1]), array.shape[-1])):
        finite = np.isfinite(block)
        if not finite.all():
            row, col = (int(i) for i in np.argwhere(~finite)[0])
            raise NonFiniteError(
                f"{name} must be finite; got {block[row, col]} at row {rows.start + row}, "
                f"column {col}"
            )


def as_shares(values: Any, name: str) -> NDArray[np.float64]:
    """Return shares as a vector, or raise an InputError."""
    return np.array([as_share(s, name) for s in np.atleast_1d(as_array(values, name)).tolist()])


def as_indices(values: Any, name: str, least: int, stop: int) -> NDArray[np.int64]:
    """Return a vector of integers, or raise an InputError that names one out of range."""
    array = np.atleast_1d(as_array(values, name))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name} must be a sequence of integers; got shape {array.shape} of {array.dtype}"
        )
    outside = (array < least) | (array >= stop)
    if outside.any():
        raise InputError(f"{name} must lie in {least} ... {stop - 1}; got {array[outside][0]}")
    return array.astype(np.int64)


def check_dtype(dtype: Any, allowed: Sequence[str] = DTYPES) -> str:
    """Return the name of a dtype that arrays are stored in, or raise an InputError."""
    try:
        name = str(dtype) if dtype in allowed or dtype is None else np.dtype(dtype).name
    except Exception:
        name = ""
    if name not in allowed:
        raise InputError(f"dtype must be one of {tuple(allowed)}; got {shown(dtype)}")
    return name


def as_float_dtype(dtype: Any) -> np.dtype[Any]:
    """Return float32 or float64 from a dtype or its name."""
    return np.dtype(check_dtype(dtype, ("float32", "float64")))


def array_dtype(name: str) -> Any:
    """Return the NumPy dtype of arrays that hold numbers of a format: float32 or float64."""
    return np.dtype(np.float64 if name == "float64" else np.float32)


def float_above(x: Fraction) -> float:
    """Return the least float64 that is at least x."""
    near = float(x) if x <= sys.float_info.max else math.inf
    return near if near >= x else math.nextafter(near, math.inf)


def round_to(x: Any, name: str, what: str = "Q and K") -> FloatArray:
    """Round to the nearest numbers of a format, ties to even.

    The result has the dtype `array_dtype`. Numbers beyond the range of the format, and NaN, are an
    InputError: nothing is saturated.
    """
    with np.errstate(over="ignore"):
        wide = np.ascontiguousarray(x, dtype=array_dtype(name))
        if name in NARROW:
            wide = wide.astype(narrow_dtype(name)).astype(np.float32)
    if not np.isfinite(wide).all():
        raise InputError(f"{what} must fit {name}; got numbers up to {np.abs(x).max():.3g}")
    return wide
