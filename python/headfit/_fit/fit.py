"""Fitting: from a sparse pattern to a head that produces it, with a certificate."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from headfit import bounds
from headfit._attention.attention import Attention, attention_in
from headfit._attention.module import SelfAttention
from headfit._attention.sparsify import as_exempt
from headfit._base.arguments import as_count, as_flag, as_positive, seed_from, shown, thread_count
from headfit._base.arrays import as_matrix, round_to
from headfit._base.calls import calls_until, standard_arithmetic, tqdm_class
from headfit._base.machine import require_memory
from headfit._base.tolerances import KernelLike, Tolerances, as_tolerances, of_head
from headfit._base.types import Columns, MaskLike, Seed
from headfit._cluster.cluster import Cluster, own_build
from headfit._fit.head import Ending, Head, Problem, check_module, placed
from headfit._fit.method import Method, Patience
from headfit._fit.registry import as_method
from headfit._fit.result import Fit, Search, Trial, advice
from headfit._target.append_dims import appended
from headfit._target.certificate import Certificate
from headfit._target.certify import certify
from headfit._target.target import TargetLike, as_target, global_columns, heavy_notes
from headfit.errors import CertificateError, InputError, NonFiniteError

SEARCH_SECONDS = 60.0
# A proved lower bound takes at most this many seconds of a search, and this share of its time.
BOUND_SECONDS, BOUND_SHARE = 2.0, 0.4
# Lower bounds above this are rare: none is looked for when a larger size fails.
PROVABLE = 8


@standard_arithmetic()
def fit(
    A: TargetLike,
    dim: int | None = None,
    *,
    method: str | Method = "auto",
    module: SelfAttention | None = None,
    dtype: str | None = None,
    leak: float | None = None,
    distortion: float | None = None,
    max_logit: float | None = None,
    tolerances: Tolerances | None = None,
    scale: float | None = None,
    mask: MaskLike = None,
    exempt_columns: Columns = None,
    kernel: KernelLike | None = None,
    time_limit: float | None = None,
    progress: bool = False,
    rng: Seed = 0,
    strict: bool = False,
    certificate_mass: bool = True,
    client: Any = None,
    num_threads: int | None = None,
) -> Fit:
    """Find a head, and the input of a fixed module, that produce a sparse attention pattern.

    Parameters
    ----------
    A : target
        A `Target`, or whatever makes one: a sparse or dense array, a path, or what
        `sparsify` returns.
    dim : int, optional
        The head size d. None searches for a small one, in the way of the method: `Learned` starts
        near the size that random patterns of this n and k need, and goes down while it
        certifies; the others double and bisect. With a module, a head that is found smaller than
        the module's is padded with zeros.
    method : Method or str, default "auto"
        How queries and keys are found, with the options that are its own: `Learned`, `MaxMargin`,
        `Mixed`, `Projection`, `Toeplitz`, or a `Method` of your own. The words "learned",
        "max-margin", "mixed", "projection" and "toeplitz" stand for these with their defaults.
        "auto" is "learned", but for more than 32 nonzeros per row, or 2,048 tokens and more in a
        head with room for it, it tries "toeplitz" first where the pattern is
        translation-invariant, and "mixed" where it is so but for a few entries; a pattern of
        blocks is solved for its blocks. Where "toeplitz" fails for 2,048 tokens and more in a head
        of less than half the size that random patterns need, nothing else is tried.
    module : SelfAttention, optional
        The fixed module whose input is sought; its dim and scale hold. None: the canonical
        module of this size.
    dtype : "float32", "float64", "bfloat16", "float16", "float8_e4m3fn" or "float8_e5m2", optional
        The dtype of Q, K and X. None: the one that the `kernel` reads, and float32 where it reads
        any. For the narrow ones, all but the first two, these are float32
        arrays of numbers that the format holds exactly; the certificate is then about products
        accumulated in float32, in any order. A number beyond the largest of the format (448 and
        57344 for those of 8 bits) is an error: nothing is saturated.
    leak, distortion, max_logit : float, optional
        What the certificate asks: see `Tolerances`, which has the defaults. The distortion must
        be above 0. Each method says how it keeps to a `max_logit`.
    tolerances : Tolerances, optional
        The same three as one object, in their place.
    scale : float, optional
        The scale of the logits when there is no module; 1 / sqrt(dim) when None.
    mask : optional
        As in `Attention`; the target's when None.
    exempt_columns : "auto" or sequence of int, optional
        Columns that get a coordinate of their own (two in a narrow dtype), such as those of
        global tokens, to which most rows attend. The method makes a head for the other columns,
        and `append_dims` says why the whole certifies. "auto": the columns that more than
        half of the rows attend to, and more than four times as many as attend to a column on
        average; none where tokens come in blocks, since "auto" then fits the pattern of the
        blocks. The certificate is about the whole of A, and `dim` counts these coordinates.
    kernel : str, Kernel or mapping, optional
        What will compute the attention, and what the certificate is about: see `certify` and
        `Kernel`. None: "float32" for a narrow dtype, else "exact". A kernel that reads 16 bits
        wants a head of that dtype, or of 8 bits. Where a kernel rounds logits, |logit| is bounded,
        without `max_logit`, so that steps of the format are at most half of what the distortion
        allows; a scale that is a power of two saves a rounding.
    time_limit : float, optional
        The most seconds that the fit may take, without the certificate; 60 for a search when
        None. A size that the limit cut short is not refuted: see ``fit.stopped``.
    progress : bool, default False
        Show a tqdm bar of the rows that meet the tolerances, after every scan that the method
        reports and every head that is judged (needs tqdm).
    rng : seed or Generator, default 0
    strict : bool, default False
        Raise a CertificateError unless the certificate holds.
    certificate_mass : bool, default True
        Whether the certificate computes total variation and stray mass.
    client : dask.distributed.Client, optional
        The workers that make the certificates, the scans of `Learned` and the queries of
        `MaxMargin`, split by rows. All else is done here. The result is that of this machine
        alone, bit for bit. docs/cluster.md says more.
    num_threads : int, optional
        None uses every core; a worker of a `client` then takes one thread for each block of rows.
        The result does not depend on it, as long as no time limit ends it.

    See Also
    --------
    shrink : for a dense target, an `Attention` or a matrix without zeros.
    Target : checks a pattern once, and scales its rows to sum to 1 on request.

    Returns
    -------
    Fit
        The fit, certified or not: ``fit.certificate.holds`` tells, ``fit.stopped`` says why it
        ended, and ``fit.advice`` what that means and what to try.

    Raises
    ------
    InputError, TargetError
        For arguments that can never be right, before any work starts; also for a client whose
        workers differ from each other or from this process in CPU level or version.
    CertificateError
        With ``strict=True``, when the certificate does not hold; it says why the fit ended.

    Notes
    -----
    Deciding whether a pattern fits a given d > 1 is NP-hard (Likhosherstov, Choromanski and
    Weller, AAAI 2023), so a search finds a size: ``fit.search`` says what was tried and why it
    ended, ``fit.lower_bound`` what is proved; nothing in between is claimed.

    A certificate costs O(n**2 d), and O(n) memory besides Q and K; the methods say what they
    cost.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.random_regular(64, 3, gamma=2.0, rng=0)
    >>> head = hf.fit(A, 8)
    >>> head.certificate.holds, head.X.shape
    (True, (64, 16))
    >>> hf.fit(A, 8, method=hf.methods.Learned(effort="high"), leak=0.01).tolerances
    Tolerances(leak=0.01, distortion=0.1, max_logit=None)
    >>> hf.fit(A, 1024, method="projection", leak=0.3, distortion=2.0).certificate.holds
    True
    """
    start = time.perf_counter()
    if attention_in(A) is not None:
        raise InputError(
            "A is a head, which is dense: shrink comes close to it, sparsify makes it sparse; "
            f"got {shown(A)}"
        )
    method = as_method(method)
    progress, strict = as_flag(progress, "progress"), as_flag(strict, "strict")
    certificate_mass = as_flag(certificate_mass, "certificate_mass")
    tolerances = as_tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    kernel, dtype = of_head(kernel, dtype)
    tolerances.check_storable(dtype)
    time_limit = as_positive(time_limit, "time_limit")
    size = None if dim is None else as_count(dim, "dim", 1)
    check_module(module, size, dtype, scale)
    seed, threads = seed_from(rng), thread_count(num_threads)
    cluster = Cluster.of(client, num_threads)
    if cluster is not None and cluster.build != own_build():
        raise InputError(
            "client: a fit computes a part here, so workers must have the build and CPU level "
            f"of this process, {own_build()}; got {cluster.build} (HEADFIT_CPU sets the level)"
        )
    target = as_target(A, mask=mask, num_threads=num_threads)
    exempt = as_exempt(exempt_columns, target.n)
    exempt = global_columns(target) if exempt is None else exempt
    problem = Problem(
        target=target, tolerances=tolerances, dtype=dtype, kernel=kernel, scale=scale,
        module=module, seed=seed, threads=threads, exempt=exempt, cluster=cluster,
    )  # fmt: skip
    size = method.check(problem, size)
    room = size if module is None else module.dim
    if room is not None and room <= problem.exempt_dims:
        raise InputError(
            f"dim must be above {problem.exempt_dims}, what {exempt.size} exempt columns take in "
            f"{dtype}: the others need a dimension too; got {room}"
        )
    if size is not None:  # Q, K and the input, as made and as stored
        copies = 8 * target.n * size * problem.working_dtype.itemsize
        require_memory(copies, f"a fit of {target.n} tokens with a head of size dim = {size}")
    limit = SEARCH_SECONDS if time_limit is None and size is None else time_limit
    bar = tqdm_class()(total=target.n, unit="row") if progress else None
    problem = replace(
        problem,
        deadline=math.inf if limit is None else start + limit,
        watch=None if bar is None else partial(show_rows, bar),
    )
    search, lower = None, None
    with nullcontext() if bar is None else bar:
        if size is None:
            if method.seeks_smallest:
                lower = _bound(problem, min(BOUND_SECONDS, BOUND_SHARE * (limit or math.inf)))
                if not lower.impossible:
                    problem = replace(problem, proved_dim=lower.dim)
            search, head = _search(method, problem)
        else:
            head = make_head(method, problem, size)
        in_module = head if module is None else head.padded(module.dim)
        used = problem.scale_for(head.dim)
        attention, fields = placed(
            *in_module.stored(used, dtype), scale=used, dtype=dtype, mask=target.mask, module=module
        )
        certificate = judge(problem, attention, certificate_mass)
    is_small = method.seeks_smallest and head.dim <= PROVABLE and head.ended != "callback"
    if lower is None and not certificate.holds and is_small:
        lower = _bound(problem, min(1.0, max(0.1, (time.perf_counter() - start) / 4)))
    stopped = head.ended
    if certificate.holds:
        stopped = "certified"
    elif lower is not None and lower.dim > head.dim:
        stopped = "infeasible"
    elif search is not None and search.dim is None and search.was_cut:
        stopped = "time limit"
    name = method.name if head.method is None else head.method
    found = Fit(
        **fields,
        method=name,
        certificate=certificate,
        failed_rows=head.failed_rows,
        witnesses=head.witnesses,
        search=search,
        lower_bound=lower,
        seconds=time.perf_counter() - start,
        settings={
            "dim": None if dim is None else int(dim),
            "method": name,
            "dtype": dtype,
            "seed": seed,
            **asdict(tolerances),
            "kernel": kernel.to_dict(),
            "time_limit": time_limit,
            "dim_used": head.dim,
            **head.settings,
        },
        stopped=stopped,
    )
    of_method = method.advice(head) if stopped == head.ended else None
    found = replace(found, advice=advice(found, head, of_method, heavy_notes(target, exempt)))
    if strict and not certificate.holds:
        raise CertificateError(f"{certificate}\n  {stopped}: {found.advice}")
    return found


def _search(method: Method, problem: Problem) -> tuple[Search, Head]:
    heads: dict[int, Head] = {}

    def attempt(dim: int, brief: bool = False) -> Trial:
        """Run the method at one size, and judge what would be stored without a module."""
        begin = time.perf_counter()
        heads[dim] = head = make_head(method, problem, dim, "brief" if brief else "search")
        used = problem.scale_for(dim)
        q, k = head.stored(used, problem.dtype)
        try:
            with calls_until(problem.deadline):
                attention = Attention(q, k, scale=used, mask=problem.target.mask)
                c = judge(problem, attention, False, problem.deadline)
            judged = (c.holds, c.leak, c.distortion)
            reason: Ending = "certified" if c.holds else head.ended
        except TimeoutError:
            judged, reason = (False, math.inf, math.inf), "time limit"
        for size in [s for s in heads if s > dim and judged[0]]:
            del heads[size]  # only the smallest head that holds is wanted
        return Trial(dim, *judged, time.perf_counter() - begin, head.restarts, reason)

    search = method.search(problem, attempt)
    return search, heads[search.dim or search.trials[-1].dim]


def _bound(problem: Problem, seconds: float) -> bounds.LowerBound:
    """Look for a proof about the exact logits of heads that meet the tolerances."""
    exact = problem.tolerances.before_rounding(problem.kernel, problem.scale)
    return bounds.lower(problem.target, tolerances=exact, time_limit=seconds)


def make_head(method: Method, problem: Problem, dim: int, patience: Patience = "full") -> Head:
    """Run a method at one size. If it has no head at the time limit, return a head of zeros."""
    try:
        made = _with_exempt_columns if problem.exempt.size else _run
        return made(method, problem, dim, patience)
    except TimeoutError:
        return Head.of_zeros(problem.target.n, dim, "time limit")
    except NonFiniteError as error:
        if not problem.is_narrow:
            raise
        # Rounding gave infinity, and the steps after it made no number of that.
        raise InputError(
            f"Q and K do not fit {problem.dtype} at the scale {problem.scale_for(dim):.3g}: they "
            "go beyond its largest number; try another scale or dtype, or a max_norm"
        ) from error


def _with_exempt_columns(method: Method, problem: Problem, dim: int, patience: Patience) -> Head:
    """Return the method's head for the other columns, with a coordinate for each exempt one."""
    scale, columns = problem.scale_for(dim), problem.exempt
    limits = replace(problem.tolerances, max_logit=problem.logit_limit)
    head = _run(method, problem.without_exempt(dim), dim - problem.exempt_dims, patience)
    q, k = appended(problem.target, head.Q, head.K, columns, limits)
    if problem.is_narrow:
        # The logits of these columns are sums of two numbers of the format, a rounded part and the
        # rest, which is far more accurate than one.
        old, added = np.hsplit(q, [-columns.size])
        rounded = round_to(added / scale, problem.dtype, "Q") * scale
        q = np.hstack([old, rounded, added - rounded])
        k = np.hstack([k, k[:, -columns.size :]])
    settings = {**head.settings, "exempt_columns": columns.tolist()}
    settings["dim_used"] = settings.get("dim_used", head.dim) + problem.exempt_dims
    # A proof for the pattern without the exempt columns is no proof for the whole pattern.
    ended: Ending = "stalled" if head.ended == "infeasible" else head.ended
    q, k = q.astype(problem.working_dtype), k.astype(problem.working_dtype)
    return replace(head, Q=q, K=k, witnesses=None, settings=settings, ended=ended)


