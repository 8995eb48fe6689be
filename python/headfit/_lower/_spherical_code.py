"""How many points a spherical code has at most: Delsarte's bound, in exact arithmetic.

Let m unit vectors of R^n have inner products of at most s. Let f be a polynomial with f(t) <= 0 for
-1 <= t <= s, whose coefficients f_0, f_1, ... in Gegenbauer's polynomials G_i for R^n, with
G_i(1) = 1, are not negative, f_0 > 0. Then m <= f(1) / f_0 (Delsarte, Goethals and Seidel 1977):
the sum of f(x.y) over all ordered pairs is at most m f(1), as pairs of different points add nothing
positive; and it is at least m^2 f_0, as the sum of each G_i(x.y) is not negative and that of G_0 is
m^2.

Here f(t) = (t - s) p(t)^2 or (t + 1) (t - s) p(t)^2, which is not positive up to s for any p.
Levenshtein (1979) has the best p of each degree: the reproducing kernel p(t) = K(t, s) of the
polynomials for the weight (1 - t)^((n-1)/2) (1 + t)^((n-3)/2), or (1 - t^2)^((n-1)/2). It is
computed in floating point and rounded to integers: as any p will do, this costs no certainty. The
coefficients f_i are then exact rational numbers, whose signs are checked.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from fractions import Fraction

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import NDArray

from headfit._lower._exact import log_above, shortened

LARGEST_DEGREE = 30
"""Higher degrees are of use for very many points in few dimensions only, and take long."""

SCALE_BITS = 60
"""The coefficients of p are rounded to so many binary digits after the point."""

COSINE_BITS = 24
"""Cosines are rounded up to so many binary digits after the point."""

Floats = NDArray[np.float64]


@functools.lru_cache(maxsize=4096)
def log_code(dim: int, cosine: Fraction) -> Fraction | None:
    """Return a bound on the logarithm of the number of points on the sphere of R^dim.

    The best degree is the least for which s is no larger than the largest zero of the polynomial
    that would come next in the kernel. None if that is above `LARGEST_DEGREE`.
    """
    s = shortened(cosine, COSINE_BITS)
    degrees = range(1, LARGEST_DEGREE + 1)
    start = bisect_left(degrees, float(s), key=lambda degree: _largest_zero(dim, degree))
    for degree in degrees[start : start + 3]:
        value = _delsarte(dim, s, degree)
        if value is not None:
            return log_above(value)
    return None


def _delsarte(dim: int, s: Fraction, degree: int) -> Fraction | None:
    """Return f(1) / f_0 for Levenshtein's polynomial of a degree; None if a sign is wrong."""
    p = _kernel(float(s), *_recurrence(dim, degree))
    rounded = [round(x * 2**SCALE_BITS) for x in (p / np.abs(p).max()).tolist()]
    f = _times(_times(rounded, rounded), [-s.numerator, s.denominator])
    if degree % 2 == 0:
        f = _times(f, [1, 1])
    g = _in_gegenbauer(f, dim)
    return Fraction(sum(f)) / g[0] if g[0] > 0 and min(g) >= 0 else None


@functools.lru_cache(maxsize=4096)
def _largest_zero(dim: int, degree: int) -> float:
    """Return the largest zero of the polynomial that comes after those of the kernel."""
    shifts, falls = _recurrence(dim, degree)
    roots = np.sqrt(falls[1:])
    return float(np.linalg.eigvalsh(np.diag(shifts) + np.diag(roots, 1) + np.diag(roots, -1))[-1])


def _recurrence(dim: int, degree: int) -> tuple[Floats, Floats]:
    """Return the c_i and h_i in P_(i+1) = (t - c_i) P_i - h_i P_(i-1), for the kernel's P_i.

    The P_i have the leading coefficient 1 and are orthogonal for the weight (1-t)^a (1+t)^b.
    """
    count, a = (degree + 1) // 2, (dim - 1) / 2
    b = a - 1 if degree % 2 else a
    i = np.arange(count, dtype=np.float64)
    c = 2 * i + a + b
    shifts, falls = np.empty(count), np.zeros(count)
    shifts[0] = (b - a) / (a + b + 2)
    shifts[1:] = (b * b - a * a) / (c[1:] * (c[1:] + 2))
    falls[1:] = 4 * i[1:] * (i[1:] + a) * (i[1:] + b) / (c[1:] ** 2 * (c[1:] + 1))
    falls[2:] *= (i[2:] + a + b) / (c[2:] - 1)  # the quotient is 1 for i = 1
    return shifts, falls


def _kernel(s: float, shifts: Floats, falls: Floats) -> Floats:
    """Return the coefficients of the sum of P_i(t) P_i(s) / (h_1 ... h_i) in powers of t."""
    before, now = np.zeros(1), np.ones(1)
    total, square = np.zeros(shifts.size), 1.0
    for i in range(shifts.size):
        square *= falls[i] if i else 1.0
        total[: now.size] += polynomial.polyval(s, now) / square * now
        after: Floats = polynomial.polymulx(now).astype(np.float64)
        after[: now.size] -= shifts[i] * now
        after[: before.size] -= falls[i] * before
        before, now = now, after
    return total


def _times(f: list[int], g: list[int]) -> list[int]:
    """Return the product of two polynomials with integer coefficients."""
    product = [0] * (len(f) + len(g) - 1)
    for i, x in enumerate(f):
        for j, y in enumerate(g):
            product[i + j] += x * y
    return product


def _in_gegenbauer(f: list[int], dim: int) -> list[Fraction]:
    """Return the coefficients in Gegenbauer's polynomials for R^dim, dim >= 2, by Horner's rule.

    t G_i = ((i + dim - 2) G_(i+1) + i G_(i-1)) / (2 i + dim - 2), and t G_0 = G_1.
    """
    g = [Fraction(0)]
    for coefficient in reversed(f):
        raised = [Fraction(0)] * (len(g) + 1)
        raised[1] = g[0]
        for i in range(1, len(g)):
            raised[i + 1] += g[i] * Fraction(i + dim - 2, 2 * i + dim - 2)
            raised[i - 1] += g[i] * Fraction(i, 2 * i + dim - 2)
        raised[0] += coefficient
        g = raised
    return g
