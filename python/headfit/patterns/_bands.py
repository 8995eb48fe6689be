"""Banded patterns: tokens attend at fixed distances from themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from headfit._base.arguments import shown
from headfit._base.arrays import as_array, as_count
from headfit.errors import InputError
from headfit.patterns._build import (
    BOUNDARIES,
    Boundary,
    Pattern,
    Seed,
    Style,
    Weights,
    check_entries,
    checked_choice,
    checked_tokens,
    from_rows,
    shifted_columns,
)


def band(
    n: int,
    width: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return a band: each token attends to itself and to `width` neighbours on each side.

    Row ``i`` has the columns ``j`` with ``|i - j| <= width``: ``2 * width + 1`` of them,
    including the self-loop.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        The number of neighbours on each side, 0 or more.
    boundary : {"clip", "wrap"}
        At the ends, leave out columns outside, or continue at the other end (which gives
        exactly ``min(2 * width + 1, n)`` nonzeros per row and column).
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
    >>> patterns.band(4, width=1).toarray().round(2)
    array([[0.5 , 0.5 , 0.  , 0.  ],
           [0.33, 0.33, 0.33, 0.  ],
           [0.  , 0.33, 0.33, 0.33],
           [0.  , 0.  , 0.5 , 0.5 ]])
    """
    return dilated(n, width, 1, boundary=boundary, weights=weights, gamma=gamma, rng=rng)


def causal_band(
    n: int, width: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Return a causal band: each token attends to itself and to the `width` tokens before it.

    Row ``i`` has the columns ``j`` with ``0 <= i - j <= width``: the lower half of `band`.
    The first rows have fewer columns; every token has its self-loop.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        The number of earlier tokens that a token attends to, 0 or more.
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
    >>> patterns.causal_band(3, width=1).toarray()
    array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    """
    n = checked_tokens(n)
    reach = min(as_count(width, "width", 0), n - 1)
    check_entries(n * (reach + 1), n)
    style = Style.of(weights, gamma, rng)
    return from_rows(shifted_columns(n, np.arange(-reach, 1), "clip"), n, style)


def dilated(
    n: int,
    width: int,
    dilation: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return a band with gaps: `width` tokens on each side that are `dilation` apart.

    Row ``i`` has the columns ``i + dilation * m`` for ``|m| <= width``, including the
    self-loop.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        How many tokens a token attends to on each side, 0 or more.
    dilation : int
        The distance between them, 1 or more; 1 gives `band`.
    boundary : {"clip", "wrap"}
        At the ends, leave out columns outside, or take them modulo `n`.
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
    >>> patterns.dilated(9, width=1, dilation=3)[[4]].indices
    array([1, 4, 7], dtype=int32)
    """
    n = checked_tokens(n)
    width = as_count(width, "width", 0)
    dilation = as_count(dilation, "dilation", 1)
    checked_choice("boundary", boundary, BOUNDARIES)
    style = Style.of(weights, gamma, rng)
    # Further steps would lead outside, or modulo n to columns that are already included.
    if boundary == "wrap":
        dilation %= n
        reach = min(width, n // 2)
    else:
        reach = min(width, (n - 1) // dilation)
    check_entries(n * (2 * reach + 1), n)
    steps = np.arange(-reach, reach + 1)
    return from_rows(shifted_columns(n, dilation * steps, boundary), n, style)


def circulant(
    n: int,
    offsets: ArrayLike,
    *,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return a circulant pattern: tokens attend at fixed offsets from themselves, modulo `n`.

    Row ``i`` has the columns ``(i + offset) % n``. There are self-loops only if an offset is
    0 modulo `n`. Offsets that are equal modulo `n` count once; each row and column has as many
    nonzeros as there are different offsets.

    Parameters
    ----------
    n : int
        The number of tokens.
    offsets : sequence of int
        One or more offsets of any sign and size.
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
    >>> patterns.circulant(5, [-1, 2])[[0]].indices
    array([2, 4], dtype=int32)
    """
    n = checked_tokens(n)
    steps = np.atleast_1d(as_array(offsets, "offsets"))
    if steps.ndim != 1 or steps.size == 0 or not np.issubdtype(steps.dtype, np.integer):
        raise InputError(f"offsets must be one or more integers; got {shown(offsets)}")
    style = Style.of(weights, gamma, rng)
    # Reduced modulo n first, since i + offset could overflow for unsigned or huge offsets.
    return from_rows(shifted_columns(n, (steps % n).astype(np.int64), "wrap"), n, style)