def _run(method: Method, problem: Problem, dim: int, patience: Patience) -> Head:
    """Return the method's head, padded to `dim` columns; raise an InputError if it is not valid."""
    if problem.kernel.rounds_logits:  # by how much depends on the scale
        problem = replace(problem, scale=problem.scale_for(dim))
    head = method.head(problem, dim, patience)
    if not isinstance(head, Head):
        raise InputError(
            f"method must return a Head; {method.name} returned a {type(head).__name__}"
        )
    q, k = (as_matrix(getattr(head, x), f"{x} of method {method.name}") for x in "QK")
    n, shape = problem.target.n, q.shape
    if k.shape != shape or shape[0] != n or not 1 <= shape[1] <= dim:
        raise InputError(
            f"method must return Q and K of equal shape, {n} rows and 1 to {dim} columns; "
            f"{method.name} returned shapes {shape} and {k.shape}"
        )
    return replace(head, Q=q, K=k).padded(dim)


def judge(
    problem: Problem, attention: Attention, certificate_mass: bool, deadline: float = math.inf
) -> Certificate:
    """Certify an attention against the target, for the dtypes of the problem."""
    certificate = certify(
        problem.target,
        attention,
        tolerances=problem.tolerances,
        kernel=problem.kernel,
        certificate_mass=certificate_mass,
        client=problem.cluster and replace(problem.cluster, deadline=deadline),
        num_threads=problem.threads,
    )
    if problem.watch is not None:
        problem.watch(int(np.count_nonzero(certificate.row_status)))
    return certificate


def show_rows(bar: Any, left: int, **figures: Any) -> None:
    """Show on a bar of rows how many are left, and figures beside it."""
    bar.set_postfix(**figures, refresh=left == 0)
    bar.update(bar.total - left - bar.n)
