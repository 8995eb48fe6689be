"""Random patterns with as many nonzeros in every row as in every column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arrays import as_count
from headfit.patterns._build import (
    Pattern,
    Seed,
    Style,
    Weights,
    check_entries,
    checked_tokens,
    weighted,
)


def random_regular(
    n: int, k: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Return a random pattern with exactly `k` nonzeros in every row and in every column.

    It is made of `k` random permutations; entries that occur twice are removed by random
    exchanges. (For ``k > n/2`` the complement is drawn in this way.) The distribution is close
    to uniform over all such patterns, but not exactly uniform. Self-loops occur by chance, `k`
    of them on average.

    Parameters
    ----------
    n : int
        The number of tokens.
    k : int
        The number of nonzeros of each row and each column, 1 to `n`.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Returns
    -------
    csr_array, shape (n, n)

    Raises
    ------
    InputError
        For an argument out of range, or a pattern that does not fit in memory.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.random_regular(1000, k=4, gamma=2.0, rng=0)
    >>> set(A.count_nonzero(axis=0).tolist()), set(A.count_nonzero(axis=1).tolist())
    ({4}, {4})
    """
    n = checked_tokens(n)
    k = as_count(k, "k", 1, n)
    style = Style.of(weights, gamma, rng)
    check_entries(n * k, n)
    columns = regular_columns(n, k, style)
    return weighted(np.arange(0, n * k + 1, k), columns.ravel(), n, style)


def regular_columns(n: int, k: int, style: Style) -> NDArray[np.int32]:
    """Return the columns of each row of a random k-regular pattern, shape (n, k)."""
    seed = int(style.rng.integers(2**64, dtype=np.uint64))
    return _core.random_regular(n, k, seed)


def permutation(
    n: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Return a uniformly random permutation matrix.

    Each token attends to one token, and each token is attended to by one. Self-loops (fixed
    points) occur by chance, one on average.

    Parameters
    ----------
    n : int
        The number of tokens.
    weights, gamma, rng
        The only weight of each row is 1 in any case; `rng` draws the permutation.

    Returns
    -------
    csr_array, shape (n, n)

    Raises
    ------
    InputError
        For an argument out of range, or a pattern that does not fit in memory.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.permutation(4, rng=0).toarray().sum(axis=0)
    array([1., 1., 1., 1.])
    """
    n = checked_tokens(n)
    check_entries(n, n)
    style = Style.of(weights, gamma, rng)
    return weighted(np.arange(n + 1), style.rng.permutation(n), n, style)
