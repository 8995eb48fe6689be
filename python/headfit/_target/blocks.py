"""Patterns of blocks: tokens that come in groups, all of which attend and are attended to alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from headfit import _core
from headfit._base.arrays import FloatArray
from headfit._target.target import Target

__all__ = ["Blocks"]


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
        n = target.n
        size = _core.block_size(target.core, is_causal, 1)
        if size == 0:
            return None
        # The last row of a block sees all of it; under a causal mask earlier ones see less.
        last = np.minimum(np.arange(size - 1, n + size - 1, size), n - 1)
        small = sp.csr_array(target.matrix[last][:, ::size])
        return cls(size, Target(small, mask=target.mask, normalize=True), n)

    def expanded(self, rows: FloatArray) -> FloatArray:
        """Return one row for each token, given one for each block."""
        return np.repeat(rows, self.size, axis=0)[: self.n]
