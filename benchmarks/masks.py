"""Sparse masks for the benchmarks, each with the same number of keys in every row."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp


def csr(columns):
    """Return a mask of the same number of keys in each row, from their columns."""
    n, k = columns.shape
    offsets = np.arange(0, (n + 1) * k, k)
    parts = np.ones(n * k, bool), columns.astype(np.int32).ravel(), offsets
    return sp.csr_array(parts, shape=(n, n))


def random(n, k):
    """Return k keys a row that nothing tells: one from each of k parts of the keys."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, n // k, (n, k), np.int32)
    places += np.arange(0, n, n // k, np.int32)[:k]
    return csr(places)


def band(n, k):
    """Return the k keys around each position."""
    first = np.clip(np.arange(n) - k // 2, 0, n - k)
    return csr(first[:, np.newaxis] + np.arange(k))


def documents(n, k):
    """Return documents of k tokens, each of which attends to all of its own."""
    return csr(np.arange(n)[:, np.newaxis] // k * k + np.arange(k))


def blocks(n, k):
    """Return random blocks of at most 64 rows and keys."""
    size = min(64, k)
    chosen = random(n // size, k // size).indices.reshape(n // size, 1, k // size, 1)
    columns = np.repeat(chosen * size, size, axis=1) + np.arange(size)
    return csr(columns.reshape(n, k))


def band_and_first(n, k):
    """Return the first key of all and a window of the others, as long contexts are read.

    The window ends at each position; the first rows take the next keys too.
    """
    columns = np.clip(np.arange(n) - k + 2, 1, n - k + 1)[:, np.newaxis] + np.arange(k - 1)
    return csr(np.hstack([np.zeros((n, 1), columns.dtype), columns]))


KINDS = {"random": random, "band": band, "documents": documents, "blocks": blocks}
