"""`sparsify`: sparse patterns from attention matrices, with few entries per row and column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack, overload

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention, HeadLike, OneHead, attention_in
from headfit._attention.heads import head_to_match, over_heads
from headfit._attention.logits import LogitKeywords, LogitOptions, names_logit_options
from headfit._base.arguments import as_choice, as_count, as_share, shown, thread_count
from headfit._base.arrays import as_indices, as_stack, as_stored_array, is_sparse
from headfit._base.calls import standard_arithmetic
from headfit._base.display import Shown, named, plain_dict
from headfit._base.machine import require_memory
from headfit._base.masks import core_mask, frozen_mask
from headfit._base.sparse import checked_csr, csr_of
from headfit._base.types import ArrayLike, Columns, Sparse
from headfit.errors import HeadfitError, InputError

# The most entries of a matrix that ``method="exact"`` takes.
EXACT_LIMIT = 2**20

# Entries with at most this much reduced weight, in shares of a row, are not added.
TOLERANCE = 1e-9

Method = Literal["greedy", "exact"]


@dataclass(frozen=True, repr=False, eq=False)
class Sparsified(Shown):
    """A sparse pattern made by `sparsify`, and the mass that it left out.

    Attributes
    ----------
    matrix : csr_array, shape (n, m)
        float64; rows sum to 1, or are empty where the mask (or M) leaves them empty.
    dropped_mass : ndarray, shape (n,)
        The share of each row's mass that was left out. It equals the total variation (half the
        sum of absolute differences) between the row and the renormalised entries that are kept.
    worst_row : int
        The row that loses most.
    per_row : int
        The most entries in a row.
    per_column : int
        The most entries in a column that is not exempt.
    exempt : ndarray of int
        The columns that `per_column` did not bound; empty if no column was bounded.
    method : "greedy" or "exact"
        The method that chose the entries.
    mask : object
        That of the attention, which a `Target` made of this pattern has as well. Where key lengths,
        a key mask or a bias of -inf forbid attention, the pattern has zeros; where they leave a row
        no key, they are part of the mask, an array of all entries then if it was not sparse.
    """

    matrix: sp.csr_array
    dropped_mass: NDArray[np.float64]
    worst_row: int
    per_row: int
    per_column: int
    exempt: NDArray[np.int64]
    method: Method
    mask: Any = None

    @property
    def tv_mean(self) -> float:
        """The mean total variation of the rows."""
        return float(self.dropped_mass.mean())

    @property
    def tv_worst(self) -> float:
        """The largest total variation of a row."""
        return float(self.dropped_mass[self.worst_row])

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain Python values, for JSON; without the matrix and the rows."""
        n, m = self.matrix.shape
        more = named(
            self, "per_row", "per_column", "exempt", "method", "tv_mean", "tv_worst", "worst_row"
        )
        return plain_dict({"n": n, "m": m, "nonzeros": self.matrix.nnz, **more})

    def _facts(self) -> dict[str, str]:
        n, m = self.matrix.shape
        first = ", ".join(map(str, self.exempt[:4])) + ", ..." * (self.exempt.size > 4)
        exempt = f" without columns {first}" if first else ""
        return {
            "matrix": f"{n} x {m}, {self.matrix.nnz} entries",
            "at most": f"{self.per_row} a row and {self.per_column} a column{exempt}",
            "dropped mass": f"{self.tv_mean:.3g} on average, {self.tv_worst:.3g} in row "
            f"{self.worst_row}",
        }


class _Options(LogitKeywords, total=False):
    """The options of `sparsify`, for type checkers."""

    per_row: int | None
    per_column: int | None
    exempt_columns: Columns
    method: Method
    mass: float | None
    on_empty: Literal["raise", "keep-max"]
    num_threads: int | None


@overload
def sparsify(
    M: OneHead | Sparse, K: ArrayLike | None = None, **options: Unpack[_Options]
) -> Sparsified: ...


@overload
def sparsify(M: HeadLike, K: ArrayLike | None = None, **options: Unpack[_Options]) -> Any: ...


