"""The learned method: keys and queries found together by an annealed descent.

docs/learned-method.md says how it works, and what was tried and did not help.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arguments import as_count, as_positive, check_callable, shown
from headfit._base.arrays import DIGITS, FloatArray, as_contiguous, as_float_array
from headfit._base.calls import goes_on
from headfit._base.display import named
from headfit._base.machine import require_memory
from headfit._base.tolerances import Tolerances
from headfit._cluster.cluster import Cluster, hold, run_blocks
from headfit._fit.head import Ending, Head, Problem, tightened
from headfit._fit.method import Attempt, Method, Patience, check_norm, galloped
from headfit._fit.result import Search
from headfit._target.target import Target
from headfit.errors import InputError, input_errors

# Steps before the first quench, unless a shorter hold has already found the keys. Where a quench
# comes too early, later ones follow at 1.4 times the steps.
EFFORTS = {"low": 300, "medium": 1000, "high": 5000}
# The most steps, in multiples of the steps before the first quench: where one size alone is
# tried; for a size of a search over 512 tokens or more (fewer tokens take less time, and as
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
# The tolerances of the first stage, unless those of the fit are looser.
FIRST = Tolerances(leak=0.5, distortion=2.0)

# What the core's words for the end of a descent mean for a head that does not certify.
ENDED: dict[str, Ending] = {
    "met": "stalled", "step limit": "steps", "time limit": "time limit", "stopped": "callback",
}  # fmt: skip

Callback = Callable[[int, int, float], Any]
Start = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class Learned(Method):
    """Find keys and queries together; this reaches by far the smallest heads.

    Parameters
    ----------
    effort : "low", "medium", "high" or int, default "low"
        The steps before the first quench of the anneal: 300, 1000, 5000 or any number. The
        method gives up after 200 times as many, or 24 times in a search. "low" suffices for most
        patterns, since a fit ends as soon as every row meets the tolerances. The smallest sizes
        take thousands of steps. Structured patterns (grids, trees) fit smaller heads with
        "medium", at little cost.
    init : (Q, K), optional
        Queries and keys to start from, whose logits are Q K^T, of the head's size or a smaller
        one: a search goes no lower. They are for columns that are not exempt. In float32.
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
        distortion of 2 to those of the fit. Each stage starts from the head of the last one. A
        search, which has few steps, has fewer stages. With effort "medium" and 100 reheats, 4
        stages find twice as many heads of size 5 near the most tokens that it holds (k = 4); at
        sizes 6 and 7 they gained nothing.

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
        steps = effort_steps(self.effort, EFFORTS)
        check_callable(self.callback, "callback")
        vars(self).update(
            effort=self.effort if isinstance(self.effort, str) else steps,
            reheats=as_count(self.reheats, "reheats", 0, 10**9),
            stages=as_count(self.stages, "stages", 1, MOST_STAGES),
            init=None if self.init is None else _as_start(self.init),
            max_norm=as_positive(self.max_norm, "max_norm"),
        )

    def check(self, problem: Problem, dim: int | None) -> int | None:
        """Return the size of the head; None searches, also when there is a module."""
        check_norm(self.max_norm, problem)
        return dim

    def head(self, problem: Problem, dim: int, patience: Patience = "full") -> Head:
        """Return a learned head of a size that is ample, padded with zero columns up to `dim`.

        A step costs d**3 per row, and a pattern that fits a small head fits a large one.
        """
        target = problem.target
        is_free = self.max_norm is None and problem.logit_limit is None and self.init is None
        size = min(dim, ample_dim(target.n, target.mean_per_row)) if is_free else dim
        of_search = SEARCH * math.sqrt(max(1.0, 512 / target.n))
        times = {"full": FULL, "search": of_search, "brief": BRIEF}
        first, storage = effort_steps(self.effort, EFFORTS), None
        if problem.is_narrow:
            storage = _core.Storage(problem.dtype, problem.scale_for(dim), self.max_norm or 0.0)
        while True:
            steps = math.ceil(first * times[patience if size == dim else "search"])
            head = learned(self, problem, size, steps, storage)
            if not head.rows_left or head.ended in ("callback", "time limit") or size == dim:
                return head.padded(dim)
            size = min(dim, math.ceil(1.5 * size))

    def search(self, problem: Problem, attempt: Attempt) -> Search:
        """Start near the size that random patterns need, and go down while sizes certify."""
        target = problem.other_columns
        least = 1 if self.init is None else self.init[0].shape[1]
        return galloped(problem, attempt, likely_dim(target.n, target.mean_per_row), least)

    def advice(self, head: Head) -> str | None:
        """Say what the end of all steps means."""
        if head.ended != "steps":
            return None
        return (
            f"All {head.steps} steps of this effort were spent at d = {head.dim}{head.left}, which "
            'proves nothing: try a larger dim, a higher effort ("medium", "high") or another rng.'
        )


