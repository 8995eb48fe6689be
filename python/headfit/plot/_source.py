"""`Source`: one interface to matrices and heads, which pictures read by blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.single_heads import single_heads
from headfit._attention.sparsify import Sparsified
from headfit._base.arguments import shown
from headfit._base.arrays import as_count, as_stored_array, is_sparse, widened
from headfit._base.sparse import checked_csr
from headfit._target.target import Target
from headfit.errors import InputError

HELD_MATRICES = (Target, Sparsified)
"""What holds a sparse matrix as `matrix`."""


@dataclass(frozen=True)
class Source:
    """A matrix to draw, whose rows ``start`` to ``stop - 1`` are ``block(start, stop)``.

    `sparse` holds its nonzeros if it is sparse, `attention` the head if it is one.
    """

    shape: tuple[int, int]
    block: Callable[[int, int], NDArray[Any]]
    sparse: sp.csr_array | None = None
    attention: Attention | None = None

    def logarithms(self, start: int, stop: int) -> NDArray[Any]:
        """Return the logarithms of rows, up to a constant per row; -inf for zeros.

        For queries and keys these are the logits, which do not underflow as weights do.
        """
        if self.attention is not None:
            return self.attention.logits(rows=slice(start, stop))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(self.block(start, stop)))


def source(M: Any) -> Source:
    """Return the matrix that `M` is, holds (`Target`, `Sparsified`) or computes (heads)."""
    if isinstance(M, HELD_MATRICES):
        M = M.matrix
    heads = attention_in(M)
    if heads is not None:
        shape = _one((*heads.lead, heads.n, heads.m))
        return Source(shape, lambda a, b: heads.matrix(rows=slice(a, b)), attention=heads)
    if is_sparse(M):
        _one(M.shape)
        sparse = checked_csr(M, "M")
        return Source(_one(sparse.shape), lambda a, b: sparse[a:b].toarray(), sparse=sparse)
    dense = as_stored_array(M, "M", ndim=0)
    return Source(_one(dense.shape), lambda a, b: widened(dense[a:b]))


def _one(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2 or 0 in shape:
        raise InputError(
            "a picture is of one attention matrix that is not empty, or of the entry batch= of a "
            f"batch; got {shape}"
        )
    return shape[0], shape[1]


def entry_of_batch(
    heads: Attention, batch: Any, axis: int
) -> tuple[tuple[int, ...], list[Attention]]:
    """Return the heads of one entry of a batch: the shape of their axes, and these in order.

    The entries are those of a leading axis of `heads`.
    """
    entry = as_count(batch, "batch", 0, heads.lead[axis] - 1)
    places = np.arange(math.prod(heads.lead)).reshape(heads.lead).take(entry, axis)
    single = single_heads(heads)
    return places.shape, [single[i] for i in places.ravel()]


def one_of_batch(batch: Any, *matrices: Any) -> list[Any]:
    """Return what is to be drawn of matrices or heads: of those with a batch, one entry.

    At least one must be a batch of one head, shape (batch, n, d), or of matrices, shape
    (batch, n, m), if `batch` is given.
    """
    if batch is None:
        return list(matrices)
    entries = [_entry(M, batch) for M in matrices]
    if all(entry is None for entry in entries):
        what = ", ".join(shown(M) for M in matrices)
        raise InputError(
            "batch must not be given without an Attention of shape (batch, n, d) or matrices of "
            f"shape (batch, n, m); got {what}"
        )
    return [M if entry is None else entry for M, entry in zip(matrices, entries, strict=True)]


def _entry(M: Any, batch: Any) -> Any:
    """Return an entry of a batch; None for what has none."""
    heads = attention_in(M)
    if heads is not None:
        return entry_of_batch(heads, batch, 0)[1][0] if len(heads.lead) == 1 else None
    if M is None or isinstance(M, HELD_MATRICES) or is_sparse(M):
        return None
    array = as_stored_array(M, "M", ndim=0)
    return array[as_count(batch, "batch", 0, len(array) - 1)] if array.ndim == 3 else None
