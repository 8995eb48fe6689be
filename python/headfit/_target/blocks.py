"""Patterns of blocks: tokens that come in groups, all of which attend and are attended to alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import FloatArray
from headfit._target.target import Target

__all__ = ["Blocks"]

# By how much the logarithms of weights in one block may differ.
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class Blocks:
    """A pattern of blocks of equal size (the last one may be smaller), and that of its blocks.

    A head for `target`, with its queries and keys repeated, meets the same tolerances for all
    tokens: logits, and weights up to one factor for each row, are the same within each block.

    Attributes
    ----------
    size : int
        The number of tokens in a block, at least 2.
    target : Target
        The pattern of the blocks, in which a block is one token.
    n : int
        The number of tokens.
    """

    size: int
    target: Target
    n: int

    @classmethod
    def of(cls, target: Target) -> Blocks | None:
        """Return the largest blocks that a target consists of; None if there are none."""
        is_causal = isinstance(target.mask, str)  # "causal" is the only word
        if target.mask is not None and not is_causal:
            return None
        csr, n = target.matrix, target.n
        size = _block_size(csr, is_causal)
        if size < 2 or n <= size:
            return None
        # The last row of a block sees all of it; under a causal mask earlier ones see less.
        last = np.minimum(np.arange(size - 1, n + size - 1, size), n - 1)
        small: Any = sp.csr_array(csr[last][:, ::size])
        whole: Any = sp.csr_array(sp.kron(small, np.ones((size, size))))[:n, :n]
        whole = sp.csr_array(sp.tril(whole)) if is_causal else whole
        whole.sort_indices()
        if not (
            np.array_equal(whole.indptr, csr.indptr) and np.array_equal(whole.indices, csr.indices)
        ):
            return None
        ratio = np.log(_normalized(whole).data) - np.log(csr.data)
        if np.abs(ratio).max(initial=0.0) > SAME:
            return None
        return cls(size, Target(small, mask=target.mask, normalize=True), n)

    def expanded(self, rows: FloatArray) -> FloatArray:
        """Return one row for each token, given one for each block."""
        return np.repeat(rows, self.size, axis=0)[: self.n]


def _normalized(csr: Any) -> Any:
    sums = np.asarray(csr.sum(axis=1)).ravel()
    csr.data = csr.data / np.repeat(sums, np.diff(csr.indptr))
    return csr


def _block_size(csr: Any, is_causal: bool) -> int:
    """Return the greatest common divisor of all places where runs of nonzeros start or end.

    Rows whose runs differ from those of the row before count as such places too.
    """
    n = csr.shape[0]
    columns: NDArray[np.int64] = csr.indices.astype(np.int64)
    rows = np.repeat(np.arange(n), np.diff(csr.indptr))
    starts = np.ones(columns.size, dtype=np.bool_)
    starts[1:] = (columns[1:] != columns[:-1] + 1) | (rows[1:] != rows[:-1])
    ends = np.ones(columns.size, dtype=np.bool_)
    ends[:-1] = starts[1:]
    if is_causal:  # runs that end at the token itself are cut off by the mask
        ends &= columns != rows
    ends &= columns != n - 1
    places = [columns[starts], columns[ends] + 1]
    for at, where in zip(places, (starts, ends), strict=True):
        sums = np.bincount(rows[where], at, n)
        places = [*places, np.flatnonzero(np.diff(sums)) + 1]
    return math.gcd(*np.unique(np.concatenate(places)).tolist())
