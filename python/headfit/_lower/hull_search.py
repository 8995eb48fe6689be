"""The search for keys that are vertices of their hull and supports that need many edges of it.

`headfit._lower.hull` describes the bound that it looks for, and proves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from headfit import _core
from headfit._lower.hull import (
    BITS,
    Holders,
    Hull,
    dim_of_hull,
    holders_of,
    in_units,
    not_in_a_polygon,
)
from headfit._lower.problem import Ints, Problem, Proof, line, off_diagonal, stored

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
    offsets = np.searchsorted(p[bad], np.arange(degree.size + 1))
    covering = _core.covering_nodes(offsets, j[bad].astype(np.int32))
    return state.without(np.union1d(np.flatnonzero(degree == 0), covering))


def _bound_from(problem: Problem, state: _Supports, price: float) -> Proof:
    """Return the head size that the edges on some columns prove, and its witness."""
    degree = np.bincount(state.table.indices, minlength=state.columns.size)
    state = state.without(np.flatnonzero(degree == 0))
    supports = stored(state.table)
    kept = _core.columns_with_edges(*supports, _core.edge_shares(*supports), price)
    state = state.without(np.setdiff1d(np.arange(state.columns.size), kept))
    problem.check_time()
    table, shares = state.table, _core.edge_shares(*stored(state.table))
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
