"""The smallest head that stays close to a dense one: which sizes are tried, from which starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headfit._shrink.original import Original
from headfit._shrink.result import TvCurve
from headfit._soft.compare import Comparison
from headfit._soft.descent import EXACT
from headfit._soft.fit_soft import SoftFit, fit_soft

# A descent may end where total variation is this many times below what was asked.
FAR = 10.0


@dataclass(frozen=True)
class Closeness:
    """How close attention must stay: bounds on total variation, infinite where there is none."""

    tv: float
    tv_worst: float

    @property
    def enough(self) -> float:
        """The mean KL divergence at which total variation is surely far below what was asked."""
        asked = self.tv if math.isinf(self.tv_worst) else 0.0
        return max(EXACT, 2 * (asked / FAR) ** 2) if math.isfinite(asked) else EXACT

    def holds(self, comparison: Comparison) -> bool:
        """Whether a head is close enough."""
        return comparison.tv_mean <= self.tv and comparison.tv_worst <= self.tv_worst


@dataclass
class CloseHeads:
    """Heads that are close to one attention: the closest that was found, for each size tried."""

    original: Original
    closeness: Closeness
    effort: str | int
    found: dict[int, SoftFit] = field(default_factory=dict)

    def _descend(self, dim: int, effort: str | int, enough: float, init: Any = None) -> SoftFit:
        left = self.original.seconds_left
        return fit_soft(
            self.original.attention,
            dim,
            effort=effort,
            enough=enough,
            init=init,
            time_limit=None if math.isinf(left) else max(left, 1e-9),
            **self.original.options(),
        )

    def fit(self, dim: int, effort: str | int, enough: float = EXACT) -> SoftFit:
        """Return the closest head of a size, by descents from the SVD and from a smaller head.

        The second descent is made where the smaller head is closer, since more columns must not
        do worse. KL divergence and total variation may disagree, and a descent ends where it is
        close enough, so the SVD and the smaller head themselves are kept where they are closer in
        what was asked.
        """
        if dim in self.found:
            return self.found[dim]
        if self.original.is_svd(dim):
            self.found[dim] = self.original.svd(dim)
            return self.found[dim]
        heads = [self._descend(dim, effort, enough), self.original.svd(dim)]
        smaller = max((d for d in self.found if d < dim), default=0)
        if smaller:
            before = self.found[smaller]
            if before.comparison.kl_mean < heads[0].comparison.kl_mean:
                init = (before.Q * before.scale, before.K)
                heads.append(self._descend(dim, effort, enough, init))
        self.found[dim] = min(heads, key=self._distance)
        if smaller:
            self._not_worse(dim, smaller)
        return self.found[dim]

    def _not_worse(self, dim: int, smaller: int) -> None:
        """Replace a head by a smaller one with zero columns if that is closer."""
        head, before = self.found[dim], self.found[smaller]
        if self._distance(before) < self._distance(head):
            self.found[dim] = min(head, self._padded(before, dim), key=self._distance)

    def _padded(self, head: SoftFit, dim: int) -> SoftFit:
        """Return the same logits as a head of a larger size, with zero columns."""
        missing = ((0, 0), (0, dim - head.dim))
        return fit_soft(
            self.original.attention,
            dim,
            init=(np.pad(head.Q * head.scale, missing), np.pad(head.K, missing)),
            callback=lambda *_: False,
            **self.original.options(),
        )

    def _distance(self, head: SoftFit) -> tuple[bool, float]:
        c = head.comparison
        return not self.closeness.holds(c), c.tv_mean

    def answer(self, dim: int | None) -> tuple[SoftFit, str, bool]:
        """Return the head of a size, or the smallest that is close enough.

        With it come why the search ended, and whether the head does what was asked.
        """
        if dim is not None:
            return self.fit(dim, self.effort), "one size", True
        fit, stopped = self._smallest()
        return fit, stopped, self.closeness.holds(fit.comparison)

    def _smallest(self) -> tuple[SoftFit, str]:
        """Return the smallest head found: double from size 1, the cheapest to fit, then bisect."""
        original, largest = self.original, self.original.largest

        def is_close(dim: int) -> bool:
            fit = self.fit(dim, self.effort, self.closeness.enough)
            return self.closeness.holds(fit.comparison)

        low, high = 0, 1
        while not is_close(high):
            if high == largest:
                return self.found[high], "no size is close enough"
            if original.seconds_left <= 0:
                return original.svd(largest), "the time limit"
            low, high = high, min(2 * high, largest)
        while high - low > 1:
            if original.seconds_left <= 0:
                return self.found[high], "the time limit"
            middle = (low + high) // 2
            low, high = (low, middle) if is_close(middle) else (middle, high)
        return self.found[high], "bisected to neighbouring sizes"

    def curve(self, dims: Iterable[int]) -> TvCurve:
        """Return the curve over all sizes tried and over `dims`, fitted with low effort."""
        for dim in sorted(dims):
            if self.original.seconds_left > 0:
                self.fit(dim, "low", self.closeness.enough)
        # Sizes were not fitted in rising order: some may be further away than smaller ones.
        for smaller, dim in itertools.pairwise(sorted(self.found)):
            self._not_worse(dim, smaller)
        return TvCurve.of({d: head.comparison for d, head in self.found.items()})
