"""`FittedHead`: the common part of the results of `fit` and `fit_soft`, a head in a module."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from headfit._attention.attention import Attention
from headfit._attention.module import SelfAttention
from headfit._base.arrays import FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class FittedHead:
    """Queries and keys, and the module that computes them from an input; see `Fit`."""

    Q: FloatArray
    K: FloatArray
    scale: float
    mask: Any
    module: SelfAttention
    dim: int
    dtype: str
    # The input X of a module that the user gave: Q and K are then the rounded products X W_Q and
    # X W_K. None for a canonical module, whose input is computed from Q and K.
    input_stored: FloatArray | None = field(default=None, kw_only=True)

    @cached_property
    def X(self) -> FloatArray:
        """The module's input, shape (n, D)."""
        if self.input_stored is not None:
            return self.input_stored
        return self.module.input_for(self.Q, self.K)

    @property
    def attention(self) -> Attention:
        """The attention of this head, computed when asked for."""
        if self.input_stored is not None:
            return self.module(self.X, mask=self.mask)
        return Attention(self.Q, self.K, scale=self.scale, mask=self.mask)
