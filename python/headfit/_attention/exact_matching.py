"""The heaviest b-matching of a bipartite graph, by linear programming with column generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit.errors import HeadfitError

TOLERANCE = 1e-9
"""Entries with at most this much reduced weight, in shares of a row, are not added."""


def heaviest_matching(
    weights: NDArray[np.float64],
    start: sp.csr_array,
    per_row: int,
    per_column: int,
    exempt: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return the entries of a pattern of greatest weight with few entries per row and column.

    Parameters
    ----------
    weights : ndarray, shape (n, m)
        Nonnegative weights; entries with weight zero are never chosen.
    start : csr_array, shape (n, m)
        A pattern whose entries are in the linear programme from the start.
    per_row, per_column : int
        The most entries of a row and of a column.
    exempt : ndarray of int
        Columns with any number of entries.

    Returns
    -------
    ndarray of bool, shape (n, m)

    Raises
    ------
    HeadfitError
        If the solver fails.

    Notes
    -----
    Column generation: the linear programme starts with a few entries of each row as variables.
    Its dual solution gives rows and columns prices. An entry whose weight exceeds the sum of the
    two prices may improve the optimum, and is added. When there is no such entry, the optimum is
    that of the programme with all entries.
    """
    n, m = weights.shape
    included = np.zeros((n, m), dtype=np.bool_)
    included[start.nonzero()] = True
    heavy = min(m, 2 * per_row)
    heaviest = np.argpartition(-weights, heavy - 1, axis=1)[:, :heavy]
    np.put_along_axis(included, heaviest, True, axis=1)
    included &= weights > 0
    limits = np.concatenate((np.full(n, per_row), np.full(m, per_column))).astype(np.float64)
    limits[n + exempt] = n
    while True:
        rows, columns = np.nonzero(included)
        kept, prices = _solve(weights[rows, columns], rows, n + columns, limits)
        gain = weights - prices[:n, np.newaxis] - prices[n:]
        missing = (gain > TOLERANCE) & ~included & (weights > 0)
        if not missing.any():
            chosen = np.zeros((n, m), dtype=np.bool_)
            chosen[rows[kept], columns[kept]] = True
            return chosen
        included |= missing


def _solve(
    weights: NDArray[np.float64],
    rows: NDArray[Any],
    columns: NDArray[Any],
    limits: NDArray[np.float64],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which entries an optimal vertex takes, and the prices of rows and columns."""
    import scipy.optimize

    linprog: Any = scipy.optimize.linprog  # its type stubs do not allow sparse matrices

    entries = np.arange(weights.size)
    incidence = sp.csr_array(
        (
            np.ones(2 * weights.size),
            (np.concatenate((rows, columns)), np.concatenate((entries, entries))),
        ),
        shape=(limits.size, weights.size),
    )
    # The simplex method returns a vertex, and the vertices of this polytope are integral.
    solution = linprog(
        -weights,
        A_ub=incidence,
        b_ub=limits,
        bounds=(0, 1),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    if solution.status != 0:
        raise HeadfitError(f"the linear programme of the matching failed: {solution.message}")
    return solution.x > 0.5, -np.asarray(solution.ineqlin.marginals, dtype=np.float64)
