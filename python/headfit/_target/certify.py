"""`certify`: the scan that judges an attention matrix against a sparse target.

What it judges are the queries, keys, scale and bias that a kernel reads: copies, rounded to the
dtypes that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike, attention_in
from headfit._attention.sparsify import Sparsified, compressed_rows
from headfit._base import arrays
from headfit._base.arguments import as_flag, thread_count
from headfit._base.calls import standard_arithmetic
from headfit._base.display import mask_text
from headfit._base.masks import frozen_mask, masks_agree
from headfit._base.sparse import checked_csr
from headfit._base.tolerances import Kernel, KernelLike, Tolerances, as_kernel, as_tolerances
from headfit._base.types import ArrayLike, MaskLike, Sparse
from headfit._cluster.cluster import Cluster, hold, run_blocks
from headfit._target.certificate import VERDICTS, Certificate, FloatRows
from headfit._target.target import Target, TargetLike, as_target
from headfit.errors import InputError

Scans = Literal["both", "first", "in double"]
ScanRows = Callable[..., dict[str, Any]]


@standard_arithmetic()
def certify(
    A: TargetLike,
    Q: HeadLike | None = None,
    K: ArrayLike | None = None,
    *,
    matrix: ArrayLike | Sparse | None = None,
    scale: float | None = None,
    mask: MaskLike = None,
    leak: float | None = None,
    distortion: float | None = None,
    max_logit: float | None = None,
    tolerances: Tolerances | None = None,
    kernel: KernelLike = "exact",
    certificate_mass: bool = True,
    client: Any = None,
    progress: bool = False,
    num_threads: int | None = None,
) -> Certificate:
    """Judge attention against a sparse target: every one of the n**2 entries.

    Parameters
    ----------
    A : target
        A `Target`, or whatever makes one: a sparse or dense array, or a path.
    Q, K : array_like, shape (n, d)
        Queries and keys; or Q an `Attention` (or a `Fit`), whose scale and mask then hold.
    matrix : array_like or sparse array, shape (n, n), optional
        Judge this attention matrix instead, its entries as they are stored; what a sparse one does
        not store is zero. A row fails if an entry on its support is zero, even if the support has
        no other entry.
    scale : float, optional
        1 / sqrt(d) when None. Its float64 value is part of the statement.
    mask : optional
        As in `Attention`; the target's own mask when None. Where both have one they
        must allow the same positions.
    leak, distortion, max_logit : float, optional
        The tolerances: see `Tolerances`, which has the defaults. `max_logit` is for logits, not
        for `matrix`.
    tolerances : Tolerances, optional
        The same three as one object, in their place.
    kernel : str, Kernel or mapping, default "exact"
        What computes the attention that the statement is about: "exact" arithmetic for the stored
        numbers; the name of another kernel, such as "float32" or "flash-bfloat16" (`Kernel.named`
        lists them); or a `Kernel` that says where it rounds. The notes say what is not covered.
    certificate_mass : bool, default True
        Also compute total variation and stray mass; False compares only, without
        exponentials.
    client : dask.distributed.Client, optional
        The workers that scan the logits, split by rows. The certificate is that of one machine
        with their CPU level, bit for bit. Not for `matrix`. docs/cluster.md says more.
    progress : bool, default False
        Show a tqdm bar of the blocks of rows that a `client` has done (needs tqdm).
    num_threads : int, optional
        None uses every core; with a `client`, one thread for each block of rows.

    Returns
    -------
    Certificate

    Raises
    ------
    InputError, TargetError, NonFiniteError
        For input that can never be judged, such as a target that was checked under another mask
        than the attention's, and for a client whose workers differ in CPU level or version. A
        certificate that fails is no error.

    Notes
    -----
    All logits are scanned once in the arrays' dtype, with a bound of the rounding that holds for
    every order of summation (Higham, *Accuracy and Stability of Numerical Algorithms*, section
    3.1); the logits on the support are computed in float64, and logarithms and exponentials are
    enclosed. Rows that float32 leaves undecided are scanned again in float64. For attention of a
    `SelfAttention` module the statement is about the exact products of the stored X and weights.
    docs/certificates.md derives the bounds. Takes O(n**2 d) time, O(n) memory, copies of Q, K.

    With ``kernel="float32"`` the bound covers fused multiply-adds, the scale applied anywhere, and
    subnormal numbers kept or flushed to zero; a kernel that may overflow on the way is never
    certified. A kernel of 16 bits reads Q, K and a bias in its dtype: what is stored is rounded to
    it first, and the statement is about that. Sums that tensor cores truncate have
    fewer `sum_bits`. No kernel here covers TF32, sums that are split and rounded to 16 bits in
    between, and a tanh coarser than float32.

    "exact" speaks of the numbers as they are stored, subnormal ones included: a deployment that
    flushes them to zero (``torch.set_flush_denormal(True)``) computes with other numbers, which
    only the other kernels cover. All that is read is copied first, so that a thread that writes
    into the caller's arrays meanwhile cannot make the certificate false. A row whose logits the
    bound cannot enclose, since it overflows, is undecided.

    An `Attention` may have a soft-cap and a bias. Positions are out of scope: cosines and sines
    are rounded numbers, which each kernel computes in its own way. Give Q and K as they are after
    the rotation, and the terms of ALiBi as a bias.

    Leak bounds single entries: the mass off a support of s of n keys is at most
    ``leak (n - s) / (s + leak (n - s))``, which `bounds.leak_for_stray` solves for the leak.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> A = np.eye(3)
    >>> hf.certify(A, 4 * np.eye(3), np.eye(3), scale=1.0)
    Certificate: holds for all 3**2 entries, 3 nonzeros
      leak <= 0.018316 (tolerance 0.05) at row 0, columns 1 / 0; distortion <= 0 (tolerance 0.1)
      total variation mean 0.0353, worst 0.0353; stray mass worst 0.0353
      about the exact logits of the stored Q, K (float64): |logit| up to 4.001, ...
    """
    limits = as_tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    mass = as_flag(certificate_mass, "certificate_mass")
    kernel = as_kernel(kernel)
    threads = thread_count(num_threads)
    cluster = Cluster.of(client, num_threads, progress)
    A = Target(A, num_threads=num_threads) if isinstance(A, Sparsified) else A
    if mask is None and isinstance(A, Target) and attention_in(Q) is None:
        mask = A.mask
    if matrix is not None:
        if cluster is not None:
            raise InputError("client must not be given with matrix: workers scan logits alone")
        if limits.max_logit is not None or not kernel.is_exact:
            raise InputError("max_logit and kernel are of logits, not of matrix")
        if Q is not None or K is not None or scale is not None:
            raise InputError("matrix must be given alone, without Q, K or scale")
        target = _target_under(A, mask, "matrix", threads)
        # Of either a copy, which nobody else can change.
        if arrays.is_sparse(matrix):
            M: Any = checked_csr(matrix, "matrix", keep_zeros=False)
            M.data = arrays.as_stored_array(M.data, "matrix", ndim=1)
        else:
            M = np.array(arrays.as_stored_array(matrix, "matrix"))
        if M.shape != (target.n, target.n):
            raise InputError(f"matrix must have {target.n} rows and columns; got shape {M.shape}")
        if arrays.is_sparse(M):
            stored = compressed_rows(M)
            rows = _core.certify_sparse_matrix(target.core, stored, limits.core, threads)
        else:
            rows = _core.certify_matrix(target.core, arrays.as_stack(M), limits.core, threads)
        rows.update(dict.fromkeys(("q_norm", "k_norm", "max_logit", "rounding_bound"), np.nan))
        return _certificate(
            rows, target, mass, basis="matrix", scale=np.nan, dtype=str(arrays.computed_in(M)),
            mask=target.mask, tolerances=limits,
        )  # fmt: skip
    if Q is None and K is None:
        raise InputError("certify takes Q and K, an Attention, or matrix=")
    judged = Attention.of(Q, K, scale=scale, mask=mask)
    judged.check_plain("certify", "softcap", "bias")
    if judged.lead:
        raise InputError(f"Q must be a matrix; got shape {judged.stored[0].shape}")
    attention = as_read(judged, kernel)
    target = _target_under(A, attention.mask, "attention", threads)
    for array, name in zip(attention.stored, "QK", strict=True):
        if array.shape[0] != target.n:
            raise InputError(
                f"{name} must have one row for each of the {target.n} rows of A; got {array.shape}"
            )
    scan = partial(_certify_rows, target, attention, limits, kernel, mass)
    rows = scan(threads) if cluster is None else _certify_blocks(cluster, scan, attention)
    return _certificate(
        rows, target, mass, basis="logits" if judged.errors is None else "module",
        scale=attention.scale, dtype=str(attention.dtype), mask=attention.mask,
        tolerances=limits, kernel=kernel,
    )  # fmt: skip


def _target_under(A: Any, mask: Any, name: str, threads: int) -> Target:
    """Return the target under a mask; one that was checked under another mask is refused."""
    if isinstance(A, Target) and A.mask is not None and not masks_agree(A.mask, mask, (A.n, A.n)):
        raise InputError(
            f"the target and the {name} must have the same mask; the target's is "
            f"{mask_text(A.mask)}, the {name}'s {mask_text(mask)}"
        )
    return as_target(A, mask=mask, num_threads=threads)


def _certificate(rows: dict[str, Any], target: Target, mass: bool, **known: Any) -> Certificate:
    """Return the certificate that the figures of all rows make."""
    leak, distortion, status = rows["leak"], rows["distortion"], rows["verdict"]
    tv, stray = (rows[name] if mass else None for name in ("tv", "stray"))
    return Certificate(
        status=VERDICTS[1 if (status == 1).any() else status.max()],
        leak=float(leak.max()),
        distortion=float(distortion.max()),
        tv_mean=math.nan if tv is None else float(tv.mean()),
        tv_worst=math.nan if tv is None else float(tv.max()),
        stray_worst=math.nan if stray is None else float(stray.max()),
        row_leak=leak, row_distortion=distortion, row_tv=tv, row_stray=stray, row_status=status,
        worst_leak=_place(leak, rows["leak_column"], rows["weakest_column"]),
        worst_distortion=_place(distortion, rows["highest_column"], rows["lowest_column"]),
        **{name: rows[name] for name in ("q_norm", "k_norm", "max_logit", "rounding_bound")},
        rescanned=int(rows["rescanned"]),
        n=target.n, nonzeros=target.nonzeros, **known,
    )  # fmt: skip


def _place(rows: FloatRows, *columns: NDArray[Any]) -> tuple[int, int, int] | None:
    """Return the worst row and its two columns; None where nothing exceeds 0."""
    row = int(np.argmax(rows))
    first, second = (int(of_row[row]) for of_row in columns)
    return (row, first, second) if rows[row] > 0 and first >= 0 and second >= 0 else None


def _certify_rows(
    target: Target,
    attention: Attention,
    tolerances: Tolerances,
    kernel: Kernel,
    mass: bool,
    threads: int,
    rows: NDArray[np.int64] | None = None,
    scans: Scans = "both",
) -> dict[str, Any]:
    """Return the core's figures of some rows, by default all, in arrays for all rows."""
    q_error, k_error = attention.errors or (None, None)
    options = _core.CertifyOptions(
        q_error=q_error, k_error=k_error, kernel=kernel.core, mass=mass, scans=scans
    )
    logits = attention.core.of_rows(rows)
    return _core.certify_logits(target.core, logits, tolerances.core, options, threads)


