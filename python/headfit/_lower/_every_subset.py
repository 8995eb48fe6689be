"""A lower bound on the head size at which one table of keys serves every support of k keys.

Let k <= n / 2: a query for a support, with its sign changed, is one for the complement.

1. Any norms: d >= min(2 k, n - k). Any d + 2 of the keys have two disjoint parts whose convex hulls
   meet (Radon). If d <= 2 k - 1, the smaller part has at most k keys. If d <= n - k - 1, the larger
   has at most d + 1 <= n - k, so that some support contains the smaller part and nothing of the
   larger. A query for it would separate hulls that meet.
2. Sums of keys. Let keys have norms up to 1 and queries up to N, the scale included, and let tau =
   log(1 / leak). For a support T let s_T be the sum of its keys minus k times the mean of all keys.
   Each of the k (n - k) differences of a key on T and one off it has a product of at least tau with
   q_T; they add up to n s_T. So q_T.s_T >= tau k (n - k) / n. Over all T the mean of ||s_T||^2 is
   k (n - k) / (n (n - 1)) times the sum of ||k_j - mean||^2 <= n. Hence no size suffices unless
   N >= tau sqrt(k (n - k) (n - 1)) / n.
3. Points in a ball. For supports T and U with o common keys, s_T - s_U is the sum of the k - o keys
   of T alone less that of the k - o keys of U alone. Its product with q_T is at least tau (k - o),
   that with q_U at most -tau (k - o): (q_T - q_U).(s_T - s_U) >= 2 tau (k - o). By Markov's
   inequality all but a share 1 / x of the supports have ||s_T||^2 <= x k (n - k) / (n - 1). Take
   such supports greedily, each excluding those that share more than o keys with it: at least
   (1 - 1 / x) C(n, k) / V are taken, where V counts the supports that share more than o keys with a
   given one. As in `headfit._lower._bounded` (Groups), they give so many points in a ball with the
   squared ratio N sqrt(x k (n - k) / (n - 1)) / (2 tau (k - o)).
4. All C(n, k) supports, or those of such a code, are a family as in `headfit._lower._families`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from headfit._base.arrays import as_count
from headfit._base.tolerances import as_tolerances
from headfit._lower._bounded import SQUARE_BITS, Limits, needed
from headfit._lower._exact import log_below, root_above, shortened
from headfit._lower._families import Facts
from headfit._lower._packing import least_dim, log_most

MARKOV = (Fraction(3, 2), Fraction(2), Fraction(4))
"""At most the share 1 / x of the subsets has more than x times the mean; these x are tried."""


@dataclass(frozen=True, repr=False)
class EverySubset:
    """A proved lower bound on the size at which one table of n keys serves every k of them.

    Attributes
    ----------
    dim : int
        With fewer dimensions some k keys have no query that puts them above the others, whatever
        the keys are. n + 1 if no size suffices.
    reason : str
        The argument of the proof.
    n, k : int
    leak : float
    max_norm, max_logit : float or None
        The bounds that it is proved for.
    impossible : bool
        Whether no size suffices within the bounds.
    """

    dim: int
    reason: str
    n: int
    k: int
    leak: float
    max_norm: float | None
    max_logit: float | None

    @property
    def impossible(self) -> bool:
        """Whether no size suffices."""
        return self.dim > self.n

    def __repr__(self) -> str:
        what = "no size suffices" if self.impossible else f"d >= {self.dim}"
        return f"EverySubset({what} for all sets of {self.k} of {self.n} keys: {self.reason})"


def every_subset(
    n: int,
    k: int,
    *,
    max_norm: float | None = None,
    max_logit: float | None = None,
    leak: float | None = None,
) -> EverySubset:
    """Bound the head size at which one table of keys serves every support of k of n keys.

    Parameters
    ----------
    n, k : int
        The number of keys, and the size of the supports.
    max_norm : float, optional
        A bound on scale × max ‖q‖ × max ‖k‖.
    max_logit : float, optional
        A bound on every |logit|.
    leak : float, optional
        What each support has: the largest weight off it over the smallest on it. `Tolerances` has
        the default.

    Returns
    -------
    EverySubset

    Raises
    ------
    InputError
        Unless n and k are integers with 1 <= k <= n, and for other arguments out of range.

    Notes
    -----
    Without bounds d >= min(2 k, n - k), by Radon's theorem; 2 k dimensions suffice (cyclic keys).
    With them the bound is of the order of k log(n / k), for norms near the least that are possible
    in any dimension, k ln(1/leak) sqrt((n - k) (n - 1) / k) / n. The docstring of the module has
    the proofs.

    Examples
    --------
    >>> every_subset(1000, 4)
    EverySubset(d >= 8 for all sets of 4 of 1000 keys: Radon's theorem)
    >>> every_subset(1000, 4, max_norm=10.0, leak=0.05)
    EverySubset(d >= 16 for all sets of 4 of 1000 keys: spherical code)
    """
    n = as_count(n, "n", 1)
    asked = as_count(k, "k", 1, n)
    tolerances = as_tolerances(leak=leak, max_logit=max_logit)
    limits = Limits(max_norm, tolerances.max_logit)
    k = min(asked, n - asked)  # negative queries serve the complements
    found = [(1, "a head has at least one dimension")]
    if k > 0:
        found.append((min(2 * k, n - k), "Radon's theorem"))
        if limits.any:
            found += _bounded(n, k, limits, tolerances.leak)
    dim, reason = max(found, key=lambda item: item[0])
    return EverySubset(dim, reason, n, asked, tolerances.leak, limits.max_norm, limits.max_logit)


def _bounded(n: int, k: int, limits: Limits, leak: float) -> list[tuple[int, str]]:
    """Return the bounds from norms and logits."""
    gap = log_below(1 / Fraction(leak))
    subsets = math.comb(n, k)
    spread = Fraction(k * (n - k), n - 1)  # of a sum of k keys around its mean, for norms up to 1
    found = [needed(Facts(subsets, Fraction(1), False, False, True), limits, leak, n)]
    if limits.max_norm is not None:
        norm = Fraction(limits.max_norm)
        if (norm * n) ** 2 < gap**2 * k * (n - k) * (n - 1):
            found.append((n + 1, "sums of k keys are too short"))
    for common in sorted({k - 1 - x for x in _steps(k)}):
        near = sum(math.comb(k, u) * math.comb(n - k, k - u) for u in range(common + 1, k + 1))
        points = -(-subsets // near)
        share = Fraction(k - common, k)
        found.append(needed(Facts(points, share, True, True, True), limits, leak, n))
        if limits.max_norm is None:
            continue
        for times in MARKOV:
            points = math.ceil((1 - 1 / times) * subsets / near)
            square = root_above(times * spread) * norm / (2 * gap * (k - common))
            in_ball = functools.partial(log_most, square=shortened(square, SQUARE_BITS))
            found.append(least_dim(in_ball, points, n))
    return found


def _steps(k: int) -> list[int]:
    """Return some numbers from 0 to k - 1: the small ones, and then ever fewer."""
    steps, x = [], 0
    while x < k:
        steps.append(x)
        x += 1 + x // 8
    return steps
