"""Patterns of grids, trees and hypercubes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headfit._base.arguments import as_flag
from headfit._base.arrays import as_count
from headfit.patterns._build import (
    BOUNDARIES,
    MOST_TOKENS,
    Boundary,
    Pattern,
    Seed,
    Style,
    Weights,
    check_entries,
    checked_choice,
    checked_tokens,
    diagonal_or_nothing,
    from_edges,
    from_rows,
)


def grid2d(
    height: int,
    width: int,
    *,
    diagonals: bool = False,
    boundary: Boundary = "clip",
    self_loops: bool = False,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return the pattern of a grid, in which cells attend to their neighbours.

    Token ``r * width + c`` is the cell in row ``r`` and column ``c`` of the grid. It attends
    to the cells above, below, left and right of it.

    Parameters
    ----------
    height, width : int
        The size of the grid; ``n = height * width``.
    diagonals : bool
        Attend to the four diagonal neighbours as well.
    boundary : {"clip", "wrap"}
        Cells at the rim have fewer neighbours, or those on the opposite side (a torus).
    self_loops : bool
        Whether a token attends to itself. The cell of a 1 x 1 grid always does.
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
    >>> patterns.grid2d(3, 3)[[4]].indices
    array([1, 3, 5, 7], dtype=int32)
    """
    height = as_count(height, "height", 1, MOST_TOKENS)
    width = as_count(width, "width", 1, MOST_TOKENS // height)
    checked_choice("boundary", boundary, BOUNDARIES)
    style = Style.of(weights, gamma, rng)
    n = height * width
    diagonals, self_loops = as_flag(diagonals, "diagonals"), as_flag(self_loops, "self_loops")
    check_entries(4 * 9 * n, n)
    steps = np.array([(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1) if r or c])
    if not diagonals:
        steps = steps[(steps == 0).any(axis=1)]
    down = np.arange(height).repeat(width)[:, None] + steps[:, 0]
    along = np.tile(np.arange(width), height)[:, None] + steps[:, 1]
    if boundary == "wrap":
        down, along = down % height, along % width
    columns = down * width + along
    # On a torus that is one cell wide or high, a step can lead back to the same cell.
    outside = (down < 0) | (down >= height) | (along < 0) | (along >= width)
    columns[outside | (columns == np.arange(n)[:, None])] = -1
    return from_rows(np.hstack([columns, diagonal_or_nothing(n, self_loops)]), n, style)


def tree(
    n: int,
    arity: int = 2,
    *,
    self_loops: bool = False,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return the pattern of a tree, in which tokens attend to their parent and children.

    Token 0 is the root. The children of token ``i`` are those of ``arity * i + 1`` to
    ``arity * i + arity`` that are less than `n`. Without self-loops a row or column has at
    most ``arity + 1`` nonzeros.

    Parameters
    ----------
    n : int
        The number of tokens.
    arity : int
        The number of children of a token, 1 or more; 1 gives a path.
    self_loops : bool
        Whether a token attends to itself. A single token always does.
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
    >>> patterns.tree(7)[[1]].indices
    array([0, 3, 4], dtype=int32)
    """
    n = checked_tokens(n)
    arity = min(as_count(arity, "arity", 1), n)
    style = Style.of(weights, gamma, rng)
    check_entries(6 * n, n)
    child = np.arange(1, n)
    parent = (child - 1) // arity
    alone = np.arange(n) if as_flag(self_loops, "self_loops") or n == 1 else np.empty(0, np.int64)
    rows = np.concatenate([child, parent, alone])
    return from_edges(rows, np.concatenate([parent, child, alone]), n, style)


def butterfly(
    n: int,
    *,
    stages: Iterable[int] | None = None,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return a butterfly pattern: tokens attend across the strides of a fast Fourier transform.

    Row ``i`` has the columns ``i`` and ``i XOR 2**s`` for every stage ``s``. This is the
    support of the sum of the butterfly factors (a "flat butterfly"), with ``1 + log2(n)``
    nonzeros per row and column. A single stage gives one butterfly factor, with two nonzeros
    per row. If `n` is not a power of two, columns beyond the end are left out.

    Parameters
    ----------
    n : int
        The number of tokens.
    stages : iterable of int, optional
        The stages s to use, each with ``2**s < n``; None uses all of them.
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
    >>> patterns.butterfly(8)[[5]].indices
    array([1, 4, 5, 7], dtype=int32)
    >>> patterns.butterfly(8, stages=[1])[[5]].indices
    array([5, 7], dtype=int32)
    """
    n = checked_tokens(n)
    total = (n - 1).bit_length()
    if stages is None:
        chosen = list(range(total))
    else:
        is_listed = isinstance(stages, Iterable) and not isinstance(stages, bytes)
        listed = list(stages) if is_listed else [stages]
        chosen = [as_count(stage, "stages", 0, total - 1) for stage in listed]
    return _flips(n, chosen, True, Style.of(weights, gamma, rng))


def hypercube(
    n: int,
    *,
    self_loops: bool = False,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return the pattern of a hypercube, whose corners attend along its edges.

    Row ``i`` has the columns ``i XOR 2**s`` for every bit ``s``: ``log2(n)`` nonzeros per row
    and column. If `n` is not a power of two, columns beyond the end are left out.

    Parameters
    ----------
    n : int
        The number of tokens.
    self_loops : bool
        Whether a token attends to itself, which gives the same support as `butterfly`. A
        single token always does.
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
    >>> patterns.hypercube(8)[[5]].indices
    array([1, 4, 7], dtype=int32)
    """
    n = checked_tokens(n)
    bits = range((n - 1).bit_length())
    return _flips(n, bits, as_flag(self_loops, "self_loops"), Style.of(weights, gamma, rng))


def _flips(n: int, bits: Sequence[int], self_loops: bool, style: Style) -> Pattern:
    """Return the pattern in which tokens attend across flips of some bits of their number."""
    check_entries(2 * n * (len(bits) + 1), n)
    flipped = np.arange(n)[:, None] ^ (np.int64(1) << np.array(bits, dtype=np.int64))
    return from_rows(np.hstack([flipped, diagonal_or_nothing(n, self_loops)]), n, style)
