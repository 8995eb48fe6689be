"""The smallest head that stays close to a dense one: which sizes are tried, from which starts."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.dense_target import core_target_of, head_to_match, target_matrix
from headfit._attention.fitted_head import placed
from headfit._attention.logits import check_scale
from headfit._attention.module import SelfAttention
from headfit._base.arrays import as_array, as_count, check_finite
from headfit._fit.head import Head
from headfit._shrink.compare import Comparison, compare
from headfit._shrink.descent import EXACT, Callback, closest, svd_start

# A descent may end where total variation is this many times below its bound.
FAR = 10.0


@dataclass(frozen=True)
class Bounds:
    """How close attention must stay: bounds on total variation, infinite where there is none."""

    tv: float
    tv_worst: float

    @property
    def enough(self) -> float:
        """The mean KL divergence at which total variation is surely far below its bound."""
        if math.isinf(self.tv) or math.isfinite(self.tv_worst):
            return EXACT
        return max(EXACT, 2 * (self.tv / FAR) ** 2)

    def hold(self, comparison: Comparison) -> bool:
        """Whether a head is close enough."""
        return comparison.tv_mean <= self.tv and comparison.tv_worst <= self.tv_worst


class Original(NamedTuple):
    """What smaller heads are to come close to: one head, or a matrix and its mask; checked."""

    target: Attention | NDArray[Any]
    mask_of_matrix: Any

    @classmethod
    def of(cls, target: Any, mask: Any, threads: int) -> Original:
        """Check it. Rotary positions are applied."""
        head = head_to_match(target, "the head")
        if head is not None:
            head = head.rotated()
            for x, name in zip(head.stored, "QK", strict=True):
                check_finite(x, name)
            return cls(head, None)
        matrix = target_matrix(target)
        _core.check_soft_target(core_target_of(matrix, mask), threads)
        return cls(matrix, mask)

    @property
    def mask(self) -> Any:
        """The mask of smaller heads."""
        return self.target.mask if isinstance(self.target, Attention) else self.mask_of_matrix

    @property
    def most(self) -> int:
        """The size at which any logits have a head."""
        t = self.target
        return int(min(t.n, t.m) if isinstance(t, Attention) else min(t.shape))

    @property
    def dim(self) -> int:
        """The size of the original."""
        return self.target.dim if isinstance(self.target, Attention) else self.most

    @property
    def largest(self) -> int:
        """The largest size of a search; at that of a head the truncated SVD has all of Q K^T."""
        return min(self.dim, self.most)

    def is_svd(self, dim: int) -> bool:
        """Whether the truncated SVD of a size is the original itself: other options take more."""
        return (
            isinstance(self.target, Attention)
            and dim >= self.largest
            and {"scale", "mask"}.issuperset(self.target.options.non_default())
        )

    def curve_sizes(self, curve_dims: Any) -> list[int]:
        """Return the sizes for the curves, checked; for None powers of two up to that of a head."""
        if curve_dims is None:
            if not isinstance(self.target, Attention):
                return []
            powers = {2**e for e in range(self.largest.bit_length())}
            return sorted(powers | {self.largest})
        sizes = np.atleast_1d(as_array(curve_dims, "curve_dims"))
        return [as_count(d, "curve_dims", 1, self.largest) for d in sizes.tolist()]


class Candidate(NamedTuple):
    """A head of some size as it is stored, and how far it is from the original."""

    fields: dict[str, Any]  # those of a `FittedHead`
    comparison: Comparison
    head: Head


@dataclass
class Search:
    """Smaller heads of one attention: the closest of each size that was tried, so far."""

    original: Original
    bounds: Bounds
    effort: str | int
    init: Any
    module: SelfAttention | None
    dtype: str
    deadline: float
    callback: Callback | None
    seed: int
    threads: int
    tried: dict[int, Candidate] = field(default_factory=dict)
    svds: dict[int, Candidate] = field(default_factory=dict)

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit; negative after it."""
        return self.deadline - time.perf_counter()

    def svd(self, dim: int) -> Candidate:
        """Return the truncated SVD of a size, stored and judged as every other head is."""
        if dim not in self.svds:
            self.svds[dim] = self._judged(svd_start(*self.original, dim, self.seed))
        return self.svds[dim]

    def _judged(self, head: Head) -> Candidate:
        own = self.module is not None and self.module.dim == head.dim
        module = self.module if own else None
        scale = check_scale(None, head.dim) if module is None else module.scale
        attention, fields = placed(
            *head.stored(scale, self.dtype),
            scale=scale,
            dtype=self.dtype,
            mask=self.original.mask,
            module=module,
        )
        comparison = compare(self.original.target, attention, num_threads=self.threads)
        return Candidate(fields, comparison, head)

    def _descended(self, dim: int, effort: str | int, enough: float, init: Any) -> Candidate:
        head = closest(
            self.original.target,
            dim,
            mask=self.original.mask_of_matrix,
            seed=self.seed,
            threads=self.threads,
            effort=effort,
            enough=enough,
            time_limit=max(self.seconds_left, 1e-9),
            init=init,
            callback=self.callback,
        )
        return self._judged(head)

    def fit(self, dim: int, effort: str | int, enough: float, init: Any = None) -> Candidate:
        """Return the closest head of a size, by descents from a start and from a smaller head.

        The second descent is made where the smaller head is closer, since more columns must not
        do worse. KL divergence and total variation may disagree, and a descent ends where it is
        close enough, so the SVD and the smaller head themselves are kept where they are closer in
        total variation.
        """
        if dim in self.tried:
            return self.tried[dim]
        if self.original.is_svd(dim) or (effort == 0 and init is None):
            self.tried[dim] = self.svd(dim)
            return self.tried[dim]
        heads = [self._descended(dim, effort, enough, init), self.svd(dim)]
        smaller = max((d for d in self.tried if d < dim), default=0)
        if smaller:
            before = self.tried[smaller]
            if before.comparison.kl_mean < heads[0].comparison.kl_mean:
                init = before.fields["Q"] * before.fields["scale"], before.fields["K"]
                heads.append(self._descended(dim, effort, enough, init))
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
        return not self.bounds.hold(head.comparison), head.comparison.tv_mean

    def smallest(self) -> tuple[int, str]:
        """Return the smallest size that is close enough, and why the search ended.

        Sizes are doubled from 1, the cheapest to fit, and then bisected.
        """
        largest = self.original.largest

        def is_close(dim: int) -> bool:
            return self.bounds.hold(self.fit(dim, self.effort, self.bounds.enough).comparison)

        low, high = 0, 1
        while not is_close(high):
            if high == largest:
                return high, "no size is close enough"
            if self.seconds_left <= 0:
                whole = largest if self.original.is_svd(largest) else high
                self.fit(whole, self.effort, EXACT)
                return whole, "the time limit"
            low, high = high, min(2 * high, largest)
        while high - low > 1:
            if self.seconds_left <= 0:
                return high, "the time limit"
            middle = (low + high) // 2
            low, high = (low, middle) if is_close(middle) else (middle, high)
        return high, "bisected to neighbouring sizes"

    def extend(self, dims: Iterable[int]) -> None:
        """Try further sizes with low effort, after which no size is worse than a smaller one."""
        for dim in sorted(dims):
            if self.seconds_left > 0:
                self.fit(dim, 0 if self.effort == 0 else "low", self.bounds.enough)
        for smaller, dim in itertools.pairwise(sorted(self.tried)):
            self._not_worse(dim, smaller)
