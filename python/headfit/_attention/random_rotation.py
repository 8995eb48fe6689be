"""Random orthogonal matrices, as the weights of a dense module."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arguments import as_float_dtype, as_generator
from headfit._base.arrays import FloatArray, as_count
from headfit._base.interruptible import interruptible
from headfit._base.machine import require_memory

__all__ = ["random_rotation"]


def random_rotation(dim: int, rng: Any, dtype: Any) -> FloatArray:
    """Return a random orthogonal matrix of 2 `dim` rows and columns; see `SelfAttention.random`."""
    generator, dtype = as_generator(rng), as_float_dtype(dtype)
    side = 2 * as_count(dim, "dim", 1)
    require_memory(5 * 8 * side**2, f"a rotation of dim = {dim}")
    if side >= 1024 and side & (side - 1) == 0:
        weights = np.eye(side)
        for _ in range(3):
            weights *= generator.choice([-1.0, 1.0], size=side)[:, np.newaxis]
            _hadamard_in_place(weights)
        weights /= side**1.5
    else:
        gaussian = generator.standard_normal((side, side))
        weights, _ = interruptible(2.0 * side**3, np.linalg.qr, gaussian)
    result: FloatArray = weights.astype(dtype, copy=False)
    return result


def _hadamard_in_place(x: NDArray[np.float64]) -> None:
    """Multiply x by the Hadamard matrix from the left, by the fast Walsh-Hadamard transform."""
    n = x.shape[0]
    for level in range(int(math.log2(n))):
        half = 1 << level
        pairs = x.reshape(n // (2 * half), 2, half, -1)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
