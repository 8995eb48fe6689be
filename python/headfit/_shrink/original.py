"""What smaller heads come close to, and where descents to it begin.

The attention of one head, or a matrix; truncated SVDs of its logits, or a start of the user's.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import numpy as np

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.dense_target import (
    allowed_entries,
    core_target_of,
    head_to_match,
    target_matrix,
)
from headfit._base.arrays import FloatArray, blocks_of_rows, check_finite, computed_in
from headfit._base.calls import interruptible
from headfit._base.machine import require_memory

# A weight of zero is replaced by this one where a start needs its logarithm.
FLOOR = 1e-6
# Columns that a start lacks are filled with noise of this size, relative to the others.
PADDING = 1e-2


class Original(NamedTuple):
    """The attention that smaller heads come close to, and the mask that they get; checked."""

    target: Attention | FloatArray
    mask: Any
    shape: tuple[int, int]
    dim: int  # of a matrix, the size at which any of its shape has a head
    dtype: np.dtype[Any]  # what to compute in

    @classmethod
    def of(cls, target: Any, mask: Any, threads: int) -> Original:
        """Check it. Rotary positions are applied."""
        head = head_to_match(target, "the head")
        if head is None:
            matrix = target_matrix(target)
            _core.check_soft_target(core_target_of(matrix, mask), threads)
            n, m = matrix.shape
            return cls(matrix, mask, (n, m), min(n, m), computed_in(matrix))
        head = head.rotated()
        for x, name in zip(head.stored, "QK", strict=True):
            check_finite(x, name)
        return cls(head, head.mask, (head.n, head.m), head.dim, computed_in(*head.stored))

    @property
    def largest(self) -> int:
        """The largest size of a search; at that of a head the truncated SVD has all of Q K^T."""
        return min(self.dim, *self.shape)

    def is_svd(self, dim: int) -> bool:
        """Whether the truncated SVD of a size is the original itself: other options take more."""
        return (
            isinstance(self.target, Attention)
            and dim >= self.largest
            and {"scale", "mask"}.issuperset(self.target.options.non_default())
        )

    def svd(self, dim: int, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the truncated SVD of a size of the logits; of a matrix, of its logarithm."""
        if isinstance(self.target, Attention):
            return truncated_svd(*self.target.stored, dim, scale=self.target.scale)
        return log_svd(self.target, self.mask, dim, seed)


def truncated_svd(
    Q: Any, K: Any, dim: int, *, scale: float | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the head of a size whose plain products are closest to the logits, in sum of squares.

    Softmax ignores a constant added to a row, so the rows of the logits are centred first:
    scale Q (K - mean K)^T. Masks are not taken into account. At the size of Q and K or above the
    attention is reproduced exactly, with zero columns.

    With Q = U R and K - mean K = V T (QR decompositions, R and T from blocks of rows) and
    R T^T = W S Z^T, the queries are Q T^T Z S^(-1/2) and the keys (K - mean K) R^T W S^(-1/2),
    restricted to the largest singular values (Eckart and Young 1936). Neither the n x m logits nor
    U and V are formed, and Q and K are read in blocks, in float64: O((n + m) D^2) time, and O(D^2)
    memory beside the result, which is in float64 if Q or K is, else in float32.
    """
    attention = Attention(Q, K, scale=scale)
    q, k = attention.stored
    check_finite(q, "Q")
    check_finite(k, "K")
    total = sum(block.sum(axis=0, dtype=np.float64) for _, block in blocks_of_rows(k))
    none, mean = np.zeros(q.shape[1]), total / k.shape[0]
    q_factor, k_factor = _triangle(q, none) * attention.scale, _triangle(k, mean)
    square = q_factor @ k_factor.T
    left, size, right = interruptible(
        10.0 * len(square) ** 3, np.linalg.svd, square, full_matrices=False
    )
    # Smaller singular values are rounding errors of this product.
    noise = np.finfo(np.float64).eps * np.linalg.norm(q_factor) * np.linalg.norm(k_factor)
    rank = min(dim, int(np.count_nonzero(size > noise)))
    root, dtype = np.sqrt(size[:rank]), computed_in(q, k)
    return (
        _product(q, none, attention.scale * k_factor.T @ right[:rank].T / root, dim, dtype),
        _product(k, mean, q_factor.T @ left[:, :rank] / root, dim, dtype),
    )


def _triangle(x: FloatArray, mean: FloatArray) -> FloatArray:
    """Return the triangular factor of a stored matrix whose rows are centred."""
    size = x.shape[1]
    triangle: FloatArray = np.empty((0, size))
    for _, block in blocks_of_rows(x, 4 * size):
        stacked = np.vstack([triangle, block - mean])
        triangle = cast("FloatArray", np.linalg.qr(stacked, mode="r"))
    return triangle


def _product(
    x: FloatArray, mean: FloatArray, factor: FloatArray, dim: int, dtype: Any
) -> FloatArray:
    """Return the product of a stored matrix, its rows centred, with `factor`; then zeros."""
    out = np.zeros((x.shape[0], dim), dtype)
    for rows, block in blocks_of_rows(x):
        out[rows, : factor.shape[1]] = (block - mean) @ factor
    return out


def log_svd(matrix: FloatArray, mask: Any, dim: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return `truncated_svd` for a matrix: of its logarithm, centred over what the mask allows.

    A randomised SVD (Halko, Martinsson and Tropp 2011) of one n x m array of float32.
    """
    n, m = matrix.shape
    require_memory(9 * n * m, f"the start of a fit to a matrix of shape {matrix.shape}")
    logits = np.empty((n, m), np.float32)
    for rows, block in blocks_of_rows(matrix):
        np.log(np.maximum(block, FLOOR, dtype=np.float32), out=logits[rows])
    if mask is not None:
        allowed = allowed_entries((n, m), mask=mask)
        count = np.maximum(allowed.sum(axis=1, keepdims=True), 1)
        logits -= (logits * allowed).sum(axis=1, keepdims=True) / count
        logits *= allowed
    else:
        logits -= logits.mean(axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    few = min(dim + 8, n, m)
    operations = float(n * m * few)
    basis = logits @ rng.standard_normal((m, few), dtype=np.float32)
    for _ in range(4):
        basis = interruptible(
            2 * operations, lambda x: logits @ (logits.T @ np.linalg.qr(x)[0]), basis
        )
    basis = interruptible(2.0 * n * few**2, np.linalg.qr, basis)[0]
    left, size, right = interruptible(
        operations + 10.0 * m * few**2,
        lambda x: np.linalg.svd(x.T @ logits, full_matrices=False),
        basis,
    )
    rank = min(dim, size.size)
    root = np.sqrt(size[:rank])
    pad = ((0, 0), (0, dim - rank))
    return np.pad((basis @ left[:, :rank]) * root, pad), np.pad(right[:rank].T * root, pad)


def padded_with_noise(x: FloatArray, dim: int, rng: np.random.Generator) -> FloatArray:
    """Return the columns that a start lacks filled with noise: zero columns would never move."""
    wide = x.astype(np.float64)
    size = PADDING * math.sqrt(float(np.mean(wide * wide)))
    return np.hstack([wide, size * rng.standard_normal((len(x), dim - x.shape[1]))])
