"""`certify`: the scan that judges an attention matrix against a sparse target."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike, attention_in
from headfit._base.arguments import as_flag
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_stack, as_stored_array, computed_in, thread_count
from headfit._base.kernel import KernelLike, as_kernel
from headfit._base.masks import masks_agree
from headfit._base.text import mask_text
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._base.types import ArrayLike, MaskLike
from headfit._cluster.cluster import Cluster
from headfit._target.certificate import Certificate, FloatRows, Status
from headfit._target.kernel_inputs import as_read
from headfit._target.scans import Statement, certify_blocks, certify_rows
from headfit._target.target import Target, TargetLike, as_target
from headfit.errors import InputError

__all__ = ["certify"]


@standard_arithmetic()
def certify(
    A: TargetLike,
    Q: HeadLike | None = None,
    K: ArrayLike | None = None,
    *,
    matrix: ArrayLike | None = None,
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
    matrix : array_like, shape (n, n), optional
        Judge this attention matrix instead, its entries as they are stored. A row fails if an
        entry on its support is zero, even if the support has no other entry.
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
        numbers; "float32", all that kernels working in float32 may make of them; "eager-bfloat16",
        "sdpa-math-bfloat16", "flash-bfloat16", "flex-bfloat16", or these with "float16"; or a
        `Kernel` that says where it rounds. See the notes for what is not covered.
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
    All logits are scanned once in the arrays' dtype, with the bound
    ``|computed - exact| <= g |scale| ||q|| ||k||``, g = m u / (1 - m u), m = d + 2, that holds
    for every order of summation (Higham, *Accuracy and Stability of Numerical Algorithms*,
    section 3.1), plus a term for underflow; the logits on the support are computed in float64,
    and logarithms and exponentials are enclosed. Rows that float32 leaves undecided are
    scanned again in float64. For attention of a `SelfAttention` module the statement is about
    the exact products of the stored X and weights: the rounding of X W_Q and X W_K is in the
    bound. Takes O(n**2 d) time, and O(n) memory besides copies of Q, K
    and what else is stored.

    With ``kernel="float32"`` the bound covers every order of summation, with or without fused
    multiply-adds, the scale applied anywhere, and subnormal numbers kept or flushed to zero; a
    kernel that may overflow on the way is never certified. A kernel of 16 bits reads Q, K and a
    bias in its dtype: what is stored is rounded to it first, and the statement is about that; each
    of its roundings maps the ends of an interval to the ends of an interval, since rounding is
    monotone. docs/certificates.md derives the bounds, and lists what no kernel here covers: TF32
    and hardware that truncates, sums that are split and rounded to 16 bits in between, and a tanh
    of fewer bits than float32.

    "exact" speaks of the numbers as they are stored, subnormal ones included: a deployment that
    flushes them to zero (``torch.set_flush_denormal(True)``) computes with other numbers, which
    only the other kernels cover. The certificate itself is computed in standard arithmetic,
    whatever the calling thread has set. All that it reads is copied first, so that a thread that
    writes into the caller's arrays meanwhile cannot make it false. A row whose logits the bound
    cannot enclose, since it overflows, is undecided; logits that overflow themselves are refused
    with a NonFiniteError.

    An `Attention` may have a soft-cap and a bias. Positions are out of scope: cosines and
    sines are rounded numbers, and a statement that includes them depends on how each kernel
    computes them. Give Q and K as they are after the rotation, and the terms of ALiBi as a bias.
    `fit` needs no positions, since its keys differ already.

    Leak bounds single entries: the mass off a support of size s in n keys is at most
    ``leak (n - s) / (s + leak (n - s))``; `bounds.leak_for_stray` solves this for the leak.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> A = np.eye(3)
    >>> hf.certify(A, 4 * np.eye(3), np.eye(3), scale=1.0)
    Certificate: holds for all 3**2 entries, 3 nonzeros
      leak <= 0.018316 (tolerance 0.05) at row 0, columns 1 / 0; distortion <= 0 (tolerance 0.1)
      total variation mean 0.0353, worst 0.0353; stray mass worst 0.0353
      about the exact logits of the stored Q, K (float64): |logit| up to 4, ...
    """
    asked = as_tolerances(tolerances, leak=leak, distortion=distortion, max_logit=max_logit)
    mass = as_flag(certificate_mass, "certificate_mass")
    kernel = as_kernel(kernel)
    threads = thread_count(num_threads)
    cluster = Cluster.of(client, num_threads, progress)
    if matrix is not None:
        if cluster is not None:
            raise InputError("client must not be given with matrix: workers scan logits alone")
        if asked.max_logit is not None or not kernel.is_exact:
            raise InputError("max_logit and kernel are of logits, not of matrix")
        if Q is not None or K is not None or scale is not None:
            raise InputError("matrix must be given alone, without Q, K or scale")
        if mask is not None:
            _check_masks(A, mask, "matrix")
        target = as_target(A, mask=mask, num_threads=threads)
        M = np.array(as_stored_array(matrix, "matrix"))  # nobody else can change it
        _check_rows(target, M, "matrix")
        found = _core.certify_matrix(target.core, as_stack(M), asked.core, threads)
        found.update(dict.fromkeys(("q_norm", "k_norm", "max_logit", "rounding_bound"), np.nan))
        return _assemble(
            found, True, basis="matrix", n=target.n, nonzeros=target.nonzeros, scale=np.nan,
            dtype=str(computed_in(M)), mask=target.mask, tolerances=asked,
        )  # fmt: skip
    if mask is None and isinstance(A, Target) and attention_in(Q) is None:
        mask = A.mask
    judged = _judged(Q, K, scale, mask)
    basis = "logits" if judged.errors is None else "module"
    attention = as_read(judged, kernel)
    _check_masks(A, attention.mask, "attention")
    target = as_target(A, mask=attention.mask, num_threads=threads)
    q, k = attention.stored
    _check_rows(target, q, "Q")
    _check_rows(target, k, "K")
    statement = Statement(target, attention, asked, kernel, mass)
    if cluster is None:
        found = certify_rows(statement, threads)
    else:
        found = certify_blocks(cluster, statement)
    return _assemble(
        found,
        mass,
        basis=basis,
        n=target.n,
        nonzeros=target.nonzeros,
        dtype=str(computed_in(q, k)),
        scale=attention.scale,
        mask=attention.mask,
        tolerances=asked,
        kernel=kernel,
    )


