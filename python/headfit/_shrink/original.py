"""The head that is to be shrunk, and the heads that truncated SVDs of its logits give."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headfit._attention.attention import Attention
from headfit._attention.dense_target import head_to_match
from headfit._base.arrays import (
    as_array,
    as_count,
    check_between,
    check_finite,
    seed_from,
    thread_count,
)
from headfit._base.dtypes import check_dtype
from headfit._shrink.result import TvCurve
from headfit._soft.fit_soft import SoftFit, fit_soft


@dataclass(frozen=True)
class Original:
    """The attention to come close to, and how smaller heads are stored; all is checked.

    `heads` holds the truncated SVDs that were computed so far, by size.
    """

    attention: Attention
    dtype: str
    deadline: float
    seed: int
    threads: int
    heads: dict[int, SoftFit] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        attention: Attention,
        *,
        dtype: Any,
        time_limit: float | None,
        rng: Any,
        num_threads: int | None,
    ) -> Original:
        """Check the head and how it is to be shrunk."""
        start = time.perf_counter()
        head = head_to_match(attention.turned(), "the head")
        assert head is not None
        for x, name in zip(head.stored, "QK", strict=True):
            check_finite(x, name)
        if time_limit is not None:
            time_limit = check_between(time_limit, "time_limit", 0, math.inf)
        deadline = math.inf if time_limit is None else start + time_limit
        dtype = check_dtype(dtype)
        return cls(head, dtype, deadline, seed_from(rng), thread_count(num_threads))

    @property
    def largest(self) -> int:
        """The largest size, that at which the truncated SVD has all of scale * Q K^T."""
        q, k = self.attention.stored
        return int(min(q.shape[1], q.shape[0], k.shape[0]))

    def is_svd(self, dim: int) -> bool:
        """Whether the truncated SVD of a size is the head itself: other options take more."""
        return dim >= self.largest and {"scale", "mask"}.issuperset(self.attention.options.given())

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit; negative after it."""
        return self.deadline - time.perf_counter()

    def options(self) -> dict[str, Any]:
        """Return the arguments that every fit of a smaller head shares."""
        return {"dtype": self.dtype, "rng": self.seed, "num_threads": self.threads}

    def sizes(self, curve_dims: Any) -> list[int]:
        """Return the sizes asked for, checked; powers of two up to the largest for None."""
        if curve_dims is None:
            largest = self.largest
            return sorted({2**e for e in range(largest.bit_length())} | {largest})
        asked = np.atleast_1d(as_array(curve_dims, "curve_dims"))
        return [as_count(d, "curve_dims", 1, self.largest) for d in asked.tolist()]

    def svd(self, dim: int) -> SoftFit:
        """Return the truncated SVD of a size, stored and judged as every other head is."""
        if dim not in self.heads:
            self.heads[dim] = fit_soft(
                self.attention, dim, callback=lambda *_: False, **self.options()
            )
        return self.heads[dim]

    def baseline(self, dims: Iterable[int]) -> TvCurve:
        """Return the curve of the truncated SVD over `dims` and all sizes computed before."""
        for dim in sorted(dims):
            self.svd(dim)
        return TvCurve.of({d: head.comparison for d, head in self.heads.items()})
