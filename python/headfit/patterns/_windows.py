"""Windows, bands, strides and blocks, the previous token, and induction."""

from __future__ import annotations

from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from headfit import _core
from headfit._base.arguments import as_choice, as_count, as_flag, seed_from, shown
from headfit._base.arrays import as_array
from headfit.errors import InputError
from headfit.patterns._build import check_entries, from_edges, from_rows, pattern, token_numbers
from headfit.patterns._types import Boundary, Ints, Pattern, Weighting


@pattern
def band(
    n: int, neighbors: int, *, boundary: Boundary = "clip", **style: Unpack[Weighting]
) -> Pattern:
    """Return a band: each token attends to itself and to its neighbours on each side.

    Row ``i`` has the columns ``j`` with ``|i - j| <= neighbors``.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.band(4, neighbors=1).toarray().round(2)
    array([[0.5 , 0.5 , 0.  , 0.  ],
           [0.33, 0.33, 0.33, 0.  ],
           [0.  , 0.33, 0.33, 0.33],
           [0.  , 0.  , 0.5 , 0.5 ]])
    """
    return dilated(n, neighbors, 1, boundary=boundary, **style)


@pattern
def causal_band(n: int, neighbors: int, **style: Unpack[Weighting]) -> Pattern:
    """Return a causal band: each token attends to itself and to its neighbours before it.

    Row ``i`` has the columns ``j`` with ``0 <= i - j <= neighbors``: the lower half of `band`.

    Parameters
    ----------
    neighbors : int
        The number of earlier tokens that a token attends to, 0 or more.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.causal_band(3, neighbors=1).toarray()
    array([[1. , 0. , 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    """
    return window_global(n, as_count(neighbors, "neighbors", 0) + 1, 0, **style)


