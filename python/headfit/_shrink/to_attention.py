"""The smallest head that stays close to a dense one: which sizes are tried, from which starts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headfit._attention.attention import Attention
from headfit._soft.compare import SoftComparison
from headfit._soft.descent import EXACT
from headfit._soft.fit_soft import SoftFit, fit_soft

# A descent may end where total variation is this many times below what was asked.
FAR = 10.0


def powers_of_two(largest: int) -> list[int]:
    """Return 1, 2, 4, ... and `largest`."""
    return sorted({2**e for e in range(largest.bit_length())} | {largest})


@dataclass(frozen=True)
class Wanted:
    """What is asked of a smaller head, checked.

    `largest` is the size at which the truncated SVD is exact.
    """

    attention: Attention
    tv: float
    tv_worst: float
    effort: str | int
    deadline: float
    storage: str
    seed: int
    threads: int

    @property
    def largest(self) -> int:
        q, k = self.attention.stored
        return int(min(q.shape[1], q.shape[0], k.shape[0]))

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    @property
    def enough(self) -> float:
        """The mean KL divergence at which total variation is surely far below what was asked."""
        asked = self.tv if math.isinf(self.tv_worst) else 0.0
        return max(EXACT, 2 * (asked / FAR) ** 2) if math.isfinite(asked) else EXACT

    def is_close(self, comparison: SoftComparison) -> bool:
        return comparison.tv_mean <= self.tv and comparison.tv_worst <= self.tv_worst

    def options(self) -> dict[str, Any]:
        return {"dtype": self.storage, "rng": self.seed, "num_threads": self.threads}


@dataclass
class Sizes:
    """Heads of every size that was looked at, close to one attention."""

    wanted: Wanted
    found: dict[int, SoftFit] = field(default_factory=dict)
    svd: dict[int, SoftFit] = field(default_factory=dict)

    def start(self, dim: int) -> SoftFit:
        """Return the truncated SVD of a size, stored and judged as every other head is."""
        if dim not in self.svd:
            self.svd[dim] = fit_soft(
                self.wanted.attention,
                dim,
                callback=lambda *_: False,
                **self.wanted.options(),
            )
        return self.svd[dim]

    def start_all(self, dims: Iterable[int]) -> None:
        """Look at the truncated SVD of many sizes."""
        for dim in sorted(dims):
            self.start(dim)

    def _descend(self, dim: int, effort: str | int, enough: float, init: Any = None) -> SoftFit:
        left = self.wanted.seconds_left
        return fit_soft(
            self.wanted.attention,
            dim,
            effort=effort,
            enough=enough,
            init=init,
            time_limit=None if math.isinf(left) else max(left, 1e-9),
            **self.wanted.options(),
        )

    def fit(self, dim: int, effort: str | int, enough: float = EXACT) -> SoftFit:
        """Return the closest head of a size: from the SVD, and from a smaller head if better.

        More columns must not do worse, and KL and total variation may disagree: the SVD itself
        is kept where it is closer in what was asked.
        """
        if dim in self.found:
            return self.found[dim]
        if dim >= self.wanted.largest:
            self.found[dim] = self.start(dim)
            return self.found[dim]
        heads = [self._descend(dim, effort, enough), self.start(dim)]
        smaller = max((d for d in self.found if d < dim), default=0)
        if smaller:
            before = self.found[smaller]
            if before.comparison.kl_mean < heads[0].comparison.kl_mean:
                init = (before.Q * before.scale, before.K)
                heads.append(self._descend(dim, effort, enough, init))
        self.found[dim] = min(heads, key=self._distance)
        return self.found[dim]

    def _distance(self, head: SoftFit) -> tuple[bool, float]:
        c = head.comparison
        return not self.wanted.is_close(c), c.tv_mean

    def answer(self, dim: int | None) -> dict[str, Any]:
        """Return the head of a size, or the smallest that is close enough."""
        if dim is not None:
            fit, stopped = self.fit(dim, self.wanted.effort), "one size"
        else:
            fit, stopped = self._smallest()
        close = dim is not None or self.wanted.is_close(fit.comparison)
        return {"fit": fit, "stopped": stopped, "reached": close, "comparison": fit.comparison}

    def _smallest(self) -> tuple[SoftFit, str]:
        """Gallop up from size 1, where a fit costs least, then bisect: the smallest size found."""
        wanted, largest = self.wanted, self.wanted.largest

        def is_close(dim: int) -> bool:
            return wanted.is_close(self.fit(dim, wanted.effort, wanted.enough).comparison)

        low, high = 0, 1
        while not is_close(high):
            if high == largest:
                return self.found[high], "no size is close enough in this dtype"
            if wanted.seconds_left <= 0:
                return self.start(largest), "the time limit"
            low, high = high, min(2 * high, largest)
        while high - low > 1:
            if wanted.seconds_left <= 0:
                return self.found[high], "the time limit"
            middle = (low + high) // 2
            low, high = (low, middle) if is_close(middle) else (middle, high)
        return self.found[high], "bisected to neighbouring sizes"

    def fill(self, dims: Iterable[int]) -> None:
        """Look at further sizes, for the curves; quickly, as none of them is asked for."""
        for dim in sorted(dims):
            if self.wanted.seconds_left > 0:
                self.fit(dim, "low", self.wanted.enough)
        self.start_all({*dims, *self.found})
