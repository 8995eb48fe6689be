"""The smallest head that keeps a sparse pattern: three ways to it, and which is smallest."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.sparsify import Sparsified, sparsify
from headfit._base.arrays import FloatArray
from headfit._base.dtypes import array_dtype
from headfit._fit.fit import fit
from headfit._fit.result import Fit, Trial
from headfit._fit.search import double_and_bisect
from headfit._shrink.to_attention import Wanted
from headfit._soft.compare import SoftComparison, compare
from headfit._soft.descent import svd_head
from headfit._target.target import Target
from headfit.errors import InputError

# Parts of the time for the pattern as a whole and for the pattern without its sinks; starts from
# the SVD have the rest.
SHARES = (0.4, 0.4)


def sinks(kept: Sparsified, exempt: Any, columns_are_free: bool) -> NDArray[np.int64]:
    """Return the columns that are to have a coordinate of their own."""
    if not isinstance(exempt, str):
        return np.unique(np.asarray(exempt, dtype=np.int64))
    if not columns_are_free:
        return kept.exempt
    counts = np.bincount(kept.matrix.indices, minlength=kept.matrix.shape[1])
    rows = int(np.count_nonzero(np.diff(kept.matrix.indptr)))
    return np.flatnonzero(2 * counts > rows)


@dataclass(frozen=True)
class Keeping:
    """What is to be kept, and how every way is to be judged."""

    wanted: Wanted
    sparsified: Sparsified
    target: Target
    columns: NDArray[np.int64]
    leak: float
    distortion: float

    @classmethod
    def of(
        cls,
        wanted: Wanted,
        *,
        leak: float,
        distortion: float,
        exempt: Any,
        per_column: int | None,
        **bounds: Any,
    ) -> Keeping:
        """Sparsify the head's attention."""
        q, k = wanted.attention.stored
        if q.shape[0] != k.shape[0]:
            raise InputError(
                f"a pattern needs as many keys as queries; got {k.shape[0]} and {q.shape[0]}"
            )
        kept = sparsify(
            wanted.attention,
            per_column=per_column,
            exempt_columns=exempt,
            num_threads=wanted.threads,
            **bounds,
        )
        target = Target(kept.matrix, mask=wanted.attention.mask, num_threads=wanted.threads)
        columns = sinks(kept, exempt, per_column is None)
        return cls(wanted, kept, target, columns, leak, distortion)

    def _fit(self, target: Target, dim: int | None, seconds: float, **options: Any) -> Fit:
        given = {
            "leak": self.leak,
            "distortion": self.distortion,
            "effort": self.wanted.effort,
            "time_limit": max(seconds, 1e-9),
        }
        return fit(target, dim, **(given | self.wanted.options() | options))

    def whole(self, seconds: float) -> Fit:
        """Search for the whole pattern, from random starts."""
        return self._fit(self.target, None, seconds)

    def beside_columns(self, seconds: float) -> Fit:
        """Search for the pattern with a coordinate of its own for each exempt column."""
        return self._fit(self.target, None, seconds, exempt_columns=self.columns)

    def _svd(self, dim: int) -> tuple[FloatArray, FloatArray]:
        head = self.wanted.attention
        return svd_head(*head.stored, dim, scale=head.scale)

    def from_svd(self, dim: int) -> Fit:
        """Learn the whole pattern at one size from the truncated SVD of the head's logits."""
        init = self._svd(dim)
        return self._fit(self.target, dim, self.wanted.seconds_left, init=init)

    def max_margin(self) -> Fit:
        """Search for the fewest keys of the truncated SVD for which queries exist."""
        dtype = array_dtype(self.wanted.storage)
        heads: dict[int, Fit] = {}

        def attempt(dim: int) -> Trial:
            start = time.perf_counter()
            keys = self._svd(dim)[1]
            keys = keys.astype(dtype)
            head = self._fit(
                self.target, None, 1.0, method="max-margin", keys=keys, time_limit=None
            )
            heads[dim] = head
            c, seconds = head.certificate, time.perf_counter() - start
            return Trial(dim, c.holds, c.leak, c.distortion, seconds)

        first = 2 * self.target.per_row
        search = double_and_bisect(attempt, first, self.wanted.largest, "the head's own size")
        best = heads[search.trials[-1].dim if search.dim is None else search.dim]
        return replace(best, search=search)

    def answer(self) -> dict[str, Any]:
        """Return the smallest certified head of all ways, and how far each is from the original."""
        ways, stopped = self.ways()
        best = smallest(ways)
        head = list(ways.values())[-1] if best is None else best

        def distance(found: Fit) -> SoftComparison:
            return compare(self.wanted.attention, found.attention, num_threads=self.wanted.threads)

        curve = {found.dim: distance(found) for found in ways.values() if found.certificate.holds}
        curve[head.dim] = distance(head)
        return {
            "fit": head,
            "stopped": stopped,
            "reached": best is not None,
            "comparison": curve[head.dim],
            "curve": curve,
            "sparsified": self.sparsified,
            "appended": tuple(head.settings.get("exempt_columns", ())),
            "ways": {w: h.dim if h.certificate.holds else None for w, h in ways.items()},
        }

    def ways(self) -> tuple[dict[str, Fit], str]:
        """Return the smallest head of every way, certified or not, and why the search ended."""
        seconds = self.wanted.seconds_left
        found = {"whole": self.whole(SHARES[0] * seconds)}
        if self.columns.size:
            found["appended"] = self.beside_columns(SHARES[1] * seconds)
        best = smallest(found)
        if best is None:
            found["max-margin"] = self.max_margin()
            return found, "the time limit, before learned keys did"
        while best.dim > 1 and self.wanted.seconds_left > 0:
            trial = self.from_svd(best.dim - 1)
            if not trial.certificate.holds:
                return found, "one less fails, from random starts and from the SVD"
            found["svd start"] = best = trial
        return found, "size 1" if best.dim == 1 else "the time limit"


def smallest(found: dict[str, Fit]) -> Fit | None:
    """Return the smallest certified head, if there is one."""
    certified = [head for head in found.values() if head.certificate.holds]
    return min(certified, key=lambda head: head.dim, default=None)