def _certify_blocks(cluster: Cluster, scan_rows: ScanRows, attention: Attention) -> dict[str, Any]:
    """Return what `scan_rows` does, computed by the workers of a cluster.

    The scan in float64 of undecided rows follows the one of all rows, as on one machine: the rows
    that one block of the core holds, and with them the order of sums, are then the same.
    """
    n, held = attention.n, hold(cluster, partial(scan_rows, cluster.threads))
    figures: dict[str, Any] = {}
    run = partial(run_blocks, cluster, _certify_block, held, attention.m * attention.dim)

    def scan(rows: NDArray[np.int64], scans: Scans) -> None:
        parts = run(f"certify, scan {scans}", rows, scans)
        for name in parts[0]:
            values = [part[name] for part in parts]
            if isinstance(values[0], np.ndarray):
                of_rows = np.concatenate(values)
                figures.setdefault(name, np.empty(n, of_rows.dtype))[rows] = of_rows
            else:  # the largest of all rows
                figures[name] = max(figures.get(name, 0.0), *values)

    scan(np.arange(n, dtype=np.int64), "first")
    undecided = np.flatnonzero(figures["verdict"] == 2).astype(np.int64)
    is_scanned_again = attention.dtype == np.float32 and undecided.size > 0
    if is_scanned_again:
        scan(undecided, "in double")
    figures["rescanned"] = undecided.size if is_scanned_again else 0
    figures["max_logit"] = float(figures["largest_logit"].max())
    return figures


