"""Estimates for patterns in general, which say nothing certain about a given pattern."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from headfit._base.arguments import as_flag, shown
from headfit._base.arrays import as_count, as_share
from headfit._base.tolerances import as_tolerances
from headfit._lower._bounded import Limits
from headfit._lower._exact import log_above, log_below, log_factorial, root_above, shortened
from headfit._lower._packing import Most, least_dim, log_most
from headfit.errors import InputError


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
    exceptions : float or None
        The largest share of the patterns that may have smaller heads; None: a share that falls
        exponentially with n.
    about : str
        The patterns that the bound is about.
    dim : int
        The least integer that is at least `value`; n + 1 if no pattern has a head of any size.
    """

    value: float
    n: int
    k: int
    exceptions: float | None = None

    @property
    def about(self) -> str:
        """The patterns that the bound is about."""
        return f"{self._most()} patterns, not a given one"

    def _most(self) -> str:
        if self.exceptions is None:
            return "most random"
        return f"all but a share of {self.exceptions:g} of the"

    @property
    def dim(self) -> int:
        """The least head size, an integer."""
        return max(1, math.ceil(self.value))

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return (
            f"Counting(d >= {self.value:.3g} for {self._most()} {self.k}-regular patterns of "
            f"{self.n} tokens; not about a given one)"
        )


def counting(
    n: int,
    k: int,
    *,
    max_norm: float | None = None,
    max_logit: float | None = None,
    leak: float | None = None,
    exceptions: float | None = None,
) -> Counting:
    """Return a lower bound on the head size that most k-regular patterns need, by counting.

    Parameters
    ----------
    n, k : int
        The number of tokens, and of nonzeros in every row and column.
    max_norm : float, optional
        A bound on scale × max ‖q‖ × max ‖k‖.
    max_logit : float, optional
        A bound on every |logit|, without a mask.
    leak : float, optional
        The leak that heads shall meet; `Tolerances` has the default. Only with one of the bounds.
    exceptions : float, optional
        The largest share of the patterns that may have smaller heads, in (0, 1]; 0.01 when None.
        Only with one of the bounds.

    Returns
    -------
    Counting
        Without bounds its ``value`` is (x - 1) / 2 with x ln(8 e n / x) = ln N / n, and with them
        the least size that is not excluded.

    Raises
    ------
    InputError
        Unless n and k are integers with 1 <= k <= n, and for other arguments out of range.

    Notes
    -----
    Without bounds: ``ln N = ln[(n k)! / (k!)^(2 n)] - (k - 1)^2 / 2`` is the logarithm of the
    number of k-regular 0-1 matrices, asymptotically for fixed k (O'Neil 1969, Bender 1974). A head
    of size d has n (2 d + 1) = n x unknowns: queries, keys, and for each row an offset that
    separates the support from the rest. A support pattern is given by the signs of n^2 polynomials
    of degree 2 in these unknowns, so heads have at most (8 e n / x)^(n x) patterns (Warren 1968).
    For d below the value these are fewer than N, by a factor exponential in n: most patterns have
    no head of that size. The count does not tell which patterns, and is weak at practical n. Takes
    O(1) time.

    With bounds, everything is rigorous and in exact arithmetic: the number of patterns is that of
    `log_regular_patterns`, from below, and the heads are counted by rounding their keys; see
    docs/bounds.md. At most a share of `exceptions` of all k-regular patterns has a smaller head.

    Examples
    --------
    >>> counting(1024, 4)
    Counting(d >= 0.761 for most random 4-regular patterns of 1024 tokens; not about a given one)
    >>> counting(1024, 4, max_norm=10.0, leak=0.05)
    Counting(d >= 5 for all but a share of 0.01 of the 4-regular patterns of 1024 tokens; ...)
    """
    n, k = _sizes(n, k)
    asked = as_tolerances(leak=leak, max_logit=max_logit)
    limits = Limits(max_norm, asked.max_logit)
    if not limits.any:
        for name, value in (("leak", leak), ("exceptions", exceptions)):
            if value is not None:
                raise InputError(
                    f"{name} must be None without max_norm and max_logit; got {shown(value)}"
                )
        return Counting(_by_signs(n, k), n, k)
    gap = log_below(1 / Fraction(asked.leak))
    share = as_share(0.01 if exceptions is None else exceptions, "exceptions")
    needed = log_regular_patterns(n, k) + log_below(Fraction(share))
    dims = [1]
    for is_logit, given in ((False, limits.max_norm), (True, limits.max_logit)):
        if given is None:
            continue
        limit = Fraction(given)
        if 2 * limit < gap and k < n:
            dims.append(n + 1)  # no row can have both a column on its support and one off it
            continue

        def heads(dim: int, limit: Fraction = limit, is_logit: bool = is_logit) -> Most:
            norm = limit * root_above(Fraction(dim)) if is_logit else limit
            return n * _log_heads(dim, shortened(norm / gap, RATIO_BITS), k), "counting"

        dims.append(least_dim(heads, needed, n)[0])
    return Counting(float(max(dims)), n, k, share)


