"""How the largest logit grows with n, as far as certified heads tell: a trend, not a proof."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from headfit._plan.attempt import PlanAttempt

MOST_TIMES = 4096
"""A trend is not continued to more than so many times the largest n it was seen at."""


@dataclass(frozen=True)
class PlanTrend:
    """The least-squares line of the largest |logit| over log2 n, through certified heads.

    It is what was seen at smaller n, continued: nothing about the n asked for is proved.

    Attributes
    ----------
    sizes : tuple of int
        The n of the heads, in ascending order.
    logits : tuple of float
        Their largest |logit|.
    per_doubling : float
        By how much the largest |logit| grows when n doubles.
    n : int
        The n that was asked for.
    at_n : float
        The value of the line there.
    """

    sizes: tuple[int, ...]
    logits: tuple[float, ...]
    per_doubling: float
    n: int
    at_n: float

    def value(self, n: float) -> float:
        """Return the value of the line at another n."""
        return self.at_n + self.per_doubling * math.log2(n / self.n)


def trend_of(attempts: Iterable[PlanAttempt], n: int) -> PlanTrend | None:
    """Return the trend of the certified attempts at smaller n; None for fewer than two sizes."""
    seen = {a.n: a.max_logit for a in attempts if a.purpose == "smaller n" and a.holds}
    sizes = sorted(seen)
    if len(sizes) < 2 or n > MOST_TIMES * sizes[-1]:
        return None
    doublings = np.log2(np.array(sizes) / n)
    slope, value = np.polyfit(doublings, [seen[size] for size in sizes], 1)
    logits = tuple(seen[size] for size in sizes)
    return PlanTrend(tuple(sizes), logits, float(slope), n, float(value))
