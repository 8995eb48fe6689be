"""The search for keys that are vertices of their hull and supports that need many edges of it.

`headfit._lower.hull` describes the bound that it looks for, and proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._lower.hull import (
    BITS,
    Holders,
    Hull,
    dim_of_hull,
    holders_of,
    in_units,
    not_in_a_polygon,
)
from headfit._lower.problem import Ints, Problem, Proof, line, off_diagonal

PAIRS_LIMIT = 3_000_000  # bound on the sum of squared row sizes, which are pairs of columns
EDGES_PER_VERTEX = (3, 2, 5 / 3, 1)  # what the bounds of `dim_of_edges` allow, for many vertices
UNIT = 2.0**-51  # A sum of m floats errs by less than this, times m, times the sum of their sizes
PAIRS_PER_SECOND = 1_000_000  # bound on the same sum per second of the time limit


@dataclass
class _Supports:
    """The supports of some rows, restricted to some columns, as a table of ones."""

    rows: Ints
    columns: Ints
    table: sp.csr_array

    def without(self, dropped: Ints) -> _Supports:
        keep = np.setdiff1d(np.arange(self.columns.size), dropped)
        return _Supports(self.rows, self.columns[keep], self.table[:, keep])


def _keep_hull_vertices(problem: Problem, state: _Supports) -> _Supports:
    """Remove columns until every one that is left is proved a vertex of the keys' hull."""
    logs = problem.logs[state.rows][:, state.columns]
    spread, gap = (number / 2**BITS for number in in_units(problem.tolerances))
    spread += 4 / 2**BITS  # for logarithms that are rounded there, and here are those of NumPy
    if gap == 0:  # the leak is so near 1 that nothing is forced
        return state.without(np.arange(state.columns.size))
    # Entry [j, p] is the sum of log A_ij over the rows i that attend to both p and j.
    shared, met = sp.csr_array(logs.T @ state.table), sp.csr_array(state.table.T @ state.table)
    degree = met.diagonal()
    met = off_diagonal(met)
    p, j = met.nonzero()
    gain = np.asarray(shared[j, p] - shared[p, j]).ravel()
    total = gain + spread * met.data - gap * (degree[p] - met.data)
    largest = float(np.abs(logs.data).max(initial=0.0)) + spread + gap
    bad = total >= -UNIT * largest * np.square(degree[p], dtype=np.float64)
    p, j = p[bad], j[bad]
    dropped = np.flatnonzero(degree == 0).tolist()
    alive = np.ones(state.columns.size, np.bool_)
    while p.size:
        problem.check_time()
        worst = int(np.argmax(np.bincount(p, minlength=alive.size)))
        dropped.append(worst)
        keep = (p != worst) & (j != worst)
        p, j = p[keep], j[keep]
    return state.without(np.array(dropped, np.intp)) if dropped else state


