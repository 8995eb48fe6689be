"""Sparse patterns out of attention matrices: few entries a row, few a column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._arguments import as_choice
from headfit._arithmetic import standard_arithmetic
from headfit._arrays import (
    as_array,
    as_contiguous,
    as_count,
    as_share,
    as_stack,
    as_stored_array,
    is_sparse,
    thread_count,
)
from headfit._masks import core_mask
from headfit._memory import require_memory
from headfit._sparse import checked_csr
from headfit.attention import Attention, LogitOptions, _problem, attention_matrix
from headfit.errors import InputError

__all__ = ["EXACT_LIMIT", "Sparsified", "sparsify"]

EXACT_LIMIT = 2**20
"""The most entries of a matrix that ``method="exact"`` takes."""

Method = Literal["greedy", "exact"]


@dataclass(frozen=True, repr=False, eq=False)
class Sparsified:
    """A sparse pattern made by `sparsify`, and what it left out.

    Attributes
    ----------
    matrix : csr_array, shape (n, m)
        float64; rows sum to 1, or are empty where the mask (or M) leaves them empty.
    dropped_mass : ndarray, shape (n,)
        The share of each row that was left out. It is also the total variation between the
        row and what is kept of it, renormalised: `tv`.
    worst_row : int
        The row that loses most.
    per_row : int
        The most entries in a row.
    per_column : int
        The most entries in a column that is not exempt.
    exempt : ndarray of int
        The columns without a bound; empty when all are free.
    method : "greedy" or "exact"
    """

    matrix: sp.csr_array
    dropped_mass: NDArray[np.float64]
    worst_row: int
    per_row: int
    per_column: int
    exempt: NDArray[np.int64]
    method: Method

    @property
    def tv(self) -> NDArray[np.float64]:
        """Total variation of each row against the original: its dropped mass.

        What is dropped counts once, and what is kept grows by as much in all.
        """
        return self.dropped_mass

    @property
    def tv_mean(self) -> float:
        """The mean total variation of a row."""
        return float(self.dropped_mass.mean())

    @property
    def tv_worst(self) -> float:
        """The largest total variation of a row."""
        return float(self.dropped_mass[self.worst_row])

    def __repr__(self) -> str:
        n, m = self.matrix.shape
        exempt = ""
        if self.exempt.size:
            named = ", ".join(str(j) for j in self.exempt[:4])
            exempt = f" without column{'s' if self.exempt.size > 1 else ''} {named}"
            exempt += ", ..." if self.exempt.size > 4 else ""
        return (
            f"Sparsified({n} x {m}, {self.matrix.nnz} entries, at most {self.per_row} a row and "
            f"{self.per_column} a column{exempt}; dropped mass {self.tv_mean:.3g} on average, "
            f"{self.tv_worst:.3g} in row {self.worst_row})"
        )


@dataclass(frozen=True)
class _Bounds:
    per_row: int
    mass: float
    per_column: int
    exempt: NDArray[np.int32]
    sinks: bool
    keep_max: bool

    def core(self, *, empty_rows_pass: bool) -> _core.SparsifyOptions:
        keep_max = self.keep_max or empty_rows_pass
        return _core.SparsifyOptions(
            self.per_row, self.mass, self.per_column, self.exempt, self.sinks, keep_max
        )


def _bounds(
    columns: int,
    per_row: int | None,
    per_column: int | None,
    mass: float | None,
    exempt: Any,
    on_empty: str,
) -> _Bounds:
    if per_row is None and mass is None:
        raise InputError("give per_row, the most entries of a row, or mass, the share to keep")
    share = 0.0 if mass is None else as_share(mass, "mass")
    as_choice(on_empty, "on_empty", ("raise", "keep-max"))
    sinks = isinstance(exempt, str)
    if sinks and exempt != "auto":
        raise InputError(f'exempt_columns must be indices or "auto"; got {exempt!r}')
    indices = np.atleast_1d(np.empty(0, np.int64) if sinks else as_array(exempt, "exempt_columns"))
    if indices.size and (indices.dtype.kind not in "iu" or indices.ndim != 1):
        raise InputError(
            'exempt_columns must be indices or "auto"; '
            f"got shape {indices.shape} of {indices.dtype}"
        )
    outside = (indices < 0) | (indices >= columns)
    if outside.any():
        raise InputError(
            f"exempt_columns must lie in 0 ... {columns - 1}; got {indices[outside][0]}"
        )
    return _Bounds(
        0 if per_row is None else min(as_count(per_row, "per_row", 1), columns),
        share,
        0 if per_column is None else as_count(per_column, "per_column", 1),
        np.unique(indices).astype(np.int32),
        sinks,
        on_empty == "keep-max",
    )


class _Logits:
    """Attention as its queries and keys: streamed."""

    def __init__(self, q: Any, k: Any, options: LogitOptions) -> None:
        self.problem = _problem(q, k, options)
        if self.problem.lead or self.problem.kv_lead:
            raise InputError(
                "Q and K must be matrices, one head at a time; "
                f"got leading axes {self.problem.lead or self.problem.kv_lead}"
            )
        self.shape = (self.problem.rows, self.problem.keys)
        self.inputs = (q, k, options)

    def greedy(self, options: _core.SparsifyOptions, threads: int) -> Any:
        return _core.sparsify_logits(self.problem.logits, options, threads)

    def dense(self, threads: int) -> NDArray[np.float64]:
        q, k, options = self.inputs
        matrix = attention_matrix(q, k, **vars(options), num_threads=threads)
        return matrix.astype(np.float64, copy=False)


def _check_size(shape: tuple[int, ...]) -> None:
    if max(shape, default=0) >= 2**31:
        raise InputError(f"M must have fewer than 2**31 rows and columns; got {shape}")


class _Matrix:
    """Attention as its matrix, dense or sparse."""

    def __init__(self, matrix: Any, mask: Any) -> None:
        self.csr: sp.csr_array | None = None
        if is_sparse(matrix):
            _check_size(matrix.shape)
            self.csr = checked_csr(matrix, "M", dtype=np.float64)
            self.shape: tuple[int, int] = self.csr.shape
        else:
            self.array = as_stored_array(matrix, "M")
            if self.array.ndim != 2:
                raise InputError(f"M must be a matrix; got shape {self.array.shape}")
            self.shape = self.array.shape
        _check_size(self.shape)
        self.mask = core_mask(mask, (), self.shape)

    def greedy(self, options: _core.SparsifyOptions, threads: int) -> Any:
        if self.csr is None:
            stack = as_stack(self.array[np.newaxis])
            return _core.sparsify_matrix(stack, self.mask, options, threads)
        offsets = as_contiguous(self.csr.indptr, np.int64)
        columns = as_contiguous(self.csr.indices, np.int32)
        values = as_contiguous(self.csr.data)
        return _core.sparsify_compressed(
            offsets, columns, values, self.shape[1], self.mask, options, threads
        )

    def dense(self, threads: int) -> NDArray[np.float64]:
        # All that the mask and the checks of the core leave, as shares of the rows.
        everything = _core.SparsifyOptions(
            self.shape[1], 0.0, 0, np.empty(0, np.int32), False, False
        )
        offsets, columns, weights, _, _ = self.greedy(everything, threads)
        return sp.csr_array((weights, columns, offsets), shape=self.shape).toarray()


def _csr(offsets: Any, columns: Any, weights: Any, shape: tuple[int, int]) -> sp.csr_array:
    index = np.int32 if offsets[-1] < 2**31 else np.int64
    parts = (weights, columns.astype(index, copy=False), offsets.astype(index, copy=False))
    return sp.csr_array(parts, shape=shape)


def _renormalised(
    shares: NDArray[np.float64], chosen: NDArray[np.bool_], bounds: _Bounds
) -> tuple[sp.csr_array, NDArray[np.float64]]:
    """Return the chosen entries as rows that sum to 1, and what each row lost."""
    present = shares.any(axis=1)
    empty = np.flatnonzero(present & ~chosen.any(axis=1))
    if empty.size and not bounds.keep_max:
        raise InputError(
            f"row {empty[0]} keeps nothing: at most {bounds.per_column} entries a column leave it "
            'no room; exempt columns, raise per_column, or use on_empty="keep-max"'
        )
    chosen[empty, shares[empty].argmax(axis=1)] = True
    kept = np.where(chosen, shares, 0.0)
    sums = kept.sum(axis=1)
    matrix = sp.csr_array(kept / np.where(present, sums, 1.0)[:, np.newaxis])
    return matrix, np.where(present, np.maximum(0.0, 1 - sums), 0.0)


@standard_arithmetic()
def sparsify(
    M: Any = None,
    *,
    Q: Any = None,
    K: Any = None,
    scale: float | None = None,
    mask: Any = None,
    key_lengths: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    position: Any = None,
    per_row: int | None = None,
    per_column: int | None = None,
    exempt_columns: Sequence[int] | NDArray[Any] | str = (),
    method: Method = "greedy",
    mass: float | None = None,
    on_empty: Literal["raise", "keep-max"] = "raise",
    num_threads: int | None = None,
) -> Sparsified:
    """Keep the heaviest entries of an attention matrix, few in every row and column.

    Parameters
    ----------
    M : array_like or sparse array, shape (n, m), or Attention, optional
        The matrix: nonnegative; an entry counts as a share of its row. Or an `Attention`.
    Q, K : array_like, shape (n, d) and (m, d), optional
        Queries and keys instead of M: streamed, the matrix is never stored.
    scale, mask, key_lengths, bias, softcap, position
        As in `attention_matrix`; with M only `mask`, and entries that it leaves out do not
        count.
    per_row : int, optional
        The most entries that a row keeps.
    per_column : int, optional
        The most entries that a column keeps. None: any number, reported in the result.
    exempt_columns : sequence of int or "auto", default ()
        Columns without that bound: their entries count in `per_row` only. "auto": attention
        sinks, the columns that more than half of the rows (of those with any entry), and more
        than `per_column`, would keep if columns were free (of a row's 64 largest entries where
        only `mass` bounds it).
    method : "greedy" or "exact", default "greedy"
        See the notes.
    mass : float in (0, 1], optional
        A row stops when it keeps this share of itself (less 1e-12, for rounding): the fewest
        entries that reach it where columns are free. `per_row` still holds.
    on_empty : "raise" or "keep-max", default "raise"
        For a row that loses everything to the columns' bound: an error, or its largest entry
        kept above that bound.
    num_threads : int, optional
        None uses every core. The result does not depend on it.

    Returns
    -------
    Sparsified
        The pattern with rows renormalised, ready for `fit`, and what each row lost.

    Raises
    ------
    InputError
        For arguments that do not fit, a negative or non-finite entry of M, and for a row that
        keeps nothing (named) when `on_empty` is "raise".
    NonFiniteError
        For NaN or infinity in Q, K or bias.

    Notes
    -----
    "greedy" takes entries in the order of falling weight (ties: the lower row, then the order
    within the row, the lower column first) while row and column have room: at least half of
    the most weight that any pattern within the bounds keeps (Avis 1983). It is computed by
    deferred acceptance (Gale and Shapley 1962), whose outcome is the greedy one because rows
    and columns rank entries by the same weights. Time O(n m d) for a scan of all rows, and for
    each later scan of the rows that ran out of candidates; memory O(n (d + kept entries)).

    "exact" solves the linear programme of the maximum-weight b-matching, which has integral
    vertices as the graph is bipartite (Schrijver 2003, section 21), with HiGHS through SciPy,
    to a tolerance of 1e-9 in the weight; where several patterns are best, one of them. It
    stores the dense matrix, takes seconds at n = 1024, and refuses more than `EXACT_LIMIT`
    entries.
    With `per_column` it takes no `mass`: bounds on counts are what a b-matching knows.

    Examples
    --------
    >>> import headfit as hf
    >>> M = [[0.6, 0.3, 0.1], [0.7, 0.2, 0.1], [0.8, 0.1, 0.1]]
    >>> hf.sparsify(M, per_row=1).matrix.indices
    array([0, 0, 0], dtype=int32)
    >>> kept = hf.sparsify(M, per_row=1, per_column=1)
    >>> kept.matrix.indices, kept.dropped_mass.round(3), kept.worst_row
    (array([1, 2, 0], dtype=int32), array([0.7, 0.9, 0.2]), 1)
    >>> hf.sparsify(M, per_row=1, per_column=1, exempt_columns="auto").exempt
    array([0])
    """
    if isinstance(M, Attention):
        if Q is not None or K is not None or scale is not None or mask is not None:
            raise InputError("M is an Attention with its own Q, K, scale and mask")
        M, (Q, K), scale, mask = None, M.stored, M.scale, M.mask
    options = LogitOptions(scale, mask, key_lengths, bias, softcap, position)
    source: _Logits | _Matrix
    if M is None:
        if Q is None or K is None:
            raise InputError("give M, or both Q and K")
        source = _Logits(Q, K, options)
    else:
        beside = {"Q": Q, "K": K, **vars(replace(options, mask=None))}
        given = [name for name, x in beside.items() if x is not None]
        if given:
            raise InputError(f"{given[0]} goes with Q and K; M is the matrix itself")
        source = _Matrix(M, mask)
    if 0 in source.shape:
        raise InputError(f"the matrix must have rows and columns; got shape {source.shape}")
    as_choice(method, "method", ("greedy", "exact"))
    bounds = _bounds(source.shape[1], per_row, per_column, mass, exempt_columns, on_empty)
    threads = thread_count(num_threads)
    if mass is None and mask is None:  # every row keeps as many entries as it may
        entries = source.shape[0] * bounds.per_row
        require_memory(40 * entries, f"keeping up to {entries} entries (per_row = {per_row})")
    exact = method == "exact" and bounds.per_column > 0
    if exact:
        if mass is not None:
            raise InputError('mass must be None for method="exact" with per_column; use per_row')
        if math.prod(source.shape) > EXACT_LIMIT:
            raise InputError(
                f'method="exact" takes at most {EXACT_LIMIT} entries; got {source.shape}'
            )
    offsets, columns, weights, dropped, exempt = source.greedy(
        bounds.core(empty_rows_pass=exact), threads
    )
    matrix = _csr(offsets, columns, weights, source.shape)
    if exact:
        from headfit._exact_matching import heaviest_matching

        shares = source.dense(threads)
        chosen = heaviest_matching(shares, matrix, bounds.per_row, bounds.per_column, exempt)
        matrix, dropped = _renormalised(shares, chosen, bounds)
    counts = np.bincount(matrix.indices, minlength=source.shape[1])
    counts[exempt] = 0
    return Sparsified(
        matrix=matrix,
        dropped_mass=dropped,
        worst_row=int(dropped.argmax()),
        per_row=int(np.diff(matrix.indptr).max()),
        per_column=int(counts.max()),
        exempt=exempt.astype(np.int64),
        method=method,
    )
