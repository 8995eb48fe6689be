"""`random_rotation`: a module with dense, orthogonal random weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._attention.module import SelfAttention
from headfit._base.arguments import as_float_dtype, as_generator
from headfit._base.arithmetic import standard_arithmetic
from headfit._base.arrays import as_count
from headfit._base.interruptible import interruptible
from headfit._base.memory import require_memory

__all__ = ["random_rotation"]


@standard_arithmetic()
def random_rotation(dim: int, rng: Any = None, *, dtype: Any = np.float32) -> SelfAttention:
    """Return a module whose [W_Q W_K] is a random orthogonal matrix: dense, of condition 1.

    Parameters
    ----------
    dim : int
        The head size d; the input size D is 2 d.
    rng : seed or Generator, optional
        The source of randomness.
    dtype : dtype, default float32
        The dtype of the weights: float32 or float64.

    Returns
    -------
    SelfAttention

    Raises
    ------
    InputError
        If an argument is not as described, or the weights do not fit in memory.

    Notes
    -----
    The matrix is the Q factor of a Gaussian matrix, in O(D**3) time. For D a power of two from
    1024 on it is the product of three Hadamard matrices with random signs, in O(D**2 log D)
    time: dense and orthogonal as well, but not uniformly distributed over all such matrices.

    Examples
    --------
    >>> import numpy as np
    >>> W = random_rotation(2, rng=0, dtype=np.float64).weights
    >>> np.allclose(W @ W.T, np.eye(4))
    True
    """
    generator, dtype = as_generator(rng), as_float_dtype(dtype)
    width = 2 * as_count(dim, "dim", 1)
    require_memory(5 * 8 * width**2, f"a rotation of dim = {dim}")
    if width >= 1024 and width & (width - 1) == 0:
        weights = np.eye(width)
        for _ in range(3):
            weights *= generator.choice([-1.0, 1.0], size=width)[:, np.newaxis]
            _hadamard_in_place(weights)
        weights /= width**1.5
    else:
        gaussian = generator.standard_normal((width, width))
        weights, _ = interruptible(2.0 * width**3, np.linalg.qr, gaussian)
    weights = weights.astype(dtype)
    return SelfAttention(weights[:, : width // 2], weights[:, width // 2 :])


def _hadamard_in_place(x: NDArray[np.float64]) -> None:
    """Multiply x by the Hadamard matrix from the left, by the fast Walsh-Hadamard transform."""
    n = x.shape[0]
    for level in range(int(math.log2(n))):
        half = 1 << level
        pairs = x.reshape(n // (2 * half), 2, half, -1)
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
