"""Bounds from the convex hull of the keys: d = 3 needs a planar graph, d = 2 a cycle.

Take rows R and columns T such that every row of R sees all of T.

1. Vertices. For p in T add the logits of the rows of R that attend to p. For another j of T, a
   row with j in its support adds S_ij - S_ip <= log(A_ij / A_ip) + delta, a row without it
   at most -log(1/leak). If the sum is negative for every j, then q = sum of q_i has its only
   maximum over T at p: k_p is a vertex of conv{k_j : j in T}. Columns that fail are left out.
2. Connected supports. Now all keys of T are vertices of their hull, and every S_i & T, i in R, is
   what an open halfspace contains; both are strict, so they survive a small move of the keys
   into general position in R^3 (a head of size d <= 3 is one of size 3). The edges of the hull
   are a planar graph G on T (Steinitz). From any vertex in a halfspace q.x > c other than the
   best, some edge leads to a better one (the simplex method): so G[S_i & T] is connected.
3. Counting. With s_i = |S_i & T|, each G[S_i & T] holds a spanning tree of s_i - 1 edges; let F
   be the union of one for each row with a positive share y_i. The shares of the rows that hold
   both ends of a pair sum to at most 1, for every pair, so |F| >= sum of y_i (s_i - 1). But F is
   planar: with V = |T| at most 3 V - 6 edges, and at most 2 V - 4 + t/2 where t bounds its
   triangles (Euler; a face that is no triangle has four sides or more; F has at least 4 edges, so
   a triangle bounds one face only). t counts the triples whose three pairs lie in rows with
   positive shares that need not all be one row: a tree has no cycle.
   If it fails, d >= 4. In the plane G is the polygon, with V edges: more exclude d = 2.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._lower._problem import (
    Candidate,
    Ints,
    OutOfTimeError,
    Problem,
    Sight,
    are_distinct,
    check_time,
    support_of,
)
from headfit._target.target import Target

MARGIN = 1e-6
PAIRS_LIMIT = 3_000_000  # of the squares of the row sizes
PAIRS_A_SECOND = 1_000_000  # and of what the time allows


def _limits(edges: Fraction | float, vertices: int, triangles: int | None) -> int:
    """Return the head size that so many edges on so many vertices of a hull prove."""
    if vertices < 4 or edges < 4:
        return 0
    if edges > 3 * vertices - 6:
        return 4
    if triangles is not None and edges > 2 * vertices - 4 + triangles / 2:
        return 4
    return 3 if edges > vertices else 0


@dataclass(frozen=True, repr=False)
class Hull:
    """Columns that are vertices of the hull of their keys, and rows that need many edges of it.

    Attributes
    ----------
    rows, columns : tuple of int
    shares : tuple of Fraction
        The y_i of the rows.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    shares: tuple[Fraction, ...]

    def __repr__(self) -> str:
        return f"Hull({len(self.rows)} rows, {len(self.columns)} columns)"

    def proves(self, target: Target, leak: float, distortion: float) -> int:
        """Return the head size that this proves necessary; 0 if it is not what it says."""
        n, sight = target.n, Sight(target.mask, target.n)
        if not (are_distinct(self.rows, n) and are_distinct(self.columns, n) and 0 < leak < 1):
            return 0
        if len(self.shares) != len(self.rows) or any(not 0 <= y <= 1 for y in self.shares):
            return 0
        inside, delta, gap = set(self.columns), math.log1p(distortion), -math.log(leak)
        where = np.array(self.columns, np.intp)
        parts, attend = [], defaultdict(list)
        for i in self.rows:
            if not sight.sees(i, where):
                return 0
            part = {j: math.log(w) for j, w in support_of(target, i).items() if j in inside}
            parts.append(part)
            for p in part:
                attend[p].append(part)
        for p in self.columns:
            totals: dict[int, float] = defaultdict(float)
            for part in attend[p]:
                for j, x in part.items():
                    totals[j] += x - part[p] + delta + gap  # and -gap for every row, below
            ceiling = gap * len(attend[p]) - MARGIN / 2
            if ceiling <= 0 or any(x >= ceiling for j, x in totals.items() if j != p):
                return 0
        unit = math.lcm(*(y.denominator for y in self.shares))
        used: dict[tuple[int, int], int] = defaultdict(int)
        holders: dict[tuple[int, int], list[int]] = defaultdict(list)
        edges = Fraction(0)
        for at, (part, y) in enumerate(zip(parts, self.shares, strict=True)):
            if y > 0:
                edges += y * max(0, len(part) - 1)
                whole = int(y * unit)
                for pair in combinations(sorted(part), 2):
                    used[pair] += whole
                    holders[pair].append(at)
        if any(y > unit for y in used.values()):
            return 0
        dim = _limits(edges, len(inside), None)
        if dim == 4 or edges <= 2 * len(inside) - 4:
            return dim
        return _limits(edges, len(inside), _triangles(holders))


