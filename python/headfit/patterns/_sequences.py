"""Patterns along a sequence: random, banded, strided, and what heads of real models do."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headfit import _core
from headfit._base.arguments import as_flag, shown
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
    from_edges,
    from_rows,
    row_starts,
    shifted_columns,
    weighted,
)


def random_regular(
    n: int, k: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Exactly `k` random nonzeros in every row and in every column.

    `k` random permutations, with repeated places exchanged away at random (for
    ``k > n/2`` the places left free are drawn so). Close to uniform over all such
    patterns, not exactly so. Self-loops occur as chance has it, `k` of them on average;
    there is no boundary.

    Parameters
    ----------
    n : int
        The number of tokens.
    k : int
        The nonzeros of each row and each column, 1 to `n`.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    columns = _regular_columns(n, k, style)
    return weighted(np.arange(0, n * k + 1, k), columns.ravel(), n, style)


def _regular_columns(n: int, k: int, style: Style) -> NDArray[np.int32]:
    seed = int(style.rng.integers(2**64, dtype=np.uint64))
    return _core.random_regular(n, k, seed)


def permutation(
    n: int, *, weights: Weights | None = None, gamma: float = 1.0, rng: Seed = None
) -> Pattern:
    """Each token attends to one other token, each token is attended to once.

    A uniformly random permutation matrix. Self-loops (fixed points) occur, one on
    average; there is no boundary.

    Parameters
    ----------
    n : int
        The number of tokens.
    weights, gamma, rng
        The one weight of a row is 1 whatever they say; `rng` draws the permutation.

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


