"""What a kernel reads: queries, keys, scale and bias, copied and rounded to the dtypes it has."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arrays import DIGITS, FloatArray, as_stored_array, round_to, widened
from headfit._base.kernel import Kernel
from headfit._base.masks import frozen_mask
from headfit.errors import InputError

# A bound of the relative error of a product in float32 with a scale that is rounded to float32, or
# of a quotient in its place.
SCALED_IN_FLOAT32 = 2.0**-21
LEAST_NORMAL = 2.0**-126
# More than is lost where a number of 16 bits or of float32 is subnormal.
SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-125, "float32": 2.0**-125}


def as_read(attention: Attention, kernel: Kernel) -> Attention:
    """Return the attention of the numbers that a kernel multiplies, in arrays of its own.

    Whatever another thread writes into the caller's arrays meanwhile changes nothing. The errors of
    the new attention bound what is not known of the kernel's numbers, see `Attention.errors`.
    """
    scale, bias = attention.scale, attention.bias
    if kernel.scale_dtype is not None:
        (scale,) = round_to(np.array([scale]), kernel.scale_dtype).tolist()
        if not 0 < abs(scale) < math.inf:
            raise InputError(f"scale must not be 0 or infinite in {kernel.scale_dtype}")
    q, k = (np.array(x) for x in attention.stored)
    errors: Any = attention.errors or (None, None)
    if bias is not None:
        bias = _rounded_bias(bias, kernel.operands)
        if bias.dtype == np.float64:  # the core reads a bias in the dtype of Q and K
            q = widened(q).astype(np.float64)
    if kernel.operands is not None:
        is_normal = LEAST_NORMAL <= abs(scale) < 1 / LEAST_NORMAL
        if kernel.scale != "after" and kernel.accumulate == "float32" and not is_normal:
            raise InputError(f"scale must be a normal number of float32; got {scale!r}")
        root = math.sqrt(abs(scale))
        factors = {"after": (1.0, 1.0), "before": (scale, 1.0),
                   "root": (math.copysign(root, scale), root)}[kernel.scale]  # fmt: skip
        if kernel.scale != "after":
            scale = 1.0
        (q, q_error), (k, k_error) = (
            _scaled_and_rounded(widened(x), error, factor, kernel)
            for x, error, factor in zip((q, k), errors, factors, strict=True)
        )
        errors = q_error, k_error
    made = Attention(q, k, scale=scale, mask=frozen_mask(attention.mask), bias=bias,
                     softcap=attention.softcap)  # fmt: skip
    if any(error is not None for error in errors):
        known = (np.zeros(len(x)) if e is None else e for e, x in zip(errors, (q, k), strict=True))
        vars(made)["errors"] = tuple(known)
    return made


def _rounded_bias(bias: Any, dtype: str | None) -> FloatArray:
    """Return a copy of a bias, in the dtype of the kernel's operands where they have one."""
    array = np.array(widened(as_stored_array(bias, "bias", ndim=0)))
    if dtype is None:
        # In float32 where that loses nothing.
        with np.errstate(over="ignore"):
            single = array.astype(np.float32)
        return single if np.array_equal(single, array) else array
    try:
        return _rounded(array, dtype)
    except InputError as error:
        raise InputError(f"bias must fit the kernel's dtype, {dtype}") from error


def _rounded(x: FloatArray, dtype: str) -> FloatArray:
    """Return the nearest numbers of a dtype; infinity and NaN stay, for the core to refuse."""
    finite = np.isfinite(x)
    return np.where(finite, round_to(np.where(finite, x, 0), dtype), x).astype(np.float32)


def _scaled_and_rounded(
    x: FloatArray, error: NDArray[np.float64] | None, factor: float, kernel: Kernel
) -> tuple[FloatArray, NDArray[np.float64] | None]:
    """Return the rows of x times a factor in the dtype of the operands, and bounds of their errors.

    No errors (None) where the kernel's numbers are known: those of an exact `x` that float32 holds,
    without a factor. float64 may be rounded to 16 bits by way of float32 or at once; a product may
    be rounded in float32 first, and subnormal numbers may be flushed to zero.
    """
    dtype, in_float32 = kernel.operands, kernel.accumulate == "float32"
    assert dtype is not None
    moved = SCALED_IN_FLOAT32 if in_float32 and factor != 1 else 0.0
    if error is None:
        x = np.ascontiguousarray(x)
        low, high = _core.operand_bounds(x, dtype, factor, in_float32, moved)
        fits = np.isfinite(low).all() and np.isfinite(high).all()
        if dtype != "float32" and np.isfinite(x).all() and not fits:
            raise InputError(
                f"Q and K do not fit {dtype}: they hold numbers up to {np.abs(x).max():.3g}"
            )
        if np.array_equal(low, high, equal_nan=True):
            return low, None
        spread = np.linalg.norm(np.subtract(high, low, dtype=np.float64), axis=1)
        return low, np.nan_to_num(spread * (1 + 1e-9))
    product, known = x.astype(np.float64) * factor, abs(factor) * error
    _rounded(np.abs(product) + known[:, np.newaxis], dtype)  # an InputError where it does not fit
    unit, lost = 2.0 ** -DIGITS[dtype], math.sqrt(x.shape[1]) * SUBNORMAL[dtype]
    if factor != 1:  # rounded before it, and after it
        unit = (1 + unit) ** 2 * (1 + moved) - 1
        lost *= 1 + abs(factor)
    norms = np.linalg.norm(product, axis=1)
    return product, (known + unit * (norms + known) + 2 * lost) * (1 + 1e-9)