def _certify_block(scan_rows: ScanRows, rows: NDArray[np.int64], scans: Scans) -> dict[str, Any]:
    figures = scan_rows(rows, scans)
    return {name: x[rows] if isinstance(x, np.ndarray) else x for name, x in figures.items()}


# A bound of the relative error of a product in float32 with a scale that is rounded to float32, or
# of a quotient in its place.
SCALED_IN_FLOAT32 = 2.0**-21
SCALED_IN_FLOAT64 = 2.0**-50  # the same of a product with a scale, or its root, in float64
LEAST_NORMAL = 2.0**-126
# More than is lost where a number of 16 bits or of float32 is subnormal.
SUBNORMAL = {"float16": 2.0**-24, "bfloat16": 2.0**-125, "float32": 2.0**-125}


def as_read(attention: Attention, kernel: Kernel) -> Attention:
    """Return the attention of the numbers that a kernel multiplies, in arrays of its own.

    Whatever another thread writes into the caller's arrays meanwhile changes nothing. The errors of
    the new attention bound what is not known of the kernel's numbers, see `Attention.errors`.
    """
    scale, bias = attention.scale, attention.bias
    if kernel.scale_dtype is not None:
        scale = float(_of_any_kernel(scale, kernel.scale_dtype, kernel, "scale"))
        if scale == 0:
            raise InputError(f"scale must not be 0 in {kernel.scale_dtype}")
    q, k = (np.array(x) for x in attention.stored)
    errors: Any = attention.errors or (None, None)
    if bias is not None:
        bias = _rounded_bias(bias, kernel)
        if bias.dtype == np.float64:  # the core reads a bias in the dtype of Q and K
            q = arrays.widened(q).astype(np.float64)
    if kernel.operands is not None:
        is_normal = LEAST_NORMAL <= abs(scale) < 1 / LEAST_NORMAL
        if kernel.scale != "after" and kernel.accumulate == "float32" and not is_normal:
            raise InputError(f"scale must be a normal number of float32; got {scale!r}")
        root = math.sqrt(abs(scale))
        factors = {"after": (1.0, 1.0), "before": (scale, 1.0),
                   "root": (math.copysign(root, scale), root)}[kernel.scale]  # fmt: skip
        if kernel.scale != "after":
            scale = 1.0
        (q, q_error), (k, k_error) = (
            _scaled_and_rounded(arrays.widened(x), error, factor, kernel)
            for x, error, factor in zip((q, k), errors, factors, strict=True)
        )
        errors = q_error, k_error
    made = Attention(q, k, scale=scale, mask=frozen_mask(attention.mask), bias=bias,
                     softcap=attention.softcap)  # fmt: skip
    if any(error is not None for error in errors):
        known = (np.zeros(len(x)) if e is None else e for e, x in zip(errors, (q, k), strict=True))
        vars(made)["errors"] = tuple(known)
    return made


