"""What "auto" stands for: a filter where the pattern is a wide one of offsets, else learned."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headfit._fit.head import Head
from headfit._fit.learned import Learned, likely_dim
from headfit._fit.method import Attempt, Patience
from headfit._fit.problem import Problem
from headfit._fit.result import Search
from headfit._fit.toeplitz import Toeplitz
from headfit.errors import InputError

__all__ = ["Auto"]

# With more nonzeros per row than this, a filter is tried first; the learned method finds smaller
# heads for fewer.
WIDE = 32


@dataclass(frozen=True, eq=False)
class Auto(Learned):
    """`Toeplitz` first for wide translation-invariant patterns, `Learned` with its options else."""

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return the head of a filter if there is one of the size, otherwise a learned one.

        Of a wide pattern, a search asks briefly for a filter alone.
        """
        if self._is_wide(problem):
            head = Toeplitz(max_norm=self.max_norm).head(problem, dim, patience)
            if patience == "brief" or head.failed_rows is None or not head.failed_rows.size:
                return head
        return super().head(problem, dim, patience)

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Search among filters for wide patterns of offsets; learned heads may be smaller else."""
        if not self._is_wide(problem):
            return super().search(problem, attempt)
        filters = Toeplitz(max_norm=self.max_norm)
        search = filters.search(problem, lambda dim, brief=False: attempt(dim, True))
        target = problem.other_columns
        likely = likely_dim(target.n, target.mean_per_row) + problem.exempt_dims
        if search.dim is not None and search.dim <= likely:
            return search
        other = super().search(problem, attempt)
        found = [x for x in (search, other) if x.dim is not None]
        best = min(found, key=lambda x: x.dim or 0) if found else other
        return replace(best, trials=(*search.trials, *other.trials))

    def _is_wide(self, problem: Problem) -> bool:
        """Whether the pattern is translation-invariant and wide; a start asks for `Learned`."""
        if self.init is not None or problem.other_columns.mean_per_row <= WIDE / 2:
            return False  # rows near the ends have fewer nonzeros
        try:
            return problem.stencil.per_row > WIDE
        except InputError:
            return False
