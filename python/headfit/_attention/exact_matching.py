"""The heaviest b-matching of a bipartite graph, by linear programming with column generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit.errors import HeadfitError, InputError

TOLERANCE = 1e-9
"""Entries with at most this much reduced weight, in shares of a row, are not added."""


def exact_pattern(
    shares: NDArray[np.float64],
    start: sp.csr_array,
    limits: tuple[int, int],
    exempt: NDArray[Any],
    keep_max: bool,
) -> tuple[sp.csr_array, NDArray[np.float64]]:
    """Return the pattern of greatest weight with few entries per row and column, and what it drops.

    `shares` are nonnegative, with rows of sum 1 or 0; those of weight zero are never chosen. The
    entries of the pattern `start` are in the linear programme from the start. `limits` are the most
    entries of a row and of a column, but for `exempt` columns. A row that could keep no entry is an
    InputError unless `keep_max` lets it keep its largest one. The matrix has rows renormalised to
    sum 1; what it drops is the mass that each row loses.
    """
    chosen = _heaviest(shares, start, limits, exempt)
    present = shares.any(axis=1)
    empty = np.flatnonzero(present & ~chosen.any(axis=1))
    if empty.size and not keep_max:
        raise InputError(
            f"row {empty[0]} keeps nothing: at most {limits[1]} entries a column leave it "
            'no room; exempt columns, raise per_column, or use on_empty="keep-max"'
        )
    chosen[empty, shares[empty].argmax(axis=1)] = True
    kept = np.where(chosen, shares, 0.0)
    sums = kept.sum(axis=1)
    matrix = sp.csr_array(kept / np.where(present, sums, 1.0)[:, np.newaxis])
    return matrix, np.where(present, np.maximum(0.0, 1 - sums), 0.0)


def _heaviest(
    weights: NDArray[np.float64], start: sp.csr_array, limits: tuple[int, int], exempt: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return which entries the pattern of greatest weight has.

    Column generation: the linear programme starts with a few entries of each row as variables.
    Its dual solution gives rows and columns prices. An entry whose weight exceeds the sum of the
    two prices may improve the optimum, and is added. When there is no such entry, the optimum is
    that of the programme with all entries.
    """
    n, m = weights.shape
    included = np.zeros((n, m), dtype=np.bool_)
    included[start.nonzero()] = True
    heavy = min(m, 2 * limits[0])
    heaviest = np.argpartition(-weights, heavy - 1, axis=1)[:, :heavy]
    np.put_along_axis(included, heaviest, True, axis=1)
    included &= weights > 0
    most = np.repeat(np.array(limits, dtype=np.float64), (n, m))
    most[n + exempt] = n
    while True:
        rows, columns = np.nonzero(included)
        kept, prices = _solve(weights[rows, columns], rows, n + columns, most)
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
