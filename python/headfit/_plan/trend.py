"""How logits and times grow with n, as far as certified heads tell: a trend, not a proof."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    seconds : tuple of float
        The seconds that each of the heads took, with its certificate.
    seconds_at_n : float
        The power of n through the two largest of them, at the n asked for: on this machine, with
        what else it does.
    """

    sizes: tuple[int, ...]
    logits: tuple[float, ...]
    per_doubling: float
    n: int
    at_n: float
    seconds: tuple[float, ...]
    seconds_at_n: float

    def value(self, n: float) -> float:
        """Return the value of the line at another n."""
        return self.at_n + self.per_doubling * math.log2(n / self.n)


def trend_of(attempts: Iterable[PlanAttempt], n: int) -> PlanTrend | None:
    """Return the trend of the certified attempts at smaller n; None for fewer than two sizes."""
    seen = {a.n: a for a in attempts if a.purpose == "smaller n" and a.holds}
    sizes = sorted(seen)
    if len(sizes) < 2 or n > MOST_TIMES * sizes[-1]:
        return None
    doublings = np.log2(np.array(sizes) / n)
    logits = tuple(seen[size].max_logit for size in sizes)
    slope, value = np.polyfit(doublings, logits, 1)
    seconds = tuple(seen[size].seconds for size in sizes)
    at_n = seconds[-1] * (n / sizes[-1]) ** _power(sizes[-2:], seconds[-2:])
    return PlanTrend(tuple(sizes), logits, float(slope), n, float(value), seconds, at_n)


def _power(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the power of n with which the time grows: at least 1, and at most 2, as of scans."""
    grown = math.log(seconds[1] / seconds[0]) / math.log(sizes[1] / sizes[0])
    return min(max(grown, 1.0), 2.0)