@pattern
def dilated(
    n: int,
    neighbors: int,
    dilation: int,
    *,
    boundary: Boundary = "clip",
    **style: Unpack[Weighting],
) -> Pattern:
    """Return a band with gaps, whose tokens are `dilation` apart.

    Row ``i`` has the columns ``i + dilation * m`` for ``|m| <= neighbors``, including the
    self-loop.

    Parameters
    ----------
    neighbors : int
        How many tokens a token attends to on each side, 0 or more.
    dilation : int
        The distance between them, 1 or more; 1 gives `band`.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.dilated(9, neighbors=1, dilation=3)[[4]].indices
    array([1, 4, 7], dtype=int32)
    """
    neighbors = as_count(neighbors, "neighbors", 0)
    dilation = as_count(dilation, "dilation", 1)
    # Further steps would lead outside, or modulo n to columns that are already included.
    if boundary == "wrap":
        dilation %= n
        reach = min(neighbors, n // 2)
    else:
        reach = min(neighbors, (n - 1) // dilation)
    check_entries(n * (2 * reach + 1), n)
    return _at_offsets(n, dilation * np.arange(-reach, reach + 1), boundary=boundary)


@pattern
def circulant(n: int, offsets: ArrayLike, **style: Unpack[Weighting]) -> Pattern:
    """Return a circulant pattern: tokens attend at fixed offsets from themselves, modulo `n`.

    Row ``i`` has the columns ``(i + offset) % n``. Offsets that are equal modulo `n` count once.

    Parameters
    ----------
    offsets : sequence of int
        One or more offsets, of any sign, as 64-bit integers.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.circulant(5, [-1, 2])[[0]].indices
    array([2, 4], dtype=int32)
    """
    steps = np.atleast_1d(as_array(offsets, "offsets"))
    if steps.ndim != 1 or steps.size == 0 or steps.dtype.kind not in "iu":
        raise InputError(f"offsets must be one or more integers; got {shown(offsets)}")
    return _at_offsets(n, steps, boundary="wrap")


@pattern
def window_global(
    n: int,
    width: int,
    n_global: int,
    *,
    causal: bool = True,
    stride: int | None = None,
    **style: Unpack[Weighting],
) -> Pattern:
    """Return the pattern of a window with global tokens, and every stride-th token.

    Row ``i`` has the columns ``j <= i`` with ``i - j < width``, with ``j < n_global``, or, given a
    `stride`, with ``i - j`` a multiple of it.

    With ``causal=False``, ``|i - j|`` takes the place of ``i - j``. All rows then have the global
    columns, and the first `n_global` rows have all columns, as in `bigbird`. (Beltagy, Peters and
    Cohan, "Longformer: the long-document transformer", 2020.)

    Parameters
    ----------
    width : int
        The number of keys in the window, including the token itself, 1 or more.
    n_global : int
        The number of global tokens, 0 to `n`. They are the first ones.
    causal : bool
        Attend to earlier tokens only, or both ways.
    stride : int, optional
        The distance between the distant tokens, 1 or more; None for no such tokens.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.window_global(12, width=3, n_global=1, stride=4)[[11]].indices
    array([ 0,  3,  7,  9, 10, 11], dtype=int32)
    >>> patterns.window_global(12, width=2, n_global=1, causal=False)[[5]].indices
    array([0, 4, 5, 6], dtype=int32)
    """
    reach = min(as_count(width, "width", 1), n) - 1
    n_global = as_count(n_global, "n_global", 0, n)
    step = n if stride is None else as_count(stride, "stride", 1)
    causal = as_flag(causal, "causal")
    check_entries(n * (reach + 1 + (n - 1) // step), n)
    back = np.union1d(np.arange(reach + 1), np.arange(0, n, step))
    return _at_offsets(n, -back if causal else np.union1d(-back, back), n_global, causal=causal)


@pattern
def strided(
    n: int,
    stride: int,
    *,
    neighbors: int | None = None,
    causal: bool = True,
    **style: Unpack[Weighting],
) -> Pattern:
    """Return the strided pattern of sparse transformers: a window and every stride-th token.

    Row ``i`` has the columns ``j <= i`` with ``i - j <= neighbors`` or with ``i - j`` a multiple
    of `stride`. These are both heads of Child, Gray, Radford and Sutskever ("Generating long
    sequences with sparse transformers", 2019) in one pattern.

    Parameters
    ----------
    stride : int
        The distance between the distant tokens, 1 or more.
    neighbors : int, optional
        How many tokens before it a token attends to, 0 or more; `stride` when None.
    causal : bool
        False adds the same tokens ahead: ``|i - j|`` in place of ``i - j``.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.strided(12, stride=4, neighbors=2)[[11]].indices
    array([ 3,  7,  9, 10, 11], dtype=int32)
    """
    stride = as_count(stride, "stride", 1)
    reach = stride if neighbors is None else as_count(neighbors, "neighbors", 0)
    return window_global(n, reach + 1, 0, causal=causal, stride=stride, **style)


@pattern
def bigbird(
    n: int,
    neighbors: int,
    n_global: int,
    n_random: int,
    *,
    boundary: Boundary = "clip",
    **style: Unpack[Weighting],
) -> Pattern:
    """Return the pattern of BigBird: a band, global and random columns together.

    Row ``i`` has the columns ``j`` with ``|i - j| <= neighbors``, the columns
    ``0 ... n_global - 1``, and `n_random` random ones as in `random_regular`. The first
    `n_global` rows have all columns. (Zaheer et al., "Big Bird: transformers for longer
    sequences", 2020, by tokens instead of blocks.)

    Parameters
    ----------
    n_global, n_random : int
        The number of global tokens, and of random columns per row, 0 to `n`.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.bigbird(100, neighbors=1, n_global=2, n_random=3)
    >>> per_column = A.count_nonzero(axis=0).tolist()
    >>> per_column[:2], max(per_column[2:]) <= 2 * 1 + 1 + 2 + 3
    ([100, 100], True)
    """
    reach = min(as_count(neighbors, "neighbors", 0), n - 1)
    n_global = as_count(n_global, "n_global", 0, n)
    n_random = as_count(n_random, "n_random", 0, n)
    check_entries(n * (2 * reach + 1 + 2 * n_global + n_random), n)
    others = _core.random_regular(n, n_random, seed_from(style["rng"])) if n_random else None
    return _at_offsets(n, np.arange(-reach, reach + 1), n_global, others, boundary=boundary)


@pattern
def block(n: int, size: int, **style: Unpack[Weighting]) -> Pattern:
    """Return a block pattern: tokens attend within blocks of `size` consecutive tokens.

    Each token attends to its whole block, including itself. The last block is smaller if
    `size` does not divide `n`.

    Parameters
    ----------
    size : int
        The number of tokens in a block, 1 or more.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.block(3, size=2).toarray()
    array([[0.5, 0.5, 0. ],
           [0.5, 0.5, 0. ],
           [0. , 0. , 1. ]])
    """
    size = min(as_count(size, "size", 1), n)
    check_entries(n * size, n)
    own = token_numbers(n)
    return from_rows((own // size * size)[:, np.newaxis] + own[:size])


@pattern
def previous_token(n: int, *, boundary: Boundary = "clip", **style: Unpack[Weighting]) -> Pattern:
    """Return the pattern in which each token attends to the one before it, with weight 1.

    Parameters
    ----------
    boundary : {"clip", "wrap"}
        Token 0, which has no token before it, attends to itself (so that column 0 has two
        nonzeros), or with "wrap" to the last token (a cyclic shift).

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.previous_token(4).indices
    array([0, 0, 1, 2], dtype=int32)
    """
    return _at_offsets(n, np.array([-1]), boundary=boundary)


@pattern
def induction(
    tokens: ArrayLike, *, which: Literal["latest", "all"] = "latest", **style: Unpack[Weighting]
) -> Pattern:
    """Return the pattern of an induction head, for what followed earlier equal tokens.

    Row ``i`` has the columns ``p + 1`` for positions ``p < i`` with ``tokens[p] == tokens[i]``.
    A token that has not occurred before attends to itself. The pattern is causal.

    Parameters
    ----------
    tokens : sequence
        One label per position: integers, strings, or the characters of a string.
    which : {"latest", "all"}
        Whether only the latest earlier occurrence counts, or all of them (a token that occurs
        ``c`` times then gives about ``c**2 / 2`` nonzeros).

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.induction("abcab").indices
    array([0, 1, 2, 1, 2], dtype=int32)
    """
    listed: Any = list(tokens) if isinstance(tokens, str) else tokens
    labels = as_array(listed, "tokens")
    if labels.ndim != 1 or labels.size == 0:
        raise InputError(
            f"tokens must be a sequence of one or more labels; got shape {labels.shape}"
        )
    as_choice(which, "which", ("latest", "all"))
    n = labels.size
    kind = {"U": str, "S": bytes}.get(labels.dtype.kind)
    try:
        if kind and not all(isinstance(token, kind) for token in listed):
            raise TypeError  # NumPy made text of numbers beside it
        ids = np.unique(labels, return_inverse=True)[1]
    except TypeError:
        raise InputError("tokens must be labels that can be sorted; got mixed types") from None
    order = np.argsort(ids, kind="stable")  # the positions, grouped by token
    # How often the token at position order[a] occurred before it.
    seen = np.arange(n) - np.searchsorted(ids[order], ids[order])
    taken = seen if which == "all" else np.minimum(seen, 1)
    check_entries(3 * int(taken.sum()), n)
    # The position order[a] attends to what follows the `taken[a]` positions before it in `order`.
    ends = np.cumsum(taken)
    last = np.repeat(np.arange(n) + ends - taken - 1, taken)
    columns = order.astype(np.int32)[last - np.arange(ends[-1])] + 1
    return from_edges(order.repeat(taken), columns, n)


def _at_offsets(
    n: int,
    offsets: Ints,
    n_global: int = 0,
    others: Ints | None = None,
    *,
    causal: bool = False,
    boundary: str = "clip",
) -> Pattern:
    """Return the pattern whose row ``i`` has the columns ``i + offset``, with global tokens.

    All rows have the first `n_global` columns, as far as they come earlier where it is `causal`;
    where it is not, the first `n_global` rows have all columns. `others`, shape (n, any), has
    further columns.
    """
    full = 0 if causal else n_global
    check_entries(n * (len(offsets) + n_global + full), n)
    own = token_numbers(n)
    rows = own[full:, np.newaxis]
    # Reduced modulo n first, since i + offset could overflow for unsigned or huge offsets.
    steps = offsets.astype(object) % n if boundary == "wrap" else offsets
    columns = rows + steps.astype(own.dtype)
    if boundary == "wrap":
        columns[columns >= n] -= n
    if others is not None:
        columns = np.hstack([columns, others[full:]])
    if n_global:
        first = np.broadcast_to(own[:n_global], (len(rows), n_global))
        columns = np.hstack([columns, np.where(first <= rows, first, -1) if causal else first])
    return from_rows(columns, full)