def _rounded_bias(bias: Any, kernel: Kernel) -> arrays.FloatArray:
    """Return a copy of a bias, in the dtype of the kernel's operands where they have one."""
    array = np.array(arrays.widened(arrays.as_stored_array(bias, "bias", ndim=0)))
    if kernel.operands is None:
        # In float32 where that loses nothing.
        with np.errstate(over="ignore"):
            single = array.astype(np.float32)
        return single if np.array_equal(single, array) else array
    return _of_any_kernel(array, kernel.operands, kernel, "bias")


def _of_any_kernel(x: Any, dtype: str, kernel: Kernel, what: str) -> arrays.FloatArray:
    """Return the nearest numbers of a dtype; infinity and NaN stay, for the core to refuse.

    Kernels round float64 at once or by way of float32: where that matters, an InputError.
    """
    x = np.asarray(x)
    rounded = _rounded(x, dtype, what)
    if x.dtype == np.float32:
        return rounded
    rows = x.reshape(1, -1)
    low, high = _core.operand_bounds(rows, dtype, 1.0, kernel.accumulate == "float32", 0.0)
    if not np.array_equal(low, high, equal_nan=True):
        got = rows[0, np.argmax(low != high)]
        raise InputError(
            f"{what} must be in float32, or the same in {dtype} at once and by way of float32, "
            f"since kernels differ; got {float(got)!r}"
        )
    return low.reshape(x.shape)