def norm_limit(problem: Problem, max_norm: float | None = None) -> float | None:
    """The bound on max ||q|| max ||k||: an option's, or what a narrow format can resolve.

    Rounding moves a logit by about ||q|| ||k|| 2**-digits, less what cancels. A limit of a
    few times the logarithm of the distortion over that was found to leave the smallest heads.
    """
    if max_norm is not None or not problem.is_narrow:
        return max_norm
    delta, leak = math.log1p(problem.tolerances.distortion), problem.tolerances.leak
    return max(6 * delta * 2.0 ** DIGITS[problem.dtype], 20 * (delta - math.log(leak)))


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
    return max(2, min(n, math.ceil(2.4 + 1.17 * k + 0.225 * k * doublings(n))))


def doublings(n: int) -> float:
    """Return how often 512 tokens are doubled to make n."""
    return math.log2(max(n, 2)) - 9


def _as_start(init: Any) -> Start:
    """Return copies of a pair of matrices as finite float32 arrays of one shape."""
    with input_errors("init must be a pair (Q, K) of matrices", TypeError, ValueError):
        q, k = (np.array(as_float_array(x, "init", ndim=0), dtype=np.float32) for x in init)
    for name, x in (("Q", q), ("K", k)):
        if x.ndim != 2 or x.shape[1] < 1 or x.shape != q.shape:
            raise InputError(
                "init must be Q and K, matrices of equal shape with at least one column; "
                f"got {name} of shape {x.shape}"
            )
        if not np.isfinite(x).all():
            raise InputError(f"init must be finite; {name} is not, as float32")
    return as_contiguous(q), as_contiguous(k)


def tightening(tolerances: Tolerances, stages: int) -> list[tuple[float, float]]:
    """Return the leak and the distortion of every stage, from loose ones to the tolerances.

    -log(leak) and log(1 + distortion), to which logits have to keep, form geometric sequences. One
    that is looser than that of the first stage already stays as it is; where both are, there is
    one stage. docs/learned-method.md has the figures.
    """
    leak, distortion = last = tolerances.leak, tolerances.distortion
    has_tight_leak, has_tight_ratios = leak < FIRST.leak, distortion < FIRST.distortion
    if not (has_tight_leak or has_tight_ratios):
        return [last]

    def between(first: float, last: float, share: float) -> float:
        return float(first ** (1 - share) * last**share)

    looser = []
    for share in (i / (stages - 1) for i in range(stages - 1)):
        gap = between(-math.log(FIRST.leak), -math.log(leak), share)
        delta = between(math.log1p(FIRST.distortion), math.log1p(distortion), share)
        at_stage = math.exp(-gap) if has_tight_leak else leak
        looser.append((at_stage, math.expm1(delta) if has_tight_ratios else distortion))
    return [*looser, last]


