"""Singular values of the logits of heads, from triangular factors of Q and K."""

from __future__ import annotations

import numpy as np

from headfit import _core
from headfit._base.arrays import FloatArray
from headfit._base.interruptible import interruptible


def product_spectrum(logits: _core.Logits, threads: int) -> tuple[FloatArray, FloatArray]:
    """Return the singular values of Q K^T for every head, and of its centred rows.

    Centred means without the mean of each row, which softmax does not see. Scale, softcap, bias
    and mask are left out, rotary positions are not; padding keys count as no keys.

    Parameters
    ----------
    logits : Logits
        Queries and keys as the core reads them, all rows.
    threads : int

    Returns
    -------
    values, centred : ndarray, shape (heads, d)
        In float64, the largest first.

    Notes
    -----
    With QR decompositions Q = U R and K = V T, the singular values of Q K^T are those of the
    small matrix R T^T; keys less their mean give logits without the means of their rows. Time
    O((n + m) d^2) and memory O(d^2) for each head.
    """
    queries, keys, centred_keys = _core.triangular_factors(logits, threads)
    operations = 10.0 * queries.shape[-1] * queries.size

    def spectrum(factors: FloatArray) -> FloatArray:
        products = queries @ factors.swapaxes(-1, -2)
        return interruptible(operations, np.linalg.svdvals, products)

    return spectrum(keys), spectrum(centred_keys)
