"""Targets: sparse attention patterns, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._arguments import as_finite, as_flag
from headfit._arithmetic import standard_arithmetic
from headfit._arrays import BFLOAT16, as_array, as_contiguous, is_sparse, thread_count
from headfit._dense_rows import csr_of_dense
from headfit._masks import core_mask, frozen_mask
from headfit._memory import require_memory
from headfit._sparse import checked_csr
from headfit._stored import read_matrix
from headfit._text import mask_text
from headfit.errors import TargetError

__all__ = ["SUM_TOLERANCE", "Target", "load_matrix"]

SUM_TOLERANCE = 1e-6
"""How far the sum of a target's row may be from 1."""


def load_matrix(path: str | os.PathLike[str]) -> sp.csr_array:
    """Read a matrix from a `scipy.sparse.save_npz` or Matrix Market file.

    Parameters
    ----------
    path : str or path
        ``.npz``, or ``.mtx`` (also ``.mtx.gz``).

    Returns
    -------
    csr_array

    Raises
    ------
    MissingFileError
        When there is no such file; a FileNotFoundError too.
    FileError
        When it cannot be opened, or is a folder, a pipe or a device; an OSError too.
    InputError
        When it is neither kind of file, has an index out of range, or claims a shape or a
        number of entries that it has no room for.

    Examples
    --------
    >>> import headfit as hf
    >>> hf.load_matrix("no-such-file.npz")
    Traceback (most recent call last):
    ...
    headfit.errors.MissingFileError: path: no-such-file.npz must be a file of ...
    """
    stored = read_matrix(path, "path")
    return checked_csr(stored, f"path: the matrix in {path}")


def _as_csr(A: Any) -> sp.csr_array:
    if isinstance(A, (str, os.PathLike)):
        matrix: Any = read_matrix(A, "A")
    else:
        matrix = A if is_sparse(A) else as_array(A, "A")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise TargetError(f"A must be a square matrix; got shape {matrix.shape}")
    if matrix.shape[0] == 0:
        raise TargetError("A must have at least one row; got shape (0, 0)")
    if matrix.dtype.kind not in "fiub" and matrix.dtype != BFLOAT16:
        raise TargetError(f"A must hold real numbers; got dtype {matrix.dtype}")
    if matrix.shape[0] >= 2**31:
        raise TargetError(f"A must have fewer than 2**31 rows; got {matrix.shape[0]}")
    if isinstance(matrix, np.ndarray):
        require_memory(matrix.size, f"the nonzeros of A of shape {matrix.shape}")
        return csr_of_dense(matrix)
    return checked_csr(matrix, "A", dtype=np.float64, keep_zeros=False, error=TargetError)