def _check_masks(A: Any, mask: Any, name: str) -> None:
    """Raise an InputError for a target that was checked under another mask than this one."""
    if not isinstance(A, Target) or A.mask is None:
        return
    if not masks_agree(A.mask, mask, A.n):
        raise InputError(
            f"the target and the {name} must have the same mask; the target's is "
            f"{mask_text(A.mask)}, the {name}'s {mask_text(mask)}"
        )


def _check_rows(target: Target, array: NDArray[Any], name: str) -> None:
    if array.ndim != 2:
        raise InputError(f"{name} must be a matrix; got shape {array.shape}")
    if array.shape[0] != target.n or (name == "matrix" and array.shape[1] != target.n):
        raise InputError(
            f"{name} must have one row for each of the {target.n} rows of A; got {array.shape}"
        )


def _judged(Q: Any, K: Any, scale: float | None, mask: Any) -> Attention:
    """Return the attention that is to be judged, if a certificate can speak about it."""
    if Q is None and K is None:
        raise InputError("certify takes Q and K, an Attention, or matrix=")
    attention = Attention.of(Q, K, scale=scale, mask=mask)
    attention.check_plain("certify", "softcap", "bias")
    if attention.lead:
        raise InputError(f"Q must be a matrix; got shape {attention.stored[0].shape}")
    return attention


def _assemble(found: dict[str, Any], mass: bool, **known: Any) -> Certificate:
    tv, stray = found["tv"], found["stray"]
    nan = float("nan")
    return Certificate(
        status=_status(found["verdict"]),
        leak=float(found["leak"].max()),
        distortion=float(found["distortion"].max()),
        tv_mean=float(tv.mean()) if mass else nan,
        tv_worst=float(tv.max()) if mass else nan,
        stray_worst=float(stray.max()) if mass else nan,
        row_leak=found["leak"],
        row_distortion=found["distortion"],
        row_tv=tv if mass else None,
        row_stray=stray if mass else None,
        row_status=found["verdict"],
        worst_leak=_place(found["leak"], found["leak_column"], found["weakest_column"]),
        worst_distortion=_place(
            found["distortion"], found["highest_column"], found["lowest_column"]
        ),
        q_norm=found["q_norm"],
        k_norm=found["k_norm"],
        max_logit=found["max_logit"],
        rounding_bound=found["rounding_bound"],
        rescanned=int(found["rescanned"]),
        **known,
    )


def _status(row_status: NDArray[np.int8]) -> Status:
    if (row_status == 1).any():
        return "fails"
    return "undecided" if (row_status == 2).any() else "holds"


def _place(
    rows: FloatRows, first: NDArray[Any], second: NDArray[Any]
) -> tuple[int, int, int] | None:
    row = int(np.argmax(rows))
    if not rows[row] > 0 or first[row] < 0 or second[row] < 0:
        return None
    return row, int(first[row]), int(second[row])
