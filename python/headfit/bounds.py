"""Bounds on the head size, and conversions between tolerances.

`projection_dim`, `lower` and the conversions are proved for every pattern; `every_subset` is
proved for all supports of k keys at once. `counting` is a bound for most random patterns and
`random_keys_dim` an asymptotic estimate; neither says anything certain about a given pattern.
docs/bounds.md states the bounds for bounded norms and logits.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction

from headfit._base.arguments import as_count, as_flag, as_number, as_share, check_between
from headfit._base.arrays import float_above
from headfit._base.tolerances import Tolerances, as_tolerances, log_inverse
from headfit._lower.general import GeneralBound, counting, every_subset
from headfit._lower.lower import LowerBound, lower
from headfit.errors import InputError

__all__ = [
    "GeneralBound", "LowerBound", "counting", "every_subset", "leak_for_stray", "logit_range",
    "lower", "projection_dim", "random_keys_dim", "stray_for_leak",
]  # fmt: skip
__dir__ = __all__.copy

_LARGEST_LOG_RATIO = math.log(sys.float_info.max) - math.log(math.ulp(0.0))  # of two floats


def logit_range(
    gamma: float,
    leak: float | None = None,
    distortion: float | None = None,
    *,
    tolerances: Tolerances | None = None,
) -> float:
    """Return R, the largest target logit: log(1/leak) + log(1 + distortion) + log(gamma).

    Parameters
    ----------
    gamma : float
        The largest ratio of two weights in the same row of the pattern, at least 1. Infinite
        where it exceeds the largest float; R is about the largest ratio of two floats then.
    leak, distortion : float, optional
        See `Tolerances`, which has the defaults.
    tolerances : Tolerances, optional
        The same as one object, in their place, without a `max_logit`.

    Returns
    -------
    float
        The range of the logits that `projection_dim` is about, in nats. Takes O(1) time.

    Raises
    ------
    InputError
        For an argument out of range.

    Examples
    --------
    >>> round(logit_range(gamma=2.0, leak=0.05, distortion=0.25), 3)
    3.912
    """
    ratio = as_number(gamma, "gamma", "be a number that is at least 1", lambda ratio: ratio >= 1)
    log_gamma = _LARGEST_LOG_RATIO if math.isinf(ratio) else math.log(ratio)
    limits = as_tolerances(tolerances, leak=leak, distortion=distortion)
    if limits.max_logit is not None:
        raise InputError(
            "tolerances must have max_logit=None here: the projection's logits are what they "
            f"are; got {limits!r}"
        )
    return log_inverse(limits.leak) + math.log1p(limits.distortion) + log_gamma


def projection_dim(
    n: int,
    k: int,
    gamma: float = 1.0,
    leak: float | None = None,
    distortion: float | None = None,
    failure: float = 1e-6,
    *,
    tolerances: Tolerances | None = None,
) -> int:
    """Return a head size that suffices for the projection method, for every pattern.

    Parameters
    ----------
    n : int
        The number of tokens.
    k : int
        The most nonzeros in a row.
    gamma : float
        The largest ratio of two weights of one row, as for `logit_range`.
    leak, distortion : float, optional
        The tolerances to meet; `Tolerances` has the defaults. The distortion must be above 0.
    failure : float
        The largest probability that a random sketch of this size misses the tolerances,
        in (0, 1].
    tolerances : Tolerances, optional
        Leak and distortion as one object, in their place, without a `max_logit`.

    Returns
    -------
    int
        The least d with d >= (2 ln n + ln 4 + ln(1/failure)) / (e**2 / 4 - e**3 / 6), where
        e = min(1, delta / (2 sqrt(k) R)), delta = log(1 + distortion), R = `logit_range`.

    Raises
    ------
    InputError
        For an argument out of range, or if the size would be 2**62 or more.

    Notes
    -----
    Let B be the target logits: log(A_ij / min of row i) + log(1/leak) + delta on the support,
    0 elsewhere, so 0 <= B <= R. If |S_ij - B_ij| <= delta / 2 for all i, j, both tolerances hold:
    on the support S - log A spreads by at most delta, and the least logit there is at least
    log(1/leak) above the largest elsewhere.

    The method's logits are S_ij = <G^T b_i, G^T e_j> / d with b_i the row of B, ||b_i|| <=
    sqrt(k) R, and G (n, d) with independent entries of mean 0 and variance 1, Gaussian or +-1.
    For unit vectors u, v, by polarisation, <G^T u, G^T v> / d differs from <u, v> by at most
    e (||u + v||^2 + ||u - v||^2) / 4 = e when ||G^T w||^2 / d lies within (1 +- e) ||w||^2 for
    w = u + v and w = u - v. For each w, each of the two inequalities fails with probability at
    most exp(-d (e^2/4 - e^3/6)) (Johnson and Lindenstrauss; Dasgupta and Gupta 2003 for Gaussian,
    Achlioptas 2003 for +-1 entries; 0 < e <= 1). A union bound over four events for each of n**2
    pairs, with e sqrt(k) R = delta / 2, gives the result. It holds in exact arithmetic; the
    certificate of a fit takes rounding into account. Takes O(1) time.

    Examples
    --------
    >>> projection_dim(1024, 4, gamma=2.0, leak=0.05, distortion=0.25, failure=1.0)
    302839
    """
    n = as_count(n, "n", 1)
    k = as_count(k, "k", 1, n)
    failure = as_share(failure, "failure")
    limits = as_tolerances(tolerances, leak=leak, distortion=distortion)
    spread = logit_range(gamma, tolerances=limits)
    e = min(1.0, math.log1p(limits.distortion) / (2 * math.sqrt(k) * spread))
    rate = e**2 / 4 - e**3 / 6
    events = 2 * math.log(n) + math.log(4) - math.log(failure)
    if not rate > events / 2**62:
        raise InputError(
            f"distortion must be large enough for a size below 2**62; got {limits.distortion}"
        )
    return math.ceil(events / rate)


def stray_for_leak(n: int, k: int, leak: float) -> float:
    """Return the most mass that a row with a given leak can have off its support.

    Parameters
    ----------
    n, k : int
        The number of tokens, and of nonzeros in the row.
    leak : float
        The leak of the row, in (0, 1).

    Returns
    -------
    float
        leak (n - k) / (k + leak (n - k)): the n - k other entries are each at most leak times
        the least of the k, and the worst case is that all of these are equal. Takes O(1) time.

    Raises
    ------
    InputError
        For an argument out of range, or if k > n.

    Examples
    --------
    >>> stray_for_leak(1024, 4, leak=4 / 1024)
    0.4990215...
    """
    n = as_count(n, "n", 1)
    k = as_count(k, "k", 1, n)
    leak = Tolerances(leak=leak).leak
    off = Fraction(leak) * (n - k)
    return float_above(off / (k + off))


def leak_for_stray(n: int, k: int, stray: float) -> float:
    """Return the leak that guarantees at most a given mass off the support.

    Parameters
    ----------
    n, k : int
        The number of tokens, and the least number of nonzeros in a row.
    stray : float
        The mass s that is allowed off the support, in (0, 1).

    Returns
    -------
    float
        s k / ((1 - s) (n - k)), at most 1. For small s this is about s k / n, much less than s,
        since the leak bounds each of the n - k entries off the support. Takes O(1) time.

    Raises
    ------
    InputError
        For an argument out of range, or if k > n.

    Examples
    --------
    >>> round(leak_for_stray(1024, 4, stray=0.01), 7)
    3.96e-05
    """
    n = as_count(n, "n", 1)
    k = as_count(k, "k", 1, n)
    stray = check_between(stray, "stray", 0, 1)
    s = Fraction(stray)
    return 1.0 if n == k else min(1.0, -float_above(-s * k / ((1 - s) * (n - k))))


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

    n = as_count(n, "n", 1)
    k = as_count(k, "k", 1, n)
    all_subsets = as_flag(all_subsets, "all_subsets")
    factor, few = (2 * math.e * k, n / (2 * math.sqrt(math.pi))) if all_subsets else (2.0 * k, n)
    # d = f ln(m / d) is equivalent to (d / f) e^(d / f) = m / f, which Lambert's W function solves.
    return min(n, max(1, math.ceil(factor * float(lambertw(few / factor).real))))
