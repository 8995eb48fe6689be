"""The method for a window and a few entries beside it: a filter, from which a descent starts."""

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from headfit import _core
from headfit._base.arguments import as_count
from headfit._base.arrays import FloatArray
from headfit._base.calls import calls_until
from headfit._base.machine import require_memory
from headfit._base.tolerances import Tolerances
from headfit._filter.demand import Demand
from headfit._filter.design import design
from headfit._filter.stencil import Parts
from headfit._fit.head import FIRST_RESERVE, Head, Problem, narrowed, reserved
from headfit._fit.learned import Learned, learned, likely_dim, norm_limit
from headfit._fit.method import Attempt, Method, Patience, bisected
from headfit._fit.result import Search
from headfit._fit.toeplitz import likely_filter_dim
from headfit.errors import InputError

# The dimensions that the entries beside the filter get, in multiples of what they would need alone.
BESIDE = 1.75
# The largest filter that is designed, in multiples of a size that is likely to suffice.
ROOMY = 1.5
# The share of the time that the design of the filter may take.
DESIGN = 0.2
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
        filter_dim = self._filter_dim(parts, dim)
        deadline = time.perf_counter() + DESIGN * problem.seconds_left
        start = None if filter_dim > dim else self._filter(problem, parts, filter_dim, deadline)
        if start is None:
            was_cut = filter_dim <= dim and time.perf_counter() >= deadline
            return Head.of_zeros(n, dim, "time limit" if was_cut else "stalled")
        filter_dim, size = start[0].shape[1], dim
        # A step costs dim**2 per row: with free logits, no more dimensions than give ample room.
        if problem.logit_limit is None:
            size = min(dim, filter_dim + dims_beside(parts))
        # `size` may be less than the size of the whole head, whose scale holds.
        scale = problem.scale_for(dim)
        problem = replace(problem, target=parts.target, scale=scale, module=None)
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
        likely = likely_filter_dim(parts.stencil) + dims_beside(parts)
        return bisected(problem, attempt, likely, 2)

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

    def _filter_dim(self, parts: Parts, dim: int) -> int:
        if self.filter_dim is not None:
            return self.filter_dim
        roomy = math.ceil(ROOMY * likely_filter_dim(parts.stencil) / 2)
        return 2 * min(roomy, max(1, (dim - dims_beside(parts)) // 2))

    def _filter(
        self, problem: Problem, parts: Parts, dim: int, deadline: float
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return the queries and keys of a filter of at most `dim` dimensions; None without one."""
        tolerances = replace(problem.tolerances, max_logit=None)
        solved = design(Demand(parts.stencil, tolerances), dim, deadline=deadline, moves=0)
        if solved is None:
            return None
        q, k = solved.filter.head(problem.target.n, dtype="float32")
        q[parts.stencil.apart] = 0.0
        return q, k

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
            tolerances = Tolerances(*reserved(problem, FIRST_RESERVE))
            descent = replace(problem, tolerances=tolerances)
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
