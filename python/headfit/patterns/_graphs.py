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
    """Each token attends to its (out-)neighbours in a graph.

    Nonzero entries of the adjacency are edges; their values and the edge data of a graph
    are ignored, parallel edges count once. (To keep values as weights, normalise the rows
    yourself: any row-stochastic matrix is a target.) There is no boundary.

    Parameters
    ----------
    graph : networkx graph, or sparse or dense square matrix
        A networkx graph, whose nodes are taken in its own order and whose undirected
        edges go both ways; or an adjacency matrix, row ``i`` attending to column ``j``.
    self_loops : bool, optional
        True gives every token a self-loop, False removes all of them; unless said they
        stay as the graph has them.
    weights, gamma, rng
        Equal weights, or random ones with ratios up to `gamma`; see the module.

    Raises
    ------
    TargetError
        If a token is left without neighbours; ``self_loops=True`` prevents it.

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
    adjacency = graph
    if hasattr(graph, "adj") and hasattr(graph, "is_directed"):
        # Only here: nobody without a graph object needs it.
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
    # Summed first: entries at one place that cancel are no edge, as in the dense matrix.
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
