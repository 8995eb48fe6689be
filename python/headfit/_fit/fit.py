"""Fitting: from a sparse pattern to a head that produces it, with a certificate."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from headfit import bounds
from headfit._attention.attention import Attention
from headfit._attention.module import SelfAttention, check_module
from headfit._base.arguments import as_choice, as_flag, as_number, check_callable
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_count, check_between, seed_from, thread_count
from headfit._base.dtypes import DIGITS, NARROW, array_dtype, check_dtype, check_logits_dtype
from headfit._base.memory import available_memory, require_memory
from headfit._base.progress import Progress
from headfit._fit import projection
from headfit._fit.ending import Ending, advice
from headfit._fit.head import Head
from headfit._fit.key_table import KeyTable
from headfit._fit.learned import check_effort
from headfit._fit.max_margin import check_form
from headfit._fit.result import Fit, Search, Trial
from headfit._fit.search import PROVED, TAKEN, double_and_bisect, gallop_down, likely_dim
from headfit._fit.task import Task
from headfit._target.append_columns import exempt_from
from headfit._target.heavy import heavy_notes
from headfit._target.target import Target, as_target
from headfit.errors import CertificateError, InputError

if TYPE_CHECKING:
    from headfit.bounds import LowerBound

__all__ = ["fit"]

METHODS = ("auto", "learned", "max-margin", "projection")
SEARCH_SECONDS = 60.0
# Of a search: at most so many seconds, and this part of its time, go to a proved lower bound.
BOUND_SECONDS, BOUND_SHARE = 2.0, 0.4
# A lower bound above this is rare: larger sizes that fail are not looked at.
PROVABLE = 8


def _check_distortion(distortion: Any, dtype: str) -> float:
    if as_number(distortion, "distortion") == 0:
        least = 8 * 2.0 ** -DIGITS[dtype]
        raise InputError(
            "distortion must be above 0: no stored number meets a ratio exactly; rounding in "
            f"{dtype} alone moves ratios by about {least:.1g} times the logits, the least that "
            "can be certified"
        )
    return check_between(distortion, "distortion", 0, math.inf)


def _largest_dim(target: Target, leak: float, distortion: float, dtype: str) -> tuple[int, str]:
    """Return where a search ends: the proved bound, or what memory allows."""
    proved = bounds.projection_dim(target.n, target.per_row, target.gamma, leak, distortion)
    free = available_memory()
    # Q and K, and the packed copies of the scan, in half of what is free.
    affordable = 2**20 if free is None else free // (8 * target.n * array_dtype(dtype).itemsize)
    if proved <= affordable:
        return proved, "the size that is proved to suffice"
    return max(1, int(affordable)), "what fits in memory"


def _search(task: Task, lower: LowerBound | None) -> tuple[Search, Head]:
    """Search for a small size; return what was tried, and the head of the best size."""
    heads: dict[int, Head] = {}

    def attempt(dim: int, haste: bool = False) -> Trial:
        trial, heads[dim] = task.trial(dim, haste)
        for size in [s for s in heads if s > dim and trial.holds]:
            del heads[size]  # only the smallest that holds is wanted
        return trial

    target, beside = task.rest, task.beside
    if task.method == "learned":
        largest = target.n + beside if task.module is None else task.module.dim
        first = min(likely_dim(target.n, target.mean_per_row) + beside, largest)
        proved = 1 if lower is None else lower.dim
        lowest = min(max(beside + 1, proved), largest)
        why_lowest = TAKEN if beside and proved < lowest else PROVED
        search = gallop_down(attempt, first, lowest, largest, task.deadline, why_lowest)
    else:
        largest, limit = _largest_dim(target, task.rest_leak, task.distortion, task.dtype)
        first = 16 if task.method == "projection" else 2 * target.per_row
        step = 2 if task.method == "max-margin" and task.keys == "cyclic" else 1
        search = double_and_bisect(attempt, first, largest, limit, step, task.deadline, beside)
    return search, heads[search.dim or search.trials[-1].dim]


def _ending(head: Head, holds: bool, search: Search | None, lower: LowerBound | None) -> Ending:
    """Return why a fit ended."""
    if holds:
        return "certified"
    if lower is not None and lower.dim > head.dim:
        return "infeasible"
    if search is not None and search.dim is None and search.was_cut:
        return "time limit"
    return head.ended


def _late_bound(task: Task, head: Head, seconds: float) -> LowerBound | None:
    """Look for a proof that a small size which was not certified is too small, in little time."""
    if task.method != "learned" or head.dim > PROVABLE or head.ended == "callback":
        return None
    limit = min(1.0, max(0.1, seconds / 4))
    return bounds.lower(task.target, leak=task.leak, distortion=task.distortion, time_limit=limit)


@standard_arithmetic()
def fit(
    A: Any,
    dim: int | None = None,
    *,
    method: str = "auto",
    module: SelfAttention | None = None,
    dtype: str = "float32",
    leak: float = 0.05,
    distortion: float = 0.1,
    scale: float | None = None,
    mask: Any = None,
    factor: str = "identity",
    sketch: str = "rademacher",
    exempt_columns: Any = None,
    keys: Any = "random",
    form: str = "tolerance",
    max_norm: float | None = None,
    max_logit: float | None = None,
    logits_dtype: str | None = None,
    effort: str | int = "low",
    init: Any = None,
    time_limit: float | None = None,
    callback: Any = None,
    progress: bool = False,
    rng: Any = 0,
    normalize: bool = False,
    strict: bool = False,
    mass: bool = True,
    num_threads: int | None = None,
) -> Fit:
    """Find a head, and the input of a fixed module, that produce a sparse attention pattern.

    Parameters
    ----------
    A : target
        A `Target`, or whatever makes one: a sparse or dense array, or a path.
    dim : int, optional
        The head size d. None searches for a small one: "learned" starts near the size that
        random patterns of this n and k need and goes down while it certifies; the others double
        and bisect. With a module, a head smaller than the module's is padded with zeros.
    method : "auto", "learned", "max-margin" or "projection"
        "learned" finds keys and queries together and reaches by far the smallest heads.
        "max-margin" takes keys as given and finds for every row the shortest query that meets
        the tolerances, or a proof that none is short enough. "projection" is the algorithm of
        the paper's proof: oblivious, proved, and in need of a large d. "auto" is "learned".
    module : SelfAttention, optional
        The fixed module whose input is sought; its dim and scale hold. None: the canonical
        module of this size.
    dtype : "float32", "float64", "bfloat16" or "float16"
        Of Q, K and X. The last two come as float32 arrays whose values the format holds
        exactly; the certificate is then about products accumulated in float32, in any order.
    leak, distortion : float
        The tolerances, see `Certificate`; 0 < leak < 1 and distortion > 0.
    scale : float, optional
        Of the logits, when there is no module; 1 / sqrt(dim) when None.
    mask : optional
        As in `attention_matrix`; the target's when None.
    exempt_columns : "auto" or sequence of int, optional
        Columns with a coordinate of their own, one of `dim` each, two in a narrow dtype, beside a
        head of the method for the other columns (`append_columns` says why the whole certifies):
        global tokens, to which most rows attend. "auto": the columns that more than half of
        the rows attend to, and four times as many as a column has on average. The certificate
        is about the whole of A; `dim` counts these coordinates, `init` is for the others.
    factor : "identity" or "svd"
        How the projection factors the target logits. "svd" costs O(n**3) and needs bounded
        columns too; it is there for comparison.
    sketch : "rademacher" or "gaussian"
        Of the projection. Rademacher keys have equal norms, so that the logits of a support
        carry less noise.
    keys : "random", "cyclic", array_like of shape (n, d), or KeyTable
        Of max-margin: see `KeyTable`. A table serves any number of patterns.
    form : "tolerance" or "equality"
        Of max-margin: use the distortion allowed to shorten queries, or meet the log-ratios
        to rounding.
    max_norm : float, optional
        A bound on max ||q|| max ||k|| for logits q.k. Max-margin fails a row that needs more,
        with a proof; learned keeps to it. With a narrow dtype learned has a bound of its own,
        unless one is given: rounding moves logits in proportion to it.
    max_logit : float, optional
        A bound on every |logit|, for learned and max-margin (there by the norms, so that fewer
        rows are realised than could be). It is part of the certificate.
    logits_dtype : "float32", "bfloat16" or "float16", optional
        Certify logits that are rounded to this dtype before the softmax. Fused kernels keep
        them in float32 registers: None. Without `max_logit`, |logit| is bounded so that steps
        of the format are at most half of what the distortion allows.
    effort : "low", "medium", "high" or int
        Of learned: the steps before its first quench; it gives up after 200 times as many, 24
        times in a search. "low" is 300; the smallest sizes take thousands. Structured patterns
        (grids, trees) fit smaller heads with "medium", 1000, at little cost.
    init : (Q, K), optional
        Of learned: a start, with logits Q K^T, of the same or a smaller size.
    time_limit : float, optional
        Seconds, of which a search has 60 unless said; the certificate is not counted. What it
        cut short is not refuted: see ``fit.stopped``.
    callback : callable, optional
        Of learned: called with (step, rows left, worst deficit in logit units) after every scan;
        returning False ends the fit, and a search.
    progress : bool, default False
        Show a tqdm bar of the rows that meet the tolerances (learned; needs tqdm).
    rng : seed or Generator, default 0
    normalize : bool, default False
        Scale the target's rows to sum to 1.
    strict : bool, default False
        Raise a CertificateError unless the certificate holds.
    mass : bool, default True
        Whether the certificate computes total variation and stray mass.
    num_threads : int, optional
        None uses every core. The result does not depend on it, as long as no time limit ends it.

    See Also
    --------
    fit_soft : for a dense target, an `Attention` or a matrix without zeros.

    Returns
    -------
    Fit
        Whether it certifies or not: ``fit.certificate.holds`` tells, ``fit.stopped`` says why it
        ended, and ``fit.advice`` what that means and what to try.

    Raises
    ------
    InputError, TargetError
        For arguments that can never be right, before any work starts.
    CertificateError
        With ``strict=True``, when the certificate does not hold; it says why the fit ended.

    Notes
    -----
    Deciding whether a pattern fits a given d > 1 is NP-hard (Likhosherstov, Choromanski and
    Weller, AAAI 2023), so a search finds a size: ``fit.search`` says what was tried and why it
    ended, ``fit.lower_bound`` what is proved; nothing in between is claimed.

    The projection costs O(nonzeros * d), a certificate O(n**2 d) and O(n) memory beside Q and
    K. Max-margin costs a handful of scans of all logits and a small quadratic program a row.
    Learned costs a scan of all logits every few steps, O(n**2 d) each, and O(n d**2 (k + d))
    for a step; its memory is O(n (k + d**2)).

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.random_regular(64, 3, gamma=2.0, rng=0)
    >>> head = hf.fit(A, 8)
    >>> head.certificate.holds, head.X.shape
    (True, (64, 16))
    >>> hf.fit(A, 1024, method="projection", leak=0.3, distortion=2.0).certificate.holds
    True
    """
    start = time.perf_counter()
    if isinstance(A, Attention):
        raise InputError("A is an Attention, which is dense: fit_soft comes close to it")
    as_choice(method, "method", METHODS, "one of ")
    for name, flag in {"progress": progress, "strict": strict, "mass": mass}.items():
        as_flag(flag, name)
    check_callable(callback, "callback")
    seed, threads = seed_from(rng), thread_count(num_threads)
    dtype, logits_dtype = check_dtype(dtype), check_logits_dtype(logits_dtype)
    projection.check_options(factor, sketch)
    check_form(form)
    if max_norm is not None:
        max_norm = check_between(max_norm, "max_norm", 0, math.inf)
    if max_logit is not None:
        max_logit = check_between(max_logit, "max_logit", 0, math.inf)
    leak = check_between(leak, "leak", 0, 1)
    distortion = _check_distortion(distortion, dtype)
    if time_limit is not None:
        time_limit = check_between(time_limit, "time_limit", 0, math.inf)
    size = None if dim is None else as_count(dim, "dim", 1)
    check_module(module, size, dtype, scale)
    if module is not None:
        size = module.dim
    if method == "auto":
        method = "learned"
    if method == "projection" and max_logit is not None:
        raise InputError(
            "max_logit must not be given to projection, whose logits are what they are"
        )
    if method == "learned":
        check_effort(effort)
        size = None if dim is None else size
    elif method == "max-margin" and not isinstance(keys, str):
        keys = keys if isinstance(keys, KeyTable) else KeyTable(keys)
    if exempt_columns is not None and max_norm is not None:
        raise InputError(
            "max_norm must not be given beside exempt_columns, whose coordinates have norms of "
            "their own; max_logit bounds the logits"
        )
    target = as_target(A, mask=mask, normalize=normalize, num_threads=num_threads)
    exempt = exempt_from(exempt_columns, target)
    beside = int(exempt.size) * (2 if dtype in NARROW else 1)
    if isinstance(keys, KeyTable) and method == "max-margin" and size is None:
        size = keys.dim + beside
    asked = size if module is None else module.dim
    if asked is not None and asked <= beside:
        raise InputError(
            f"dim must be above {beside}, what {exempt.size} exempt columns take in {dtype}: the "
            f"others need a dimension too; got {asked}"
        )
    limit = SEARCH_SECONDS if time_limit is None and size is None else time_limit
    if size is not None:  # Q, K and the input, as made and as stored
        copies = 8 * target.n * size * array_dtype(dtype).itemsize
        require_memory(copies, f"a fit of {target.n} tokens with a head of size dim = {size}")
    bar = Progress(target.n) if progress else None
    watch = callback if bar is None else bar.watching(callback)
    task = Task(
        target=target,
        method=method,
        dtype=dtype,
        leak=leak,
        distortion=distortion,
        scale=scale,
        module=module,
        seed=seed,
        threads=threads,
        factor=factor,
        sketch=sketch,
        keys=keys,
        form=form,
        max_norm=max_norm,
        max_logit=max_logit,
        logits_dtype=logits_dtype,
        effort=effort,
        init=init,
        callback=watch,
        deadline=math.inf if limit is None else start + limit,
        exempt=exempt,
    )
    search, lower = None, None
    notes = heavy_notes(target, exempt)
    with nullcontext() if bar is None else bar:
        if size is None:
            if method == "learned":
                lower = bounds.lower(
                    target,
                    leak=leak,
                    distortion=distortion,
                    time_limit=min(BOUND_SECONDS, BOUND_SHARE * (limit or math.inf)),
                )
            search, head = _search(task, lower)
            size = head.dim
        else:
            head = task.timed_head(size)
    if module is None:
        used = task.scale_for(size)
        X = None
        module = SelfAttention.canonical(size, used, dtype=array_dtype(dtype))
        attention = Attention(*head.stored(used, dtype), scale=used, mask=target.mask)
    else:
        X = module.input_for(*head.padded(module.dim).stored(module.scale, dtype))
        attention = module(X, mask=target.mask)
    certificate = task.judge(attention, mass)
    holds = certificate.holds
    if lower is None and not holds:
        lower = _late_bound(task, head, time.perf_counter() - start)
    stopped = _ending(head, holds, search, lower)
    said = advice(
        stopped,
        method=method,
        dim=head.dim,
        status=certificate.status,
        report=head.settings,
        rows=0 if head.failed_rows is None else int(head.failed_rows.size),
        proved=lower,
        cut=search is not None and search.was_cut,
        notes=notes,
    )
    if strict and not holds:
        raise CertificateError(f"{certificate}\n  {stopped}: {said}")
    return Fit(
        Q=attention.Q,
        K=attention.K,
        scale=attention.scale,
        mask=target.mask,
        module=module,
        dim=attention.dim,
        dtype=dtype,
        method=method,
        leak=leak,
        distortion=distortion,
        certificate=certificate,
        status=certificate.status,
        failed_rows=head.failed_rows,
        witnesses=head.witnesses,
        search=search,
        lower_bound=lower,
        seconds=time.perf_counter() - start,
        settings={
            "dim": None if dim is None else int(dim),
            "method": method,
            "dtype": dtype,
            "seed": task.seed,
            "leak": leak,
            "distortion": distortion,
            "max_norm": max_norm,
            "max_logit": max_logit,
            "logits_dtype": logits_dtype,
            "time_limit": time_limit,
            "dim_used": size,
            **head.settings,
        },
        stopped=stopped,
        advice=said,
        input_stored=X,
    )