def _rounded(x: arrays.FloatArray, dtype: str, what: str = "Q and K") -> arrays.FloatArray:
    finite = np.isfinite(x)
    of_dtype = arrays.round_to(np.where(finite, x, 0), dtype, what)
    return np.where(finite, of_dtype, x).astype(np.float32)


def _scaled_and_rounded(
    x: arrays.FloatArray, error: NDArray[np.float64] | None, factor: float, kernel: Kernel
) -> tuple[arrays.FloatArray, NDArray[np.float64] | None]:
    """Return the rows of x times a factor in the dtype of the operands, and bounds of their errors.

    No errors (None) where the kernel's numbers are known: those of an exact `x` that float32 holds,
    without a factor. float64 may be rounded to 16 bits by way of float32 or at once; a product may
    be rounded in float32 first, or here in float64, and subnormal numbers may be flushed to zero.
    """
    dtype, in_float32 = kernel.operands, kernel.accumulate == "float32"
    assert dtype is not None
    moved = 0.0 if factor == 1 else SCALED_IN_FLOAT32 if in_float32 else SCALED_IN_FLOAT64
    if error is None:
        x = np.ascontiguousarray(x)
        low, high = _core.operand_bounds(x, dtype, factor, in_float32, moved)
        fits = np.isfinite(low).all() and np.isfinite(high).all()
        if dtype != "float32" and np.isfinite(x).all() and not fits:
            raise InputError(
                f"Q and K do not fit {dtype}: they hold numbers up to {np.abs(x).max():.3g}"
            )
        if np.array_equal(low, high, equal_nan=True):
            return low, None
        spread = np.linalg.norm(np.subtract(high, low, dtype=np.float64), axis=1)
        return low, np.nan_to_num(spread * (1 + 1e-9))
    product, known = x.astype(np.float64) * factor, abs(factor) * error
    _rounded(np.abs(product) + known[:, np.newaxis], dtype)  # an InputError where it does not fit
    unit, lost = 2.0 ** -arrays.DIGITS[dtype], math.sqrt(x.shape[1]) * SUBNORMAL[dtype]
    if factor != 1:  # rounded before it, and after it
        unit = (1 + unit) ** 2 * (1 + moved) - 1
        lost *= 1 + abs(factor)
    norms = np.linalg.norm(product, axis=1)
    return product, (known + unit * (norms + known) + 2 * lost) * (1 + 1e-9)