def _triangles(holders: dict[tuple[int, int], list[int]]) -> int:
    """Count triples whose pairs lie in rows that need not all be one."""
    near: dict[int, set[int]] = defaultdict(set)
    for a, b in holders:
        near[a].add(b)
    count = 0
    for (a, b), rows in holders.items():
        for c in near[a] & near[b]:
            other, last = holders[a, c], holders[b, c]
            if len(rows) == len(other) == len(last) == 1 and rows == other == last:
                continue
            count += 1
    return count


@dataclass
class _State:
    """Supports on some rows and columns."""

    rows: Ints
    columns: Ints
    table: sp.csr_array

    def without(self, gone: Ints) -> _State:
        keep = np.setdiff1d(np.arange(self.columns.size), gone)
        return _State(self.rows, self.columns[keep], self.table[:, keep])


def _exposed(problem: Problem, state: _State, deadline: float = math.inf) -> _State:
    """Leave out columns until each is proved a vertex of the hull of the rest."""
    logs = problem.logs[state.rows][:, state.columns]
    with_j: Any = sp.csr_array(logs.T @ state.table).T  # [p, j]: sum of log A_ij over both
    met: Any = sp.csr_array(state.table.T @ state.table)
    degree = met.diagonal()
    met.setdiag(0)
    met.eliminate_zeros()
    coo = sp.coo_array(met)
    p, j = coo.row, coo.col
    spread = sp.csr_array(with_j)
    gain = np.asarray(spread[p, j] - spread[j, p]).ravel()
    value = gain + problem.delta * coo.data - problem.gap * (degree[p] - coo.data)
    bad = value >= -MARGIN
    p, j = p[bad], j[bad]
    gone = np.flatnonzero(degree == 0).tolist()
    alive = np.ones(state.columns.size, np.bool_)
    while p.size:
        check_time(deadline)
        worst = int(np.argmax(np.bincount(p, minlength=alive.size)))
        gone.append(worst)
        keep = (p != worst) & (j != worst)
        p, j = p[keep], j[keep]
    return state.without(np.array(gone, np.intp)) if gone else state


def _pairs(table: sp.csr_array) -> tuple[Ints, NDArray[np.int64]]:
    """Return the row of every pair of columns that a row holds, and the pair as one number."""
    rows, codes = [], []
    sizes, starts = np.diff(table.indptr), table.indptr[:-1]
    table.sort_indices()
    for size in np.unique(sizes[sizes >= 2]).tolist():
        some = np.flatnonzero(sizes == size)
        block = table.indices[starts[some][:, None] + np.arange(size)].astype(np.int64)
        a, b = np.triu_indices(size, 1)
        rows.append(np.repeat(some, a.size))
        codes.append((block[:, a] * table.shape[1] + block[:, b]).ravel())
    if not rows:
        return np.empty(0, np.intp), np.empty(0, np.int64)
    return np.concatenate(rows), np.concatenate(codes)


def _shares(table: sp.csr_array) -> Ints:
    """Return shares of the rows, 1 / what stands there and 0 for 0.

    The better of 1 / (most rows on a pair) and a greedy packing.
    """
    sizes = np.diff(table.indptr)
    rows, codes = _pairs(table)
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    even = np.zeros(sizes.size, np.intp)
    np.maximum.at(even, rows, counts[inverse])
    by_row = np.argsort(rows, kind="stable")
    pairs, bounds = inverse[by_row], np.concatenate([[0], np.cumsum(np.bincount(
        rows, minlength=sizes.size))])  # fmt: skip
    free = np.ones(counts.size, np.bool_)
    packed = np.zeros(sizes.size, np.intp)
    for at in np.lexsort((-sizes, even)).tolist():
        mine = pairs[bounds[at] : bounds[at + 1]]
        if mine.size and free[mine].all():
            free[mine] = False
            packed[at] = 1
    carried = np.maximum(sizes - 1, 0)
    totals = [float(_floats(parts) @ carried) for parts in (even, packed)]
    return even if totals[0] >= totals[1] else packed


def _floats(parts: Ints) -> NDArray[np.float64]:
    """Return shares as floating-point numbers."""
    return np.where(parts > 0, 1.0 / np.maximum(parts, 1), 0.0)


def _edges(parts: Ints, sizes: Ints) -> Fraction:
    """Return how many edges of the hull rows of these shares and sizes need."""
    total = Fraction(0)
    for part in np.unique(parts[parts > 0]).tolist():
        total += Fraction(int(np.maximum(sizes[parts == part] - 1, 0).sum()), part)
    return total


