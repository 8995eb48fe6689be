"""Estimates for patterns in general, which say nothing certain about a given pattern."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headfit._base.arguments import as_flag
from headfit._base.arrays import as_count


def _sizes(n: int, k: int) -> tuple[int, int]:
    tokens = as_count(n, "n", 1)
    return tokens, as_count(k, "k", 1, tokens)


@dataclass(frozen=True, repr=False)
class Counting:
    """A lower bound for most random patterns, which says nothing about a given one.

    Attributes
    ----------
    value : float
        There are fewer heads of a smaller size than k-regular patterns.
    n, k : int
        The number of tokens, and of nonzeros in every row and column.
    about : str
        The patterns that the bound is about.
    """

    value: float
    n: int
    k: int
    about: str = "most random patterns, not a given one"

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return (
            f"Counting(d >= {self.value:.3g} for most random {self.k}-regular patterns of "
            f"{self.n} tokens; not about a given one)"
        )


def counting(n: int, k: int) -> Counting:
    """Return a lower bound on the head size that most k-regular patterns need, by counting.

    Parameters
    ----------
    n, k : int
        The number of tokens, and of nonzeros in every row and column.

    Returns
    -------
    Counting
        Its ``value`` is (x - 1) / 2 with x ln(8 e n / x) = ln N / n.

    Raises
    ------
    InputError
        Unless n and k are integers with 1 <= k <= n.

    Notes
    -----
    ``ln N = ln[(n k)! / (k!)^(2 n)] - (k - 1)^2 / 2`` is the logarithm of the number of k-regular
    0-1 matrices, asymptotically for fixed k (O'Neil 1969, Bender 1974). A head of size d has
    n (2 d + 1) = n x unknowns: queries, keys, and for each row an offset that separates the
    support from the rest. A support pattern is given by the signs of n^2 polynomials of degree 2
    in these unknowns, so heads have at most (8 e n / x)^(n x) patterns (Warren 1968). For d below
    the value these are fewer than N, by a factor exponential in n: most patterns have no head of
    that size. The count does not tell which patterns, and is weak at practical n. Takes O(1)
    time.

    Examples
    --------
    >>> counting(1024, 4)
    Counting(d >= 0.761 for most random 4-regular patterns of 1024 tokens; not about a given one)
    """
    # These parts of SciPy take long to import, so they are imported only when they are needed.
    from scipy.optimize import brentq
    from scipy.special import gammaln

    n, k = _sizes(n, k)
    each = float(gammaln(n * k + 1) - 2 * n * gammaln(k + 1) - (k - 1) ** 2 / 2) / n

    def excess(x: float) -> float:
        return x * math.log(8 * math.e * n / x) - each

    top = 8.0 * n  # the x for which `excess` is largest
    x = 0.0 if each <= 0 else top if excess(top) <= 0 else float(brentq(excess, 1e-12, top))
    return Counting(max(0.0, (x - 1) / 2), n, k)


def random_keys_dim(n: int, k: int, *, all_subsets: bool = False) -> int:
    """Estimate the head size at which random keys have queries for supports of k keys.

    Parameters
    ----------
    n, k : int
        The number of keys, and the size of a support.
    all_subsets : bool, default False
        Whether every k-subset of the keys shall be a support, instead of almost all rows of a
        given pattern.

    Returns
    -------
    int
        The d that solves d = 2 k ln(n / d), or d = 2 e k ln(n / (2 sqrt(pi) d)) for all subsets,
        rounded up; at most n.

    Raises
    ------
    InputError
        Unless n and k are integers with 1 <= k <= n.

    Notes
    -----
    The formulas come from the number of faces of random polytopes for Gaussian keys (Donoho and
    Tanner 2005), with n much larger than d. They are the transition point of an asymptotic count,
    which experiments confirm. They are neither a guarantee nor a lower bound: learned heads are
    much smaller. Keys on the sphere do slightly better than Gaussian ones. Takes O(1) time.

    Examples
    --------
    >>> random_keys_dim(1024, 4)
    29
    >>> random_keys_dim(1024, 4, all_subsets=True)
    42
    """
    from scipy.special import lambertw

    n, k = _sizes(n, k)
    all_subsets = as_flag(all_subsets, "all_subsets")
    factor, few = (2 * math.e * k, n / (2 * math.sqrt(math.pi))) if all_subsets else (2.0 * k, n)
    # d = f ln(m / d) is equivalent to (d / f) e^(d / f) = m / f, which Lambert's W function solves.
    return min(n, max(1, math.ceil(factor * float(lambertw(few / factor).real))))