def band(
    n: int,
    width: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to itself and to `width` neighbours on each side.

    Row ``i`` holds the columns with ``|i - j| <= width``: ``2 * width + 1`` of them, the
    self-loop among them.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        How far a token sees on each side, 0 or more.
    boundary : {"clip", "wrap"}
        At the ends, leave out what lies outside, or go on at the other end (exactly
        ``min(2 * width + 1, n)`` a row and a column).
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    """Each token attends to itself and to the `width` tokens before it.

    Row ``i`` holds the columns with ``0 <= i - j <= width``: the lower half of `band`.
    Clipped at the start of the sequence; every token has its self-loop.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        How far back a token sees, 0 or more.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    """A band with gaps: `width` tokens on each side, `dilation` apart.

    Row ``i`` holds ``i + dilation * m`` for ``|m| <= width``; the self-loop is among them.

    Parameters
    ----------
    n : int
        The number of tokens.
    width : int
        How many tokens a token sees on each side, 0 or more.
    dilation : int
        The distance between them, 1 or more; 1 is `band`.
    boundary : {"clip", "wrap"}
        At the ends, leave out what lies outside, or count modulo `n`.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    # Further steps fall outside, or wrap to where one has been: steps repeat modulo n.
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
    """Each token attends to the tokens at fixed offsets from it, modulo `n`.

    Row ``i`` holds ``(i + offset) % n``. It wraps; a self-loop is there only if an offset
    is 0 modulo `n`. Offsets equal modulo `n` count once; as many nonzeros in every row
    and column as there are different ones.

    Parameters
    ----------
    n : int
        The number of tokens.
    offsets : sequence of int
        At least one, of any sign and size.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    # Modulo n first: for unsigned or huge offsets, i + offset could overflow.
    return from_rows(shifted_columns(n, (steps % n).astype(np.int64), "wrap"), n, style)


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
    """The strided pattern of sparse transformers: a local window and every stride-th token.

    Row ``i`` holds the columns with ``0 <= i - j <= window``, or with ``j <= i`` and
    ``i - j`` a multiple of `stride` (Child, Gray, Radford and Sutskever, "Generating long
    sequences with sparse transformers", 2019: both of its heads in one pattern). Clipped
    at the ends; every token has its self-loop. Rows and columns hold up to about
    ``window + n / stride`` nonzeros.

    Parameters
    ----------
    n : int
        The number of tokens.
    stride : int
        The distance between the far tokens, 1 or more.
    window : int, optional
        How far back the window reaches, 0 or more; as far as `stride` unless said.
    causal : bool
        With False, the same tokens ahead as well: ``|i - j|`` in place of ``i - j``.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    """Tokens attend within blocks of `size` consecutive tokens.

    Each token attends to its whole block, itself included. The last block is smaller
    where `size` does not divide `n`; nothing wraps.

    Parameters
    ----------
    n : int
        The number of tokens.
    size : int
        The tokens of a block, 1 or more.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    """Window, global and random columns together, as in BigBird.

    Row ``i`` holds the columns with ``|i - j| <= window`` (the self-loop among them), the
    columns ``0 ... n_global - 1``, and `n_random` random ones from `random_regular`; where
    they meet they count once. The first `n_global` rows hold every column. (Zaheer et
    al., "Big Bird: transformers for longer sequences", 2020, token by token instead of
    block by block.)

    The global columns ``0 ... n_global - 1`` break the column bound: each has `n`
    nonzeros, and so have the global rows. Everywhere else rows and columns hold at most
    ``2 * window + 1 + n_global + n_random``.

    Parameters
    ----------
    n : int
        The number of tokens.
    window : int
        How far the window reaches on each side, 0 or more.
    n_global, n_random : int
        The global tokens and the random columns a row, 0 to `n`.
    boundary : {"clip", "wrap"}
        At the ends, the window leaves out what lies outside, or counts modulo `n`.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

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
    far = _regular_columns(n, n_random, style) if n_random else np.empty((n, 0), np.int32)
    shared = np.broadcast_to(np.arange(n_global), (n, n_global))
    columns = np.hstack([near, shared, far])[n_global:]
    rows = np.repeat(np.arange(n_global, n), columns.shape[1])
    flat = columns.ravel()
    inside = (flat >= 0) & (flat < n)
    all_rows = np.repeat(np.arange(n_global), n)
    all_columns = np.tile(np.arange(n), n_global)
    return from_edges(
        np.concatenate([all_rows, rows[inside]]),
        np.concatenate([all_columns, flat[inside]]),
        n,
        style,
    )


def previous_token(
    n: int,
    *,
    boundary: Boundary = "clip",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to the one before it.

    Parameters
    ----------
    n : int
        The number of tokens.
    boundary : {"clip", "wrap"}
        Token 0 has nothing before it: it attends to itself, the only self-loop (and
        column 0 has two nonzeros), or with "wrap" to the last token (a cyclic shift).
    weights, gamma, rng
        The one weight of a row is 1 whatever they say.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.previous_token(4).indices
    array([0, 0, 1, 2], dtype=int32)
    """
    n = checked_tokens(n)
    checked_choice("boundary", boundary, BOUNDARIES)
    style = Style.of(weights, gamma, rng)
    return from_rows(shifted_columns(n, np.array([-1]), boundary), n, style)


def induction(
    tokens: ArrayLike,
    *,
    which: Literal["latest", "all"] = "latest",
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Each token attends to what followed the same token before: an induction head.

    Row ``i`` holds ``p + 1`` for the positions ``p < i`` with ``tokens[p] == tokens[i]``.
    A token not seen before attends to itself. Causal: ``p + 1 <= i``, and a token that
    repeats its predecessor attends to itself that way. Columns hold at most two nonzeros
    with "latest"; with "all" there is no column bound.

    Parameters
    ----------
    tokens : sequence
        One label a position: integers, strings, or a string of characters.
    which : {"latest", "all"}
        The latest earlier occurrence, or all of them (a token that occurs ``c`` times
        makes about ``c**2 / 2`` nonzeros).
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.induction("abcab").indices
    array([0, 1, 2, 1, 2], dtype=int32)
    """
    labels = as_array(list(tokens) if isinstance(tokens, str) else tokens, "tokens")
    if labels.ndim != 1 or labels.size == 0:
        raise InputError(
            f"tokens must be a sequence of one or more labels; got shape {labels.shape}"
        )
    checked_choice("which", which, ("latest", "all"))
    style = Style.of(weights, gamma, rng)
    n = labels.size
    try:
        values, ids = np.unique(labels, return_inverse=True)
    except TypeError:
        raise InputError("tokens must be labels that can be sorted; got mixed types") from None
    order = np.argsort(ids, kind="stable")  # the positions of each token, in turn
    first = row_starts(np.bincount(ids, minlength=values.size))[ids[order]]
    seen = np.arange(n) - first  # how often the token at order[a] occurred before
    taken = seen if which == "all" else np.minimum(seen, 1)
    check_entries(int(taken.sum()), n)
    rows = order.repeat(taken)
    # The a-th position in order takes the `taken` entries right before it in order.
    back = np.arange(rows.size) - np.repeat(row_starts(taken)[:-1], taken) + 1
    columns = order[np.arange(n).repeat(taken) - back] + 1
    unseen = order[seen == 0]
    return from_edges(np.concatenate([rows, unseen]), np.concatenate([columns, unseen]), n, style)
