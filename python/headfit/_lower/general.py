"""What most patterns need, and what one table of keys for every support needs.

**Most patterns.** There are at least as many k-regular patterns as `log_regular_patterns` says.
Heads of a size produce at most so many different ones: for any norms as many as the signs of their
logits less thresholds can form (`_log_signs`), for bounded ones as many as rounding keys leaves
(`_log_heads`).

**Every support.** Let k <= n / 2: a query for a support, with its sign changed, is one for the
complement.

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
   given one. As in `headfit._lower.bounded` (Groups), they give so many points in a ball with the
   squared ratio N sqrt(x k (n - k) / (n - 1)) / (2 tau (k - o)).
4. All C(n, k) supports, or those of such a code, are a family as in `headfit._lower.bounded`.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import Any

from headfit._base.arguments import as_count, as_share, shown
from headfit._base.tolerances import as_tolerances
from headfit._lower import exact
from headfit._lower.bounded import SQUARE_BITS, Facts, Limits, needed
from headfit.errors import InputError

MARKOV = (Fraction(3, 2), Fraction(2), Fraction(4))  # the x of step 3 that are tried
RATIO_BITS = 30  # Ratios of norms to gaps are rounded up to so many binary digits


@dataclass(frozen=True, repr=False)
class GeneralBound:
    """A proved lower bound on the head size, for many patterns at once.

    Attributes
    ----------
    dim : int
        What `about` names needs heads of this size. n + 1 if no size suffices.
    n, k : int
        The number of tokens, and of nonzeros in a row.
    about, reason : str
        What needs such a head, and the argument of the proof.
    """

    dim: int
    n: int
    k: int
    about: str
    reason: str

    @property
    def impossible(self) -> bool:
        """Whether no size suffices."""
        return self.dim > self.n

    def __repr__(self) -> str:
        size = "no size suffices" if self.impossible else f"d >= {self.dim}"
        return f"GeneralBound({size} for {self.about}: {self.reason})"


def _checked(
    n: Any, k: Any, leak: float | None, max_norm: float | None, max_logit: float | None
) -> tuple[int, int, float, Limits]:
    if leak is not None and max_norm is None and max_logit is None:
        raise InputError(f"leak must be None without max_norm and max_logit; got {shown(leak)}")
    n = as_count(n, "n", 1)
    tolerances = as_tolerances(leak=leak, max_logit=max_logit)
    return n, as_count(k, "k", 1, n), tolerances.leak, Limits(max_norm, tolerances.max_logit)


def every_subset(
    n: int,
    k: int,
    *,
    max_norm: float | None = None,
    max_logit: float | None = None,
    leak: float | None = None,
) -> GeneralBound:
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
        That of each support; `Tolerances` has the default. Only with one of the bounds.

    Returns
    -------
    GeneralBound
        With fewer dimensions some k keys have no query that puts them above the others, whatever
        the keys are.

    Raises
    ------
    InputError
        Unless n and k are integers with 1 <= k <= n, and for other arguments out of range.

    Notes
    -----
    Without bounds d >= min(2 k, n - k), by Radon's theorem; 2 k dimensions suffice (cyclic keys).
    With them it is of the order of k log(n / k), for norms near the least that are possible in any
    dimension, ln(1/leak) sqrt(k (n - k) (n - 1)) / n. ``headfit._lower.general`` has the proofs.

    Examples
    --------
    >>> every_subset(1000, 4)
    GeneralBound(d >= 8 for all sets of 4 of 1000 keys: Radon's theorem)
    >>> every_subset(1000, 4, max_norm=10.0, leak=0.05)
    GeneralBound(d >= 16 for all sets of 4 of 1000 keys: spherical code)
    """
    n, size, leak, limits = _checked(n, k, leak, max_norm, max_logit)
    k = min(size, n - size)  # negative queries serve the complements
    proofs = [(1, "a head has at least one dimension")]
    if k > 0:
        proofs.append((min(2 * k, n - k), "Radon's theorem"))
        if limits.any:
            proofs += _every_bounded(n, k, limits, leak)
    dim, reason = max(proofs, key=itemgetter(0))
    return GeneralBound(dim, n, size, f"all sets of {size} of {n} keys", reason)


