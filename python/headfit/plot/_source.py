"""`Source`: one interface to matrices and heads, which pictures read by blocks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._attention.attention import Attention, attention_in
from headfit._attention.sparsify import Sparsified
from headfit._base.arrays import as_stored_array, is_sparse, widened
from headfit._base.sparse import checked_csr
from headfit._target.target import Target
from headfit.errors import InputError

Block = Callable[[int, int], NDArray[Any]]

HELD_MATRICES = (Target, Sparsified)
"""What holds a sparse matrix as `matrix`."""


@dataclass(frozen=True)
class Source:
    """A matrix to draw, whose rows ``start`` to ``stop - 1`` are ``block(start, stop)``.

    `sparse` holds its nonzeros if it is sparse, `attention` the head if it is one.
    """

    shape: tuple[int, int]
    block: Block
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
        q, k = heads.stored
        shape = _one(q.shape[:-1] + k.shape[-2:-1])
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
