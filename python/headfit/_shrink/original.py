"""What smaller heads come close to: the attention of one head, or a matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._attention.attention import Attention
from headfit._attention.dense_target import core_target_of, head_to_match, target_matrix
from headfit._base.arrays import check_finite, computed_in
from headfit._fit.head import Head
from headfit._shrink.starts import log_svd, truncated_svd


class Original(NamedTuple):
    """The attention that smaller heads come close to, and the mask that they get; checked."""

    target: Attention | NDArray[Any]
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

    def svd(self, dim: int, seed: int) -> Head:
        """Return the truncated SVD of a size of the logits; of a matrix, of its logarithm."""
        if isinstance(self.target, Attention):
            return Head(*truncated_svd(*self.target.stored, dim, scale=self.target.scale))
        return Head(*log_svd(self.target, self.mask, dim, seed))
