"""Histograms of numbers of at least 1, in bins of equal ratio: medians without the numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BINS_PER_DOUBLING = 8
"""Bins from x to 2x. The edges of a bin differ by a factor of 2**(1/8), about 9%."""

BINS = 64 * BINS_PER_DOUBLING + 1
"""The last bin holds everything from 2**64."""


def counted(values: NDArray[np.float64], present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many of the present values of each head lie in each bin.

    Parameters
    ----------
    values : ndarray, shape (heads, rows)
        Numbers of at least 1, or infinity.
    present : ndarray of bool, shape (heads, rows)

    Returns
    -------
    ndarray, shape (heads, BINS)
    """
    heads = len(values)
    exponents = np.log2(np.where(present, np.maximum(values, 1.0), 1.0))
    # Logarithms of powers of two are exact; others may be just below the edge that they stand on.
    bins = np.minimum(exponents * BINS_PER_DOUBLING + 1e-9, BINS - 1).astype(np.int64)
    bins += np.arange(heads)[:, np.newaxis] * BINS
    return np.bincount(bins[present], minlength=heads * BINS).reshape((heads, BINS))


def medians(counts: NDArray[np.int64], *, integers: bool = False) -> NDArray[np.float64]:
    """Return the approximate median of each histogram; NaN where it is empty.

    Parameters
    ----------
    counts : ndarray, shape (..., BINS)
    integers : bool
        Whether the values are integers. Up to 11, each has a bin of its own, and the median is
        exact; for larger ones the least integer of the bin is taken. Other numbers are taken for
        the geometric middle of their bin.
    """
    total = counts.sum(axis=-1, keepdims=True)
    cumulated = np.cumsum(counts, axis=-1)
    # The two middle values, of which the median is the mean; they are the same for odd counts.
    lower, upper = ((cumulated <= rank).sum(axis=-1) for rank in ((total - 1) // 2, total // 2))
    places = np.arange(BINS) + (0.0 if integers else 0.5)
    values = 2.0 ** (places / BINS_PER_DOUBLING)
    if integers:
        values = np.ceil(values - 1e-6)
    else:
        values[0] = 1.0  # most often the ratio of rows with one entry, which is exactly 1
    last = BINS - 1
    middle = (values[np.minimum(lower, last)] + values[np.minimum(upper, last)]) / 2
    return np.where(total[..., 0] > 0, middle, np.nan)
