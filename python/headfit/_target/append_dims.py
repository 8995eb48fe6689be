"""`append_dims`: a coordinate of their own for exempt columns, such as sinks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.attention import Attention
from headfit._attention.heads import one_head
from headfit._attention.logits import check_scale
from headfit._base.arrays import FloatArray, as_indices, round_to, widened
from headfit._base.sparse import csr_of
from headfit._base.tolerances import Tolerances, as_tolerances, log_inverse
from headfit._target.target import Target, TargetLike, as_target, largest_ratio, with_matrix
from headfit.errors import InputError

# How far, in logits, entries of appended columns off the support stay below what the leak allows.
MARGIN = 1.0
# The share of the leak's logarithm that is reserved for rounding errors.
ROUNDING = 1e-3


def without_columns(target: Target, columns: NDArray[np.int64]) -> Target:
    """Return the target without some columns, with rows renormalised.

    A row without other nonzeros becomes empty; nothing is required of it then.
    """
    csr = target.matrix
    kept = ~np.isin(csr.indices, columns)
    offsets = np.concatenate([[0], np.cumsum(kept)])[csr.indptr]
    return with_matrix(target, csr_of(csr.data[kept], csr.indices[kept], offsets, csr.shape))


def _entries(
    target: Target, columns: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Return the rows of the nonzeros, 1 for those in some columns or 0, and their weights."""
    csr = target.matrix
    rows = np.repeat(np.arange(target.n), np.diff(csr.indptr))
    return rows, np.isin(csr.indices, columns).astype(np.intp), csr.data


def _of_both(target: Target, columns: NDArray[np.int64], extreme: np.ufunc) -> NDArray[np.float64]:
    """Return the extreme weights of the rows that have entries beside the columns and in them."""
    rows, exempt, weights = _entries(target, columns)
    none = -1.0 if extreme is np.maximum else np.inf
    of_rows = np.full((2, target.n), none)
    extreme.at(of_rows, (exempt, rows), weights)
    return of_rows[:, (of_rows != none).all(axis=0)]


def leak_without(target: Target, columns: NDArray[np.int64], leak: float) -> float:
    """Return the leak that the head for the other columns needs, for a given leak of the whole.

    If an exempt entry is smaller than all others of its row, appending it lowers the least weight
    of the support by the ratio of the two, which raises the leak by the same factor.
    """
    others, exempt = _of_both(target, columns, np.minimum)
    with np.errstate(over="ignore"):
        ratio = float(np.min(exempt / others, initial=1.0))
    return max(float(leak ** (1 + ROUNDING) * ratio), math.ulp(0.0))  # a leak must be above 0


def heavier_by(target: Target, columns: NDArray[np.int64]) -> float:
    """Return the largest log-ratio of an exempt entry to the largest other entry of its row."""
    others, exempt = _of_both(target, columns, np.maximum)
    ratio = largest_ratio(exempt, others)
    return math.log(ratio) if ratio < math.inf else float(np.max(np.log(exempt) - np.log(others)))


def appended(
    target: Target, q: FloatArray, k: FloatArray, columns: NDArray[np.int64], limits: Tolerances
) -> tuple[FloatArray, FloatArray]:
    """Return queries and keys with appended coordinates, whose products are the whole logits.

    See `append_dims`. Logits of exempt entries off the support are kept above -max_logit as
    far as the leak allows.
    """
    n, indices = target.n, target.matrix.indices
    rows, is_exempt, weights = _entries(target, columns)
    exempt, logs = is_exempt.astype(bool), np.log(weights)
    at, to = rows[~exempt], indices[~exempt]
    logits = np.zeros(at.size)
    # One coordinate at a time, so that the memory is that of the target, not d times as much.
    for c in range(q.shape[1]):
        logits += q[at, c] * k[to, c]
    low, high, least = np.full(n, np.inf), np.full(n, -np.inf), np.full(n, np.inf)
    np.minimum.at(low, at, logits - logs[~exempt])
    np.maximum.at(high, at, logits - logs[~exempt])
    np.minimum.at(least, at, logits)
    # In rows without other nonzeros the query is zero in the old coordinates, so that all other
    # logits are 0, and the logits of exempt entries are above that.
    alone = np.isinf(low)
    lightest = np.zeros(n)
    np.minimum.at(lightest, rows, logs)
    gap = log_inverse(limits.leak) + MARGIN
    low[alone] = high[alone] = gap - lightest[alone]
    # Each logit is in the middle of the interval that the ratios of the other entries leave for
    # it, or higher if the leak requires it.
    at, heavy = rows[exempt], logs[exempt]
    wanted = np.minimum(np.maximum((low + high)[at] / 2 + heavy, least[at]), high[at] + heavy)
    np.minimum.at(least, at, wanted)
    off = np.where(np.isfinite(least), least, 0.0) - gap
    off = np.maximum(off, np.minimum(-limits.logit_limit * (1 - ROUNDING), off + 0.9 * MARGIN))
    added = np.repeat(off[:, np.newaxis], columns.size, axis=1)
    added[at, np.searchsorted(columns, indices[exempt])] = wanted
    keys = np.hstack([k, np.zeros((n, columns.size))])
    keys[columns] = np.eye(columns.size, keys.shape[1], k.shape[1])
    return np.hstack([np.where(alone[:, np.newaxis], 0.0, q), added]), keys