RATIO_BITS = 30
"""Ratios of norms to gaps are rounded up to so many binary digits after the point."""


def _log_heads(dim: int, ratio: Fraction, k: int) -> Fraction:
    """Return a bound on the logarithm of the number of patterns of heads, divided by n.

    Let the ratio be N / tau, and the norms of keys be at most N, those of queries at most 1. Of
    keys that are x tau or more apart take as many as possible: every key has one of them nearer
    than x tau. Rounding to it changes each logit by less than x tau. With all keys rounded, the
    logits on a row's support exceed the others by (1 - 2 x) tau still. Queries of different
    supports of k of these keys are (1 - 2 x) tau / N apart, and with the mean keys of the supports
    they are points in a ball of squared ratio N k / (2 (1 - 2 x) tau); see `Groups`. The number of
    heads is at most that of rounded keys, times that of such queries, to the power of n.
    """
    counts = []
    for part in range(1, 8):
        x = Fraction(part, 16)
        left = 1 - 2 * x
        keys, _ = log_most(dim, (ratio / x) ** 2)
        queries = min(log_most(dim, (ratio / left) ** 2), log_most(dim, ratio * k / (2 * left)))
        counts.append(keys + queries[0])
    return min(counts)


def log_regular_patterns(n: int, k: int) -> Fraction:
    """Return a number that is at most the logarithm of the number of k-regular 0-1 matrices.

    Take k permutation matrices one after the other, each without a common entry with those before.
    After t of them the next one is a perfect matching in a bipartite graph whose nodes have n - t
    edges each; there are (n - t)^n n! / n^n of these or more (van der Waerden's conjecture, proved
    by Egorychev and by Falikman in 1981). Each k-regular matrix arises from as many sequences as it
    has decompositions into permutation matrices in order, at most the product of (s!)^(n/s) for
    s = 1 ... k (Bregman 1973). The count is exact for k = 1. Matrices and their complements are
    equally many.
    """
    few = min(k, n - k)
    if few == 0:
        return Fraction(0)
    low, _ = log_factorial(n)
    above = n * log_above(n)
    total = few * low
    for t in range(1, few):
        total += n * log_below(n - t) - above
    for s in range(2, few + 1):
        total -= Fraction(n, s) * log_factorial(s)[1]
    return max(Fraction(0), total)


def _by_signs(n: int, k: int) -> float:
    """Return the bound without bounds on norms."""
    # These parts of SciPy take long to import, so they are imported only when they are needed.
    from scipy.optimize import brentq
    from scipy.special import gammaln

    each = float(gammaln(n * k + 1) - 2 * n * gammaln(k + 1) - (k - 1) ** 2 / 2) / n

    def excess(x: float) -> float:
        return x * math.log(8 * math.e * n / x) - each

    top = 8.0 * n  # the x for which `excess` is largest
    x = 0.0 if each <= 0 else top if excess(top) <= 0 else float(brentq(excess, 1e-12, top))
    return max(0.0, (x - 1) / 2)


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
