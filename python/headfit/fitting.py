"""Fitting: from a sparse pattern to a head that produces it, with a certificate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headfit import bounds, projection
from headfit._arrays import as_count, check_between, seed_from, thread_count
from headfit._files import available_memory
from headfit.attention import Attention, check_scale
from headfit.certificate import Certificate, certify
from headfit.errors import InputError
from headfit.fit_result import Fit, Search, Trial
from headfit.keys import KeyTable
from headfit.max_margin import check_form, key_table, max_margin
from headfit.methods import Head
from headfit.module import SelfAttention
from headfit.targets import Target, as_target

__all__ = ["fit"]

METHODS = ("auto", "projection", "max-margin")
DTYPES = ("float32", "float64")


def _check_dim(dim: Any, module: SelfAttention | None) -> int | None:
    wanted = None if dim is None else as_count(dim, "dim", 1)
    if module is None:
        return wanted
    if not isinstance(module, SelfAttention):
        raise InputError(f"module must be a SelfAttention; got {type(module).__name__}")
    if wanted is not None and wanted != module.dim:
        raise InputError(f"dim must be the module's, {module.dim}, or not given; got {dim}")
    return module.dim


def _largest_dim(target: Target, leak: float, distortion: float, dtype: str) -> tuple[int, str]:
    """Return where a search ends: the proved bound, or what memory allows."""
    proved = bounds.projection_dim(target.n, target.per_row, target.gamma, leak, distortion)
    free = available_memory()
    # Q and K, and the packed copies of the scan, in half of what is free.
    affordable = 2**20 if free is None else free // (8 * target.n * np.dtype(dtype).itemsize)
    if proved <= affordable:
        return proved, "the size that is proved to suffice"
    return max(1, int(affordable)), "what fits in memory"


def search_dim(
    attempt: Callable[[int], Trial], first: int, largest: int, limit: str, step: int = 1
) -> Search:
    """Find a small size that certifies: doubling from `first`, then bisection.

    Sizes are multiples of `step`.
    """
    largest = max(largest // step, 1)
    units = min(-(-first // step), largest)
    trials = [attempt(units * step)]
    low = 0
    while not trials[-1].holds and units < largest:
        low, units = units, min(2 * units, largest)
        trials.append(attempt(units * step))
    if not trials[-1].holds:
        return Search(tuple(trials), None, f"stopped at {largest * step}, {limit}")
    while units - low > 1:
        middle = (low + units) // 2
        trials.append(attempt(middle * step))
        if trials[-1].holds:
            units = middle
        else:
            low = middle
    return Search(tuple(trials), units * step, "bisected to neighbouring sizes")


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
        The head size d. None: the module's, or else a search for the smallest that certifies,
        by doubling and bisection over sketches of one random stream.
    method : "auto", "projection" or "max-margin"
        "projection" is the algorithm of the paper's proof: it is oblivious, proved, and needs
        a large d. "max-margin" takes keys as given and finds for every row the shortest query
        that meets the tolerances, or a proof that none is short enough. "auto" is
        "projection" at present.
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
        Of max-margin: a bound on ||q|| max ||k||; a row that needs more fails, with a proof.
    rng : seed or Generator, default 0
    normalize : bool, default False
        Scale the target's rows to sum to 1.
    strict : bool, default False
        Raise a CertificateError unless the certificate holds.
    mass : bool, default True
        Whether the certificate computes total variation and stray mass.
    num_threads : int, optional
        None uses every core. The result does not depend on it.

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
    The projection costs O(nonzeros * d), its certificate O(n**2 d) and O(n) memory beside Q
    and K. Max-margin costs a handful of scans of all logits, O(n**2 d) each, and a small
    quadratic program a row. Deciding whether a pattern fits a given d > 1 is NP-hard, so a
    search finds a size, it does not prove that none is smaller.

    Examples
    --------
    >>> import headfit as hf
    >>> A = hf.patterns.band(32, 1)
    >>> head = hf.fit(A, 1024, leak=0.3, distortion=2.0)
    >>> head.certificate.holds
    True
    >>> head.X.shape, bool(hf.certify(A, head.module(head.X), leak=0.3, distortion=2.0).holds)
    ((32, 2048), True)
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
    distortion = check_between(distortion, "distortion", 0, float("inf"))
    if module is not None and scale is not None:
        raise InputError("scale must not be given beside a module, whose own scale holds")
    wanted = _check_dim(dim, module)
    if method == "max-margin" and not isinstance(keys, str):
        keys = keys if isinstance(keys, KeyTable) else KeyTable(keys)
        wanted = keys.dim if wanted is None else wanted
    threads = thread_count(num_threads)
    target = as_target(A, mask=mask, normalize=normalize)
    seed = seed_from(rng)

    def head(size: int) -> tuple[Head, float]:
        used = module.scale if module is not None else check_scale(scale, size)
        if method == "max-margin":
            table = key_table(keys, target.n, size, dtype, seed)
            longest = float(np.linalg.norm(table.keys.astype(np.float64), axis=1).max())
            found = max_margin(
                target,
                table,
                form=form,
                leak=leak,
                distortion=distortion,
                max_norm=math.inf if max_norm is None or longest == 0 else max_norm / longest,
                threads=threads,
            )
        else:
            found = projection.project(
                target,
                size,
                dtype=dtype,
                factor=factor,
                sketch=sketch,
                leak=leak,
                distortion=distortion,
                seed=seed,
                threads=threads,
            )
        return found, used

    def judge(attention: Attention, mass: bool) -> Certificate:
        return certify(
            target,
            attention,
            leak=leak,
            distortion=distortion,
            mass=mass,
            num_threads=threads,
        )

    def attempt(size: int) -> Trial:
        begin = time.perf_counter()
        found, used = head(size)
        q, k = found.stored(used, dtype)
        c = judge(Attention(q, k, scale=used, mask=target.mask), False)
        return Trial(size, c.holds, c.leak, c.distortion, time.perf_counter() - begin)

    search = None
    if wanted is None:
        largest, limit = _largest_dim(target, leak, distortion, dtype)
        first = 16 if method != "max-margin" else 2 * target.per_row
        step = 2 if method == "max-margin" and keys == "cyclic" else 1
        search = search_dim(attempt, first, largest, limit, step)
        wanted = search.dim or search.trials[-1].dim
    found, used = head(wanted)
    q, k = found.stored(used, dtype)
    if module is None:
        X = None
        module = SelfAttention.canonical(wanted, used, dtype=dtype)
        attention = Attention(q, k, scale=used, mask=target.mask)
    else:
        X = module.input_for(q, k)
        attention = module(X, mask=target.mask)
    certificate = judge(attention, mass)
    if strict:
        certificate.raise_if_failed()
    return Fit(
        Q=attention.Q,
        K=attention.K,
        scale=attention.scale,
        mask=target.mask,
        module=module,
        dim=wanted,
        dtype=str(attention.Q.dtype),
        method="projection" if method == "auto" else method,
        leak=leak,
        distortion=distortion,
        certificate=certificate,
        status=certificate.status,
        failed_rows=found.failed_rows,
        witnesses=found.witnesses,
        search=search,
        seconds=time.perf_counter() - start,
        settings={
            "dim": None if dim is None else int(dim),
            "method": method,
            "dtype": dtype,
            "seed": seed,
            "leak": leak,
            "distortion": distortion,
            "max_norm": max_norm,
            **found.settings,
        },
        input_stored=X,
    )