def append_dims(
    A: TargetLike,
    head: Any,
    columns: Any,
    *,
    leak: float | None = None,
    max_logit: float | None = None,
    tolerances: Tolerances | None = None,
    scale: float | None = None,
) -> Attention:
    """Extend a head by one coordinate for each of some columns, such as sinks.

    A column that most rows attend to, a sink, exceeds every bound on the nonzeros of a column.
    But it costs a head one dimension at most. Let a head of size d for the other columns have the
    logits q_i.k_j, and let e columns be appended. The head of size d + e with

        q'_i = [q_i, l_i],   k'_j = [k_j, 0] elsewhere,   k'_j = [0, unit vector of j] for these

    has the same logits q_i.k_j in the other columns, and the logits l_ij, which can be chosen
    freely, in the appended ones.

    Parameters
    ----------
    A : target
        The whole pattern: a `Target`, or what `Target` accepts.
    head : Attention or a result with one
        A head for A without the columns, with rows renormalised. Its logits in these columns, and
        in rows of A that are zero in all other columns, do not matter.
    columns : sequence of int
    leak, max_logit : float, optional
        See `Tolerances`, which has the defaults. The leak is asked of entries of the columns
        where A is zero, and of rows whose nonzeros are all in the columns. The logits of the
        columns off the support stay above -max_logit, as far as the leak allows.
    tolerances : Tolerances, optional
        The same as one object, in their place. Its distortion is not used: ratios on the
        support stay as close as those of `head`.
    scale : float, optional
        The scale of the new head; 1 / sqrt(d + e) when None. Queries are rescaled accordingly.

    Returns
    -------
    Attention
        The head of size d + e, in float64 if `head` is and else in float32; `certify` judges it
        against all of A.

    Raises
    ------
    InputError, TargetError
        If shapes do not fit together, a column number is out of range, `A` is not a target, or the
        new queries exceed their dtype.

    Notes
    -----
    For the support keys of row i in the other columns, s_ij - log A_ij lies in an interval
    [a_i, b_i] of length at most log(1 + distortion). For a nonzero A_ij in an appended column,
    l_ij - log A_ij is chosen in the same interval, in the middle or, if l_ij would then be the
    least logit of the support, as much higher as avoids that, but at most b_i. So the distortion
    still holds, and the leak grows at most by the ratio of the least weight of the row to the
    least one in the other columns: `fit` wants a leak of the head that is smaller by this factor.
    Where A_ij = 0 in an appended column, l_ij is log(1 / leak) + 1 below the least logit of the
    support. In rows where A is zero in all other columns the query is zero in the old coordinates.

    Rounding to bfloat16 or float16 changes ratios by up to |l_ij| 2**-8 or 2**-11, relatively.
    Takes O(nonzeros d + n e) time and O(nonzeros + n (d + e)) memory.
    ``fit(A, exempt_columns=...)`` does all of this in one call.

    Examples
    --------
    >>> import numpy as np, headfit as hf
    >>> A = 0.5 * np.eye(40, k=-1) + 0.5 * np.eye(40)[[0]]  # the one before, and a sink at 0
    >>> A[0], A[1] = np.eye(40)[1], np.eye(40)[0]
    >>> rest = A.copy()
    >>> rest[:, 0], rest[1, 1] = 0, 1
    >>> head = hf.fit(hf.Target(rest, normalize=True), 3)
    >>> whole = hf.methods.append_dims(A, head, [0])
    >>> whole.dim, hf.certify(A, whole).holds
    (4, True)
    """
    limits = as_tolerances(tolerances, leak=leak, max_logit=max_logit)
    attention = one_head(head, "head")
    attention.check_plain("append_dims")
    target = as_target(A, mask=attention.mask)
    q, k = attention.stored
    if not q.shape[0] == k.shape[0] == target.n:
        raise InputError(
            f"head must have one query and one key for each of the {target.n} rows of A; "
            f"got Q and K of shapes {q.shape} and {k.shape}"
        )
    added = np.unique(as_indices(columns, "columns", 0, target.n))
    used = check_scale(scale, attention.dim + added.size)
    q, k = (widened(x).astype(np.float64, copy=False) for x in (q, k))
    with np.errstate(over="ignore", invalid="ignore"):
        new_q, new_k = appended(target, q * attention.scale, k, added, limits)
        new_q = round_to(new_q / used, attention.dtype.name, "Q of the new head")
    return Attention(new_q, new_k.astype(attention.dtype), scale=used, mask=attention.mask)
