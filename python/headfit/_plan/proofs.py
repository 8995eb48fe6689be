"""What is proved about the head size before any head is sought."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np

from headfit import bounds
from headfit._base.kernel import Kernel
from headfit._base.tolerances import Tolerances, log_inverse
from headfit._target.target import Target
from headfit.errors import InputError

LONGEST_BOUND = 3.0
"""The most seconds of a search for a lower bound, which finds little more in a longer time."""

MOST_NONZEROS = 10**7
"""No lower bound is looked for in a larger pattern: preparing the search would take too long."""


class Proved(NamedTuple):
    """A lower bound on the size, a size that always suffices, and the least bound on logits.

    `least_logit` is a bound on |logit| below which no head of any size meets the leak.
    """

    lower: bounds.LowerBound | None = None
    projection_dim: int | None = None
    least_logit: float = 0.0

    def refutes(self, dim: int, tolerances: Tolerances) -> bool:
        """Return whether it is proved that no head of this size meets the tolerances."""
        too_small = self.lower is not None and self.lower.dim > dim
        return too_small or tolerances.logit_limit < self.least_logit


def prove(target: Target, tolerances: Tolerances, seconds: float, kernel: Kernel) -> Proved:
    """Return what is proved in about so many seconds."""
    lower = suffices = None
    if target.nonzeros <= MOST_NONZEROS:
        limit = max(min(seconds, LONGEST_BOUND), 1e-3)
        exact = tolerances.before_rounding(kernel)
        lower = bounds.lower(target, tolerances=exact, time_limit=limit)
    with suppress(InputError):  # the size would be 2**62 or more
        suffices = bounds.projection_dim(
            target.n, target.per_row, target.gamma, tolerances.leak, tolerances.distortion
        )
    return Proved(lower, suffices, least_logit(target, tolerances.leak))


def least_logit(target: Target, leak: float) -> float:
    """Return the least bound on |logit| with which any head, of any size, can meet the leak.

    A row that attends to some visible columns and not to others needs logits that differ by
    log(1 / leak), and so a |logit| of at least half of that. 0 where no such row is known: rows
    are looked at without a mask and with "causal", and not under other masks.
    """
    is_causal = isinstance(target.mask, str) and target.mask == "causal"
    if target.mask is not None and not is_causal:
        return 0.0
    sizes = np.diff(target.csr_arrays[0])
    visible = np.arange(1, target.n + 1) if is_causal else target.n
    return log_inverse(leak) / 2 if np.any((sizes > 0) & (sizes < visible)) else 0.0