@names_logit_options()
@standard_arithmetic()
def sparsify(
    M: HeadLike | Sparse,
    K: ArrayLike | None = None,
    *,
    per_row: int | None = None,
    per_column: int | None = None,
    exempt_columns: Columns = None,
    method: Method = "greedy",
    mass: float | None = None,
    on_empty: Literal["raise", "keep-max"] = "raise",
    num_threads: int | None = None,
    **options: Unpack[LogitKeywords],
) -> Any:
    """Keep the heaviest entries of an attention matrix, few in every row and column.

    Parameters
    ----------
    M : array_like or sparse array, shape (n, m); Attention or Fit; array_like, shape (n, d)
        A nonnegative matrix, whose entries count as shares of their rows. Or a head: an
        `Attention`, or queries with `K` as the keys; its matrix is never stored. Queries (and an
        `Attention`) may have leading axes, batch and heads: every head is made sparse by itself.
    K : array_like, shape (m, d), optional
        The keys, if M holds queries; with leading axes as in `Attention`.
    scale, mask, key_lengths, bias, softcap, position, key_mask, sinks
        The logit options of queries and keys, as in `Attention`; an `Attention` has its
        own. With a matrix only `mask` may be given: masked entries are left out. Weights count
        as shares of what their row gives to keys, so `sinks` change nothing.
    per_row : int, optional
        The most entries that a row keeps. At least one of `per_row` and `mass` is needed.
    per_column : int, optional
        The most entries that a column keeps; None sets no bound.
    exempt_columns : "auto" or sequence of int, optional
        Columns that a `per_column` does not bound. "auto" exempts attention sinks: the columns
        that more than half of the rows with any entry, and more than `per_column` rows, would
        keep if no column were bounded (only the 64 largest entries of each row are considered
        if `mass` alone bounds the row).
    method : "greedy" or "exact", default "greedy"
        See the notes.
    mass : float in (0, 1], optional
        Each row keeps entries until they hold this share of its mass (less 1e-12) as computed in
        the dtype of the logits; without bounds of columns these are the fewest that do. `per_row`
        still holds.
    on_empty : "raise" or "keep-max", default "raise"
        What happens to a row that could keep no entry within the bounds of the columns: an
        error, or its largest entry is kept beyond the bound.
    num_threads : int, optional
        None uses every core. The result does not depend on it.

    Returns
    -------
    Sparsified, or ndarray of them
        The pattern with rows renormalised, ready for `fit`, and the mass that each row lost. For a
        stack of heads, an array of objects in the shape of the leading axes, with what single
        calls return for each head.

    Raises
    ------
    InputError
        For arguments that are not as described or exclude each other, for a negative or
        non-finite entry of M, and, if `on_empty` is "raise", for a row that keeps nothing (the
        message names it).
    NonFiniteError
        For NaN or infinity in Q, K or bias.

    Notes
    -----
    "greedy" goes through the entries in the order of decreasing weight (ties: the lower row
    first, then the lower column) and keeps each whose row and column have not reached their
    bounds. It keeps at least half of the largest weight that is possible within the bounds
    (Avis 1983). It is computed by deferred acceptance (Gale and Shapley 1962), which has the
    same outcome because rows and columns rank entries by the same weights. A scan of all rows
    takes O(n m d) time; rows that run out of candidates are scanned again. The memory is
    O(n d) plus the candidates and the entries that are kept.

    "exact" solves the linear programme of the maximum-weight b-matching, which has integral
    vertices as the graph is bipartite (Schrijver 2003, section 21), with HiGHS through SciPy,
    to a tolerance of 1e-9 in the weight. If several patterns are optimal, it returns one of
    them. It stores the dense matrix, takes seconds at n = 1024, and refuses more than
    `EXACT_LIMIT` (2**20) entries. With `per_column` it cannot be combined with `mass`, since a
    b-matching bounds numbers of entries only.

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
    is_head = K is not None or attention_in(M) is not None
    attention: Any = Attention.of(M, K, **options) if is_head else None
    if is_head:
        if attention.lead:
            one: Any = partial(
                sparsify, per_row=per_row, per_column=per_column, exempt_columns=exempt_columns,
                method=method, mass=mass, on_empty=on_empty,
            )  # fmt: skip
            return over_heads(attention, one, num_threads, one_at_a_time=False)
        mask, shape = frozen_mask(attention.mask), (attention.n, attention.m)
        if attention.sinks is not None:  # weights count as shares of what a row gives to keys
            attention = Attention(*attention.stored, **{**vars(attention.options), "sinks": None})
        run: Callable[..., Any] = partial(_core.sparsify_logits, attention.core)
    else:
        options["mask"] = mask = frozen_mask(options.get("mask"))
        shape, run = _of_matrix(M, **vars(LogitOptions(**options)))
    n, m = shape
    if 0 in shape:
        raise InputError(f"the matrix must have rows and columns; got shape {shape}")
    as_choice(method, "method", ("greedy", "exact"))
    if per_row is None and mass is None:
        raise InputError("give per_row, the most entries of a row, or mass, the share to keep")
    as_choice(on_empty, "on_empty", ("raise", "keep-max"))
    columns = as_exempt(exempt_columns, m)
    # The core takes 0 for no bound.
    row_bound = 0 if per_row is None else min(as_count(per_row, "per_row", 1), m)
    column_bound = 0 if per_column is None else as_count(per_column, "per_column", 1)
    exact = method == "exact" and column_bound > 0
    core_options = _core.SparsifyOptions(
        per_row=row_bound,
        mass=0.0 if mass is None else as_share(mass, "mass"),
        per_column=column_bound,
        exempt=np.empty(0, np.int32) if columns is None else columns.astype(np.int32),
        exempt_sinks=columns is None,
        keep_max=on_empty == "keep-max" or exact,
    )
    threads = thread_count(num_threads)
    if mass is None and mask is None:  # every row may keep `per_row` entries
        require_memory(40 * n * row_bound, f"keeping {n * row_bound} entries (per_row = {per_row})")
    if exact and mass is not None:
        raise InputError('mass must be None for method="exact" with per_column; use per_row')
    if exact and n * m > EXACT_LIMIT:
        raise InputError(f'method="exact" takes at most {EXACT_LIMIT} entries; got {shape}')
    matrix, dropped, exempt = _kept(shape, run(core_options, threads))
    if exact:
        whole = _core.SparsifyOptions(m, 0.0, 0, np.empty(0, np.int32), False, False)
        shares, limits = _kept(shape, run(whole, threads))[0].toarray(), (row_bound, column_bound)
        matrix, dropped = exact_pattern(shares, matrix, limits, exempt, on_empty == "keep-max")
    counts, sizes = np.bincount(matrix.indices, minlength=m), np.diff(matrix.indptr)
    counts[exempt] = 0
    if is_head and not sizes.all():
        attention = head_to_match(attention, "M")
        mask = frozen_mask(attention.mask)
    return Sparsified(
        matrix=matrix, dropped_mass=dropped, worst_row=int(dropped.argmax()),
        per_row=int(sizes.max()), per_column=int(counts.max()), exempt=exempt.astype(np.int64),
        method=method, mask=mask,
    )  # fmt: skip


def _kept(shape: tuple[int, int], arrays: Any) -> tuple[sp.csr_array, NDArray[Any], NDArray[Any]]:
    """Return the entries that the core kept, the mass that each row loses, and exempt columns."""
    offsets, columns, weights, dropped, exempt = arrays
    return csr_of(weights, columns, offsets, shape), dropped, exempt


def _of_matrix(M: Any, *, mask: Any, **of_heads: Any) -> tuple[tuple[int, int], Callable[..., Any]]:
    """Return the shape of a matrix, and the core's function that makes it sparse."""
    for name, value in of_heads.items():
        if value is not None:
            raise InputError(f"{name} goes with queries and keys; M is the matrix itself")
    array = M if is_sparse(M) else as_stored_array(M, "M")
    if array.ndim != 2 or max(array.shape) >= 2**31:
        raise InputError(
            f"M must be a matrix of fewer than 2**31 rows and columns; got shape {array.shape}"
        )
    allowed = core_mask(mask, (), array.shape)
    if not is_sparse(M):
        return array.shape, partial(_core.sparsify_matrix, as_stack(array[np.newaxis]), allowed)
    csr = checked_csr(M, "M", dtype=np.float64)
    return csr.shape, partial(_core.sparsify_compressed, compressed_rows(csr), allowed)


