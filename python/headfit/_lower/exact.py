"""Exact arithmetic: bounds of logarithms and roots, and of how many points fit in a ball.

Let m points of R^d lie in a ball of radius r, every two of them at least 1 apart; q = r^2. The
bounds, with their proofs:

- *simplex*: the |x_i - x_j|^2 of all pairs add up to m times the sum of |x_i|^2 less |sum x_i|^2,
  so to m^2 q at most: m (m - 1) / 2 <= m^2 q in every dimension. For q < 1/2, m <= 1 / (1 - 2 q).
- *obtuse angles* (Rankin 1955): for q <= 1/2, 1 <= |x_i - x_j|^2 and |x_i|^2 + |x_j|^2 <= 2 q <= 1
  give x_i.x_j <= 0. At most 2 d vectors of R^d other than 0 have this property (0 is none of them:
  the others would be 1 away from it). For q < 1/2 all x_i.x_j < 0, as at most d + 1 vectors have.
- *volume*: balls of radius 1/2 around the points have no common interior and lie in a ball of
  radius r + 1/2. So m <= (1 + 2 r)^d.
- *mean distance* (after Blichfeldt 1929): let f_i(x) = max(0, 1 - 2 |x - x_i|^2). Where t of the
  f_i are positive, the |x - x_i|^2 of these add up to 1/t times the sum of |x_i - x_j|^2 over their
  pairs or more, so to (t - 1) / 2 or more: the f_i add up to t - (t - 1) = 1 at most. The integral
  of f_i is 2 / (d + 2) times the volume of a ball of radius 1/sqrt(2), and f_i is 0 outside the
  ball of radius r + 1/sqrt(2). So m <= (d + 2) / 2 (1 + sqrt(2) r)^d.
- *spherical code*: (x, sqrt(q - |x|^2)) lies on a sphere of radius r in R^(d+1), and distances do
  not shrink; so the cosines of the angles are at most s = 1 - 1 / (2 q), and `log_code` applies:

Let m unit vectors of R^n have inner products of at most s, and let f be a
polynomial with f(t) <= 0 for -1 <= t <= s whose coefficients f_0, f_1, ... in Gegenbauer's
polynomials G_i for R^n, with G_i(1) = 1, are not negative, f_0 > 0. Then m <= f(1) / f_0 (Delsarte,
Goethals and Seidel 1977): the sum of f(x.y) over all ordered pairs is at most m f(1), as pairs of
different points add nothing positive; and it is at least m^2 f_0, as the sum of each G_i(x.y) is
not negative and that of G_0 is m^2.

Here f(t) = (t - s) p(t)^2 or (t + 1) (t - s) p(t)^2, which is not positive up to s for any p.
Levenshtein (1979) has the best p of each degree: the reproducing kernel p(t) = K(t, s) of the
polynomials for the weight (1 - t)^((n-1)/2) (1 + t)^((n-3)/2), or (1 - t^2)^((n-1)/2). It is
computed in floating point and rounded to integers: as any p will do, this costs no certainty. The
coefficients f_i are then exact rational numbers, whose signs are checked.
"""

import functools
import math
from bisect import bisect_left
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.polynomial import polynomial
from numpy.typing import NDArray

DIGITS = 40  # of logarithms. `Decimal.ln` rounds correctly, so that the last one is certain
ROOT_BITS, SCALE_BITS, COSINE_BITS = 60, 60, 24  # after the point: of roots, of p, and of cosines
LARGEST_DEGREE = 30  # Higher ones are of use for very many points in few dimensions, and take long
TWO_PI = Fraction("6.28318530717958647692528676655900576839")  # rounded down to 1e-38

Most = tuple[Fraction, str]  # a bound on the logarithm of a number of points, and its proof's name


def log_below(x: Fraction | int) -> Fraction:
    """Return a rational number that is at most ln(x), for x > 0."""
    return _log(Fraction(x), "ROUND_FLOOR", Context.next_minus)


def log_above(x: Fraction | int) -> Fraction:
    """Return a rational number that is at least ln(x), for x > 0."""
    return _log(Fraction(x), "ROUND_CEILING", Context.next_plus)


def _log(x: Fraction, rounding: str, beyond: Callable[[Context, Decimal], Decimal]) -> Fraction:
    work = Context(prec=DIGITS, rounding=rounding, Emax=MAX_EMAX, Emin=MIN_EMIN)
    near = work.divide(Decimal(x.numerator), Decimal(x.denominator))
    work.rounding = "ROUND_HALF_EVEN"
    return Fraction(0) if near == 1 else Fraction(beyond(work, work.ln(near)))


def log_factorial(n: int) -> tuple[Fraction, Fraction]:
    """Return rational numbers just below and just above ln(n!).

    For large n from n! = sqrt(2 pi n) (n / e)**n exp(r) with 1 / (12 n + 1) < r < 1 / (12 n)
    (Robbins 1955).
    """
    if n <= 1000:
        return log_below(math.factorial(n)), log_above(math.factorial(n))
    above = TWO_PI + Fraction(1, 10**38)
    low = log_below(TWO_PI * n) / 2 + n * (log_below(n) - 1) + Fraction(1, 12 * n + 1)
    return low, log_above(above * n) / 2 + n * (log_above(n) - 1) + Fraction(1, 12 * n)


