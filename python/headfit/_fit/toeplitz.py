"""The method for translation-invariant patterns: one filter gives the logits of all rows."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from headfit._base import dtypes
from headfit._base.arrays import check_between
from headfit._base.deadline import calls_until
from headfit._base.memory import require_memory
from headfit._base.positions import as_frequencies
from headfit._base.tolerances import Tolerances
from headfit._filter.demand import Demand
from headfit._filter.design import design
from headfit._filter.layouts import Shape
from headfit._filter.linear_program import Solved, solve
from headfit._filter.stencil import Stencil
from headfit._filter.whole import whole_target
from headfit._fit.ending import Ending
from headfit._fit.head import Head, tightened
from headfit._fit.learned import check_norm_without_exempt
from headfit._fit.max_margin import with_narrow_queries
from headfit._fit.method import Attempt, Method, Patience
from headfit._fit.problem import Problem
from headfit._fit.result import Search
from headfit._fit.search import double_and_bisect, largest_dim
from headfit.errors import InputError

__all__ = ["Toeplitz"]

# The shares of the distortion's logarithm that a filter may use where queries and keys are rounded
# to a narrow format; the rest is for the rounding. The first that some filter meets is taken.
NARROW_SHARES = (0.3, 0.5, 0.7)
# The least part of the leak's logarithm that is reserved for the same. Where the distortion leaves
# more for the rounding, the leak reserves half of that too.
NARROW_LEAK = 0.03
# The part of the distortion's logarithm that the rounding of queries and keys to their dtype may
# take in all: it bounds the norm of a filter.
ROUNDING = 0.01
# Rounding to a narrow format moves logits by up to the norm times 2**-digits, less what cancels.
# A filter whose norm exceeds this many times the spread over that was never found to survive it.
NARROW_NORM = 2
# The share of the time that the design of a filter may take in a narrow format.
DESIGN = 0.5
# Steps that move frequencies: of the one size that was asked for, and of a size of a search.
MOVES = {"full": 10, "search": 0, "brief": 0}


@dataclass(frozen=True, eq=False)
class Toeplitz(Method):
    """Make the logits one trigonometric polynomial of the offset between query and key.

    For translation-invariant patterns, in which whether token i attends to token j, and how much,
    depends on i - j alone: windows on one side and both, dilated windows, strides, blocks, with
    weights that are equal or not. There are n conditions in place of n**2, so that windows of
    thousands of keys take seconds at any length. Rows that attend to everything may be among the
    others, such as those of global tokens, whose columns are `exempt_columns`.

    Parameters
    ----------
    frequencies : array_like of shape (F,), optional
        Radians per position, each in (0, pi], for a head of 2 F dimensions. None chooses them.
    max_norm : float, optional
        A bound on scale * max ||q|| * max ||k||, the sum of all amplitudes.

    Raises
    ------
    InputError
        For an option out of range. A pattern that is not translation-invariant is refused by
        `fit`; the message names an offset that shows it.

    See Also
    --------
    Learned : reaches far smaller heads for a few nonzeros per row.

    Notes
    -----
    With x = i - j, the logits are p(x) = sum of a_f cos(w_f x) + b_f sin(w_f x). Each frequency
    costs two dimensions, with keys (cos w_f j, sin w_f j): what rotary positions express without
    content. For given frequencies a linear program finds the amplitudes of least sum that meet
    the tolerances at every offset (SciPy's HiGHS; offsets are added as they are violated). A
    program that ends without a solution proves nothing: the solver gives up for numerical reasons
    too (`rope_filter` has proofs for given frequencies). Frequencies are the harmonics of a period
    a little longer than the window, combs for spacings and strides, and a few low ones that tell
    repeats apart; they are searched and moved, and others are not tried.

    The design costs seconds, nearly independent of n; queries and keys O(n d).

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.causal_band(512, 31)
    >>> fit = hf.fit(A, 32, method=hf.methods.Toeplitz(), mask="causal")
    >>> fit.certificate.holds, fit.method
    (True, 'toeplitz')
    """

    frequencies: Any = None
    max_norm: float | None = None

    name = "toeplitz"

    def __post_init__(self) -> None:
        if self.frequencies is not None:
            object.__setattr__(self, "frequencies", _as_frequencies(self.frequencies))
        if self.max_norm is not None:
            limit = check_between(self.max_norm, "max_norm", 0, math.inf)
            object.__setattr__(self, "max_norm", limit)

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size asked for, or that of the frequencies or of the module."""
        check_norm_without_exempt(self.max_norm, problem)
        _ = problem.stencil  # an InputError where there is none
        size = dim if problem.module is None else problem.module.dim
        if self.frequencies is None:
            return size
        needed = 2 * self.frequencies.size + problem.exempt_dims
        if size is not None and size < needed:
            raise InputError(
                f"dim must be at least {needed}, two for each of the {self.frequencies.size} "
                f"frequencies; got {size}"
            )
        return needed if size is None else size

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return the head of a filter of at most `dim` dimensions."""
        stencil, target = problem.stencil, problem.target
        require_memory(
            4 * target.n * dim * problem.working_dtype.itemsize, f"a filter of size dim = {dim}"
        )
        deadline = problem.deadline
        if problem.is_narrow:  # rounding queries takes time too
            deadline = time.perf_counter() + DESIGN * problem.seconds_left
        found = self._filter(problem, stencil, dim, MOVES[patience], deadline)
        if found is None:
            nothing = np.zeros((target.n, dim), dtype=problem.working_dtype)
            failed = np.arange(target.n)
            ended: Ending = "stalled" if time.perf_counter() < deadline else "time limit"
            return Head(nothing, nothing, failed_rows=failed, method=self.name, ended=ended)
        q, k = found.filter.head(target.n, stencil.block, str(problem.working_dtype))
        q[stencil.apart] = 0.0
        if problem.is_narrow:  # keys first: queries then make up for what their rounding did
            k = dtypes.round_to(k, problem.dtype)
        head = Head(
            q,
            k,
            failed_rows=np.empty(0, dtype=np.intp),
            settings={
                "filter": {
                    "frequencies": found.filter.frequencies.tolist(),
                    "cosines": found.filter.cosines.tolist(),
                    "sines": found.filter.sines.tolist(),
                    "block": stencil.block,
                },
                "max_norm": self.max_norm,
            },
            method=self.name,
        )
        if not problem.is_narrow:
            return head
        whole = None if problem.ignored is None else whole_target(target, stencil)
        # Without time for the neighbours of each query in the format, `fit` rounds to nearest.
        with suppress(TimeoutError), calls_until(problem.deadline):
            return with_narrow_queries(problem, head, whole, self.max_norm)
        return head

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Start at a size that windows of this width need, double until one certifies, bisect."""
        likely = likely_filter_dim(Shape.of(problem.stencil))
        if self.frequencies is not None:
            likely = 2 * self.frequencies.size
        largest, why = largest_dim(problem)
        if problem.module is not None and problem.module.dim - problem.exempt_dims < largest:
            largest, why = problem.module.dim - problem.exempt_dims, "the size of the module"
        return double_and_bisect(
            attempt, likely, largest, why, 2, problem.deadline, problem.exempt_dims
        )

    def advice(self, head: Head) -> str | None:
        """Say what a size without a filter means."""
        if head.ended == "time limit" or head.failed_rows is None or not head.failed_rows.size:
            return None
        if self.frequencies is not None:
            return (
                "The solver found no solution for these frequencies within the tolerances and "
                "norms allowed, which proves nothing: try others, or a wider leak or distortion."
            )
        return (
            f"No filter of size {head.dim} was found. Frequencies of other layouts were not tried, "
            "and heads that are no filters may be smaller: try a larger dim, a wider leak or "
            'distortion, or method="learned".'
        )

    def _filter(
        self, problem: Problem, stencil: Stencil, dim: int, moves: int, deadline: float
    ) -> Solved | None:
        """Return the filter of least norm that keeps within the bounds, None if none is found."""
        asked = problem.tolerances
        spread = math.log1p(asked.distortion)
        shares = NARROW_SHARES if problem.is_narrow else (1.0,)
        norm, limit = self._largest_norm(problem, spread), problem.logit_limit
        max_logit = None if limit is None else limit * (1 - 1e-5)
        for share in shares:
            spare = 0.0
            if problem.is_narrow:
                spare = max(NARROW_LEAK, (1 - share) * spread / 2 / -math.log(asked.leak))
            leak, distortion = tightened(
                asked.leak ** (1 + spare), math.expm1(share * spread), problem.logit_step
            )
            demand = Demand(stencil, Tolerances(leak, distortion, max_logit))
            if self.frequencies is not None:
                found = solve(self.frequencies, demand, norm_limit=norm)
            else:
                found = design(demand, dim, max_norm=norm, deadline=deadline, moves=moves)
            if found is not None and found.meets and found.filter.norm <= norm:
                return found
        return None

    def _largest_norm(self, problem: Problem, spread: float) -> float:
        """Return the largest norm that the dtype can hold, or that was asked for."""
        asked = math.inf if self.max_norm is None else self.max_norm
        if problem.is_narrow:
            return min(asked, NARROW_NORM * spread * 2.0 ** dtypes.DIGITS[problem.dtype])
        unit = float(np.finfo(problem.working_dtype).eps)
        return min(asked, ROUNDING * min(1.0, spread) / unit)


def likely_filter_dim(shape: Shape) -> int:
    """Return a size at which a filter is likely to be found, for the default tolerances."""
    octaves = math.log2(max(2.0, shape.reach / shape.width))
    return 2 * round((3.5 * math.sqrt(shape.width) + 1.2 * octaves) / 2)


def _as_frequencies(frequencies: Any) -> Any:
    array = as_frequencies(frequencies, "frequencies")
    outside = (array <= 0) | (array > np.pi)
    if outside.any():
        raise InputError(f"frequencies must lie in (0, pi]; got {array[outside][0]:.6g}")
    array.flags.writeable = False
    return array
