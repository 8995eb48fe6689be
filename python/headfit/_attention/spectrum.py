"""Singular values of the logits of heads, from triangular factors of Q and K."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headfit import _core
from headfit._base.arrays import FloatArray
from headfit._base.interruptible import interruptible

LEAST_BLOCK = 256
"""Rows that are factored at once, at least: fewer calls for small heads."""


def product_spectrum(logits: _core.Logits, heads: int, dim: int) -> tuple[FloatArray, FloatArray]:
    """Return the singular values of Q K^T for every head, and of its centred rows.

    Centred: without the mean of each row, which softmax does not see. Before scale, softcap, bias
    and mask; padding is no key.

    Parameters
    ----------
    logits : Logits
        Queries and keys of the core, all rows.
    heads, dim : int
        How many query heads there are, and their size.

    Returns
    -------
    values, centred : ndarray, shape (heads, dim)
        In float64, falling.

    Notes
    -----
    With Q = U R and K = V T (QR decompositions) the singular values of Q K^T are those of the
    small matrix R T^T; keys without their mean give logits without the means of rows. Time
    O((n + m) dim^2) a head; memory O(dim^2).
    """
    values, centred = np.empty((2, heads, dim))
    none = np.zeros(dim)
    for head in range(heads):
        left = _triangle(_blocks(logits, False, head, dim), none)
        total, count = none, 0
        for block in _blocks(logits, True, head, dim):
            total, count = total + block.sum(axis=0), count + len(block)
        for mean, out in ((none, values), (total / max(count, 1), centred)):
            right = _triangle(_blocks(logits, True, head, dim), mean)
            out[head] = interruptible(5.0 * dim**3, np.linalg.svdvals, left @ right.T)
    return values, centred


def _blocks(logits: _core.Logits, keys: bool, head: int, dim: int) -> Iterator[FloatArray]:
    """Yield the queries or the keys of a head, some rows at a time."""
    first, step = 0, max(LEAST_BLOCK, 4 * dim)
    while len(block := _core.rows_in_double(logits, keys, head, first, step)) > 0:
        yield block
        first += step


def _triangle(blocks: Iterator[FloatArray], mean: FloatArray) -> FloatArray:
    """Return the triangular factor of a tall matrix that comes by blocks of rows, less `mean`.

    Each block is factored together with the triangle of those before it.
    """
    dim = len(mean)
    triangle: FloatArray = np.zeros((dim, dim))
    for block in blocks:
        stacked = np.vstack([triangle, block - mean])
        triangle = np.asarray(interruptible(stacked.size * dim, np.linalg.qr, stacked, mode="r"))
    return triangle
