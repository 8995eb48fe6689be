"""The smallest head that keeps a sparse pattern: three ways to it, and which is smallest."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.sparsify import Sparsified, sparsify
from headfit._base.arrays import FloatArray
from headfit._base.columns import as_exempt
from headfit._base.dtypes import array_dtype
from headfit._base.tolerances import Tolerances
from headfit._fit.fit import fit
from headfit._fit.learned import Learned
from headfit._fit.max_margin import MaxMargin
from headfit._fit.method import Method
from headfit._fit.result import Fit, Trial
from headfit._fit.search import double_and_bisect
from headfit._shrink.original import Original
from headfit._soft.compare import Comparison, compare
from headfit._soft.descent import svd_head
from headfit._target.target import Target
from headfit.errors import InputError

# Shares of the time for the pattern as a whole and for the pattern without its sinks; starts
# from the SVD take the rest.
SHARES = (0.4, 0.4)


def sinks(kept: Sparsified, exempt: Any, columns_are_free: bool) -> NDArray[np.int64]:
    """Return the columns that are to have a coordinate of their own."""
    given = as_exempt(exempt, kept.matrix.shape[1])
    if given is not None:
        return given
    if not columns_are_free:
        return kept.exempt
    counts = np.bincount(kept.matrix.indices, minlength=kept.matrix.shape[1])
    rows = int(np.count_nonzero(np.diff(kept.matrix.indptr)))
    return np.flatnonzero(2 * counts > rows)


@dataclass(frozen=True)
class PatternToKeep:
    """The pattern of a head, and how every way to a smaller head is judged."""

    original: Original
    sparsified: Sparsified
    target: Target
    columns: NDArray[np.int64]
    tolerances: Tolerances
    effort: str | int

    @classmethod
    def of(
        cls,
        original: Original,
        *,
        tolerances: Tolerances,
        effort: str | int,
        exempt: Any,
        per_column: int | None,
        **bounds: Any,
    ) -> PatternToKeep:
        """Sparsify the head's attention."""
        q, k = original.attention.stored
        if q.shape[0] != k.shape[0]:
            raise InputError(
                f"a pattern needs as many keys as queries; got {k.shape[0]} and {q.shape[0]}"
            )
        kept: Sparsified = sparsify(
            original.attention,
            per_column=per_column,
            exempt_columns=exempt,
            num_threads=original.threads,
            **bounds,
        )
        target = Target(kept.matrix, mask=original.attention.mask, num_threads=original.threads)
        columns = sinks(kept, exempt, per_column is None)
        return cls(original, kept, target, columns, tolerances, effort)

    def _fit(self, method: Method, dim: int | None, seconds: float | None, **more: Any) -> Fit:
        return fit(
            self.target,
            dim,
            method=method,
            tolerances=self.tolerances,
            time_limit=None if seconds is None else max(seconds, 1e-9),
            **self.original.options(),
            **more,
        )

    def _learned(self, dim: int | None, seconds: float, init: Any = None, **more: Any) -> Fit:
        return self._fit(Learned(effort=self.effort, init=init), dim, seconds, **more)

    def whole(self, seconds: float) -> Fit:
        """Search for the whole pattern, from random starts."""
        return self._learned(None, seconds)

    def with_exempt_columns(self, seconds: float) -> Fit:
        """Search for the pattern with a coordinate of its own for each exempt column."""
        return self._learned(None, seconds, exempt_columns=self.columns)

    def _svd(self, dim: int) -> tuple[FloatArray, FloatArray]:
        head = self.original.attention
        return svd_head(*head.stored, dim, scale=head.scale)

    def from_svd(self, dim: int) -> Fit:
        """Learn the whole pattern at one size from the truncated SVD of the head's logits."""
        return self._learned(dim, self.original.seconds_left, self._svd(dim))

    def max_margin(self) -> Fit:
        """Search for the smallest size at which queries for the truncated SVD's keys exist."""
        dtype = array_dtype(self.original.dtype)
        heads: dict[int, Fit] = {}

        def attempt(dim: int) -> Trial:
            start = time.perf_counter()
            keys = self._svd(dim)[1].astype(dtype)
            head = self._fit(MaxMargin(keys=keys), None, None)
            heads[dim] = head
            c, seconds = head.certificate, time.perf_counter() - start
            return Trial(dim, c.holds, c.leak, c.distortion, seconds)

        first = 2 * self.target.per_row
        search = double_and_bisect(attempt, first, self.original.largest, "the head's own size")
        best = heads[search.trials[-1].dim if search.dim is None else search.dim]
        return replace(best, search=search)

    def distance(self, head: Fit) -> Comparison:
        """Return how far a head's attention is from that of the original."""
        return compare(self.original.attention, head.attention, num_threads=self.original.threads)

    def ways(self) -> tuple[dict[str, Fit], str]:
        """Return the smallest head of every way, certified or not, and why the search ended."""
        seconds = self.original.seconds_left
        found = {"whole": self.whole(SHARES[0] * seconds)}
        if self.columns.size:
            found["appended"] = self.with_exempt_columns(SHARES[1] * seconds)
        best = smallest(found)
        if best is None:
            found["max-margin"] = self.max_margin()
            return found, "the time limit, before learned keys did"
        while best.dim > 1 and self.original.seconds_left > 0:
            trial = self.from_svd(best.dim - 1)
            if not trial.certificate.holds:
                return found, "one less fails, from random starts and from the SVD"
            found["svd start"] = best = trial
        return found, "size 1" if best.dim == 1 else "the time limit"


def smallest(found: dict[str, Fit]) -> Fit | None:
    """Return the smallest certified head, if there is one."""
    certified = [head for head in found.values() if head.certificate.holds]
    return min(certified, key=lambda head: head.dim, default=None)
