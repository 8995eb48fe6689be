"""The heaviest b-matching of a bipartite graph, as a linear programme grown column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit.errors import HeadfitError

TOLERANCE = 1e-9
"""By how much a price may be off, in shares of a row."""


def heaviest_matching(
    weights: NDArray[np.float64],
    start: sp.csr_array,
    per_row: int,
    per_column: int,
    free: NDArray[Any],
) -> NDArray[np.bool_]:
    """Return which entries a pattern of the most weight keeps.

    Parameters
    ----------
    weights : ndarray, shape (n, m)
        Nonnegative; zeros are no entries.
    start : csr_array, shape (n, m)
        Some pattern: where to begin.
    per_row, per_column : int
        The most entries of a row and a column.
    free : ndarray of int
        Columns without a bound.

    Returns
    -------
    ndarray of bool, shape (n, m)

    Notes
    -----
    The programme knows a few entries of each row at first. Its dual solution prices all others:
    an entry whose weight exceeds the prices of its row and column may improve the optimum and
    joins; when there is none the optimum is that of all entries.
    """
    n, m = weights.shape
    known = np.zeros((n, m), dtype=np.bool_)
    known[start.nonzero()] = True
    heavy = min(m, 2 * per_row)
    np.put_along_axis(known, np.argpartition(-weights, heavy - 1, axis=1)[:, :heavy], True, axis=1)
    known &= weights > 0
    limits = np.concatenate((np.full(n, per_row), np.full(m, per_column))).astype(np.float64)
    limits[n + free] = n
    while True:
        rows, columns = np.nonzero(known)
        kept, prices = _solve(weights[rows, columns], rows, n + columns, limits)
        gain = weights - prices[:n, np.newaxis] - prices[n:]
        missing = (gain > TOLERANCE) & ~known & (weights > 0)
        if not missing.any():
            chosen = np.zeros((n, m), dtype=np.bool_)
            chosen[rows[kept], columns[kept]] = True
            return chosen
        known |= missing


def _solve(
    weights: NDArray[np.float64],
    rows: NDArray[Any],
    columns: NDArray[Any],
    limits: NDArray[np.float64],
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Return which entries an optimal vertex takes, and the prices of rows and columns."""
    import scipy.optimize

    linprog: Any = scipy.optimize.linprog  # its stubs know no sparse matrices

    entries = np.arange(weights.size)
    incidence = sp.csr_array(
        (
            np.ones(2 * weights.size),
            (np.concatenate((rows, columns)), np.concatenate((entries, entries))),
        ),
        shape=(limits.size, weights.size),
    )
    # The simplex method ends in a vertex, and vertices are integral.
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