def learned(
    method: Learned,
    problem: Problem,
    dim: int,
    most_steps: int,
    storage: _core.Storage | None = None,
    *,
    warm_steps: int = WARM_STEPS,
    polished_share: float = POLISHED_SHARE,
) -> Head:
    """Return the keys and queries that an annealed descent finds, and the rows it leaves.

    Per row, with c the mean of S - log A over the support and b = c + min log A - tau, the loss
    is half the sum of (S - log A - c)^2 there plus half the sum of max(0, S - b)^2 elsewhere.
    Every query and every key takes steps of one set length, along its momentum preconditioned
    by its own curvature. The length acts as a temperature: it falls slowly, as the inverse root
    of the steps, and is quenched now and then. A quench that leaves many rows is undone. Scans
    of the logits list the few columns that matter, and an exact scan ends the fit as soon as
    every row is within the tolerances. What lies beyond a bound on the logits is pushed back by
    the loss. With a cluster its workers make the scans; steps are taken here.

    In stages the tolerances are tightened to those of the problem. Where a stage is stopped, the
    last one takes no steps: its scan tells which rows miss them.

    A bound on max ||q|| max ||k|| is kept by projection. With a `storage`, keys and queries are
    rounded to its format, keys first: queries then make up for what the rounding of the keys did,
    and a search among the neighbouring grid points of every query lets its own errors cancel.
    The anneal of a start of `dim` columns or fewer takes `warm_steps`. If at most `polished_share`
    of the rows is left, they get exact queries for the keys.
    """
    target, limit, steps = problem.target, problem.logit_limit, effort_steps(method.effort, EFFORTS)
    size = int(_core.memory_of_fit(target.n, target.mean_per_row, dim))
    require_memory(size, f"learning a head of size dim = {dim}")
    first = () if method.init is None else method.init[0].shape
    if first and (first[0] != target.n or first[1] > dim):
        raise InputError(
            f"init must be Q and K of equal shape, {target.n} rows and 1 to {dim} columns; "
            f"got Q of shape {first}"
        )
    most = math.inf if limit is None else limit * (1 - 1e-5)
    # Each stage has the steps of the anneal that it begins with.
    stages = tightening(problem.tolerances, max(1, min(method.stages, most_steps // WARM_STEPS)))
    # The last stage comes first: an error is about the tolerances of the fit.
    tolerances, *looser = (
        _core.Tolerances(*tightened(*stage, problem.logit_step), most) for stage in reversed(stages)
    )

    def after_scan(step: int, left: int, deficit: float) -> bool:
        if problem.watch is not None:
            problem.watch(left, step=step, worst=f"{deficit:.2g}")
        return method.callback is None or goes_on(method.callback(step, left, deficit))

    options = _core.LearnedOptions(
        dim=dim, seed=problem.seed, first_hold=steps, max_steps=most_steps,
        looser=looser[::-1], stage_steps=STAGE * steps, most_reheats=method.reheats,
        time_limit=problem.seconds_left, max_norm=norm_limit(problem, method.max_norm) or 0.0,
        storage=storage, start=method.init, warm_steps=warm_steps, polished_share=polished_share,
        scanner=None if problem.cluster is None else shared_scans(problem.cluster, target),
        progress=None if problem.watch is None and method.callback is None else after_scan,
    )  # fmt: skip
    q, k, report = _core.fit_learned(target.core, tolerances, options, problem.threads)
    return Head(
        q,
        k,
        failed_rows=report.pop("failed_rows"),
        restarts=report.pop("restarts"),
        settings={**named(method, "effort", "max_norm", "reheats", "stages"), "learned": report},
        ended=ENDED[report["status"]],
        steps=report["steps"],
    )


def shared_scans(cluster: Cluster, target: Target) -> Callable[..., tuple[NDArray[Any], ...]]:
    """Return a function that makes the scans of a fit on the workers, which hold the target.

    Every scan sends them queries and keys, 8 n d bytes, and the hits of the last scan; it gets back
    the candidate lists, about 4 n max(24, 4 k) bytes. Where lists are kept it sends these too.
    """
    held = hold(cluster, (target, cluster.threads))

    def scan(tolerances: tuple[float, ...], request: dict[str, Any]) -> tuple[NDArray[Any], ...]:
        n, dim = request["q"].shape
        products = n * dim // request["column_step"]
        sent = hold(cluster, request)
        parts = run_blocks(cluster, _scan_block, held, products, "scan", range(n), sent, tolerances)
        return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))

    return scan


def _scan_block(
    held: tuple[Target, int], rows: range, sent: dict[str, Any], numbers: tuple[float, ...]
) -> tuple[NDArray[Any], ...]:
    # Dask replaces the future of the request by what it stands for.
    tolerances, request = _core.Tolerances(*numbers), _core.ScanRequest(**sent)
    return _core.scan_rows(held[0].core, tolerances, request, rows.start, rows.stop, held[1])


def effort_steps(effort: str | int, named: dict[str, int], least: int = 1) -> int:
    """Return the number of steps for an effort: one of the named ones, or a number of steps."""
    if isinstance(effort, str):
        if effort not in named:
            raise InputError(f"effort must be one of {tuple(named)} or steps; got {shown(effort)}")
        return named[effort]
    return as_count(effort, "effort", least, 10**9)
