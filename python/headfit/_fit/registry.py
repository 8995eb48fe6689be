"""The words that stand for methods, and what "auto" stands for."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from headfit._base.arguments import shown
from headfit._fit.filters import Mixed, Toeplitz, dims_beside, likely_filter_dim
from headfit._fit.head import Head, Problem
from headfit._fit.learned import Learned, likely_dim
from headfit._fit.max_margin import MaxMargin
from headfit._fit.method import Attempt, Method, Patience
from headfit._fit.projection import Projection
from headfit._fit.result import Search
from headfit._target.target import Blocks
from headfit.errors import InputError

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
        elif (blocks := self._blocks(problem)) is not None:
            head = self.head(replace(problem, target=blocks.target), dim, patience)
            failed = np.zeros(blocks.target.n, np.bool_)
            failed[[] if head.failed_rows is None else head.failed_rows] = True
            return replace(
                head,
                Q=blocks.expanded(head.Q),
                K=blocks.expanded(head.K),
                failed_rows=np.flatnonzero(blocks.expanded(failed)),
                settings={**head.settings, "block": blocks.size},
            )
        elif self._is_mixed(problem, dim, is_long):
            head = Mixed().head(problem, dim, patience)
            if not head.rows_left or not problem.seconds_left:
                return replace(head, method=Mixed.name)
        return super().head(problem, dim, patience)

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Search among filters for wide patterns of offsets; learned heads may be smaller else."""
        if not self._is_wide(problem):
            if (blocks := self._blocks(problem)) is None:
                return super().search(problem, attempt)
            return self.search(replace(problem, target=blocks.target), attempt)
        search = Toeplitz().search(problem, lambda dim, brief=False: attempt(dim, True))
        target = problem.other_columns
        likely = likely_dim(target.n, target.mean_per_row) + problem.exempt_dims
        if search.dim is not None and search.dim <= likely:
            return search
        other = super().search(problem, attempt)
        found = [x for x in (search, other) if x.dim is not None]
        best = min(found, key=lambda x: x.dim or 0, default=other)
        return replace(best, trials=(*search.trials, *other.trials))

    def advice(self, head: Head) -> str | None:
        """Say what a size without a filter means, or what the learned method says of its end."""
        return Toeplitz().advice(head) if head.method == Toeplitz.name else super().advice(head)

    @property
    def _has_options(self) -> bool:
        """Whether an option of `Learned`, which no other method has, is not its default."""
        return any(getattr(self, f.name) != f.default for f in fields(self))

    def _is_wide(self, problem: Problem) -> bool:
        """Whether the pattern is translation-invariant and wide; a start is for `Learned`."""
        if self.init is not None or problem.other_columns.mean_per_row <= WIDE / 2:
            return False  # rows near the ends have fewer nonzeros
        with suppress(InputError):
            return problem.stencil.per_row > WIDE
        return False

    def _is_roomy_filter(self, problem: Problem, dim: int) -> bool:
        """Whether a narrow filter, such as a window, is likely to fit with room to spare."""
        with suppress(InputError):
            wanted = ROOMY * likely_filter_dim(problem.stencil)
            return not self._has_options and problem.stencil.per_row > 1 and dim >= wanted
        return False

    def _is_mixed(self, problem: Problem, dim: int, is_long: bool) -> bool:
        """Whether nearly all entries lie at common offsets, of a wide pattern or with room."""
        is_wide = problem.other_columns.mean_per_row > WIDE
        if self._has_options or not (is_wide or is_long):
            return False
        with suppress(InputError):
            parts = problem.parts
            wanted = likely_filter_dim(parts.stencil) + dims_beside(parts)
            return parts.per_row <= BESIDE * parts.stencil.per_row and (is_wide or dim >= wanted)
        return False

    def _blocks(self, problem: Problem) -> Blocks | None:
        """The blocks of a wide pattern, if any; options of `Learned` are about tokens."""
        if self._has_options or problem.exempt.size or problem.ignored.size:
            return None
        return problem.blocks if problem.target.mean_per_row > WIDE else None

    def _is_far_too_small(self, problem: Problem, dim: int) -> bool:
        """Whether the learned method, without options, would spend hours, most likely in vain."""
        target = problem.target
        likely = likely_dim(target.n, target.mean_per_row)
        return not self._has_options and target.n >= LONG and dim * FAR < likely


METHODS: Mapping[str, Callable[..., Method]] = {
    "auto": Auto, "learned": Learned, "max-margin": MaxMargin, "mixed": Mixed,
    "projection": Projection, "toeplitz": Toeplitz,
}  # fmt: skip


def as_method(method: Any) -> Method:
    """Return the method that a word stands for, with its defaults, or the object itself."""
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    if isinstance(method, Method) and not isinstance(method, type):
        if isinstance(method.name, str):
            return method
        raise InputError(f"method must have a name, a text; got {shown(method.name)}")
    words = " or ".join(repr(word) for word in METHODS)
    raise InputError(f"method must be one of {words}, or a Method; got {shown(method)}")