def root_above(x: Fraction) -> Fraction:
    """Return a rational number that is at least the square root of x, for x >= 0."""
    scaled = -(-x.numerator * 4**ROOT_BITS // x.denominator)
    root = math.isqrt(scaled)
    return Fraction(root + (root * root < scaled), 2**ROOT_BITS)


def shortened(x: Fraction, bits: int) -> Fraction:
    """Return the least multiple of 2**-bits that is at least x, whose arithmetic is fast."""
    return Fraction(-(-x.numerator * 2**bits // x.denominator), 2**bits)


@functools.lru_cache(maxsize=4096)
def log_most(dim: int, square: Fraction) -> Most:
    """Return a bound on the logarithm of the number of points; `square` is q above."""
    if 4 * square < 1:
        return Fraction(0), "simplex"  # two points do not fit
    mean = log_above(Fraction(dim + 2, 2)) + dim * log_above(1 + root_above(2 * square))
    bounds = [(dim * log_above(1 + root_above(4 * square)), "volume"), (mean, "mean distance")]
    if 2 * square < 1:
        bounds.append((log_above(1 / (1 - 2 * square)), "simplex"))
    if 2 * square <= 1:
        bounds.append((log_above(dim + 1 if 2 * square < 1 else 2 * dim), "obtuse angles"))
    elif (code := log_code(dim + 1, 1 - 1 / (2 * square))) is not None:
        bounds.append((code, "spherical code"))
    return min(bounds)


def least_dim(most: Callable[[int], Most], points: int | Fraction, largest: int) -> tuple[int, str]:
    """Return the least head size that is not excluded, and the proof that excludes the one below.

    `most` bounds the logarithm of the number of points for each size; `points` is that number, or,
    as a Fraction, a lower bound on its logarithm. Sizes above `largest` are as good as it;
    `largest + 1` is returned if it is excluded too.
    """
    needed = points if isinstance(points, Fraction) else log_below(points)
    high = 1  # grows first: bounds for large sizes take long
    while high <= largest and most(high)[0] < needed:
        high *= 2
    sizes = range(high // 2 + 1, min(high, largest + 1))
    dim = high // 2 + 1 + bisect_left(sizes, True, key=lambda d: most(d)[0] >= needed)
    return dim, most(dim - 1)[1] if dim > 1 else "a head has at least one dimension"


@functools.lru_cache(maxsize=4096)
def log_code(dim: int, cosine: Fraction) -> Fraction | None:
    """Return a bound on the logarithm of the number of points on the sphere of R^dim.

    The best degree is the least for which s is no larger than the largest zero of the polynomial
    that would come next in the kernel. None if that is above `LARGEST_DEGREE`.
    """
    s = shortened(cosine, COSINE_BITS)
    degrees = range(1, LARGEST_DEGREE + 1)
    start = bisect_left(degrees, float(s), key=lambda degree: _zeros(dim, degree)[-1])
    for degree in degrees[start : start + 3]:
        value = _delsarte(dim, s, degree)
        if value is not None:
            return log_above(value)
    return None


def _delsarte(dim: int, s: Fraction, degree: int) -> Fraction | None:
    """Return f(1) / f_0 for Levenshtein's polynomial of a degree; None if a sign is wrong."""
    # The kernel, up to a factor, by the formula of Christoffel and Darboux.
    high: Any = polynomial.polyfromroots(_zeros(dim, degree))
    low: Any = polynomial.polyfromroots(_zeros(dim, degree, 1))
    at_s: list[Any] = [polynomial.polyval(float(s), x) for x in (low, high)]
    products: Any = polynomial.polysub(at_s[0] * high, at_s[1] * low)
    quotient: Any = polynomial.polydiv(products, [-float(s), 1.0])
    p = quotient[0] / np.abs(quotient[0]).max()
    # Arrays of Python's integers, so that products are exact.
    rounded = np.array([round(x * 2**SCALE_BITS) for x in p.tolist()], object)
    f = np.convolve(np.convolve(rounded, rounded), np.array([-s.numerator, s.denominator], object))
    if degree % 2 == 0:
        f = np.convolve(f, np.array([1, 1], object))
    g = _in_gegenbauer(f.tolist(), dim)
    return Fraction(sum(f.tolist())) / g[0] if g[0] > 0 and min(g) >= 0 else None


@functools.lru_cache(maxsize=4096)
def _zeros(dim: int, degree: int, less: int = 0) -> NDArray[np.float64]:
    """Return the zeros of the polynomial that comes after those of the kernel, or of a lower one.

    These polynomials of Jacobi are orthogonal for the weight (1 - t)^a (1 + t)^b.
    """
    from scipy.special import roots_jacobi  # takes long to import

    count, a = (degree + 1) // 2 - less, (dim - 1) / 2
    return np.asarray(roots_jacobi(count, a, a - degree % 2)[0]) if count else np.empty(0)


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
