"""Patterns of sparse transformers: strided, in blocks, BigBird, windows with global tokens."""

from __future__ import annotations

import numpy as np

from headfit._base.arguments import as_flag
from headfit._base.arrays import as_count
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
from headfit.patterns._random import regular_columns


def strided(
    n: int,
    stride: int,
    *,
    window: int | None = None,
    causal: bool = True,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return the strided pattern of sparse transformers: a window and every stride-th token.

    Row ``i`` has the columns ``j <= i`` with ``i - j <= window`` or with ``i - j`` a multiple
    of `stride`. These are both heads of Child, Gray, Radford and Sutskever ("Generating long
    sequences with sparse transformers", 2019) in one pattern. Every token has its self-loop.
    Rows and columns have up to about ``window + n / stride`` nonzeros.

    Parameters
    ----------
    n : int
        The number of tokens.
    stride : int
        The distance between the distant tokens, 1 or more.
    window : int, optional
        How far back the window reaches, 0 or more; `stride` when None.
    causal : bool
        False adds the same tokens ahead: ``|i - j|`` in place of ``i - j``.
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
    >>> patterns.strided(12, stride=4, window=2)[[11]].indices
    array([ 3,  7,  9, 10, 11], dtype=int32)
    """
    n = checked_tokens(n)
    stride = as_count(stride, "stride", 1)
    reach = min(stride if window is None else as_count(window, "window", 0), n - 1)
    style = Style.of(weights, gamma, rng)
    check_entries(n * (reach + 1 + n // stride) * (1 if as_flag(causal, "causal") else 2), n)
    back = np.union1d(np.arange(reach + 1), np.arange(0, n, stride))
    offsets = -back if causal else np.union1d(-back, back)
    return from_rows(shifted_columns(n, offsets, "clip"), n, style)


def block(
    n: int, size: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Return a block pattern: tokens attend within blocks of `size` consecutive tokens.

    Each token attends to its whole block, including itself. The last block is smaller if
    `size` does not divide `n`.

    Parameters
    ----------
    n : int
        The number of tokens.
    size : int
        The number of tokens in a block, 1 or more.
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
    >>> patterns.block(3, size=2).toarray()
    array([[0.5, 0.5, 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0. , 1. ]])
    """
    n = checked_tokens(n)
    size = min(as_count(size, "size", 1), n)
    check_entries(n * size, n)
    style = Style.of(weights, gamma, rng)
    first = np.arange(n) // size * size
    return from_rows(first[:, None] + np.arange(size), n, style)


def bigbird(
    n: int,
    window: int,
    n_global: int,
    n_random: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return the pattern of BigBird: a window, global and random columns together.

    Row ``i`` has the columns ``j`` with ``|i - j| <= window`` (including the self-loop), the
    columns ``0 ... n_global - 1``, and `n_random` random ones as in `random_regular`; columns
    that occur twice count once. The first `n_global` rows have all columns. (Zaheer et al.,
    "Big Bird: transformers for longer sequences", 2020, by tokens instead of blocks.)

    The global columns ``0 ... n_global - 1`` and the global rows have `n` nonzeros each. All
    other rows and columns have at most ``2 * window + 1 + n_global + n_random``.

    Parameters
    ----------
    n : int
        The number of tokens.
    window : int
        How far the window reaches on each side, 0 or more.
    n_global, n_random : int
        The number of global tokens, and of random columns per row, 0 to `n`.
    boundary : {"clip", "wrap"}
        At the ends, the window leaves out columns outside, or takes them modulo `n`.
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
    >>> A = patterns.bigbird(100, window=1, n_global=2, n_random=3, rng=0)
    >>> per_column = A.count_nonzero(axis=0).tolist()
    >>> per_column[:2], max(per_column[2:]) <= 2 * 1 + 1 + 2 + 3
    ([100, 100], True)
    """
    n = checked_tokens(n)
    reach = min(as_count(window, "window", 0), n - 1)
    n_global = as_count(n_global, "n_global", 0, n)
    n_random = as_count(n_random, "n_random", 0, n)
    checked_choice("boundary", boundary, BOUNDARIES)
    style = Style.of(weights, gamma, rng)
    check_entries(n * (2 * reach + 1 + 2 * n_global + n_random), n)
    near = shifted_columns(n, np.arange(-reach, reach + 1), boundary)
    far = regular_columns(n, n_random, style) if n_random else np.empty((n, 0), np.int32)
    shared = np.broadcast_to(np.arange(n_global), (n, n_global))
    return from_rows(np.hstack([near, shared, far]), n, style, full=n_global)


def window_global(
    n: int,
    width: int,
    n_global: int,
    *,
    causal: bool = True,
    stride: int | None = None,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return the pattern of a window with global tokens, and every stride-th token if asked.

    Row ``i`` has the columns ``j <= i`` with ``i - j < width``, which are `width` keys including
    the token itself, as in the mask ``("window", width)``; the global columns
    ``0 ... n_global - 1`` as far as ``j <= i``; and with a `stride` those with ``i - j`` a
    multiple of it. Without global tokens and stride this is ``causal_band(n, width - 1)``.

    With ``causal=False``, ``|i - j|`` takes the place of ``i - j``: the window has ``width - 1``
    tokens on each side beside the token itself, as ``band(n, width - 1)``. All rows have the
    global columns, and the first `n_global` rows have all columns, as in `bigbird`. (Beltagy,
    Peters and Cohan, "Longformer: the long-document transformer", 2020.)

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        The number of keys in the window, including the token itself, 1 or more.
    n_global : int
        The number of global tokens, 0 to `n`. They are the first ones.
    causal : bool
        Attend to earlier tokens only, or both ways.
    stride : int, optional
        The distance between the distant tokens, 1 or more; None for no such tokens.
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
    >>> patterns.window_global(12, width=3, n_global=1, stride=4)[[11]].indices
    array([ 0,  3,  7,  9, 10, 11], dtype=int32)
    >>> patterns.window_global(12, width=2, n_global=1, causal=False)[[5]].indices
    array([0, 4, 5, 6], dtype=int32)
    """
    n = checked_tokens(n)
    reach = min(as_count(width, "width", 1), n) - 1
    n_global = as_count(n_global, "n_global", 0, n)
    step = n if stride is None else as_count(stride, "stride", 1)
    causal = as_flag(causal, "causal")
    style = Style.of(weights, gamma, rng)
    each_way = reach + 1 + (n - 1) // step
    check_entries(n * (n_global + each_way if causal else 2 * (n_global + each_way)), n)
    back = np.union1d(np.arange(reach + 1), np.arange(0, n, step))
    offsets = -back if causal else np.union1d(-back, back)
    shared = np.broadcast_to(np.arange(n_global), (n, n_global))
    if causal:
        shared = np.where(shared <= np.arange(n)[:, None], shared, -1)
    columns = np.hstack([shifted_columns(n, offsets, "clip"), shared])
    return from_rows(columns, n, style, full=0 if causal else n_global)
