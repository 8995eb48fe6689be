"""The learned method: keys and queries found together by an annealed descent.

docs/learned-method.md says how it works, and what was tried and did not help.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base import dtypes
from headfit._base.arguments import check_callable
from headfit._base.arrays import (
    FloatArray,
    as_contiguous,
    as_count,
    as_float_array,
    check_between,
    effort_steps,
)
from headfit._base.deadline import calls_until
from headfit._base.memory import require_memory
from headfit._cluster.cluster import Cluster
from headfit._fit.ending import Ending
from headfit._fit.head import Head, tightened
from headfit._fit.method import Attempt, Method, Patience
from headfit._fit.problem import Problem
from headfit._fit.result import Search
from headfit._fit.scans import SharedScans
from headfit._fit.search import PROVED, TAKEN, gallop_down
from headfit._fit.stages import Callback, Stage, Start, UntilFalse, joined, tightening
from headfit._target.target import Target
from headfit.errors import InputError

__all__ = ["Learned"]

# Steps before the first quench, unless a shorter hold has already found the keys. Where a quench
# comes too early, later ones follow at 1.4 times the steps.
EFFORTS = {"low": 300, "medium": 1000, "high": 5000}
# The most steps, in multiples of the steps before the first quench: for the one size that was
# asked for; for a size of a search over 512 tokens or more (fewer tokens take less time, and as
# many steps at the smallest sizes); and for a size above which a larger one is tried next.
FULL = 200.0
SEARCH = 24.0
BRIEF = 4.0
# With a larger share of rows left than this, the keys are far from good enough, and exact queries
# for them would be a waste of time.
POLISHED_SHARE = 0.1
# The most steps of a stage that others follow, in the same multiples: about those of one start.
STAGE = 10
# The steps of the anneal of a start that is given.
WARM_STEPS = 500
# How many reheats may follow a quench that leaves few rows.
REHEATS = 6
# More stages would hardly differ in their tolerances.
MOST_STAGES = 100
# The seconds that exact queries may take after a time limit.
POLISH_SECONDS = 0.5

# What the core's words for the end of a descent mean for a head that does not certify.
ENDED: dict[str, Ending] = {
    "met": "stalled",
    "step limit": "steps",
    "time limit": "time limit",
    "stopped": "callback",
}


@dataclass(frozen=True, eq=False)
class Learned(Method):
    """Find keys and queries together; this reaches by far the smallest heads.

    Parameters
    ----------
    effort : "low", "medium", "high" or int, default "low"
        The steps before the first quench of the anneal: 300, 1000, 5000 or as many as given. The
        method gives up after 200 times as many, or 24 times in a search. "low" suffices for
        most patterns: a fit ends as soon as every row meets the tolerances, so more effort costs
        time only where it is needed, but there it costs much. The smallest sizes take thousands
        of steps. Structured patterns (grids, trees) fit smaller heads with "medium", at little
        cost.
    init : (Q, K), optional
        Queries and keys to start from, whose logits are Q K^T, of the head's size or a smaller
        one. With exempt columns they are for the other columns. Kept as copies in float32.
    callback : callable, optional
        Called with (step, rows left, worst deficit in logit units) after every scan of the
        logits; in a stage that others follow, rows and deficit are those for its tolerances.
        Returning False ends the fit, and a search; where that scan leaves no row, the size is
        done already and a search goes on.
    max_norm : float, optional
        A bound on scale * max ||q|| * max ||k||. None: no bound, or for a narrow dtype one of
        the method's own, because rounding moves logits in proportion to it; the rounded head may
        exceed that one.
    reheats : int, default 6
        How many reheats may follow a quench that leaves few rows. Each is a short anneal in which
        these rows weigh more and more; after half of them, the first that frees no row is the
        last. Near the smallest size many find heads that more steps alone do not: try 100 with
        effort "medium" or "high". They cost time only where a quench nearly succeeds.
    stages : int, default 1
        In how many stages, at most 100, the tolerances are tightened from a leak of 0.5 and a
        distortion of 2 to those asked for; 1 asks for these alone. Each stage starts from the
        head of the last one, even where that has not met its tolerances. It takes at most an
        equal part of the steps that are left, and those before the last no more than ten times
        the steps before the first quench. Where there are few steps, in a search, stages are
        fewer. With effort "medium" and 100 reheats, 4 stages find twice as many heads of size 5
        near the most tokens that it holds (k = 4); at sizes 6 and 7 they gained nothing.

    Raises
    ------
    InputError
        For an option out of range. A start whose shape does not suit the pattern or the size is
        refused by `fit`.

    See Also
    --------
    MaxMargin : for keys that are given.
    Projection : the algorithm of the paper's proof.

    Notes
    -----
    A scan of all logits every few steps costs O(n**2 d), a step O(n d**2 (k + d)); memory is
    O(n (k + d**2)). A bound on the logits (`Tolerances.max_logit`) is kept by the loss.
    docs/learned-method.md in the repository says how the method works and what was tried.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.random_regular(64, 3, gamma=2.0, rng=0)
    >>> hf.fit(A, 8, method=hf.methods.Learned(effort="medium", max_norm=100.0)).certificate.holds
    True
    """

    effort: str | int = "low"
    init: Any = None
    callback: Callback | None = None
    max_norm: float | None = None
    reheats: int = REHEATS
    stages: int = 1

    name = "learned"
    seeks_smallest = True

    def __post_init__(self) -> None:
        check_effort(self.effort)
        object.__setattr__(self, "reheats", as_count(self.reheats, "reheats", 0, 10**9))
        object.__setattr__(self, "stages", as_count(self.stages, "stages", 1, MOST_STAGES))
        check_callable(self.callback, "callback")
        if self.init is not None:
            object.__setattr__(self, "init", _as_start(self.init))
        if self.max_norm is not None:
            limit = check_between(self.max_norm, "max_norm", 0, math.inf)
            object.__setattr__(self, "max_norm", limit)

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size that was asked for; None searches, also when there is a module."""
        check_norm_without_exempt(self.max_norm, problem)
        return dim

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return a learned head of a size that is ample, padded with zero columns up to `dim`.

        A step costs d**3 per row, and a pattern that fits a small head fits a large one.
        """
        target = problem.target
        is_bounded = self.max_norm is not None or problem.logit_limit is not None
        is_free = not is_bounded and self.init is None
        size = min(dim, ample_dim(target.n, target.mean_per_row)) if is_free else dim
        times = {"full": FULL, "search": search_patience(target.n), "brief": BRIEF}
        while True:
            head = self._in_stages(problem, size, dim, times[patience if size == dim else "search"])
            is_done = head.failed_rows is None or head.failed_rows.size == 0
            if is_done or head.ended in ("callback", "time limit") or size == dim:
                return head.padded(dim)
            size = min(dim, math.ceil(1.5 * size))

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Start near the size that random patterns need, and go down while sizes certify."""
        target, taken, module = problem.other_columns, problem.exempt_dims, problem.module
        largest = target.n + taken if module is None else module.dim
        first = min(likely_dim(target.n, target.mean_per_row) + taken, largest)
        lowest = min(max(taken + 1, problem.proved_dim), largest)
        why_lowest = TAKEN if taken and problem.proved_dim < lowest else PROVED
        return gallop_down(attempt, first, lowest, largest, problem.deadline, why_lowest)

    def advice(self, head: Head) -> str | None:
        """Say what the end of all steps means."""
        if head.ended != "steps":
            return None
        left = rows_left(head)
        return (
            f"All {head.steps} steps of this effort were spent at d = {head.dim}{left}, which "
            'proves nothing: try a larger dim, a higher effort ("medium", "high") or another rng.'
        )

    def norm_limit(self, problem: Problem) -> float | None:
        """The bound on max ||q|| max ||k||: as asked, or what a narrow format can resolve.

        Rounding moves a logit by about ||q|| ||k|| 2**-digits, less what cancels. A limit of a
        few times the logarithm of the distortion over that was found to leave the smallest heads.
        """
        if self.max_norm is not None or not problem.is_narrow:
            return self.max_norm
        delta = math.log1p(problem.tolerances.distortion)
        least = 20 * (delta - math.log(problem.tolerances.leak))
        return max(6 * delta * 2.0 ** dtypes.DIGITS[problem.dtype], least)

    def _in_stages(self, problem: Problem, size: int, dim: int, patience: float) -> Head:
        """Return the head of the last stage.

        Where a stage is stopped, the last one follows at once and takes no steps: its scan tells
        which rows miss the tolerances asked for. If that takes too long, all rows count as missed.
        """
        effort = check_effort(self.effort)
        steps_left = math.ceil(patience * effort)
        # Each stage has the steps of the anneal that it begins with.
        count = max(1, min(self.stages, steps_left // WARM_STEPS))
        asked = tightening(problem.tolerances, count)
        if len(asked) == 1:
            only = Stage(*asked[0], steps_left, self.init, self.callback)
            return self._descend(problem, size, dim, only)
        tightened(*asked[-1], problem.logit_step)  # raises before the first stage takes steps
        callback = None if self.callback is None else UntilFalse(self.callback)
        heads: list[Head] = []
        start, taken = self.init, 0
        ended: Ending | None = None
        for i, tolerances in enumerate(asked):
            is_last = i + 1 == len(asked)
            if ended is not None and not is_last:
                continue
            most = math.ceil(max(0, steps_left - taken) / (len(asked) - i))
            if ended is not None:
                most = 0
            elif not is_last:
                most = min(most, STAGE * effort)
            stage = Stage(*tolerances, most, start, callback, taken, is_last)
            head = self._descend(problem, size, dim, stage)
            heads.append(head)
            start, taken = (head.Q, head.K), taken + (head.steps or 0)
            if not is_last and callback is not None and callback.is_over:
                ended = "callback"  # also where this stage has met its tolerances
            elif not is_last and head.ended == "time limit":
                ended = head.ended
        return joined(heads, ended)

    def _descend(self, problem: Problem, size: int, dim: int, stage: Stage) -> Head:
        limit = problem.logit_limit
        is_rounded = problem.is_narrow and stage.is_last
        may_go_on = stage.most_steps > 0
        head = learned(
            problem.target,
            size,
            leak=stage.leak,
            distortion=stage.distortion,
            seed=problem.seed,
            threads=problem.threads,
            effort=self.effort,
            reheats=self.reheats,
            max_norm=self.norm_limit(problem) or 0.0,
            max_rounded_norm=self.max_norm or 0.0,
            max_logit=math.inf if limit is None else limit,
            logit_step=problem.logit_step,
            storage=problem.dtype if is_rounded else "",
            query_unit=problem.scale_for(dim) if is_rounded else 1.0,
            time_limit=problem.seconds_left,
            most_steps=stage.most_steps,
            init=stage.start,
            polished_share=POLISHED_SHARE if stage.is_last and may_go_on else 0.0,
            callback=after_a_scan(problem, stage.callback, stage.before) if may_go_on else None,
            cluster=problem.cluster,
        )
        head.settings["max_norm"] = self.max_norm
        head.settings["reheats"] = self.reheats
        head.settings["stages"] = self.stages
        return head


def after_a_scan(
    problem: Problem, callback: Callback | None = None, before: int = 0
) -> Callback | None:
    """Return what to call after every scan: the progress of the fit, and a callback.

    `before` is the number of steps that were taken before this descent.
    """
    watch = problem.watch
    if watch is None and (callback is None or before == 0):
        return callback

    def both(step: int, left: int, deficit: float) -> Any:
        if watch is not None:
            watch(left, step=before + step, worst=f"{deficit:.2g}")
        return None if callback is None else callback(before + step, left, deficit)

    return both


def check_norm_without_exempt(max_norm: float | None, problem: Problem) -> None:
    """Raise an InputError for a bound on norms that exempt columns cannot keep to."""
    if max_norm is not None and problem.exempt is not None:
        raise InputError(
            "max_norm must not be given beside exempt_columns, whose coordinates have norms of "
            "their own; max_logit bounds the logits"
        )


def rows_left(head: Head) -> str:
    """Return a text such as " with 3 rows left", empty if no row is left."""
    rows = 0 if head.failed_rows is None else int(head.failed_rows.size)
    return f" with {rows} row{'' if rows == 1 else 's'} left" if rows else ""


def search_patience(n: int) -> float:
    """Return after how many multiples of the first hold a search gives up a size."""
    return SEARCH * math.sqrt(max(1.0, 512 / max(n, 1)))


def ample_dim(n: int, k: float) -> int:
    """Return a head size at which more columns no longer make the method quicker.

    Measured for random k-regular patterns, in processor seconds at the likely size plus 4 and at
    this one: k = 16, n = 16,384: 86 and 55; k = 32, n = 4,096: 45 and 25; k = 64, n = 2,048: 39
    and 33. At k = 16, n = 100,000 the likely size plus 4 did not end within 15 minutes.
    """
    return likely_dim(n, k) + min(max(4, math.ceil(0.15 * k * doublings(n) - 4)), 16)


def likely_dim(n: int, k: float) -> int:
    """Return a head size that is likely to certify at once.

    `k` is the mean number of nonzeros per row: a few full rows need no larger head.
    Measured for random k-regular patterns at gamma 2, leak 0.05 and log distortion 0.1: a size
    or two above the smallest found, which is about 2.3 + 1.2 k at n = 512, and 0.23 k more for
    each doubling of n. Structured patterns need less.
    """
    guess = 2.4 + 1.17 * k + 0.225 * k * doublings(n)
    return max(2, min(n, math.ceil(guess)))


def doublings(n: int) -> float:
    """Return how often 512 tokens are doubled to make n."""
    return math.log2(max(n, 2)) - 9


def check_effort(effort: str | int) -> int:
    """Return the steps before the first quench."""
    return effort_steps(effort, EFFORTS)


def _as_start(init: Any) -> Start:
    """Return copies of a pair of matrices as finite float32 arrays of one shape."""
    try:
        q, k = (np.array(as_float_array(x, "init", ndim=0), dtype=np.float32) for x in init)
    except (TypeError, ValueError) as error:
        raise InputError(f"init must be a pair (Q, K) of matrices: {error}") from error
    for name, x in (("Q", q), ("K", k)):
        if x.ndim != 2 or x.shape[1] < 1 or x.shape != q.shape:
            raise InputError(
                "init must be Q and K, matrices of equal shape with at least one column; "
                f"got {name} of shape {x.shape}"
            )
        if not np.isfinite(x).all():
            raise InputError(f"init must be finite; {name} is not, as float32")
    return as_contiguous(q), as_contiguous(k)


def _check_start(start: Start, n: int, dim: int) -> None:
    for name, x in zip("QK", start, strict=True):
        if x.shape[0] != n or x.shape[1] > dim:
            raise InputError(
                f"init must be Q and K of equal shape, {n} rows and 1 to {dim} columns; "
                f"got {name} of shape {x.shape}"
            )


def polish_rows(
    target: Target,
    q: FloatArray,
    k: FloatArray,
    rows: NDArray[np.intp],
    tolerances: tuple[float, float],
    max_query: float,
    threads: int,
) -> NDArray[np.intp]:
    """Solve for exact queries of the rows that are left; return the rows without a solution."""
    offsets, columns, weights = target.csr_arrays
    sizes = np.zeros(target.n, dtype=np.int64)
    sizes[rows] = np.diff(offsets)[rows]  # nothing is required of the other rows
    asked = np.repeat(sizes > 0, np.diff(offsets))
    left_over = _core.Target(
        np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)]),
        columns[asked],
        weights[asked],
        target.core.mask,
    )
    exact, status, _, _, _ = _core.max_margin_queries(
        left_over,
        k.astype(np.float64),
        _core.Tolerances(*tolerances),
        _core.MaxMarginOptions(max_norm=max_query),
        threads,
    )
    freed = np.array([status[i] == "optimal" for i in rows], dtype=bool)
    q[rows[freed]] = exact[rows[freed]]
    left: NDArray[np.intp] = rows[~freed]
    return left


