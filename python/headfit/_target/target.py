"""`Target`: a checked sparse attention pattern; what stands out in it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.sparsify import Sparsified
from headfit._base.arguments import as_finite, as_flag, thread_count
from headfit._base.arrays import FloatArray, as_contiguous
from headfit._base.calls import standard_arithmetic
from headfit._base.display import Pictured, mask_text, named, plain_dict
from headfit._base.masks import core_mask, frozen_mask, masks_agree
from headfit._base.sparse import as_csr, csr_of
from headfit._base.types import ArrayLike, MaskLike, PathLike, Sparse
from headfit.errors import TargetError

# How far the sum of each row of a target may differ from 1.
SUM_TOLERANCE = _core.SUM_TOLERANCE


def _frozen(csr: sp.csr_array) -> sp.csr_array:
    """Return `csr`, whose arrays are made read-only."""
    for array in (csr.data, csr.indices, csr.indptr):
        array.flags.writeable = False
    return csr


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Target(Pictured):
    """A checked row-stochastic sparse matrix that attention should reproduce.

    Parameters
    ----------
    A : sparse or dense array, path, Target or Sparsified
        A square nonnegative matrix, shape (n, n), with rows that sum to 1 within
        `sum_tolerance`. A path names a `scipy.sparse.save_npz` or Matrix Market file. Duplicate
        entries are added, as in SciPy; unsorted columns are sorted and explicit zeros dropped.
    mask : optional
        As in `Attention`; that of a Target or Sparsified when None. All nonzeros must be
        allowed by the mask, and a row may be empty only if the mask allows it no column.
    normalize : bool, default False
        Whether to scale every row to sum to 1.
    sum_tolerance : float, optional
        How far the sum of each row may differ from 1. None is 1e-6; the sums of a Target have been
        checked, and are not checked again then.
    num_threads : int, optional
        The number of threads that check the matrix; None uses every core. Small matrices are
        checked by one thread.

    Attributes
    ----------
    matrix : csr_array, shape (n, n)
        The matrix in float64 and canonical format; a read-only copy, so that it stays valid.
    n, nonzeros : int
        The number of tokens, and of nonzeros.
    per_row, per_column : int
        The most nonzeros in a row and in a column; the k of the theory is the larger of them.
    mean_per_row : float
        The mean number of nonzeros of the rows that have any.
    gamma : float
        The largest ratio of two weights in the same row; infinite beyond the largest float.
    mask : object
        The mask, as given; arrays are read-only copies.
    looks_back : bool
        Whether no token attends to a later one.

    Raises
    ------
    TargetError
        If the matrix is not a valid pattern; the message names the first row that is not.
    InputError
        For a mask or another argument that is not as described.

    Notes
    -----
    Takes O(n + nonzeros) time and memory, and O(n**2) time for a dense matrix or mask.

    Examples
    --------
    >>> import headfit as hf
    >>> hf.Target([[0.5, 0.5], [0.0, 1.0]])
    Target(n=2, nonzeros=3, per_row=2, per_column=2, gamma=1)
    >>> hf.Target([[0.5, 0.6], [0.0, 1.0]])
    Traceback (most recent call last):
    ...
    headfit.errors.TargetError: A must have rows that sum to 1 within 1e-06; row 0 sums to 1.1 ...
    """

    matrix: sp.csr_array
    n: int
    nonzeros: int
    per_row: int
    per_column: int
    gamma: float
    mask: Any

    @standard_arithmetic()
    def __init__(
        self,
        A: TargetLike,
        *,
        mask: MaskLike = None,
        normalize: bool = False,
        sum_tolerance: float | None = None,
        num_threads: int | None = None,
    ) -> None:
        if isinstance(A, Sparsified):
            mask, A = A.mask if mask is None else mask, A.matrix
        # The matrix and the mask are copied, so that nobody can change them after the check.
        mask = frozen_mask(A.mask if mask is None and isinstance(A, Target) else mask)
        csr = A.matrix if isinstance(A, Target) else as_csr(A, "A", TargetError)
        threads = thread_count(num_threads)
        normalize = as_flag(normalize, "normalize")
        tolerance = np.inf if isinstance(A, Target) else SUM_TOLERANCE
        if sum_tolerance is not None:
            tolerance = as_finite(sum_tolerance, "sum_tolerance", 0)
        vars(self).update(matrix=_frozen(csr), mask=mask)
        if normalize:
            _core.validate_target(self.core, np.inf, threads)
            vars(self)["matrix"] = _frozen(normalized(csr))
        per_row, per_column, gamma = _core.validate_target(self.core, tolerance, threads)
        vars(self).update(n=csr.shape[0], nonzeros=csr.nnz, per_row=per_row,
                          per_column=per_column, gamma=gamma)  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled or copied: not the core's form, which is made again."""
        return {name: value for name, value in self.__dict__.items() if name != "_core"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied target, and make its arrays read-only again."""
        vars(self).update(state, mask=frozen_mask(state["mask"]))
        _frozen(self.matrix)

    @property
    def core(self) -> _core.Target:
        """The target as the core takes it, made once and kept."""
        csr, kept = self.matrix, self.__dict__.get("_core")
        # Somebody may force other numbers into the matrix. The core shares its columns and weights,
        # but has row offsets of its own where the matrix stores them in 32 bits.
        if (
            kept is None
            or kept.weights is not csr.data
            or kept.columns is not csr.indices
            or not np.array_equal(kept.offsets, csr.indptr)
        ):
            mask = core_mask(self.mask, (), csr.shape) if kept is None else kept.mask
            parts, dtypes = (csr.indptr, csr.indices, csr.data), (np.int64, np.int32, np.float64)
            offsets, columns, weights = map(as_contiguous, parts, dtypes)
            kept = vars(self)["_core"] = _core.Target(offsets, columns, weights, mask)
        return kept

    @property
    def mean_per_row(self) -> float:
        """The mean number of nonzeros of the rows that have any."""
        return float(self.nonzeros / max(1, int(np.count_nonzero(np.diff(self.matrix.indptr)))))

    @property
    def looks_back(self) -> bool:
        """Whether no token attends to a later one, as under a causal mask."""
        csr = self.matrix
        return bool(np.all(csr.indices <= np.repeat(np.arange(self.n), np.diff(csr.indptr))))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain Python values, for JSON; without the matrix."""
        own = named(self, "n", "nonzeros", "per_row", "per_column", "gamma")
        return plain_dict({**own, "mask": None if self.mask is None else mask_text(self.mask)})

    def __repr__(self) -> str:
        mask = "" if self.mask is None else f", mask={mask_text(self.mask)}"
        return (
            f"Target(n={self.n}, nonzeros={self.nonzeros}, per_row={self.per_row}, "
            f"per_column={self.per_column}, gamma={self.gamma:.6g}{mask})"
        )


TargetLike: TypeAlias = Target | Sparsified | Sparse | ArrayLike | PathLike


def as_target(A: Any, *, mask: Any = None, num_threads: int | None = None) -> Target:
    """Return `A` as a Target with this mask; a Target that has it already is not checked again."""
    if isinstance(A, Target) and (mask is None or masks_agree(mask, A.mask, (A.n, A.n))):
        return A
    return Target(A, mask=mask, num_threads=num_threads)


def support_of(target: Target, i: int) -> dict[int, float]:
    """Return the columns and weights of one row, in a form for the checks of witnesses."""
    m = target.matrix
    start, stop = m.indptr[i], m.indptr[i + 1]
    return dict(zip(m.indices[start:stop].tolist(), m.data[start:stop].tolist(), strict=True))


def largest_ratio(most: NDArray[np.float64], least: NDArray[np.float64]) -> float:
    """Return the largest quotient, at least 1; infinite where it exceeds the largest float."""
    with np.errstate(over="ignore"):
        return float(np.max(most / least, initial=1.0))


def normalized(csr: sp.csr_array) -> sp.csr_array:
    """Return the matrix whose rows are divided by their sums; empty rows stay empty."""
    sizes = np.diff(csr.indptr)
    with np.errstate(over="ignore"):  # of sums; powers of two change no share
        factors = np.where(np.isinf(csr.sum(axis=1)), 2.0**-64, 1.0)
    scaled = csr_of(csr.data * np.repeat(factors, sizes), csr.indices, csr.indptr, csr.shape)
    scaled.data /= np.repeat(scaled.sum(axis=1), sizes)
    return scaled


def with_matrix(target: Target, matrix: sp.csr_array) -> Target:
    """Return the target of another matrix with the same mask, whose rows are scaled to sum to 1.

    Nothing is required of an empty row.
    """
    counts = np.diff(matrix.indptr)
    matrix, starts = normalized(matrix), matrix.indptr[:-1][counts > 0]
    most, least = (f.reduceat(matrix.data, starts) for f in (np.maximum, np.minimum))
    other = copy.copy(target)
    vars(other).update(
        matrix=matrix,
        nonzeros=int(matrix.nnz),
        per_row=int(counts.max(initial=0)),
        per_column=int(np.bincount(matrix.indices, minlength=1).max()),
        gamma=largest_ratio(most, least),
    )
    return other


# A column or row is heavy if it has more than so many times the mean nonzeros, and more than MANY.
TIMES_THE_MEAN = 8
MANY = 32
# A column is global if more than half of the rows attend to it, and more than GLOBAL_TIMES times
# the mean over the columns, so that a dense pattern has no global column. Measured for random
# 4-regular patterns of 512 tokens with four hubs: giving a hub a coordinate of its own pays if at
# least half of the rows attend to it; if a quarter of them do, a fit without it is faster.
GLOBAL_TIMES = 4


@dataclass(frozen=True, eq=False)
class Blocks:
    """A pattern of blocks of equal size (the last one may be smaller), and that of its blocks.

    A head for `target`, with its queries and keys repeated, meets the same tolerances for all
    tokens: logits, and weights up to one factor for each row, are the same within each block.
    """

    size: int  # the tokens in a block, at least 2
    target: Target  # the pattern of the blocks, in which a block is one token
    n: int  # the tokens

    @classmethod
    def of(cls, target: Target) -> Self | None:
        """Return the largest blocks that a target consists of; None if there are none."""
        n, is_causal = target.n, isinstance(target.mask, str)  # "causal" is the only word
        may_have_blocks = target.mask is None or is_causal
        size = _core.block_size(target.core, is_causal, 1) if may_have_blocks else 0
        if size == 0:
            return None
        # The last row of a block sees all of it; under a causal mask earlier ones see less.
        last = np.minimum(np.arange(size - 1, n + size - 1, size), n - 1)
        small = sp.csr_array(target.matrix[last][:, ::size])
        return cls(size, Target(small, mask=target.mask, normalize=True), n)

    def expanded(self, rows: FloatArray) -> FloatArray:
        """Return one row for each token, given one for each block."""
        return np.repeat(rows, self.size, axis=0)[: self.n]


def _loads(target: Target) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return how many rows attend to each column, and how many columns each row attends to."""
    csr = target.matrix
    return np.bincount(csr.indices, minlength=target.n), np.diff(csr.indptr).astype(np.intp)


def global_columns(target: Target) -> NDArray[np.int64]:
    """Return the columns that ``fit(A, exempt_columns="auto")`` exempts.

    None if tokens come in blocks: a head for the blocks makes global ones as it does others.
    """
    loads, sizes = _loads(target)
    columns = (2 * loads > np.count_nonzero(sizes)) & (loads > GLOBAL_TIMES * loads.mean())
    if columns.any() and Blocks.of(target) is not None:
        columns[:] = False
    return np.flatnonzero(columns).astype(np.int64)


def _mean(counts: NDArray[np.intp]) -> float:
    return float(counts.sum() / max(1, np.count_nonzero(counts)))


def _heavy(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    return np.flatnonzero((counts > TIMES_THE_MEAN * _mean(counts)) & (counts > MANY))


def _described(kind: str, heavy: NDArray[Any], counts: NDArray[np.intp]) -> str:
    """Name heavy rows or columns in words: "column 0 (512 nonzeros, ...) is far heavier ..."."""
    names = ", ".join(str(at) for at in heavy[:3])
    more = f" and {heavy.size - 3} more" if heavy.size > 3 else ""
    least, most = int(counts[heavy].min()), int(counts[heavy].max())
    span = str(least) if least == most else f"{least} to {most}"
    kinds, verb = (f"{kind}s", "are") if heavy.size > 1 else (kind, "is")
    counted = f"{span} nonzeros, {_mean(counts):.2g} on average"
    return f"{kinds} {names}{more} ({counted}) {verb} far heavier than the rest"


def heavy_notes(target: Target, exempt: NDArray[np.int64] | None = None) -> tuple[str, ...]:
    """Return notes that name the heavy columns and rows and suggest what to do about them.

    They are computed before a fit starts. Columns in `exempt` have a coordinate of their own
    already and are left out.
    """
    loads, sizes = _loads(target)
    columns = np.setdiff1d(_heavy(loads), [] if exempt is None else exempt).astype(np.intp)
    shared = np.intersect1d(columns, global_columns(target))
    hubs = np.setdiff1d(columns, shared)
    each, them = ("it" if of.size == 1 else many for of, many in ((shared, "each"), (hubs, "them")))
    advice = {
        f'exempt_columns="auto" gives {each} a coordinate of its own, and the rest a smaller head':
            ("column", shared, loads),
        f"a larger dim makes room for {them}; exempt_columns pays where most rows attend to a "
        "column": ("column", hubs, loads),
        "equal weights there ask for little, unequal ones for dimensions of their own":
            ("row", _heavy(sizes), sizes),
    }  # fmt: skip
    return tuple(f"{_described(*of)}: {what}" for what, of in advice.items() if of[1].size)
