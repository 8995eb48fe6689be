"""The two forms of attention that `sparsify` takes: queries and keys, or a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._base.arrays import as_contiguous, as_stack, as_stored_array, is_sparse
from headfit._base.masks import core_mask
from headfit._base.sparse import checked_csr
from headfit.errors import InputError


class LogitSource:
    """Attention given by queries and keys; its entries are computed when needed, not stored."""

    def __init__(self, attention: Attention) -> None:
        leads = [x.shape[:-2] for x in attention.stored]
        if any(leads):
            raise InputError(
                "Q and K must be matrices, one head at a time; "
                f"got leading axes {leads[0] or leads[1]}"
            )
        if attention.sinks is not None:  # weights count as shares of what a row gives to keys
            attention = Attention(*attention.stored, **{**vars(attention.options), "sinks": None})
        self.attention = attention
        self.shape = (attention.n, attention.m)

    def greedy(self, options: _core.SparsifyOptions, threads: int) -> Any:
        """Return offsets, columns, weights, dropped mass and exempt columns of the core."""
        return _core.sparsify_logits(self.attention.core, options, threads)

    def dense(self, threads: int) -> NDArray[np.float64]:
        """Return the dense attention matrix, with rows of sum 1 or 0."""
        matrix: NDArray[Any] = self.attention.matrix(num_threads=threads)
        return matrix.astype(np.float64, copy=False)


def _check_size(shape: tuple[int, ...]) -> None:
    if max(shape, default=0) >= 2**31:
        raise InputError(f"M must have fewer than 2**31 rows and columns; got {shape}")


class MatrixSource:
    """Attention given as a matrix, dense or sparse."""

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
        """Return offsets, columns, weights, dropped mass and exempt columns of the core."""
        if self.csr is None:
            stack = as_stack(self.array[np.newaxis])
            return _core.sparsify_matrix(stack, self.mask, options, threads)
        offsets = as_contiguous(self.csr.indptr, np.int64)
        columns = as_contiguous(self.csr.indices, np.int32)
        values = as_contiguous(self.csr.data)
        rows = _core.CompressedRows(offsets, columns, values, self.shape[1])
        return _core.sparsify_compressed(rows, self.mask, options, threads)

    def dense(self, threads: int) -> NDArray[np.float64]:
        """Return the dense attention matrix, with rows of sum 1 or 0."""
        # With bounds that keep everything, the core returns all entries that the mask allows,
        # checked, and as shares of their rows.
        everything = _core.SparsifyOptions(
            self.shape[1], 0.0, 0, np.empty(0, np.int32), False, False
        )
        offsets, columns, weights, _, _ = self.greedy(everything, threads)
        return sp.csr_array((weights, columns, offsets), shape=self.shape).toarray()