def _frozen(csr: sp.csr_array, A: Any) -> sp.csr_array:
    """Return a matrix that shares no memory with the sparse `A` and cannot be written to."""
    given = [getattr(A, part, None) for part in ("data", "indices", "indptr")]
    theirs = [x for x in given if isinstance(x, np.ndarray)] if is_sparse(A) else []
    for part in ("data", "indices", "indptr"):
        array = getattr(csr, part)
        if any(np.may_share_memory(array, x) for x in theirs):
            array = array.copy()
            setattr(csr, part, array)
        array.flags.writeable = False
    return csr


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Target:
    """A row-stochastic sparse matrix that attention should reproduce, validated.

    Parameters
    ----------
    A : sparse or dense array, path, or Target
        Square, nonnegative, rows summing to 1 within `sum_tolerance`. A path names a
        `scipy.sparse.save_npz` or Matrix Market file. Duplicate entries are added, as SciPy
        does; unsorted columns are sorted and explicit zeros dropped, on a copy.
    mask : optional
        As in `attention_matrix`. Nonzeros must lie where it allows, and a row may be empty
        only where it leaves nothing.
    normalize : bool, default False
        Scale every row to sum to 1.
    sum_tolerance : float, default 1e-6
    num_threads : int, optional
        Threads that check it; by default as many as there are cores. A small one takes one.

    Attributes
    ----------
    matrix : csr_array, shape (n, n)
        float64, canonical; a copy, and read-only, so that what was checked stays so.
    n, nonzeros : int
    per_row, per_column : int
        The most nonzeros in a row and in a column: the k of the theory is the larger.
    mean_per_row : float
        The mean number of nonzeros of rows that have any.
    gamma : float
        The largest ratio of two weights of one row.
    mask : object
        As given; arrays are copied, and read-only.

    Raises
    ------
    TargetError
        With the first offending row.

    Examples
    --------
    >>> import headfit as hf
    >>> hf.Target([[0.5, 0.5], [0.0, 1.0]])
    Target(n=2, nonzeros=3, per_row=2, per_column=2, gamma=1)
    >>> hf.Target([[0.5, 0.6], [0.0, 1.0]])
    Traceback (most recent call last):
    ...
    headfit.errors.TargetError: A must have rows that sum to 1 within 9.9999999999999995e-07; ...
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
        A: Any,
        *,
        mask: Any = None,
        normalize: bool = False,
        sum_tolerance: float = SUM_TOLERANCE,
        num_threads: int | None = None,
    ) -> None:
        # What is checked here is kept: nobody can change it afterwards.
        mask = frozen_mask(mask)
        csr = _frozen(_as_csr(A.matrix if isinstance(A, Target) else A), A)
        self._settle(csr, mask, normalize, sum_tolerance, num_threads)
        _frozen(self.matrix, None)

    @classmethod
    def _borrowing(cls, A: Any, mask: Any, normalize: bool, num_threads: int | None) -> Target:
        """Return a target whose arrays may be those of `A`: for a call that ends before `A` can."""
        target: Target = object.__new__(cls)
        csr = _as_csr(A.matrix if isinstance(A, Target) else A)
        target._settle(csr, mask, normalize, SUM_TOLERANCE, num_threads)
        return target

    def _settle(
        self,
        csr: sp.csr_array,
        mask: Any,
        normalize: bool,
        sum_tolerance: float,
        num_threads: int | None,
    ) -> None:
        threads = thread_count(num_threads)
        normalize = as_flag(normalize, "normalize")
        sum_tolerance = as_finite(sum_tolerance, "sum_tolerance", 0)
        checked = core_mask(mask, (), (csr.shape[0], csr.shape[0]))
        if normalize:
            _core.validate_target(*self._parts(csr), checked, np.inf, threads)
            sums = np.asarray(csr.sum(axis=1)).ravel()
            scale = np.repeat(np.where(sums > 0, sums, 1.0), np.diff(csr.indptr))
            csr = sp.csr_array((csr.data / scale, csr.indices, csr.indptr), shape=csr.shape)
        per_row, per_column, gamma = _core.validate_target(
            *self._parts(csr), checked, sum_tolerance, threads
        )
        for name, value in {
            "matrix": csr,
            "n": int(csr.shape[0]),
            "nonzeros": int(csr.nnz),
            "per_row": int(per_row),
            "per_column": int(per_column),
            "gamma": float(gamma),
            "mask": mask,
        }.items():
            object.__setattr__(self, name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take up what was pickled or copied, read-only again."""
        self.__dict__.update(state)
        self.__dict__["mask"] = frozen_mask(self.mask)
        _frozen(self.matrix, None)

    @staticmethod
    def _parts(csr: sp.csr_array) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        return (
            as_contiguous(csr.indptr, dtype=np.int64),
            as_contiguous(csr.indices, dtype=np.int32),
            as_contiguous(csr.data, dtype=np.float64),
        )

    @property
    def parts(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Row offsets (int64), columns (int32) and weights (float64), as the core takes them."""
        return self._parts(self.matrix)

    @property
    def mean_per_row(self) -> float:
        """The mean number of nonzeros of rows that have any."""
        filled = np.count_nonzero(np.diff(self.matrix.indptr))
        return float(self.nonzeros / max(1, int(filled)))

    def __repr__(self) -> str:
        mask = "" if self.mask is None else f", mask={mask_text(self.mask)}"
        return (
            f"Target(n={self.n}, nonzeros={self.nonzeros}, per_row={self.per_row}, "
            f"per_column={self.per_column}, gamma={self.gamma:.6g}{mask})"
        )


def as_target(
    A: Any, *, mask: Any = None, normalize: bool = False, num_threads: int | None = None
) -> Target:
    """Return `A` as a Target with this mask; one that fits already is not checked again."""
    normalize = as_flag(normalize, "normalize")
    if isinstance(A, Target) and not normalize and (mask is None or mask is A.mask):
        return A
    if isinstance(A, Target) and mask is None:
        mask = A.mask
    with standard_arithmetic():
        return Target._borrowing(A, mask, normalize, num_threads)