def _every_bounded(n: int, k: int, limits: Limits, leak: float) -> list[tuple[int, str]]:
    gap, subsets = exact.log_below(1 / Fraction(leak)), math.comb(n, k)
    spread = Fraction(k * (n - k), n - 1)  # of a sum of k keys around its mean, for norms up to 1
    proofs = [needed(Facts(subsets, Fraction(1), False, False, True), limits, leak, n)]
    norm = None if limits.max_norm is None else Fraction(limits.max_norm)
    if norm is not None and (norm * n) ** 2 < gap**2 * k * (n - k) * (n - 1):
        proofs.append((n + 1, "sums of k keys are too short"))
    apart, steps = 0, []  # k - 1 keys in common, k - 2, and then ever fewer
    while apart < k:
        steps.append(k - 1 - apart)
        apart += 1 + apart // 8
    for common in reversed(steps):
        near = sum(math.comb(k, u) * math.comb(n - k, k - u) for u in range(common + 1, k + 1))
        share = Fraction(k - common, k)
        proofs.append(needed(Facts(-(-subsets // near), share, True, True, True), limits, leak, n))
        for times in MARKOV:
            if norm is None:
                break
            square = exact.root_above(times * spread) * norm / (2 * gap * (k - common))
            in_ball = functools.partial(exact.log_most, square=exact.shortened(square, SQUARE_BITS))
            proofs.append(exact.least_dim(in_ball, math.ceil((1 - 1 / times) * subsets / near), n))
    return proofs


def counting(
    n: int,
    k: int,
    *,
    max_norm: float | None = None,
    max_logit: float | None = None,
    leak: float | None = None,
    exceptions: float = 0.01,
) -> GeneralBound:
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
    exceptions : float, default 0.01
        The largest share of the patterns that may have smaller heads, in (0, 1].

    Returns
    -------
    GeneralBound
        Which patterns are the exceptions is not known: it says nothing about a given one.

    Raises
    ------
    InputError
        Unless n and k are integers with 1 <= k <= n, and for other arguments out of range.

    Notes
    -----
    There are more patterns than heads of a small size produce, in exact arithmetic; docs/bounds.md
    has the statements. For any norms the bound is near k / 2 for large n.

    Examples
    --------
    >>> counting(100_000, 16)
    GeneralBound(d >= 7 for all but a share of 0.01 of the 16-regular patterns of 100000 ...)
    >>> counting(1024, 4, max_norm=10.0, leak=0.05).dim
    5
    """
    n, k, leak, limits = _checked(n, k, leak, max_norm, max_logit)
    gap = exact.log_below(1 / Fraction(leak))
    share = as_share(exceptions, "exceptions")
    patterns = log_regular_patterns(n, k) + exact.log_below(Fraction(share))

    def heads(dim: int, limit: Fraction, is_logit: bool) -> exact.Most:
        norm = limit * exact.root_above(Fraction(dim)) if is_logit else limit
        return n * _log_heads(dim, exact.shortened(norm / gap, RATIO_BITS), k), "roundings of keys"

    proofs = [exact.least_dim(lambda dim: (_log_signs(dim, n), "signs of logits"), patterns, n)]
    for is_logit, value in ((False, limits.max_norm), (True, limits.max_logit)):
        if value is not None and 2 * Fraction(value) < gap and k < n:
            proofs.append((n + 1, "such a bound keeps no logit far enough below another"))
        elif value is not None:
            most = functools.partial(heads, limit=Fraction(value), is_logit=is_logit)
            proofs.append(exact.least_dim(most, patterns, n))
    dim, reason = max(proofs, key=itemgetter(0))
    about = f"all but a share of {share:g} of the {k}-regular patterns of {n} tokens"
    return GeneralBound(dim, n, k, f"{about}, not a given one", reason)


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
    return n * exact.log_above(2) + unknowns * (1 + exact.log_above(Fraction(8 * n**2, unknowns)))


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
        keys, _ = exact.log_most(dim, (ratio / x) ** 2)
        queries = min(
            exact.log_most(dim, (ratio / left) ** 2), exact.log_most(dim, ratio * k / (2 * left))
        )
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
    low, _ = exact.log_factorial(n)
    above = n * exact.log_above(n)
    total = few * low + sum(n * exact.log_below(n - t) - above for t in range(1, few))
    total -= sum(Fraction(n, s) * exact.log_factorial(s)[1] for s in range(2, few + 1))
    return max(Fraction(0), total)
