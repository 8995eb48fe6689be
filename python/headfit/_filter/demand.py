"""What a filter must meet: the tolerances of a certificate, as limits on logits at each offset."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headfit._base.tolerances import Tolerances
from headfit._filter.filter import Filter
from headfit._filter.stencil import Stencil

__all__ = ["Demand"]

# How far, in logits, a filter may exceed what a linear program was asked for.
SLACK = 5e-4

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Demand:
    """A stencil, and the tolerances to meet.

    With c and m free: |p(x) - c - log_weights| <= spread / 2 and p(x) >= m where x is in the
    stencil, p(x) <= m - gap at all other allowed offsets, and |p(x)| <= max_logit at all of them.
    Rows near the ends, which have only a part of the stencil, meet the same limits.
    """

    stencil: Stencil
    tolerances: Tolerances
    others: NDArray[np.int64] = field(init=False)
    is_symmetric: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "others", self.stencil.others)
        object.__setattr__(self, "is_symmetric", self.stencil.is_symmetric)

    @property
    def spread(self) -> float:
        """By how much logits in the stencil, less the logarithms of weights, may differ."""
        return math.log1p(self.tolerances.distortion)

    @property
    def gap(self) -> float:
        """How far below the least logit in the stencil all others must lie."""
        return -math.log(self.tolerances.leak)

    @property
    def max_logit(self) -> float:
        """The largest |logit|; infinite without a limit."""
        limit = self.tolerances.max_logit
        return math.inf if limit is None else limit

    def deficits(self, found: Filter) -> tuple[Floats, Floats, Floats]:
        """Return what a filter lacks: in the spread, at each other offset, and in |logit|.

        Positive numbers are logits that are missing. The spread's is one number; the other two
        have one for each of `others` and for each allowed offset.
        """
        stencil = self.stencil
        p = found.logits_between(stencil.first, stencil.last)
        inside = p[stencil.offsets - stencil.first]
        error = inside - stencil.log_weights
        spread = np.array([error.max() - error.min() - self.spread])
        above = p[self.others - stencil.first] - (inside.min() - self.gap)
        return spread, above, np.abs(p) - self.max_logit

    def lacks(self, found: Filter) -> float:
        """Return the largest deficit of a filter; at most `SLACK` when it meets the demand."""
        return float(max(part.max(initial=-math.inf) for part in self.deficits(found)))
