"""What "auto" stands for: a filter, or a start from one, for wide patterns; learned else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headfit._filter.layouts import Shape
from headfit._fit.head import Head
from headfit._fit.learned import REHEATS, Learned, likely_dim
from headfit._fit.method import Attempt, Patience
from headfit._fit.mixed import Mixed, dims_beside
from headfit._fit.problem import Problem
from headfit._fit.result import Search
from headfit._fit.toeplitz import Toeplitz, likely_filter_dim
from headfit.errors import InputError

__all__ = ["Auto"]

# With more nonzeros per row than this, a filter is tried first; the learned method finds smaller
# heads for fewer.
WIDE = 32
# From so many tokens on, a filter, or a start from one, takes less time than the learned method for
# fewer nonzeros per row too, in a head that has room for it.
LONG = 2048
# In such sequences, the learned method is not tried for a pattern without a filter if the head is
# smaller than what random patterns need by more than this factor. A window of 64 keys at n = 2,048,
# with 48 dimensions of the 106 that random patterns need, did not certify in a minute.
FAR = 2
# A start from a filter is tried if the entries beside it are no more than this share of its own.
BESIDE = 0.5
# A narrow filter is tried in heads of at least so many times the size that it is likely to need.
ROOMY = 1.5


@dataclass(frozen=True, eq=False)
class Auto(Learned):
    """`Toeplitz` first for wide translation-invariant patterns, `Learned` with its options else.

    `Mixed` first for patterns that are wide and translation-invariant but for a few entries.
    """

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return the head of a filter if there is one of the size, otherwise a learned one.

        Of a wide pattern, a search asks briefly for a filter alone.
        """
        is_long = patience == "full" and problem.target.n >= LONG
        if self._is_wide(problem) or (is_long and self._is_roomy_filter(problem, dim)):
            head = Toeplitz(max_norm=self.max_norm).head(problem, dim, patience)
            if patience == "brief" or not head.rows_left or self._is_far_too_small(problem, dim):
                return head
        elif self._has_blocks(problem):
            return self._of_blocks(problem, dim, patience)
        elif self._is_mixed(problem) or (is_long and self._is_roomy_mixed(problem, dim)):
            head = Mixed().head(problem, dim, patience)
            if not head.rows_left or not problem.seconds_left:
                return replace(head, method=Mixed.name)
        return super().head(problem, dim, patience)

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Search among filters for wide patterns of offsets; learned heads may be smaller else."""
        if not self._is_wide(problem):
            blocks = problem.blocks if self._has_blocks(problem) else None
            if blocks is not None:
                return self.search(replace(problem, target=blocks.target), attempt)
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

    def _has_blocks(self, problem: Problem) -> bool:
        """Whether a wide pattern consists of blocks; options of `Learned` are about tokens."""
        if self._is_asked or problem.exempt_columns.size or problem.ignored is not None:
            return False
        return problem.target.mean_per_row > WIDE and problem.blocks is not None

    def _of_blocks(self, problem: Problem, dim: int, patience: Patience) -> Head:
        """Return a head for the pattern of the blocks, with queries and keys repeated."""
        blocks = problem.blocks
        assert blocks is not None
        head = self.head(replace(problem, target=blocks.target), dim, patience)
        failed = head.failed_rows
        if failed is not None and failed.size:
            failed = np.flatnonzero(blocks.expanded(np.isin(np.arange(blocks.target.n), failed)))
        return replace(
            head,
            Q=blocks.expanded(head.Q),
            K=blocks.expanded(head.K),
            failed_rows=failed,
            settings={**head.settings, "block": blocks.size},
        )

    def advice(self, head: Head) -> str | None:
        """Say what a size without a filter means, or what the learned method says of its end."""
        if head.method == Toeplitz.name:
            return Toeplitz().advice(head)
        return super().advice(head)

    def _is_far_too_small(self, problem: Problem, dim: int) -> bool:
        """Whether the learned method would spend hours, and most likely in vain.

        Its options, where some were given, ask for it all the same.
        """
        if self._is_asked:
            return False
        target = problem.target
        return target.n >= LONG and dim * FAR < likely_dim(target.n, target.mean_per_row)

    def _is_roomy_filter(self, problem: Problem, dim: int) -> bool:
        """Whether a narrow filter, such as a window, is likely to fit with room to spare."""
        if self._is_asked:
            return False
        try:
            return problem.stencil.per_row > 1 and dim >= ROOMY * likely_filter_dim(
                Shape.of(problem.stencil)
            )
        except InputError:
            return False

    def _is_roomy_mixed(self, problem: Problem, dim: int) -> bool:
        """Whether a narrow window and a few entries beside it are likely to fit likewise."""
        if self._is_asked:
            return False
        try:
            parts = problem.parts
        except InputError:
            return False
        wanted = likely_filter_dim(Shape.of(parts.stencil)) + dims_beside(parts)
        return parts.per_row <= BESIDE * parts.stencil.per_row and dim >= wanted

    @property
    def _is_asked(self) -> bool:
        """Whether options were given that `Learned` alone has."""
        options = (self.init, self.max_norm, self.callback)
        counts = (self.effort, self.reheats, self.stages)
        return counts != ("low", REHEATS, 1) or any(option is not None for option in options)

    def _is_mixed(self, problem: Problem) -> bool:
        """Whether nearly all entries of a wide pattern lie at common offsets."""
        if self._is_asked or problem.other_columns.mean_per_row <= WIDE:
            return False
        try:
            parts = problem.parts
        except InputError:
            return False
        return parts.per_row <= BESIDE * parts.stencil.per_row
