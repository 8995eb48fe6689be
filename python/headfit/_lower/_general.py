"""What most patterns need, proved by counting, and an estimate for random keys."""

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
    dim : int
        At most the share `exceptions` of the k-regular patterns has a head of a smaller size. n + 1
        if at most this share has a head of any size.
    n, k : int
        The number of tokens, and of nonzeros in every row and column.
    exceptions : float
        The largest share of the patterns that may have smaller heads.
    about : str
        The patterns that the bound is about.
    """

    dim: int
    n: int
    k: int
    exceptions: float

    @property
    def about(self) -> str:
        """The patterns that the bound is about."""
        return f"{self._most()} patterns, not a given one"

    def _most(self) -> str:
        return f"all but a share of {self.exceptions:g} of the"

    def __repr__(self) -> str:
        return (
            f"Counting(d >= {self.dim} for {self._most()} {self.k}-regular patterns of "
            f"{self.n} tokens; not about a given one)"
        )


def counting(
    n: int,
    k: int,
    *,
    max_norm: float | None = None,
    max_logit: float | None = None,
    leak: float | None = None,
    exceptions: float = 0.01,
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
        The leak that heads shall meet; `Tolerances` has the default. Only with one of the bounds:
        what is proved for any norms holds for every leak below 1.
    exceptions : float, default 0.01
        The largest share of the patterns that may have smaller heads, in (0, 1].

    Returns
    -------
    Counting

    Raises
    ------
    InputError
        Unless n and k are integers with 1 <= k <= n, and for other arguments out of range.

    Notes
    -----
    There are at least as many patterns as `log_regular_patterns` says, and heads of a size produce
    at most so many different ones: for any norms as many as the signs of their logits less
    thresholds can form (Warren 1968), and with bounds as many as rounding the keys leaves. Both are
    rigorous, and computed in exact arithmetic; docs/bounds.md has the proofs. For any norms the
    bound is near k / 2 for large n. Which patterns are the exceptions is not known.

    Examples
    --------
    >>> counting(100_000, 16)
    Counting(d >= 7 for all but a share of 0.01 of the 16-regular patterns of 100000 tokens; ...)
    >>> counting(1024, 4, max_norm=10.0, leak=0.05)
    Counting(d >= 5 for all but a share of 0.01 of the 4-regular patterns of 1024 tokens; ...)
    """
    n, k = _sizes(n, k)
    asked = as_tolerances(leak=leak, max_logit=max_logit)
    limits = Limits(max_norm, asked.max_logit)
    if leak is not None and not limits.any:
        raise InputError(f"leak must be None without max_norm and max_logit; got {shown(leak)}")
    gap = log_below(1 / Fraction(asked.leak))
    share = as_share(exceptions, "exceptions")
    needed = log_regular_patterns(n, k) + log_below(Fraction(share))
    dims = [least_dim(lambda dim: (_log_signs(dim, n), "signs"), needed, n)[0]]
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
    return Counting(max(dims), n, k, share)


def _log_signs(dim: int, n: int) -> Fraction:
    """Return a bound on the logarithm of the number of supports of heads of a size, of any norms.

    The support of row i is where q_i.k_j - t_i > 0, for some threshold t_i, and elsewhere this is
    negative. Such signs survive small changes, so let no t_i be 0 and the first `dim` keys be a
    basis; now divide row i by |t_i|, and choose coordinates in which the basis is the standard one.
    For each of the 2^n signs of thresholds, n^2 polynomials of degree 2 in v = 2 n dim - dim^2
    unknowns are left, whose strict signs have at most (8 e n^2 / v)^v values (Warren 1968, for
    v <= n^2). The size is at most n.
    """
    unknowns = 2 * n * dim - dim**2
    return n * log_above(2) + unknowns * (1 + log_above(Fraction(8 * n**2, unknowns)))


RATIO_BITS = 30
"""Ratios of norms to gaps are rounded up to so many binary digits after the point."""


def _log_heads(dim: int, ratio: Fraction, k: int) -> Fraction:
    """Return a bound on the logarithm of the number of patterns of heads, divided by n.

    Let the ratio be N / tau, and the norms of keys be at most N, those of queries at most 1. Once
    for all heads, take as many points of the ball of radius N as are x tau or more apart: every
    key is nearer than x tau to one of them. Rounding to it changes each logit by less than x tau.
    With all keys rounded, the logits on a row's support exceed the others by (1 - 2 x) tau still.
    Queries of different supports of k of these keys are (1 - 2 x) tau / N apart, and with the mean
    keys of the supports they are points in a ball of squared ratio N k / (2 (1 - 2 x) tau); see
    `Groups`. The number of heads is at most that of rounded keys, times that of such queries, to
    the power of n.
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