def compressed_rows(csr: sp.csr_array) -> _core.CompressedRows:
    """Return a matrix as the core reads it."""
    parts = csr.indptr.astype(np.int64), csr.indices.astype(np.int32), csr.data.astype(np.float64)
    return _core.CompressedRows(*parts, csr.shape[1])


def exact_pattern(
    shares: NDArray[np.float64],
    start: sp.csr_array,
    limits: tuple[int, int],
    exempt: NDArray[Any],
    keep_max: bool,
) -> tuple[sp.csr_array, NDArray[np.float64]]:
    """Return the pattern of greatest weight with few entries per row and column, and what it drops.

    `shares` are nonnegative, with rows of sum 1 or 0; those of weight zero are never chosen. The
    entries of the pattern `start` are in the linear programme from the start. `limits` are the most
    entries of a row and of a column, but for `exempt` columns. A row that could keep no entry is an
    InputError unless `keep_max` lets it keep its largest one. The matrix has rows renormalised to
    sum 1; what it drops is the mass that each row loses.
    """
    chosen = _heaviest(shares, start, limits, exempt)
    present = shares.any(axis=1)
    empty = np.flatnonzero(present & ~chosen.any(axis=1))
    if empty.size and not keep_max:
        raise InputError(
            f"row {empty[0]} keeps nothing: at most {limits[1]} entries a column leave it "
            'no room; exempt columns, raise per_column, or use on_empty="keep-max"'
        )
    chosen[empty, shares[empty].argmax(axis=1)] = True
    kept = np.where(chosen, shares, 0.0)
    sums = kept.sum(axis=1)
    matrix = sp.csr_array(kept / np.where(present, sums, 1.0)[:, np.newaxis])
    return matrix, np.where(present, np.maximum(0.0, 1 - sums), 0.0)


