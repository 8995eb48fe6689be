"""Singular values of the logits of heads, from triangular factors of Q and K."""

from __future__ import annotations

import numpy as np

from headfit import _core
from headfit._base.arrays import FloatArray
from headfit._base.interruptible import interruptible

# Triangular factors of so many numbers are held at once, or those of a single head.
MOST_NUMBERS = 2**18


def product_spectrum(
    logits: _core.Logits, heads: int, dim: int, threads: int
) -> tuple[FloatArray, FloatArray]:
    """Return the singular values of Q K^T for every head, and of its centred rows.

    Centred means without the mean of each row, which softmax does not see. Scale, softcap, bias
    and mask are left out, rotary positions are not; padding keys count as no keys.

    Parameters
    ----------
    logits : Logits
        Queries and keys as the core reads them, all rows.
    heads, dim : int
        The number of query heads, and their size.
    threads : int

    Returns
    -------
    values, centred : ndarray, shape (heads, dim)
        In float64, the largest first.

    Notes
    -----
    With QR decompositions Q = U R and K = V T, the singular values of Q K^T are those of the
    small matrix R T^T; keys less their mean give logits without the means of their rows. Time
    O((n + m) dim^2) and memory O(dim^2) for each head.
    """
    values, centred = np.empty((heads, dim)), np.empty((heads, dim))
    step = max(1, MOST_NUMBERS // dim**2)
    for first in range(0, heads, step):
        some = slice(first, min(first + step, heads))
        factors = _core.triangular_factors(logits, first, some.stop - first, threads)
        queries, keys, centred_keys = factors
        values[some] = _singular_values(queries, keys)
        centred[some] = _singular_values(queries, centred_keys)
    return values, centred


def _singular_values(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the singular values of left @ right^T for stacks of small square matrices."""
    operations = 10.0 * left.shape[-1] * left.size
    return interruptible(operations, np.linalg.svdvals, left @ right.swapaxes(-1, -2))
