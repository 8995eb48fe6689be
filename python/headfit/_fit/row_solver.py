"""The shortest query of each row for keys that stay as they are, or a proof that there is none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit import _core
from headfit._base.arrays import FloatArray
from headfit._target.target import Target

Solved = tuple[NDArray[np.float64], list[str], NDArray[np.float64], list[Any], int]
"""Queries, the status and the norm of each row; proofs; scans of the logits."""


@dataclass(frozen=True, eq=False)
class RowSolver:
    """A target and keys in float64, and what queries of these keys must keep to."""

    target: Target
    keys: NDArray[np.float64]
    threads: int
    equality: bool = False
    max_norm: float = math.inf

    def queries(self, rows: NDArray[np.int64], leak: float, distortion: float) -> Solved:
        """Return the shortest queries of some rows in ascending order, or proofs."""
        q, status, norms, proofs, scans = _core.max_margin_queries(
            only_rows(self.target, rows),
            self.keys,
            _core.Tolerances(leak, distortion),
            _core.MaxMarginOptions(equality=self.equality, max_norm=self.max_norm),
            self.threads,
        )
        return q[rows], [status[i] for i in rows], norms[rows], proofs, scans

    def face_reports(self, rows: NDArray[np.int64]) -> list[Any]:
        """Say for some rows whether their keys are a face of the polytope of all keys."""
        return _core.face_reports(self.target.core, self.keys, rows, self.threads)


def only_rows(target: Target, rows: NDArray[np.int64]) -> _core.Target:
    """Return the target with all other rows empty, so that nothing is required of them."""
    if rows.size == target.n:
        return target.core
    keep = np.zeros(target.n, dtype=np.bool_)
    keep[rows] = True
    offsets, columns, weights = target.csr_arrays
    counts = np.diff(offsets)
    entries = np.repeat(keep, counts)
    left = np.concatenate(([0], np.cumsum(np.where(keep, counts, 0))))
    return _core.Target(left.astype(np.int64), columns[entries], weights[entries], target.core.mask)


def not_optimal(status: list[str]) -> NDArray[np.bool_]:
    """Return which rows have no query."""
    return np.array([s != "optimal" for s in status], dtype=np.bool_)


def polish_rows(
    target: Target,
    q: FloatArray,
    k: FloatArray,
    rows: NDArray[np.intp],
    tolerances: tuple[float, float],
    max_query: float,
    threads: int,
) -> NDArray[np.intp]:
    """Solve for exact queries of some rows in place; return the rows without a solution."""
    solver = RowSolver(target, k.astype(np.float64), threads, max_norm=max_query)
    exact, status, *_ = solver.queries(rows, *tolerances)
    failed = not_optimal(status)
    q[rows[~failed]] = exact[~failed]
    left: NDArray[np.intp] = rows[failed]
    return left
