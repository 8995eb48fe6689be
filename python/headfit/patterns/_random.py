"""Random patterns with as many nonzeros in every row as in every column."""

from __future__ import annotations

from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arrays import as_count
from headfit.patterns._build import (
    Pattern,
    Style,
    Weighting,
    check_entries,
    checked_tokens,
    from_rows,
    pattern,
)


@pattern
def random_regular(n: int, k: int, **style: Unpack[Weighting]) -> Pattern:
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

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.random_regular(1000, k=4, gamma=2.0)
    >>> set(A.count_nonzero(axis=0).tolist()), set(A.count_nonzero(axis=1).tolist())
    ({4}, {4})
    """
    n = checked_tokens(n)
    k = as_count(k, "k", 1, n)
    made = Style.of(**style)
    check_entries(n * k, n)
    return from_rows(regular_columns(n, k, made), n, made)


def regular_columns(n: int, k: int, style: Style) -> NDArray[np.int32]:
    """Return the columns of each row of a random k-regular pattern, shape (n, k)."""
    seed = int(style.rng.integers(2**64, dtype=np.uint64))
    return _core.random_regular(n, k, seed)


@pattern
def permutation(n: int, **style: Unpack[Weighting]) -> Pattern:
    """Return a uniformly random permutation matrix.

    Each token attends to one token, and each token is attended to by one. Self-loops (fixed
    points) occur by chance, one on average.

    Parameters
    ----------
    n : int
        The number of tokens.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.permutation(4).toarray().sum(axis=0)
    array([1., 1., 1., 1.])
    """
    n = checked_tokens(n)
    check_entries(n, n)
    made = Style.of(**style)
    return from_rows(made.rng.permutation(n).astype(np.int32)[:, np.newaxis], n, made)
