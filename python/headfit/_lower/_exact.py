"""Rational bounds of logarithms and roots, with which proofs are checked without rounding."""

from __future__ import annotations

import math
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    Context,
    Decimal,
)
from fractions import Fraction

DIGITS = 40
"""Decimal digits of logarithms. `Decimal.ln` rounds correctly, so that the last one is certain."""

ROOT_BITS = 60
"""Binary digits of roots after the point."""

TWO_PI = (
    Fraction("6.28318530717958647692528676655900576839"),
    Fraction("6.28318530717958647692528676655900576840"),
)
"""Numbers just below and just above 2 pi."""


def _context(rounding: str) -> Context:
    return Context(prec=DIGITS, rounding=rounding, Emax=MAX_EMAX, Emin=MIN_EMIN)


def log_below(x: Fraction | int) -> Fraction:
    """Return a rational number that is at most ln(x), for x > 0."""
    near, work = _divided(Fraction(x), ROUND_FLOOR), _context(ROUND_HALF_EVEN)
    return Fraction(0) if near == 1 else Fraction(work.next_minus(work.ln(near)))


def log_above(x: Fraction | int) -> Fraction:
    """Return a rational number that is at least ln(x), for x > 0."""
    near, work = _divided(Fraction(x), ROUND_CEILING), _context(ROUND_HALF_EVEN)
    return Fraction(0) if near == 1 else Fraction(work.next_plus(work.ln(near)))


def _divided(x: Fraction, rounding: str) -> Decimal:
    return _context(rounding).divide(Decimal(x.numerator), Decimal(x.denominator))


def log_factorial(n: int) -> tuple[Fraction, Fraction]:
    """Return rational numbers just below and just above ln(n!).

    For large n from n! = sqrt(2 pi n) (n / e)**n exp(r) with 1 / (12 n + 1) < r < 1 / (12 n)
    (Robbins 1955).
    """
    if n <= 1000:
        return log_below(math.factorial(n)), log_above(math.factorial(n))
    low = log_below(TWO_PI[0] * n) / 2 + n * (log_below(n) - 1) + Fraction(1, 12 * n + 1)
    high = log_above(TWO_PI[1] * n) / 2 + n * (log_above(n) - 1) + Fraction(1, 12 * n)
    return low, high


def root_above(x: Fraction) -> Fraction:
    """Return a rational number that is at least the square root of x, for x >= 0."""
    scaled = -(-x.numerator * 4**ROOT_BITS // x.denominator)
    root = math.isqrt(scaled)
    return Fraction(root + (root * root < scaled), 2**ROOT_BITS)


def shortened(x: Fraction, bits: int) -> Fraction:
    """Return the least multiple of 2**-bits that is at least x, whose arithmetic is fast."""
    return Fraction(-(-x.numerator * 2**bits // x.denominator), 2**bits)
