"""What is known about patterns in general, not about a given one."""

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
    """A bound about most random patterns; it says nothing about a given one.

    Attributes
    ----------
    value : float
        Heads of a smaller size are too few for all k-regular patterns.
    n, k : int
    about : str
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
    """Count patterns and heads: a bound about most k-regular patterns, not about a given one.

    Parameters
    ----------
    n, k : int
        Tokens, and the nonzeros in every row and column.

    Returns
    -------
    Counting
        Its ``value`` is (x - 1) / 2 with x ln(8 e n / x) = ln N / n.

    Notes
    -----
    ``ln N = ln[(n k)! / (k!)^(2 n)] - (k - 1)^2 / 2`` is the logarithm of the number of k-regular
    0-1 matrices, asymptotically for fixed k (O'Neil 1969, Bender 1974). A head with its offsets
    has n (2 d + 1) = n x unknowns, and a support pattern is the signs of n^2 polynomials of degree
    2 in them: at most (8 e n / x)^(n x) patterns (Warren 1968). For d below the value that is
    fewer than N, by a factor exponential in n: heads of that size miss most patterns. Which ones
    is not said; and at practical n it is weak.

    Examples
    --------
    >>> counting(1024, 4)
    Counting(d >= 0.761 for most random 4-regular patterns of 1024 tokens; not about a given one)
    """
    # SciPy's heavier rooms are entered only when somebody asks.
    from scipy.optimize import brentq
    from scipy.special import gammaln

    n, k = _sizes(n, k)
    each = float(gammaln(n * k + 1) - 2 * n * gammaln(k + 1) - (k - 1) ** 2 / 2) / n

    def excess(x: float) -> float:
        return x * math.log(8 * math.e * n / x) - each

    top = 8.0 * n  # where it is largest
    x = 0.0 if each <= 0 else top if excess(top) <= 0 else float(brentq(excess, 1e-12, top))
    return Counting(max(0.0, (x - 1) / 2), n, k)


def random_keys_dim(n: int, k: int, *, all_subsets: bool = False) -> int:
    """Return about which head size random keys realise supports of k keys.

    Parameters
    ----------
    n, k : int
        Keys, and the size of a support.
    all_subsets : bool, default False
        Every k-subset of the keys at once, instead of almost all of the rows of a pattern.

    Returns
    -------
    int
        The d that solves d = 2 k ln(n / d), or d = 2 e k ln(n / (2 sqrt(pi) d)) for all subsets,
        rounded up; at most n.

    Notes
    -----
    The face counts of random polytopes for Gaussian keys (Donoho and Tanner 2005), for n much
    larger than d: a transition point of an asymptotic count that experiments follow, not a
    guarantee, and no lower bound: learned keys are far smaller. Keys on the sphere do a little
    better than Gaussian ones.

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
    # d = f ln(m / d) is (d / f) e^(d / f) = m / f.
    return min(n, max(1, math.ceil(factor * float(lambertw(few / factor).real))))
