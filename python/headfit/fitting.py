"""Fitting: from a sparse pattern to a head that produces it, with a certificate."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headfit import bounds, projection
from headfit._arrays import as_count, check_between, seed_from, thread_count
from headfit._files import available_memory
from headfit.attention import Attention, check_scale
from headfit.certificate import Certificate, certify
from headfit.errors import InputError
from headfit.fit_result import Fit, Search, Trial
from headfit.keys import KeyTable
from headfit.learned import PATIENCE, SEARCH_PATIENCE, check_effort, learned
from headfit.max_margin import check_form, key_table, max_margin
from headfit.methods import Head
from headfit.module import SelfAttention
from headfit.search import ample_dim, double_and_bisect, gallop_down, likely_dim
from headfit.targets import Target, as_target

if TYPE_CHECKING:
    from headfit.bounds import LowerBound

__all__ = ["fit"]

METHODS = ("auto", "learned", "max-margin", "projection")
DTYPES = ("float32", "float64")
SEARCH_SECONDS = 60.0


def _check_dim(dim: Any, module: SelfAttention | None) -> int | None:
    wanted = None if dim is None else as_count(dim, "dim", 1)
    if module is None:
        return wanted
    if not isinstance(module, SelfAttention):
        raise InputError(f"module must be a SelfAttention; got {type(module).__name__}")
    if wanted is not None and wanted != module.dim:
        raise InputError(f"dim must be the module's, {module.dim}, or not given; got {dim}")
    return module.dim


def _check_distortion(distortion: Any, dtype: str) -> float:
    try:
        exact = float(distortion) == 0
    except (TypeError, ValueError):
        exact = False
    if exact:
        least = 4 * float(np.finfo(dtype).eps)
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
    affordable = 2**20 if free is None else free // (8 * target.n * np.dtype(dtype).itemsize)
    if proved <= affordable:
        return proved, "the size that is proved to suffice"
    return max(1, int(affordable)), "what fits in memory"


@dataclass(frozen=True)
class _Task:
    """Everything that a method needs to know, checked."""

    target: Target
    method: str
    dtype: str
    leak: float
    distortion: float
    scale: float | None
    module: SelfAttention | None
    seed: int
    threads: int
    factor: str
    sketch: str
    keys: Any
    form: str
    max_norm: float | None
    effort: str | int
    init: Any
    callback: Any
    deadline: float

    def scale_for(self, dim: int) -> float:
        return self.module.scale if self.module is not None else check_scale(self.scale, dim)

    def head(self, dim: int, patience: float = PATIENCE) -> Head:
        """Run the method at one size; logits are the plain products of what comes back."""
        if self.method == "max-margin":
            table = key_table(self.keys, self.target.n, dim, self.dtype, self.seed)
            longest = float(np.linalg.norm(table.keys.astype(np.float64), axis=1).max())
            bounded = self.max_norm is not None and longest > 0
            return max_margin(
                self.target,
                table,
                form=self.form,
                leak=self.leak,
                distortion=self.distortion,
                max_norm=(self.max_norm or 0) / longest if bounded else math.inf,
                threads=self.threads,
            )
        if self.method == "learned":
            return self._learned(dim, patience)
        return projection.project(
            self.target,
            dim,
            dtype=self.dtype,
            factor=self.factor,
            sketch=self.sketch,
            leak=self.leak,
            distortion=self.distortion,
            seed=self.seed,
            threads=self.threads,
        )

    def _learned(self, dim: int, patience: float) -> Head:
        """Learn at a size that is sure to be enough, and pad with zeros up to a larger one.

        A step costs d**3 a row, and a pattern that fits a small head fits a large one.
        """
        bounded = self.max_norm is not None or self.init is not None
        size = dim if bounded else min(dim, ample_dim(self.target.n, self.target.per_row))
        while True:
            head = learned(
                self.target,
                size,
                leak=self.leak,
                distortion=self.distortion,
                seed=self.seed,
                threads=self.threads,
                effort=self.effort,
                max_norm=self.max_norm or 0.0,
                time_limit=max(0.0, self.deadline - time.perf_counter()),
                patience=patience if size == dim else SEARCH_PATIENCE,
                init=self.init,
                callback=self.callback,
            )
            failed = head.failed_rows is not None and head.failed_rows.size > 0
            stopped = head.settings["learned"]["status"] in ("stopped", "time limit")
            if not failed or stopped or size == dim:
                return head.padded(dim)
            size = min(dim, math.ceil(1.5 * size))

    def judge(self, attention: Attention, mass: bool) -> Certificate:
        return certify(
            self.target,
            attention,
            leak=self.leak,
            distortion=self.distortion,
            mass=mass,
            num_threads=self.threads,
        )

    def trial(self, dim: int) -> tuple[Trial, Head]:
        """Run the method at one size and judge what would be stored, without a module."""
        begin = time.perf_counter()
        head = self.head(dim, SEARCH_PATIENCE)
        used = self.scale_for(dim)
        q, k = head.stored(used, self.dtype)
        c = self.judge(Attention(q, k, scale=used, mask=self.target.mask), False)
        return Trial(dim, c.holds, c.leak, c.distortion, time.perf_counter() - begin), head


def _search(task: _Task, lower: LowerBound | None) -> tuple[Search, Head]:
    """Search for a small size; return what was tried, and the head of the best size."""
    heads: dict[int, Head] = {}

    def attempt(dim: int) -> Trial:
        trial, heads[dim] = task.trial(dim)
        for size in [s for s in heads if s > dim and trial.holds]:
            del heads[size]  # only the smallest that holds is wanted
        return trial

    target = task.target
    if task.method == "learned":
        largest = target.n if task.module is None else task.module.dim
        first = min(likely_dim(target.n, target.per_row), largest)
        lowest = 1 if lower is None else min(lower.dim, largest)
        search = gallop_down(attempt, first, lowest, largest, task.deadline)
    else:
        largest, limit = _largest_dim(target, task.leak, task.distortion, task.dtype)
        first = 16 if task.method == "projection" else 2 * target.per_row
        step = 2 if task.method == "max-margin" and task.keys == "cyclic" else 1
        search = double_and_bisect(attempt, first, largest, limit, step)
    return search, heads[search.dim or search.trials[-1].dim]


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
    keys: Any = "random",
    form: str = "tolerance",
    max_norm: float | None = None,
    effort: str | int = "low",
    init: Any = None,
    time_limit: float | None = None,
    callback: Any = None,
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
    dtype : "float32" or "float64"
        Of Q, K and X.
    leak, distortion : float
        The tolerances, see `Certificate`; 0 < leak < 1 and distortion > 0.
    scale : float, optional
        Of the logits, when there is no module; 1 / sqrt(dim) when None.
    mask : optional
        As in `attention_matrix`; the target's when None.
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
        with a proof; learned keeps to it.
    effort : "low", "medium", "high" or int
        Of learned: the steps of its first anneal. More steps reach one or two dimensions less
        and take several times as long.
    init : (Q, K), optional
        Of learned: a start, with logits Q K^T, of the same or a smaller size.
    time_limit : float, optional
        Seconds for learned, the certificate not counted; a search has 60 unless said.
    callback : callable, optional
        Of learned: called with (step, rows left, worst deficit in logit units) after every scan;
        returning False ends the fit.
    rng : seed or Generator, default 0
    normalize : bool, default False
        Scale the target's rows to sum to 1.
    strict : bool, default False
        Raise a CertificateError unless the certificate holds.
    mass : bool, default True
        Whether the certificate computes total variation and stray mass.
    num_threads : int, optional
        None uses every core. The result does not depend on it, as long as no time limit ends it.

    Returns
    -------
    Fit
        Whether it certifies or not: ``fit.certificate.holds`` tells.

    Raises
    ------
    InputError, TargetError
        For arguments that can never be right, before any work starts.
    CertificateError
        With ``strict=True``, when the certificate does not hold.

    Notes
    -----
    Deciding whether a pattern fits a given d > 1 is NP-hard (Likhosherstov, Choromanski and
    Weller, AAAI 2023), so a search finds a size: ``fit.search`` says what was tried and why it
    ended, ``fit.lower_bound`` what is proved; nothing in between is claimed.

    The projection costs O(nonzeros * d), a certificate O(n**2 d) and O(n) memory beside Q and
    K. Max-margin costs a handful of scans of all logits and a small quadratic program a row.
    Learned costs a scan of all logits every other step, O(n**2 d) each, and O(n d**2 (k + d))
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
    if method not in METHODS:
        raise InputError(f"method must be one of {METHODS}; got {method!r}")
    if str(dtype) not in DTYPES:
        raise InputError(f"dtype must be one of {DTYPES}; got {dtype!r}")
    dtype = str(dtype)
    projection.check_options(factor, sketch)
    check_form(form)
    if max_norm is not None:
        max_norm = check_between(max_norm, "max_norm", 0, math.inf)
    leak = check_between(leak, "leak", 0, 1)
    distortion = _check_distortion(distortion, dtype)
    if module is not None and scale is not None:
        raise InputError("scale must not be given beside a module, whose own scale holds")
    if time_limit is not None:
        time_limit = check_between(time_limit, "time_limit", 0, math.inf)
    size = _check_dim(dim, module)
    if method == "auto":
        method = "learned"
    if method == "learned":
        check_effort(effort)
        size = None if dim is None else size
    elif method == "max-margin" and not isinstance(keys, str):
        keys = keys if isinstance(keys, KeyTable) else KeyTable(keys)
        size = keys.dim if size is None else size
    limit = SEARCH_SECONDS if time_limit is None and size is None else time_limit
    target = as_target(A, mask=mask, normalize=normalize)
    task = _Task(
        target=target,
        method=method,
        dtype=dtype,
        leak=leak,
        distortion=distortion,
        scale=scale,
        module=module,
        seed=seed_from(rng),
        threads=thread_count(num_threads),
        factor=factor,
        sketch=sketch,
        keys=keys,
        form=form,
        max_norm=max_norm,
        effort=effort,
        init=init,
        callback=callback,
        deadline=math.inf if limit is None else start + limit,
    )
    search, lower = None, None
    if size is None:
        if method == "learned":
            lower = bounds.lower(target, leak=leak, distortion=distortion, time_limit=2.0)
        search, head = _search(task, lower)
        size = head.dim
    else:
        head = task.head(size)
    if module is None:
        used = task.scale_for(size)
        X = None
        module = SelfAttention.canonical(size, used, dtype=dtype)
        attention = Attention(*head.stored(used, dtype), scale=used, mask=target.mask)
    else:
        X = module.input_for(*head.padded(module.dim).stored(module.scale, dtype))
        attention = module(X, mask=target.mask)
    certificate = task.judge(attention, mass)
    if strict:
        certificate.raise_if_failed()
    return Fit(
        Q=attention.Q,
        K=attention.K,
        scale=attention.scale,
        mask=target.mask,
        module=module,
        dim=attention.dim,
        dtype=str(attention.Q.dtype),
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
            "time_limit": time_limit,
            "dim_used": size,
            **head.settings,
        },
        input_stored=X,
    )
