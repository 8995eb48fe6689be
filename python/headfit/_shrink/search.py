"""The smallest head that stays close to a dense one: which sizes are tried, from which starts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from headfit._attention.fitted_head import placed
from headfit._attention.logits import check_scale
from headfit._attention.module import SelfAttention
from headfit._fit.head import Head
from headfit._shrink.compare import Comparison, compare
from headfit._shrink.descent import EXACT, Running, closest, smallest_size
from headfit._shrink.original import Original

# A descent may end where total variation is this many times below its bound.
FAR = 10.0


class Candidate(NamedTuple):
    """A head of some size as it is stored, and how far it is from the original."""

    fields: dict[str, Any]  # those of a `FittedHead`
    comparison: Comparison
    head: Head


@dataclass
class Search:
    """Smaller heads of one attention: the closest of each size that was tried, so far."""

    original: Original
    running: Running
    module: SelfAttention | None
    tv: float  # bounds on total variation, infinite where there is none
    tv_worst: float
    tried: dict[int, Candidate] = field(default_factory=dict)
    svds: dict[int, Candidate] = field(default_factory=dict)

    @property
    def enough(self) -> float:
        """The mean KL divergence at which total variation is surely far below its bound."""
        if math.isinf(self.tv) or math.isfinite(self.tv_worst):
            return EXACT
        return max(EXACT, 2 * (self.tv / FAR) ** 2)

    def is_close(self, comparison: Comparison) -> bool:
        """Whether a head is within the bounds."""
        return comparison.tv_mean <= self.tv and comparison.tv_worst <= self.tv_worst

    def svd(self, dim: int) -> Candidate:
        """Return the truncated SVD of a size, stored and judged as every other head is."""
        if dim not in self.svds:
            self.svds[dim] = self._judged(self.original.svd(dim, self.running.seed))
        return self.svds[dim]

    def _judged(self, head: Head) -> Candidate:
        dtype, mask = self.running.dtype, self.original.mask
        own = self.module is not None and self.module.dim == head.dim
        module = self.module if own else None
        scale = check_scale(None, head.dim) if module is None else module.scale
        Q, K = head.stored(scale, dtype)
        attention, made = placed(Q, K, scale=scale, dtype=dtype, mask=mask, module=module)
        distances = compare(self.original.target, attention, num_threads=self.running.threads)
        return Candidate(made, distances, head)

    def fit(
        self, dim: int, enough: float, init: Any = None, running: Running | None = None
    ) -> Candidate:
        """Return the closest head of a size, by descents from a start and from a smaller head.

        The second descent is made where the smaller head is closer, since more columns must not
        do worse. KL divergence and total variation may disagree, and a descent ends where it is
        close enough, so the SVD and the smaller head themselves are kept where they are closer in
        total variation.
        """
        running = running or self.running
        if dim in self.tried:
            return self.tried[dim]
        if self.original.is_svd(dim) or (running.effort == 0 and init is None):
            self.tried[dim] = self.svd(dim)
            return self.tried[dim]

        def descended(start: Any) -> Candidate:
            return self._judged(closest(self.original, dim, running, enough=enough, init=start))

        heads = [descended(init), self.svd(dim)]
        smaller = max((d for d in self.tried if d < dim), default=0)
        if smaller:
            before = self.tried[smaller]
            if before.comparison.kl_mean < heads[0].comparison.kl_mean:
                heads.append(
                    descended((before.fields["Q"] * before.fields["scale"], before.fields["K"]))
                )
        self.tried[dim] = min(heads, key=self._distance)
        if smaller:
            self._not_worse(dim, smaller)
        return self.tried[dim]

    def _not_worse(self, dim: int, smaller: int) -> None:
        """Replace a head by a smaller one with zero columns if that is closer."""
        head, before = self.tried[dim], self.tried[smaller]
        if self._distance(before) < self._distance(head):
            padded = self._judged(before.head.padded(dim))
            self.tried[dim] = min(head, padded, key=self._distance)

    def _distance(self, head: Candidate) -> tuple[bool, float]:
        return not self.is_close(head.comparison), head.comparison.tv_mean

    def smallest(self) -> tuple[int, str]:
        """Return the smallest size that is close enough, and why the search ended.

        Where there is no time for one, it is the size of the original, if that is an SVD away.
        """
        largest = self.original.largest

        def holds(dim: int) -> bool:
            return self.is_close(self.fit(dim, self.enough).comparison)

        size, last, stopped = smallest_size(holds, largest, self.running)
        if size is None:
            size = largest if self.original.is_svd(largest) else last
            self.fit(size, EXACT)
        return size, stopped

    def extend(self, dims: Iterable[int]) -> None:
        """Try further sizes with low effort, after which no size is worse than a smaller one."""
        quick = replace(self.running, effort=0 if self.running.effort == 0 else "low")
        for dim in sorted(dims):
            if self.running.seconds_left > 0:
                self.fit(dim, self.enough, running=quick)
        for smaller, dim in itertools.pairwise(sorted(self.tried)):
            self._not_worse(dim, smaller)
