"""Columns with a coordinate of their own: what an exempt column, a sink, costs a head."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.dense_target import check_one_head
from headfit._attention.logits import check_scale
from headfit._base.arrays import FloatArray, as_array, computed_in, widened
from headfit._base.tolerances import Tolerances, as_tolerances
from headfit._target.heavy import global_columns
from headfit._target.target import Target, as_target
from headfit.errors import InputError

__all__ = ["append_columns", "leak_without", "without_columns"]

Rounding = Callable[[FloatArray], FloatArray]

# By how much, in logit units, an appended column stays below what the leak allows.
MARGIN = 1.0
# Part of the leak's logarithm that is left to rounding.
ROUNDING = 1e-3


def as_columns(columns: Any, n: int, name: str = "columns") -> NDArray[np.int64]:
    """Return column numbers, sorted, or raise an InputError that names the one that is none."""
    array = np.atleast_1d(as_array(columns, name))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name} must be a sequence of integers; got shape {array.shape} of {array.dtype}"
        )
    outside = (array < 0) | (array >= n)
    if outside.any():
        raise InputError(f"{name} must lie in 0 ... {n - 1}; got {array[outside][0]}")
    return np.unique(array).astype(np.int64)


def exempt_from(columns: Any, target: Target) -> NDArray[np.int64]:
    """Return the columns that `fit` was asked to exempt: None, "auto" or their numbers."""
    if columns is None:
        return np.empty(0, dtype=np.int64)
    if not isinstance(columns, str):
        return as_columns(columns, target.n, "exempt_columns")
    if columns != "auto":
        raise InputError(
            f'exempt_columns must be "auto" or a sequence of column numbers; got {columns!r}'
        )
    return global_columns(target)


def without_columns(target: Target, columns: NDArray[np.int64]) -> Target:
    """Return what a target asks of its other columns, rows renormalised.

    A row that holds nothing else becomes empty and asks for nothing, as masked rows do.
    """
    csr = target.matrix
    kept = ~np.isin(csr.indices, columns)
    offsets = np.concatenate([[0], np.cumsum(kept)])[csr.indptr]
    parts = (csr.data[kept], csr.indices[kept], offsets)
    matrix = sp.csr_array(parts, shape=csr.shape)
    sums = np.asarray(matrix.sum(axis=1)).ravel()
    matrix.data = matrix.data / np.repeat(sums, np.diff(offsets))
    counts = np.diff(offsets)
    filled = counts > 0
    starts = offsets[:-1][filled]
    rest = copy.copy(target)
    for name, value in {
        "matrix": matrix,
        "nonzeros": int(matrix.nnz),
        "per_row": int(counts.max(initial=0)),
        "per_column": int(np.bincount(matrix.indices, minlength=1).max()),
        "gamma": float(
            np.max(
                np.maximum.reduceat(matrix.data, starts) / np.minimum.reduceat(matrix.data, starts)
            )
        )
        if starts.size
        else 1.0,
    }.items():
        object.__setattr__(rest, name, value)
    return rest


def leak_without(target: Target, columns: NDArray[np.int64], leak: float) -> float:
    """Return the leak to ask of the other columns, so that the whole has the leak given.

    An exempt entry below all others of its row makes the least of the support smaller, by the
    ratio of the two.
    """
    csr = target.matrix
    rows = np.repeat(np.arange(target.n), np.diff(csr.indptr))
    exempt = np.isin(csr.indices, columns)
    least = np.full((2, target.n), np.inf)
    np.minimum.at(least, (exempt.astype(np.intp), rows), csr.data)
    both = np.isfinite(least).all(axis=0)
    ratio = float(np.min(least[1, both] / least[0, both], initial=1.0))
    return float(leak ** (1 + ROUNDING) * ratio)


def _support_logits(
    q: FloatArray, k: FloatArray, rows: NDArray[Any], columns: NDArray[Any]
) -> NDArray[np.float64]:
    logits = np.zeros(rows.size)
    for c in range(q.shape[1]):  # a column at a time: as much memory as the target has
        logits += q[rows, c] * k[columns, c]
    return logits


def appended(
    target: Target,
    q: FloatArray,
    k: FloatArray,
    columns: NDArray[np.int64],
    leak: float,
    max_logit: float = math.inf,
) -> tuple[FloatArray, FloatArray]:
    """Return queries and keys whose plain products are the logits of the whole pattern.

    Exempt entries off the support are kept above -max_logit, as far as that goes.
    """
    n, csr = target.n, target.matrix
    rows = np.repeat(np.arange(n), np.diff(csr.indptr))
    exempt = np.isin(csr.indices, columns)
    weight = np.log(csr.data)
    at, other = rows[~exempt], weight[~exempt]
    logits = _support_logits(q, k, at, csr.indices[~exempt])
    low, high, least = np.full(n, np.inf), np.full(n, -np.inf), np.full(n, np.inf)
    np.minimum.at(low, at, logits - other)
    np.maximum.at(high, at, logits - other)
    np.minimum.at(least, at, logits)
    # Rows with nothing else: a query of zeros puts all other logits at 0, and these above.
    alone = np.isinf(low)
    lightest = np.zeros(n)
    np.minimum.at(lightest, rows, weight)
    gap = math.log(1 / leak) + MARGIN
    low[alone] = high[alone] = gap - lightest[alone]
    # In the middle of what the others' ratios allow, or higher where the leak needs it.
    at, heavy = rows[exempt], weight[exempt]
    wanted = np.minimum(np.maximum((low + high)[at] / 2 + heavy, least[at]), high[at] + heavy)
    added = np.full((n, columns.size), np.nan)
    added[at, np.searchsorted(columns, csr.indices[exempt])] = wanted
    least = np.fmin(least, np.fmin.reduce(added, axis=1, initial=np.inf))
    off = np.where(np.isfinite(least), least, 0.0) - gap
    off = np.maximum(off, np.minimum(-max_logit * (1 - ROUNDING), off + 0.9 * MARGIN))
    added = np.where(np.isnan(added), off[:, np.newaxis], added)
    keys = np.hstack([k, np.zeros((n, columns.size))])
    keys[columns] = 0.0
    keys[columns, k.shape[1] + np.arange(columns.size)] = 1.0
    return np.hstack([np.where(alone[:, np.newaxis], 0.0, q), added]), keys


def heavier_by(target: Target, columns: NDArray[np.int64]) -> float:
    """Return the logarithm of how much heavier than the others of its row an exempt entry is."""
    csr = target.matrix
    rows = np.repeat(np.arange(target.n), np.diff(csr.indptr))
    most = np.zeros((2, target.n))
    np.maximum.at(most, (np.isin(csr.indices, columns).astype(np.intp), rows), csr.data)
    both = (most > 0).all(axis=0)
    return math.log(float(np.max(most[1, both] / most[0, both], initial=1.0)))


def in_two_parts(q: FloatArray, columns: int, round_q: Rounding) -> FloatArray:
    """Return queries whose last `columns` coordinates are rounded, with what is left beside them.

    A logit that is large for its format is then as exact as a sum of two of its numbers.
    """
    rounded = round_q(q[:, -columns:])
    return np.hstack([q[:, :-columns], rounded, q[:, -columns:] - rounded])


def append_columns(
    A: Any,
    head: Any,
    columns: Any,
    *,
    leak: float | None = None,
    max_logit: float | None = None,
    tolerances: Tolerances | None = None,
    scale: float | None = None,
) -> Attention:
    """Give columns of a pattern a coordinate each, beside a head for all other columns.

    A column that most rows attend to, a sink, fits no bound on columns. It costs a head one
    dimension at most: with a head of size d for the other columns, whose logits are q_i.k_j,
    and e columns to append, the head of size d + e with

        q'_i = [q_i, l_i],   k'_j = [k_j, 0] elsewhere,   k'_j = [0, unit vector of j] for these

    has the logits q_i.k_j elsewhere, as they were, and l_ij at the columns, any numbers at all.

    Parameters
    ----------
    A : target
        The whole pattern: a `Target`, or whatever makes one.
    head : Attention, Fit or SoftFit
        For A without the columns, rows renormalised. What it does in them is of no account, nor
        what it does in rows of A that hold nothing else.
    columns : sequence of int
    leak, max_logit : float, optional
        See `Tolerances`, which has the defaults. The leak is that of the columns, in rows of A
        that do not hold them, and of rows that hold nothing else. The logits of columns off the
        support stay above -max_logit, as far as the leak allows.
    tolerances : Tolerances, optional
        The same as one object, in their place. Its distortion is not used: ratios on the
        support stay as close as those of `head`.
    scale : float, optional
        Of the new logits; 1 / sqrt(d + e) when None. Queries are rescaled to it.

    Returns
    -------
    Attention
        Of size d + e, in the dtype of the head; `certify` judges it against all of A.

    Raises
    ------
    InputError, TargetError
        When shapes do not fit, or a column is none.

    Notes
    -----
    Why the whole certifies. On the other support keys of row i, s_ij - log A_ij lies between
    some a_i and b_i, and b_i - a_i is at most log(1 + distortion): renormalising moved all of them
    alike. For an entry of A at the columns, l_ij - log A_ij is chosen between a_i and b_i too, so
    the distortion stays within the same bound: in the middle, or as much higher as it takes for
    l_ij not to be the least logit of the support. Where that cannot be, l_ij = b_i + log A_ij, and
    the least of the others is at most b_i plus the log of the lightest of them: the leak
    grows by the ratio of the two weights at most, and `shrink` asks that much less leak of
    the head. The largest logit elsewhere off the support is what it was, and where A_ij = 0 at
    the columns, l_ij lies log(1 / leak) + 1 below the least logit of the support. In rows
    without other entries the query is zero beside l_i, and those logits are as far above 0.

    Rounded to bfloat16 or float16, l_ij moves ratios by up to |l_ij| 2**-8 or 2**-11: `certify`
    tells whether the distortion bears it.

    O(nonzeros d + n e) time and memory. ``fit(A, exempt_columns=...)`` does it all at once.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> A = 0.5 * np.eye(40, k=-1) + 0.5 * np.eye(40)[[0]]  # the one before, and a sink at 0
    >>> A[0], A[1] = np.eye(40)[1], np.eye(40)[0]
    >>> rest = A.copy()
    >>> rest[:, 0], rest[1, 1] = 0, 1
    >>> head = hf.fit(hf.Target(rest, normalize=True), 3)
    >>> whole = hf.append_columns(A, head, [0])
    >>> whole.dim, hf.certify(A, whole).holds
    (4, True)
    """
    asked = as_tolerances(tolerances, leak=leak, max_logit=max_logit)
    attention = getattr(head, "attention", head)
    if not isinstance(attention, Attention):
        raise InputError(f"head must be an Attention or a fit; got {type(head).__name__}")
    check_one_head(attention, "head")
    target = as_target(A, mask=attention.mask)
    stored = attention.stored
    if any(x.shape[0] != target.n for x in stored):
        raise InputError(
            f"head must have one query and one key for each of the {target.n} rows of A; "
            f"got Q and K of shapes {stored[0].shape} and {stored[1].shape}"
        )
    added = as_columns(columns, target.n)
    dtype = computed_in(*stored)
    used = check_scale(scale, attention.dim + added.size)
    q, k = (widened(x).astype(np.float64, copy=False) for x in stored)
    new_q, new_k = appended(target, q * attention.scale, k, added, asked.leak, asked.logit_limit)
    return Attention(
        (new_q / used).astype(dtype), new_k.astype(dtype), scale=used, mask=attention.mask
    )
