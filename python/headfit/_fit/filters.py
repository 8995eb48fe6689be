"""The methods with a filter, whose logits depend on the offset between query and key alone.

`Toeplitz` is for translation-invariant patterns: one filter gives the logits of all rows. `Mixed`
is for a window and a few entries beside it: a filter, from which a descent starts.
"""

import itertools
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headfit import _core
from headfit._base.arguments import as_count, as_positive
from headfit._base.arrays import DIGITS, FloatArray, round_to
from headfit._base.calls import calls_until
from headfit._base.display import plain_dict
from headfit._base.machine import require_memory
from headfit._base.positions import as_frequencies
from headfit._base.tolerances import Tolerances
from headfit._filter.demand import Demand
from headfit._filter.design import Shape, design
from headfit._filter.linear_program import Solved, solve
from headfit._filter.stencil import Parts, Stencil, whole_target
from headfit._fit.head import Head, Problem, narrowed, reserved, tightened, with_narrow_queries
from headfit._fit.learned import Learned, learned, likely_dim, norm_limit
from headfit._fit.method import Attempt, Method, Patience, bisected, check_norm
from headfit._fit.result import Search
from headfit.errors import InputError

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
# Steps that move frequencies: of a size that is given, and of a size of a search.
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
    the tolerances at every offset (SciPy's HiGHS; offsets are added as they are violated). One
    without a solution proves nothing, but `rope.filter` has proofs. Frequencies are the harmonics
    of a period a little longer than the window, combs for spacings and strides, and a few low
    ones that tell repeats apart; they are searched and moved, and others are not tried.

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
            array = as_frequencies(self.frequencies, "frequencies")
            outside = (array <= 0) | (array > np.pi)
            if outside.any():
                raise InputError(f"frequencies must lie in (0, pi]; got {array[outside][0]:.6g}")
            array.flags.writeable = False
            vars(self).update(frequencies=array)
        vars(self).update(max_norm=as_positive(self.max_norm, "max_norm"))

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size of the head, or that of the frequencies or of the module."""
        check_norm(self.max_norm, problem)
        _ = problem.stencil  # an InputError where there is none
        size = super().check(problem, dim)
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
        size = 4 * target.n * dim * problem.working_dtype.itemsize
        require_memory(size, f"a filter of size dim = {dim}")
        deadline = problem.deadline
        if problem.is_narrow:  # rounding queries takes time too
            deadline = time.perf_counter() + DESIGN * problem.seconds_left
        solved = self._filter(problem, stencil, dim, MOVES[patience], deadline)
        if solved is None:
            in_time = time.perf_counter() < deadline
            return Head.of_zeros(target.n, dim, "stalled" if in_time else "time limit", self.name)
        filter = solved.filter
        q, k = filter.head(target.n, stencil.block, str(problem.working_dtype))
        q[stencil.apart] = 0.0
        if problem.is_narrow:  # keys first: queries then make up for what their rounding did
            k = round_to(k, problem.dtype)
        known = {**plain_dict(vars(filter)), "block": stencil.block}
        settings = {"filter": known, "max_norm": self.max_norm}
        head = Head(q, k, failed_rows=np.empty(0, np.intp), settings=settings, method=self.name)
        if not problem.is_narrow:
            return head
        whole = whole_target(target, stencil) if problem.ignored.size else None
        # The filter may be smaller than the whole head, whose scale holds.
        problem = replace(problem, scale=problem.scale_for(dim), module=None)
        # Without time for the neighbours of each query in the format, `fit` rounds to nearest.
        with suppress(TimeoutError), calls_until(problem.deadline):
            return with_narrow_queries(problem, head, whole, self.max_norm)
        return head

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Start at a size that windows of this width need, double until one certifies, bisect."""
        given = self.frequencies
        likely = likely_filter_dim(problem.stencil) if given is None else 2 * given.size
        return bisected(problem, attempt, likely, 2)

    def advice(self, head: Head) -> str | None:
        """Say what a size without a filter means."""
        if head.ended == "time limit" or not head.rows_left:
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
        """Return the filter of least norm that keeps within the bounds, None without one."""
        tolerances = problem.tolerances
        spread = math.log1p(tolerances.distortion)
        # The largest norm that the dtype can hold, or `max_norm` if that is less.
        most = ROUNDING * min(1.0, spread) / float(np.finfo(problem.working_dtype).eps)
        if problem.is_narrow:
            most = NARROW_NORM * spread * 2.0 ** DIGITS[problem.dtype]
        norm = most if self.max_norm is None else min(most, self.max_norm)
        limit = problem.logit_limit
        max_logit = None if limit is None else limit * (1 - 1e-5)
        # A search may come to a filter within `max_norm` by way of longer ones.
        bounds = dict.fromkeys((norm, most if self.frequencies is None else norm))
        shares = NARROW_SHARES if problem.is_narrow else (1.0,)
        for bound, share in itertools.product(bounds, shares):
            spare = 0.0
            if problem.is_narrow:
                spare = max(NARROW_LEAK, (1 - share) * spread / 2 / -math.log(tolerances.leak))
            leak, distortion = tolerances.leak ** (1 + spare), math.expm1(share * spread)
            try:
                leak, distortion = tightened(leak, distortion, problem.logit_step)
            except InputError:  # rounded logits need more than this share
                continue
            demand = Demand(stencil, Tolerances(leak, distortion, max_logit))
            if self.frequencies is not None:
                solved = solve(self.frequencies, demand, norm_limit=norm, deadline=deadline)
            else:
                solved = design(demand, dim, max_norm=bound, deadline=deadline, moves=moves)
            if solved is not None and solved.meets and solved.filter.norm <= norm:
                return solved
        return None


def likely_filter_dim(stencil: Stencil) -> int:
    """Return a size at which a filter is likely to be found, for the default tolerances."""
    shape = Shape.of(stencil)
    octaves = math.log2(max(2.0, shape.reach / shape.width))
    return 2 * round((3.5 * math.sqrt(shape.width) + 1.2 * octaves) / 2)


# The dimensions that the entries beside the filter get, in multiples of what they would need alone.
BESIDE = 1.75
# The largest filter that is designed, in multiples of a size that is likely to suffice.
ROOMY = 1.5
# The share of the time that the design of the filter from which the descent starts may take.
START = 0.2
# The steps of the anneal from the filter, and after how many of them the rows that are left get
# exact queries: these need keys that are good, but no short steps.
WARM, TAKEN = 300, 220
# The same for at most so many nonzeros per row, for which exact queries take less time than steps.
FEW, FEW_WARM, FEW_TAKEN = 32, 100, 80
# The most steps where logits are bounded.
BOUNDED = 2400
# How often the descent goes on from the queries and keys of the last time.
ROUNDS: dict[Patience, int] = {"full": 4, "search": 2, "brief": 1}


@dataclass(frozen=True, eq=False)
class Mixed(Method):
    """Mix a filter, for the offsets that nearly all rows attend to, and learned keys for the rest.

    For patterns that are a window, or another translation-invariant pattern, and a few entries per
    row beside it, such as BigBird's random ones. Global columns are `exempt_columns`.

    Parameters
    ----------
    filter_dim : int, optional
        The dimensions of the filter, an even number. None: what a filter of this width needs to
        have small logits, if the entries beside it then have enough dimensions left.

    Raises
    ------
    InputError
        For an option out of range. A pattern without an offset that nearly all rows attend to is
        refused by `fit`.

    See Also
    --------
    Toeplitz : for patterns that are translation-invariant throughout.
    Learned : from random queries and keys; better for a few nonzeros per row.

    Notes
    -----
    The offsets that nine of ten rows attend to make a filter, as in `Toeplitz`. From its queries
    and keys, with small random numbers in the other dimensions, the descent of `Learned` moves all
    coordinates. It is stopped early, when keys are good enough for the rows that are left to have
    exact queries, as in `MaxMargin`. Costs some hundred steps of `Learned`, O(n d**2 (k + d))
    each, and tens of scans, O(n**2 d).

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.bigbird(256, 8, 2, 3, rng=0)
    >>> fit = hf.fit(A, 40, method=hf.methods.Mixed(), exempt_columns="auto")
    >>> fit.certificate.holds, fit.method
    (True, 'mixed')
    """

    filter_dim: int | None = None

    name = "mixed"

    def __post_init__(self) -> None:
        if self.filter_dim is not None:
            size = as_count(self.filter_dim, "filter_dim", 2)
            if size % 2:
                raise InputError(f"filter_dim must be even; got {size}")
            vars(self).update(filter_dim=size)

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size of the head, or that of the module."""
        _ = problem.parts  # an InputError where there is no stencil
        size = super().check(problem, dim)
        needed = (self.filter_dim or 0) + problem.exempt_dims
        if size is not None and self.filter_dim is not None and size < needed:
            raise InputError(
                f"dim must be at least {needed}, with filter_dim = {self.filter_dim}; got {size}"
            )
        return size

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return a head that was learned from the start of a filter."""
        parts, n = problem.parts, problem.target.n
        require_memory(4 * n * dim * 4, f"a filter of size dim = {dim}")
        filter_dim = self.filter_dim
        if filter_dim is None:
            roomy = math.ceil(ROOMY * likely_filter_dim(parts.stencil) / 2)
            filter_dim = 2 * min(roomy, max(1, (dim - dims_beside(parts)) // 2))
        deadline = time.perf_counter() + START * problem.seconds_left
        demand = Demand(parts.stencil, replace(problem.tolerances, max_logit=None))
        has_room = filter_dim <= dim
        solved = design(demand, filter_dim, deadline=deadline, moves=0) if has_room else None
        if solved is None:
            was_cut = has_room and time.perf_counter() >= deadline
            return Head.of_zeros(n, dim, "time limit" if was_cut else "stalled")
        start = solved.filter.head(n, dtype="float32")
        start[0][parts.stencil.apart] = 0.0
        filter_dim, size = solved.filter.dim, dim
        # A step costs dim**2 per row: with free logits, no more dimensions than give ample room.
        if problem.logit_limit is None:
            size = min(dim, filter_dim + dims_beside(parts))
        # `size` may be less than the size of the whole head, whose scale holds.
        problem = replace(problem, target=parts.target, scale=problem.scale_for(dim), module=None)
        for _ in range(ROUNDS[patience]):
            head = self._learned(problem, size, start)
            if not head.rows_left or head.ended == "time limit":
                break
            start = head.Q, head.K
        head.Q[parts.stencil.apart] = 0.0
        settings = {"filter_dim": filter_dim, "learned": head.settings["learned"]}
        return replace(head, settings=settings)

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Start at a size that filters of this width need, double until one certifies, bisect."""
        parts = problem.parts
        return bisected(problem, attempt, likely_filter_dim(parts.stencil) + dims_beside(parts), 2)

    def advice(self, head: Head) -> str | None:
        """Say what a descent from a filter that leaves rows means."""
        if "filter_dim" not in head.settings:
            return (
                f"No filter of size {head.dim} or less was found to start from: try a larger dim, "
                'a wider leak or distortion, or method="learned".'
            )
        if head.ended != "steps":
            return None
        return (
            f"The descent from a filter of {head.settings['filter_dim']} dimensions left "
            f"{head.rows_left} rows at d = {head.dim}, which proves nothing: try a larger "
            "dim, another filter_dim, or a wider leak or distortion."
        )

    def _learned(self, problem: Problem, dim: int, start: tuple[FloatArray, FloatArray]) -> Head:
        """Return what an anneal from a start finds, with exact queries for the rows it leaves."""
        limit, max_norm, is_narrow = problem.logit_limit, norm_limit(problem), problem.is_narrow
        has_few = problem.target.mean_per_row <= FEW and limit is None
        warm, steps = (FEW_WARM, FEW_TAKEN) if has_few else (WARM, TAKEN)
        descent, storage = problem, None
        if limit is not None:  # exact queries do not keep to it: the descent has to go to the end
            steps = BOUNDED
            storage = _core.Storage(problem.dtype, problem.scale_for(dim)) if is_narrow else None
        elif is_narrow:
            steps = warm
            descent = replace(problem, tolerances=Tolerances(*reserved(problem)))
        head = learned(
            Learned(init=start, max_norm=max_norm),
            descent,
            dim,
            steps,
            storage,
            warm_steps=warm,
            polished_share=0.0 if is_narrow else 1.0,
        )
        if not is_narrow or limit is not None or head.ended == "time limit":
            return head
        with suppress(TimeoutError), calls_until(problem.deadline):
            return narrowed(problem, head, max_norm)
        return replace(head, ended="time limit")


def dims_beside(parts: Parts) -> int:
    """Return how many dimensions the entries beside the stencil get."""
    return math.ceil(BESIDE * likely_dim(parts.target.n, parts.per_row))
