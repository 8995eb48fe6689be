"""Patterns from graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from headfit._base.arguments import as_flag
from headfit._base.arrays import as_array
from headfit._base.sparse import checked_csr
from headfit.errors import InputError, TargetError
from headfit.patterns._build import (
    Ints,
    Pattern,
    Seed,
    Style,
    Weights,
    from_edges,
)


def from_graph(
    graph: Any,
    *,
    self_loops: bool | None = None,
    weights: Weights | None = None,
    gamma: float = 1.0,
    rng: Seed = None,
) -> Pattern:
    """Return the pattern of a graph: each token attends to its (out-)neighbours.

    Nonzero entries of the adjacency matrix are edges. Their values and the edge data of a
    graph are ignored, and parallel edges count once. (To keep values as weights, normalise
    the rows yourself: any row-stochastic matrix is a target.)

    Parameters
    ----------
    graph : networkx graph, or sparse or dense square matrix
        A networkx graph, whose nodes are taken in their own order and whose undirected
        edges count in both directions; or an adjacency matrix, in which a nonzero in row
        ``i`` and column ``j`` means that token ``i`` attends to token ``j``.
    self_loops : bool, optional
        True gives every token a self-loop, False removes all of them, None keeps those of
        the graph.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Returns
    -------
    csr_array, shape (n, n)

    Raises
    ------
    InputError
        If the graph is neither a networkx graph nor a square matrix of numbers.
    TargetError
        If a token has no neighbour; ``self_loops=True`` prevents that.

    Examples
    --------
    >>> import numpy as np
    >>> from headfit import patterns
    >>> patterns.from_graph(np.array([[0, 2, 1], [1, 0, 0], [1, 0, 0]])).toarray()
    array([[0. , 0.5, 0.5],
           [1. , 0. , 0. ],
           [1. , 0. , 0. ]])
    """
    style = Style.of(weights, gamma, rng)
    if self_loops is not None:
        self_loops = as_flag(self_loops, "self_loops")
    rows, columns, n = _edges_of(graph)
    if self_loops is not None:
        proper = rows != columns
        loops = np.arange(n if self_loops else 0)
        rows = np.concatenate([rows[proper], loops])
        columns = np.concatenate([columns[proper], loops])
    counts = np.bincount(rows, minlength=n)
    if not counts.all():
        raise TargetError(
            f"graph must have a neighbour for every token; got none in row "
            f"{int(np.argmin(counts))} (self_loops=True gives each token itself)"
        )
    return from_edges(rows, columns, n, style)


def _edges_of(graph: Any) -> tuple[Ints, Ints, int]:
    """Return the rows and columns of a graph's edges, and its number of nodes."""
    adjacency = graph
    if hasattr(graph, "adj") and hasattr(graph, "is_directed"):
        # networkx is optional, and needed only for its own graphs.
        import networkx  # type: ignore[import-untyped,import-not-found,unused-ignore]

        if len(graph) == 0:
            raise InputError("graph must have at least one node; got none")
        adjacency = networkx.to_scipy_sparse_array(graph, dtype=np.int64, weight=None)
    if not sparse.issparse(adjacency):
        adjacency = as_array(adjacency, "graph")
    if adjacency.dtype.kind not in "biuf":
        raise InputError(
            f"graph must be a networkx graph or a matrix of numbers; got {type(graph).__name__}"
        )
    if adjacency.ndim != 2 or adjacency.shape[0] != adjacency.shape[1] or adjacency.shape[0] == 0:
        raise InputError(f"graph must be a square matrix; got shape {adjacency.shape}")
    # Duplicate entries are summed first: if they cancel there is no edge, as in a dense matrix.
    if not sparse.issparse(adjacency):
        adjacency = sparse.coo_array(adjacency, dtype=np.float64)
    matrix = checked_csr(adjacency, "graph", dtype=np.float64)
    bad = np.flatnonzero(np.isnan(matrix.data))
    edges = matrix.tocoo()
    if bad.size:
        raise InputError(f"graph must hold numbers; got NaN in row {edges.coords[0][bad[0]]}")
    kept = edges.data != 0
    rows, columns = (place[kept].astype(np.int64) for place in edges.coords)
    return rows, columns, matrix.shape[0]