def _within(counts: Ints) -> Ints:
    """Return 0 ... counts[0] - 1, then 0 ... counts[1] - 1, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _pairs(table: sp.csr_array) -> tuple[Ints, NDArray[np.int64]]:
    """Return every pair of columns in a common support: its row, and the pair as one number."""
    table.sort_indices()
    sizes, entries = np.diff(table.indptr), np.arange(table.indices.size)
    later = np.repeat(table.indptr[1:], sizes) - 1 - entries
    first = np.repeat(entries, later)
    second = first + 1 + _within(later)
    codes = table.indices[first].astype(np.int64) * table.shape[1] + table.indices[second]
    return np.repeat(np.arange(sizes.size), sizes)[first], codes


def _shares(table: sp.csr_array) -> Ints:
    """Return the denominators of the rows' shares y_i = 1 / denominator; 0 for a share of 0.

    Either 1 / (the most rows with one of the row's pairs), or 1 for rows without common pairs.
    """
    sizes = np.diff(table.indptr)
    rows, codes = _pairs(table)
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    even = np.zeros(sizes.size, np.intp)
    np.maximum.at(even, rows, counts[inverse])
    bounds = np.searchsorted(rows, np.arange(sizes.size + 1))
    free = np.ones(counts.size, np.bool_)
    packed = np.zeros(sizes.size, np.intp)
    for at in np.lexsort((-sizes, even)).tolist():
        mine = inverse[bounds[at] : bounds[at + 1]]
        if mine.size and free[mine].all():
            free[mine] = False
            packed[at] = 1
    return max(even, packed, key=lambda parts: float(_as_floats(parts) @ np.maximum(sizes - 1, 0)))


def _as_floats(denominators: Ints) -> NDArray[np.float64]:
    return np.where(denominators > 0, 1.0 / np.maximum(denominators, 1), 0.0)


def _drop_costly_columns(
    problem: Problem, state: _Supports, shares: Ints, price: float
) -> _Supports:
    """Remove columns with few edges while that increases edges - price * columns."""
    y = _as_floats(shares)
    table, sizes = state.table, np.diff(state.table.indptr).astype(np.int64)
    by_column, count = sp.csc_array(table), state.columns.size
    worth = np.asarray(table.T @ np.where(sizes >= 2, y, 0.0)).ravel()
    alive = np.ones(count, np.bool_)
    best, best_at, removed = float(y @ np.maximum(sizes - 1, 0)) - price * count, 0, []
    step = max(1, count // 400)
    while alive.sum() > 4 + step and problem.seconds > 0:
        dropped = np.argpartition(np.where(alive, worth, np.inf), step - 1)[:step]
        alive[dropped] = False
        removed += dropped.tolist()
        before, sizes = sizes, sizes - np.asarray(by_column[:, dropped].sum(axis=1)).ravel()
        spent = np.flatnonzero((before >= 2) & (sizes < 2))
        worth -= np.asarray(table[spent].T @ y[spent]).ravel()
        value = float(y @ np.maximum(sizes - 1, 0)) - price * alive.sum()
        if value > best + 1e-9:
            best, best_at = value, len(removed)
    return state.without(np.array(removed[:best_at], np.intp))


def _bound_from(problem: Problem, state: _Supports, price: float) -> Proof:
    """Return the head size that the edges on some columns prove, and its witness."""
    degree = np.bincount(state.table.indices, minlength=state.columns.size)
    state = state.without(np.flatnonzero(degree == 0))
    shares = _shares(state.table)
    problem.check_time()
    state = _drop_costly_columns(problem, state, shares, price)
    table, shares = state.table, _shares(state.table)
    sizes = np.diff(table.indptr)
    # The hull has at least so many edges: the sum of y_i (s_i - 1), added up exactly.
    carried = np.bincount(shares, weights=np.maximum(sizes - 1, 0)).tolist()
    edges = sum((Fraction(int(x), part) for part, x in enumerate(carried) if part), Fraction(0))

    def holders() -> Holders:
        return holders_of((line(table, at).tolist() for at in range(sizes.size)), shares)

    dim = dim_of_hull(edges, state.columns.size, holders, problem.deadline)
    used = np.flatnonzero(sizes)
    parts = tuple(Fraction(1, part) if part else Fraction(0) for part in shares[used].tolist())
    witness = Hull(tuple(state.rows[used].tolist()), tuple(state.columns.tolist()), parts)
    graph = "planar graph" if dim == 4 else "cycle"
    rows = f"{used.size} supports connected in its edges need more than a {graph} has"
    return dim, f"{state.columns.size} keys are vertices of their hull, and {rows}", witness


def _bound_from_pairs(state: _Supports) -> Iterator[Proof]:
    """Yield the bound from supports with two columns, which a polygon may not have as edges."""
    table, vertices = state.table, state.columns.size
    starts = table.indptr[:-1][np.diff(table.indptr) == 2]
    pairs = table.indices[starts[:, np.newaxis] + np.arange(2)].tolist()
    outside = not_in_a_polygon({(a, b) for a, b in pairs}, vertices)
    if outside:
        # A closed cycle needs one more column, which it leaves out.
        more = np.setdiff1d(np.arange(vertices), outside)[:1]
        chosen = np.union1d(outside, more).astype(np.intp)
        rows = state.rows[np.flatnonzero(table[:, chosen].sum(axis=1))].tolist()
        columns = tuple(state.columns[chosen].tolist())
        edges = "supports of two of them are its edges, which no polygon has"
        reason = f"{len(columns)} keys are vertices of their hull, and {edges}"
        yield 3, reason, Hull(tuple(rows), columns, (Fraction(0),) * len(rows))


def _start_supports(problem: Problem) -> Iterator[_Supports]:
    """Yield the supports of all columns of each rectangle, and of those that few rows attend to."""
    most = min(PAIRS_LIMIT, int(PAIRS_PER_SECOND * problem.seconds))
    for rows, columns in problem.sight.rectangles(problem.check_time):
        table = sp.csr_array(problem.supports[rows][:, columns])
        degree = np.bincount(table.indices, minlength=columns.size)
        if not degree.any():
            continue
        light = np.flatnonzero(degree <= 4 * np.median(degree[degree > 0]))
        for keep in {columns.size: np.arange(columns.size), light.size: light}.values():
            part = sp.csr_array(table[:, keep])
            sizes = np.diff(part.indptr).astype(np.int64)
            order = np.argsort(sizes, kind="stable")
            few = np.sort(order[np.cumsum(sizes[order] ** 2) <= most])
            if keep.size >= 4 and few.size:
                yield _Supports(rows[few], columns[keep], sp.csr_array(part[few]))


def hull_proofs(problem: Problem) -> Iterator[Proof]:
    """Yield the bounds from the hull of the keys, which are at most 4."""
    best = 2
    for start in _start_supports(problem):
        problem.check_time()
        state = _keep_hull_vertices(problem, start)
        if best < 3:
            for proof in _bound_from_pairs(state):
                best = 3
                yield proof
        for price in EDGES_PER_VERTEX:
            problem.check_time()
            if best < (3 if price == 1 else 4) and state.columns.size >= 4:
                proof = _bound_from(problem, state, price)
                if proof[0] > best:
                    best = proof[0]
                    yield proof
        if best == 4:
            return