def learned(
    target: Target,
    dim: int,
    *,
    leak: float,
    distortion: float,
    seed: int,
    threads: int,
    effort: str | int = "low",
    reheats: int = REHEATS,
    max_norm: float = 0.0,
    max_logit: float = math.inf,
    logit_step: float = 0.0,
    storage: str = "",
    query_unit: float = 1.0,
    max_rounded_norm: float = 0.0,
    time_limit: float = math.inf,
    most_steps: int | None = None,
    init: Any = None,
    warm_steps: int = WARM_STEPS,
    polished_share: float = POLISHED_SHARE,
    callback: Callback | None = None,
    cluster: Cluster | None = None,
) -> Head:
    """Return the keys and queries that an annealed descent finds, and the rows it leaves.

    Per row, with c the mean of S - log A over the support and b = c + min log A - tau, the loss
    is half the sum of (S - log A - c)^2 there plus half the sum of max(0, S - b)^2 elsewhere.
    Every query and every key takes steps of one set length, along its momentum preconditioned
    by its own curvature. The length acts as a temperature: it falls slowly, as the inverse root
    of the steps, and is quenched now and then. A quench that leaves many rows is undone. Scans
    of the logits list the few columns that matter, and an exact scan ends the fit as soon as
    every row is within the tolerances.

    Parameters
    ----------
    effort : "low", "medium", "high" or int
        The steps before the first quench: less time for a large head, a small head sooner.
    reheats : int
        How many reheats may follow a quench that leaves few rows.
    max_norm : float
        A bound on max ||q|| max ||k||, kept by projection; 0 is none.
    max_logit : float
        A bound on every |logit|: the loss pushes back what lies beyond it.
    logit_step : float
        By how much the rounding of logits may move them against each other.
    storage : "bfloat16", "float16" or ""
        Round keys and queries / `query_unit` to this format, keys first: queries then make up
        for what the rounding of the keys did, and a search among the neighbouring grid points
        of every query lets its own errors cancel. "" rounds nothing.
    max_rounded_norm : float
        A bound on max ||q|| max ||k|| of what is rounded to `storage`; 0 is none.
    most_steps : int, optional
        The most steps; None: `FULL` times those before the first quench.
    init : (Q, K), optional
        A start, of `dim` columns or fewer; logits are Q @ K.T.
    warm_steps : int
        The steps of the anneal of this start.
    polished_share : float
        If at most this share of the rows is left, they get exact queries for the keys.
    callback : callable, optional
        Called after every scan with (step, rows left, worst deficit in logit units); returning
        False ends the fit.
    cluster : Cluster, optional
        Its workers make the scans; steps are taken here.
    """
    require_memory(
        int(_core.memory_of_fit(target.n, target.mean_per_row, dim)),
        f"learning a head of size dim = {dim}",
    )
    start, steps = time.perf_counter(), check_effort(effort)
    init_q, init_k = (None, None) if init is None else _as_start(init)
    if init_q is not None and init_k is not None:
        _check_start((init_q, init_k), target.n, dim)
    tolerances = (*tightened(leak, distortion, logit_step), max_logit * (1 - 1e-5))
    options = _core.LearnedOptions(
        dim=dim,
        seed=seed,
        first_hold=steps,
        max_steps=math.ceil(FULL * steps) if most_steps is None else most_steps,
        most_reheats=reheats,
        time_limit=time_limit,
        max_norm=max_norm,
        storage=_core.Storage(storage, query_unit, max_rounded_norm) if storage else None,
        start=None if init_q is None or init_k is None else (init_q, init_k),
        warm_steps=warm_steps,
        scanner=None if cluster is None else SharedScans.of(cluster, target, tolerances),
        progress=None if callback is None else lambda *scan: callback(*scan) is not False,
    )
    q, k, report = _core.fit_learned(target.core, _core.Tolerances(*tolerances), options, threads)
    failed = report.pop("rows_left")
    report["rows_left"] = int(failed.size)
    polish = not storage and math.isinf(max_logit) and report["status"] != "stopped"
    if polish and 0 < failed.size <= polished_share * target.n:
        longest = float(np.linalg.norm(k.astype(np.float64), axis=1).max())
        max_query = max_norm / longest if max_norm > 0 and longest > 0 else math.inf
        end = max(start + time_limit, time.perf_counter() + POLISH_SECONDS)
        with suppress(TimeoutError), calls_until(end):
            failed = polish_rows(target, q, k, failed, tolerances[:2], max_query, threads)
    report["rows_polished"] = report["rows_left"] - int(failed.size)
    return Head(
        q,
        k,
        failed_rows=failed,
        settings={"effort": effort, "learned": report},
        ended=ENDED[report["status"]],
        steps=int(report["steps"]),
        # Some heads need no quench at all.
        restarts=max(report["quenches"] - 1, 0) + report["reheats"],
    )
