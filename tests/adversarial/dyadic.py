"""Exact numbers m 2**e with integers m: products, comparisons with logarithms, rounding."""

from __future__ import annotations

import math

import numpy as np
from mpmath import libmp

# Significant bits, exponents of the least normal number and of the largest binade.
FORMATS = {
    "float64": (53, -1022, 1023),
    "float32": (24, -126, 127),
    "bfloat16": (8, -126, 127),
    "float16": (11, -14, 15),
}


def integers(x: np.ndarray) -> tuple[list, int]:
    """Return nested lists of integers m and one exponent e with x = m 2**e exactly."""
    mantissas, exponents = np.frexp(np.asarray(x, np.float64))
    nonzero = mantissas != 0
    if not nonzero.any():
        return np.zeros(x.shape, int).tolist(), 0
    least = int(exponents[nonzero].min())
    wholes = (mantissas * 2.0**53).astype(np.int64).ravel().tolist()
    shifts = (np.where(nonzero, exponents, least) - least).ravel().tolist()
    flat = [w << s for w, s in zip(wholes, shifts, strict=True)]
    if x.ndim == 1:
        return flat, least - 53
    width = x.shape[1]
    return [flat[i * width : (i + 1) * width] for i in range(x.shape[0])], least - 53


def product(a: list, b: list) -> list:
    """Return the matrix a b^T of two lists of rows of integers."""
    return [[sum(map(int.__mul__, u, v)) for v in b] for u in a]


def to_float(m: int, e: int) -> float:
    """Return m 2**e as a float, within 2**-52 of it; infinite where it overflows."""
    excess = m.bit_length() - 64
    if excess > 0:
        m >>= excess
        e += excess
    try:
        return math.ldexp(m, e)
    except OverflowError:
        return math.copysign(math.inf, m)


def _log_fixed(numerator: int, denominator: int, bits: int) -> int:
    """Return log(numerator / denominator) * 2**bits, within 4 of it."""
    precision = bits + 64
    logs = (
        libmp.mpf_log(libmp.from_int(x), precision, libmp.round_nearest)
        for x in (numerator, denominator)
    )
    first, second = (libmp.to_fixed(x, bits) for x in logs)
    return first - second


def exceeds_log(m: int, e: int, numerator: int, denominator: int) -> bool:
    """Whether m 2**e > log(numerator / denominator), for positive integers; always decided.

    The two are equal only when both are zero: exp(x) is irrational for rational x other than 0.
    """
    if numerator == denominator:
        return m > 0
    if m == 0:
        return numerator < denominator
    bits = 128
    while bits <= 2**16:
        bound = _log_fixed(numerator, denominator, bits)
        shift = e + bits
        left, right, slack = m << max(shift, 0), bound, 4
        if shift < 0:
            right, slack = bound << -shift, 4 << -shift
        if left > right + slack:
            return True
        if left < right - slack:
            return False
        bits *= 2
    raise ArithmeticError(f"cannot compare {m} * 2**{e} with log({numerator}/{denominator})")


def exceeds_number(m: int, e: int, bound: float) -> bool:
    """Whether m 2**e > bound, a float that may be infinite."""
    if math.isinf(bound):
        return bound < 0
    numerator, denominator = bound.as_integer_ratio()
    left = m * denominator
    return (left << e) > numerator if e >= 0 else left > (numerator << -e)


def rounded(m: int, e: int, name: str) -> float:
    """Return m 2**e rounded to the nearest number of a format, ties to even, as a float.

    Numbers at least half a unit above the largest finite one become infinite.
    """
    digits, least, largest = FORMATS[name]
    size = abs(m)
    if size == 0:
        return 0.0
    top = size.bit_length() + e - 1
    unit = max(top, least) - digits + 1
    if unit > e:
        drop = unit - e
        kept, rest = size >> drop, size & ((1 << drop) - 1)
        half = 1 << (drop - 1)
        if rest > half or (rest == half and kept & 1):
            kept += 1
        size, e = kept, unit
    if size.bit_length() + e - 1 > largest:
        return math.inf if m > 0 else -math.inf
    return math.ldexp(size if m > 0 else -size, e)


def round_array(x: np.ndarray, name: str) -> np.ndarray:
    """Return float64 numbers rounded to a format: exactly representable, overflow infinite.

    Rounds to float32 first where the format is narrower: this is exact for numbers that float32
    holds, and good enough to make inputs.
    """
    with np.errstate(over="ignore"):
        if name == "float64":
            return np.asarray(x, np.float64)
        single = np.asarray(x, np.float32)
        if name == "float32":
            return single.astype(np.float64)
        if name == "float16":
            return single.astype(np.float16).astype(np.float64)
    bits = np.atleast_1d(single).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    upper = (bits + np.uint32(0x7FFF) + even) & np.uint32(0xFFFF0000)
    wide = np.where(np.isnan(single), np.float32(np.nan), upper.view(np.float32).reshape(x.shape))
    return wide.astype(np.float64)