def _slices(indptr: Any, indices: Any, lines: Ints) -> tuple[Ints, Ints]:
    """Return the entries of some lines of a sparse matrix, and which line each is from."""
    counts = indptr[lines + 1] - indptr[lines]
    line = np.repeat(np.arange(lines.size), counts)
    within = np.arange(line.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return indices[indptr[lines][line] + within].astype(np.intp), line


def _peel(state: _State, shares: Ints, price: int, deadline: float) -> _State:
    """Leave out columns that carry few edges, to make edges - price * columns the largest."""
    y = _floats(shares)
    table, sizes = state.table, np.diff(state.table.indptr).astype(np.int64)
    by_column: Any = sp.csc_array(table)
    count = state.columns.size
    worth = np.asarray(table.T @ np.where(sizes >= 2, y, 0.0)).ravel()
    total = float((y * np.maximum(sizes - 1, 0)).sum())
    alive = np.ones(count, np.bool_)
    best, best_at, removed = total - price * count, 0, []
    step = max(1, count // 400)
    while alive.sum() > 4 + step and time.monotonic() <= deadline:
        ranked = np.where(alive, worth, np.inf)
        gone = np.argpartition(ranked, step - 1)[:step]
        alive[gone] = False
        removed += gone.tolist()
        rows, less = np.unique(
            _slices(by_column.indptr, by_column.indices, gone)[0], return_counts=True
        )
        before, after = sizes[rows], sizes[rows] - less
        sizes[rows] = after
        total -= float(y[rows] @ (np.maximum(before - 1, 0) - np.maximum(after - 1, 0)))
        spent = rows[(before >= 2) & (after < 2)]
        columns, line = _slices(table.indptr, table.indices, spent)
        np.subtract.at(worth, columns, y[spent][line])
        value = total - price * alive.sum()
        if value > best + 1e-9:
            best, best_at = value, len(removed)
    return state.without(np.array(removed[:best_at], np.intp))


def _holders(state: _State, shares: Ints) -> dict[tuple[int, int], list[int]]:
    holders: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, part in enumerate(np.split(state.table.indices, state.table.indptr[1:-1])):
        if shares[at] > 0:
            for pair in combinations(np.sort(part).tolist(), 2):
                holders[pair].append(at)
    return holders


def _judge(state: _State, price: int, deadline: float) -> tuple[int, Hull]:
    state = state.without(np.flatnonzero(np.diff(sp.csc_array(state.table).indptr) == 0))
    shares = _shares(state.table)
    check_time(deadline)
    state = _peel(state, shares, price, deadline)
    shares = _shares(state.table)
    sizes = np.diff(state.table.indptr)
    edges = _edges(shares, sizes)
    vertices = state.columns.size
    dim = _limits(edges, vertices, None)
    if dim < 4 and edges > 2 * vertices - 4:
        check_time(deadline)
        dim = _limits(edges, vertices, _triangles(_holders(state, shares)))
    used = np.flatnonzero(sizes)
    rows = tuple(state.rows[used].tolist())
    parts = tuple(Fraction(1, part) if part else Fraction(0) for part in shares[used].tolist())
    return dim, Hull(rows, tuple(state.columns.tolist()), parts)


def _starts(problem: Problem, deadline: float) -> Iterator[_State]:
    """Yield the supports to look at: per rectangle of the mask, all columns and the light ones."""
    most = min(PAIRS_LIMIT, int(PAIRS_A_SECOND * (deadline - time.monotonic())))
    for rows, columns in problem.sight.rectangles(deadline):
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
                yield _State(rows[few], columns[keep], sp.csr_array(part[few]))


def hull(problem: Problem) -> Candidate:
    """Return the bound of at most 4 from the hull of the keys."""
    name, deadline, best = "hull of the keys", problem.share(0.5), (0, Hull((), (), ()))
    ended = ""
    try:
        for start in _starts(problem, deadline):
            check_time(deadline)
            state = _exposed(problem, start, deadline)
            for price in (3, 2, 1):
                check_time(deadline)
                if best[0] < (3 if price == 1 else 4) and state.columns.size >= 4:
                    best = max(best, _judge(state, price, deadline), key=lambda item: item[0])
            if best[0] == 4:
                break
    except OutOfTimeError:
        ended = " before the time ended"
    dim, witness = best
    if dim < 3:
        status = "not finished" if ended else "proved"
        return Candidate(name, None if ended else 1, status, f"nothing found{ended}")
    graph = "planar graph" if dim == 4 else "cycle"
    reason = (
        f"{len(witness.columns)} keys are vertices of their hull, and {len(witness.rows)} supports "
        f"connected in its edges need more than a {graph} has"
    )
    return Candidate(name, dim, "proved", reason, witness)
