"""Patterns of graphs: the caller's, grids, trees, hypercubes, and random regular ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import numpy as np

from headfit import _core
from headfit._base.arguments import as_count, as_flag, as_generator, seed_from
from headfit._base.sparse import as_csr
from headfit.errors import InputError, TargetError
from headfit.patterns._build import check_entries, from_edges, from_rows, pattern, token_numbers
from headfit.patterns._types import MOST_TOKENS, Boundary, Pattern, Weighting


@pattern
def from_graph(
    graph: Any, *, self_loops: bool | None = None, **style: Unpack[Weighting]
) -> Pattern:
    """Return the pattern of a graph: each token attends to its (out-)neighbours.

    Values and edge data are ignored, and parallel edges count once. A token without a neighbour
    is a `TargetError`; ``self_loops=True`` prevents that.

    Parameters
    ----------
    graph : networkx graph, or sparse or dense square matrix
        A networkx graph, whose nodes are taken in their own order and whose undirected
        edges count in both directions; or an adjacency matrix, in which a nonzero in row
        ``i`` and column ``j`` means that token ``i`` attends to token ``j``.
    self_loops : bool, optional
        True gives every token a self-loop, False removes all of them, None keeps those of
        the graph.

    Examples
    --------
    >>> import numpy as np
    >>> from headfit import patterns
    >>> patterns.from_graph(np.array([[0, 2, 1], [1, 0, 0], [1, 0, 0]])).toarray()
    array([[0. , 0.5, 0.5],
           [1. , 0. , 0. ],
           [1. , 0. , 0. ]])
    """
    if hasattr(graph, "adj") and hasattr(graph, "is_directed"):
        # networkx is optional, and needed only for its own graphs.
        import networkx  # type: ignore[import-untyped,import-not-found,unused-ignore]

        if len(graph) == 0:
            raise InputError("graph must have at least one node; got none")
        graph = networkx.to_scipy_sparse_array(graph, dtype=np.int64, weight=None)
    # Duplicate entries are summed first: if they cancel there is no edge, as in a dense matrix.
    matrix = as_csr(graph, "graph")
    n, (rows, columns) = matrix.shape[0], matrix.tocoo().coords
    nan = np.isnan(matrix.data)
    if nan.any():
        raise InputError(f"graph must hold numbers; got NaN in row {rows[nan][0]}")
    if self_loops is not None:
        others = rows != columns
        loops = np.arange(n if as_flag(self_loops, "self_loops") else 0)
        rows, columns = (np.concatenate([x[others], loops]) for x in (rows, columns))
    counts = np.bincount(rows, minlength=n)
    if not counts.all():
        raise TargetError(
            f"graph must have a neighbour for every token; got none in row "
            f"{int(np.argmin(counts))} (self_loops=True gives each token itself)"
        )
    return from_edges(rows, columns, n)


@pattern
def grid2d(
    height: int,
    width: int,
    *,
    diagonals: bool = False,
    boundary: Boundary = "clip",
    self_loops: bool = False,
    **style: Unpack[Weighting],
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

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.grid2d(3, 3)[[4]].indices
    array([1, 3, 5, 7], dtype=int32)
    """
    height = as_count(height, "height", 1, MOST_TOKENS)
    width = as_count(width, "width", 1, MOST_TOKENS // height)
    n = height * width
    check_entries(9 * n, n)
    moves = [m for m in np.ndindex(3, 3) if as_flag(diagonals, "diagonals") or 1 in m]
    own = token_numbers(n)[:, np.newaxis]
    down, along = np.array(moves, dtype=own.dtype).T - 1
    row, column = own // width + down, own % width + along
    if boundary == "wrap":
        row, column = row % height, column % width
    columns = row * width + column
    columns[(row < 0) | (row >= height) | (column < 0) | (column >= width)] = -1
    if not as_flag(self_loops, "self_loops"):
        columns[columns == own] = -1
    return from_rows(columns)


@pattern
def tree(
    n: int, arity: int = 2, *, self_loops: bool = False, **style: Unpack[Weighting]
) -> Pattern:
    """Return the pattern of a tree, in which tokens attend to their parent and children.

    Token 0 is the root. The children of token ``i`` are those of ``arity * i + 1`` to
    ``arity * i + arity`` that are less than `n`.

    Parameters
    ----------
    arity : int
        The number of children of a token, 1 or more; 1 gives a path.
    self_loops : bool
        Whether a token attends to itself. A single token always does.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.tree(7)[[1]].indices
    array([0, 3, 4], dtype=int32)
    """
    arity = min(as_count(arity, "arity", 1), n)
    check_entries(6 * n, n)
    child = np.arange(1, n)
    parent = (child - 1) // arity
    own = np.arange(n if as_flag(self_loops, "self_loops") else 0)
    rows, columns = np.concatenate([child, parent, own]), np.concatenate([parent, child, own])
    return from_edges(rows, columns, n)


@pattern
def butterfly(
    n: int, *, stages: Iterable[int] | None = None, **style: Unpack[Weighting]
) -> Pattern:
    """Return a butterfly pattern: tokens attend across the strides of a fast Fourier transform.

    Row ``i`` has the columns ``i`` and ``i XOR 2**s`` for every stage ``s``: the support of the
    sum of the butterfly factors (a "flat butterfly"), of which a single stage gives one. If `n`
    is not a power of two, columns beyond the end are left out.

    Parameters
    ----------
    stages : iterable of int, optional
        The stages s to use, each with ``2**s < n``; None uses all of them.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.butterfly(8)[[5]].indices
    array([1, 4, 5, 7], dtype=int32)
    >>> patterns.butterfly(8, stages=[1])[[5]].indices
    array([5, 7], dtype=int32)
    """
    total = (n - 1).bit_length()
    if stages is None:
        stages = range(total)
    listed = stages if isinstance(stages, Iterable) and not isinstance(stages, bytes) else [stages]
    bits = [as_count(stage, "stages", 0, total - 1) for stage in listed]
    return _flipped(n, [0, *(1 << bit for bit in bits)])


@pattern
def hypercube(n: int, *, self_loops: bool = False, **style: Unpack[Weighting]) -> Pattern:
    """Return the pattern of a hypercube, whose corners attend along its edges.

    Row ``i`` has the columns ``i XOR 2**s`` for every bit ``s``: ``log2(n)`` nonzeros per row
    and column. If `n` is not a power of two, columns beyond the end are left out.

    Parameters
    ----------
    self_loops : bool
        Whether a token attends to itself, which gives the same support as `butterfly`. A
        single token always does.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.hypercube(8)[[5]].indices
    array([1, 4, 7], dtype=int32)
    """
    flips = [1 << bit for bit in range((n - 1).bit_length())]
    return _flipped(n, [0, *flips] if as_flag(self_loops, "self_loops") or n == 1 else flips)


def _flipped(n: int, flips: list[int]) -> Pattern:
    check_entries(n * len(flips), n)
    own = token_numbers(n)
    return from_rows(own[:, np.newaxis] ^ np.array(flips, dtype=own.dtype))


@pattern
def random_regular(n: int, k: int, **style: Unpack[Weighting]) -> Pattern:
    """Return a random pattern with exactly `k` nonzeros in every row and in every column.

    It is made of `k` random permutations; entries that occur twice are removed by random
    exchanges. (For ``k > n/2`` the complement is drawn in this way.) The distribution is close
    to uniform, but not exactly. Self-loops occur by chance, `k` of them on average.

    Parameters
    ----------
    k : int
        The number of nonzeros of each row and each column, 1 to `n`.

    Examples
    --------
    >>> from headfit import patterns
    >>> A = patterns.random_regular(1000, k=4, gamma=2.0)
    >>> set(A.count_nonzero(axis=0).tolist()), set(A.count_nonzero(axis=1).tolist())
    ({4}, {4})
    """
    k = as_count(k, "k", 1, n)
    check_entries(n * k, n)
    return from_rows(_core.random_regular(n, k, seed_from(style["rng"])))


@pattern
def permutation(n: int, **style: Unpack[Weighting]) -> Pattern:
    """Return a uniformly random permutation matrix.

    Each token attends to one token, and each token is attended to by one. Self-loops (fixed
    points) occur by chance, one on average.

    Examples
    --------
    >>> from headfit import patterns
    >>> patterns.permutation(4).toarray().sum(axis=0)
    array([1., 1., 1., 1.])
    """
    check_entries(n, n)
    return from_rows(as_generator(style["rng"]).permutation(n).astype(np.int32)[:, np.newaxis])