def _heaviest(
    weights: NDArray[np.float64], start: sp.csr_array, limits: tuple[int, int], exempt: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which entries the pattern of greatest weight has.

    Column generation: the linear programme starts with a few entries of each row as variables.
    Its dual solution gives rows and columns prices. An entry whose weight exceeds the sum of the
    two prices may improve the optimum, and is added. When there is no such entry, the optimum is
    that of the programme with all entries.
    """
    from scipy.optimize import linprog

    n, m = weights.shape
    heavy = min(m, 2 * limits[0])
    heaviest = np.argpartition(-weights, heavy - 1, axis=1)[:, :heavy]
    included = start.toarray() > 0
    np.put_along_axis(included, heaviest, True, axis=1)
    most = np.repeat(np.array(limits, dtype=np.float64), (n, m))
    most[n + exempt] = n
    missing = included & (weights > 0)
    included, chosen = np.zeros_like(missing), np.zeros_like(missing)
    while missing.any():
        included |= missing
        rows, columns = np.nonzero(included)
        ends = np.concatenate((rows, n + columns)), np.tile(np.arange(rows.size), 2)
        incidence: Any = sp.csr_array((np.ones(2 * rows.size), ends), shape=(n + m, rows.size))
        # The simplex method returns a vertex, and the vertices of this polytope are integral.
        solution: Any = linprog(
            -weights[included], A_ub=incidence, b_ub=most, bounds=(0, 1), method="highs-ds",
            options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        )  # fmt: skip
        if solution.status != 0:
            raise HeadfitError(f"the linear programme of the matching failed: {solution.message}")
        prices = -np.asarray(solution.ineqlin.marginals, dtype=np.float64)
        gain = weights - prices[:n, np.newaxis] - prices[n:]
        missing = (gain > TOLERANCE) & ~included & (weights > 0)
        chosen[included] = solution.x > 0.5
    return chosen


def as_exempt(columns: Any, n: int) -> NDArray[np.int64] | None:
    """Return the exempt columns that a user names, none of n for None; None for "auto".

    What "auto" stands for is chosen by each function that takes it.
    """
    if not isinstance(columns, str):
        return np.unique(as_indices(() if columns is None else columns, "exempt_columns", 0, n))
    if columns != "auto":
        raise InputError(
            'exempt_columns must be "auto", a sequence of column numbers or None; '
            f"got {shown(columns)}"
        )
    return None
