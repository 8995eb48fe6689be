"""How many points with distance 1 or more lie in a ball, at most: bounds in exact arithmetic.

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
  not shrink; so the cosines of the angles are at most s = 1 - 1 / (2 q), and `log_code` applies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction

from headfit._lower._exact import log_above, log_below, root_above
from headfit._lower._spherical_code import log_code

Most = tuple[Fraction, str]
"""An upper bound on the logarithm of a number of points, and the name of its proof."""


@functools.lru_cache(maxsize=4096)
def log_most(dim: int, square: Fraction) -> Most:
    """Return a bound on the logarithm of the number of points; `square` is q above."""
    if 4 * square < 1:
        return Fraction(0), "simplex"  # two points do not fit
    found: list[Most] = []
    if 2 * square < 1:
        found.append((log_above(1 / (1 - 2 * square)), "simplex"))
        found.append((log_above(dim + 1), "obtuse angles"))
    elif 2 * square == 1:
        found.append((log_above(2 * dim), "obtuse angles"))
    found.append((dim * log_above(1 + root_above(4 * square)), "volume"))
    mean = log_above(Fraction(dim + 2, 2)) + dim * log_above(1 + root_above(2 * square))
    found.append((mean, "mean distance"))
    if 2 * square > 1:
        code = log_code(dim + 1, 1 - 1 / (2 * square))
        if code is not None:
            found.append((code, "spherical code"))
    return min(found)


def least_dim(most: Callable[[int], Most], points: int | Fraction, largest: int) -> tuple[int, str]:
    """Return the least head size that is not excluded, and the proof that excludes the one below.

    Parameters
    ----------
    most : callable
        The bound on the logarithm of the number of points, for each size.
    points : int or Fraction
        The number of points, or a lower bound on its logarithm as a Fraction.
    largest : int
        Larger sizes are as good as this one. `largest + 1` is returned if it is excluded too.

    Returns
    -------
    tuple of int and str
    """
    needed = points if isinstance(points, Fraction) else log_below(points)
    low, step = 0, 1  # size `low` is excluded
    reason = "a head has at least one dimension"
    while low + step <= largest:
        bound, name = most(low + step)
        if bound >= needed:
            break
        low, reason, step = low + step, name, 2 * step
    high = min(low + step, largest + 1)
    while high - low > 1:
        middle = (low + high) // 2
        bound, name = most(middle)
        if bound < needed:
            low, reason = middle, name
        else:
            high = middle
    return low + 1, reason
