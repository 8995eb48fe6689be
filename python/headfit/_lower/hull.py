"""Lower bounds from the convex hull of the keys: its edges are a planar graph for d = 3.

Let R be rows and T columns such that every row of R may attend to every column of T, S_ij the
logits, S_i the support of row i, and delta = log(1 + distortion).

1. Vertices. For p in T, add up the logits of those rows of R that attend to p. For another column
   j of T, a row with j in its support contributes S_ij - S_ip <= log(A_ij / A_ip) + delta, a row
   without j at most -log(1/leak). If the sum is negative for every j, then the query q = sum of
   these q_i has its unique maximum over T at p: k_p is a vertex of conv{k_j : j in T}. Columns
   for which this fails are removed from T.
2. Connected supports. Now all keys of T are vertices of their hull, and every S_i & T with i in R
   is the set of keys in an open halfspace. Both properties are strict, so they survive a small
   perturbation of the keys into general position in R^3 (a head of size d <= 3 is also one of
   size 3). The edges of the hull are a planar graph G on T (Steinitz). From any vertex in a
   halfspace q.x > c except the best one, some edge leads to a better vertex (as in the simplex
   method): so G[S_i & T] is connected.
3. Counting. With s_i = |S_i & T|, each G[S_i & T] contains a spanning tree of s_i - 1 edges. Give
   each row a share 0 <= y_i <= 1 such that for every pair of columns the shares of the rows with
   both columns in their support sum to at most 1. Let F be the union of one spanning tree for
   each row with a positive share; then |F| >= sum of y_i (s_i - 1). But F is planar: with V = |T|
   it has at most 3 V - 6 edges, and fewer where few of its cycles have length 3 or 4 (below). Every
   edge of a cycle of F lies in the support of a row with a positive share. A cycle is not counted
   if the same single row has all its edges, as a tree has no cycle. If F has more edges than that,
   d >= 4. In the plane G is a polygon with V edges, so that more than V edges exclude d = 2.
4. Pairs. Where S_i & T has two columns, these are an edge of G. In the plane all such edges are
   edges of one polygon on T: a column with three neighbours, or a closed cycle that leaves a column
   of T out, excludes d = 2.

Steps 2 to 4 need four columns or more in T. The sums of step 1 are checked in integers: logarithms
are multiplied by 2^40 and rounded so that every sum errs upwards.

Planar graphs: let a planar graph have V vertices, E >= 5 edges, t triangles and s cycles of length
four. Join its components by further edges, which are on no cycle; this keeps it planar. Now it is
connected and has E' >= E edges and, by Euler, E' - V + 2 faces. As E' >= 5, the boundary of a face
of length 3 or 4 is a cycle of that length, and no such cycle bounds two faces: the graph would be
this cycle. The lengths of all F faces add up to 2 E', at most t are triangles and s of length four:

- 3 F <= 2 E', which is E <= 3 V - 6;
- 4 F - t <= 2 E', which is E <= 2 V - 4 + t / 2;
- 5 F - 2 t - s <= 2 E', which is E <= (5 V - 10 + 2 t + s) / 3.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

import numpy as np
import scipy.sparse as sp

from headfit import _core
from headfit._base.tolerances import Tolerances
from headfit._lower.exact import log_below
from headfit._lower.problem import Problem, Proof, Visibility, Witness
from headfit._lower.supports import Ints, are_places, line, off_diagonal, stored
from headfit._target.target import Target, support_of

BITS = 40  # What is added up are multiples of 2**-BITS, as integers
PATHS_LIMIT = 2_000_000  # How many paths of two edges, or pairs of them, are looked at for cycles

Pair = tuple[int, int]
# For each pair of columns, the lower one first: the rows whose tree may have this edge.
Holders = dict[Pair, list[int]]


def in_units(tolerances: Tolerances) -> tuple[int, int]:
    """Return what the tolerances say about the sums of step 1, in multiples of 2**-BITS.

    The first number is at least delta and the errors of the two rounded logarithms that it is added
    to, the second at most log(1 / leak). Logarithms of floating-point numbers are at most 745,
    where a computed one has an error of at most 2^-43. So a rounded one errs by less than 1, and
    delta in units is less than its integral part plus 2.
    """
    spread = math.floor(math.log1p(tolerances.distortion) * 2**BITS) + 2 + 2
    return spread, math.floor(log_below(1 / Fraction(tolerances.leak)) * 2**BITS)


@dataclass(frozen=True, repr=False)
class Hull(Witness):
    """Columns T whose keys are vertices of their hull, and rows R that need many of its edges.

    `shares` has the share y_i of each row.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    shares: tuple[Fraction, ...]

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return the head size that this witness proves necessary; 0 if it is not valid."""
        n, sight = target.n, Visibility(target.mask, target.n)
        if not are_places(n, self.rows, self.columns) or not sight.all_see(self.rows, self.columns):
            return 0
        if len(self.shares) != len(self.rows) or any(not 0 <= y <= 1 for y in self.shares):
            return 0
        inside, (spread, gap) = set(self.columns), in_units(tolerances)
        parts, attend = [], defaultdict(list)
        for i in self.rows:
            weights = {j: w for j, w in support_of(target, i).items() if j in inside}
            part = {j: round(math.ldexp(math.log(w), BITS)) for j, w in weights.items()}
            parts.append(part)
            for p in part:
                attend[p].append(part)
        for p in self.columns:
            totals: dict[int, int] = defaultdict(int)
            for part in attend[p]:
                for j, x in part.items():
                    totals[j] += x - part[p] + spread + gap
            # Every row contributes -gap; `totals` adds it back for rows with j in their support.
            ceiling = gap * len(attend[p])
            if ceiling <= 0 or any(x >= ceiling for j, x in totals.items() if j != p):
                return 0
        holders = holders_of([list(part) for part in parts], self.shares)
        unit = math.lcm(*(y.denominator for y in self.shares))
        whole = [int(y * unit) for y in self.shares]
        if any(sum(whole[at] for at in rows) > unit for rows in holders.values()):
            return 0
        edges = sum(x * max(0, len(part) - 1) for x, part in zip(whole, parts, strict=True))
        forced = {(min(part), max(part)) for part in parts if len(part) == 2}
        plane = 3 if len(inside) >= 4 and not_in_a_polygon(forced, len(inside)) else 0
        return max(plane, dim_of_hull(Fraction(edges, unit), len(inside), lambda: holders))


def holders_of(supports: Iterable[list[int]], shares: Iterable[object]) -> Holders:
    """Return for each pair of columns the supports of positive share that hold both."""
    holders: Holders = defaultdict(list)
    for at, (support, share) in enumerate(zip(supports, shares, strict=True)):
        if share:
            for pair in combinations(sorted(support), 2):
                holders[pair].append(at)
    return holders


def dim_of_hull(
    edges: Fraction, vertices: int, holders: Callable[[], Holders], deadline: float = math.inf
) -> int:
    """Return the head size that the number of edges proves.

    Cycles are counted, by `holders`, where it depends on them and time is left.
    """
    dim = dim_of_edges(edges, vertices)
    if dim < 4 and dim_of_edges(edges, vertices, 0, 0) == 4 and time.monotonic() <= deadline:
        pairs = holders()
        triangles = count_triangles(pairs)
        dim = dim_of_edges(edges, vertices, triangles)
        may_be_four = dim < 4 and dim_of_edges(edges, vertices, triangles, 0) == 4
        if may_be_four and time.monotonic() <= deadline:
            dim = dim_of_edges(edges, vertices, triangles, count_squares(pairs))
    return dim


def dim_of_edges(
    edges: Fraction | float, vertices: int, triangles: int | None = None, squares: int | None = None
) -> int:
    """Return the size that edges prove, with bounds on cycles of length 3 and 4; 0 for none."""
    edges = math.ceil(edges)  # the number of edges is an integer
    if vertices < 4 or edges < 5:
        return 0
    most = Fraction(3 * vertices - 6)
    if triangles is not None:
        most = min(most, 2 * vertices - 4 + Fraction(triangles, 2))
    if triangles is not None and squares is not None:
        most = min(most, Fraction(5 * vertices - 10 + 2 * triangles + squares, 3))
    if edges > most:
        return 4
    return 3 if edges > vertices else 0


def _neighbours(pairs: Iterable[Pair]) -> dict[int, set[int]]:
    near: dict[int, set[int]] = defaultdict(set)
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    return near


def _in_one_tree(cycle: Iterable[list[int]]) -> bool:
    """Return whether all these edges can come only from the tree of one row, which has no cycle."""
    first, *others = cycle
    return len(first) == 1 and all(rows == first for rows in others)


def count_triangles(holders: Holders) -> int:
    """Count triples of columns whose three pairs have holders other than one common single row."""
    near = _neighbours(holders)
    return sum(
        not _in_one_tree((holders[a, b], holders[a, c], holders[b, c]))
        for a, b in holders
        for c in near[a] & near[b]
        if c > b
    )


def count_squares(holders: Holders) -> int | None:
    """Count cycles of four columns likewise; None if there are too many paths to look at."""
    near = _neighbours(holders)
    if _number_of_pairs(near.values()) > PATHS_LIMIT:
        return None
    between: dict[Pair, list[int]] = defaultdict(list)
    for b, others in near.items():
        for a, c in combinations(sorted(others), 2):
            between[a, c].append(b)
    if _number_of_pairs(between.values()) > PATHS_LIMIT:
        return None
    count = sum(
        not _in_one_tree(holders[min(x, y), max(x, y)] for x in ends for y in two)
        for ends, middles in between.items()
        for two in combinations(middles, 2)
    )
    return count // 2  # each was counted from both of its diagonals


def _number_of_pairs(groups: Iterable[Collection[int]]) -> int:
    return sum(len(group) * (len(group) - 1) // 2 for group in groups)


def not_in_a_polygon(pairs: Iterable[Pair], vertices: int) -> tuple[int, ...]:
    """Return vertices whose edges cannot all lie on one polygon through all vertices, if any.

    They are a vertex and three neighbours, or the shortest closed cycle that leaves vertices out.
    """
    near = _neighbours(pairs)
    for a, others in near.items():
        if len(others) > 2:
            return (a, *sorted(others)[:3])
    best: tuple[int, ...] = ()
    seen: set[int] = set()
    for start in near:
        part, ahead = [], [start]
        while ahead:
            a = ahead.pop()
            if a not in seen:
                seen.add(a)
                part.append(a)
                ahead += near[a]
        # Where all have two neighbours, what is connected is one cycle.
        closed = all(len(near[a]) == 2 for a in part)
        if part and closed and len(part) < vertices and not 0 < len(best) <= len(part):
            best = tuple(part)
    return best


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

    def only(self, kept: Ints) -> "_Supports":
        return _Supports(self.rows, self.columns[kept], self.table[:, kept])


def _keep_hull_vertices(problem: Problem, state: _Supports) -> _Supports:
    """Remove columns until every one that is left is proved a vertex of the keys' hull."""
    logs = problem.logs[state.rows][:, state.columns]
    spread, gap = (number / 2**BITS for number in in_units(problem.tolerances))
    spread += 4 / 2**BITS  # for logarithms that are rounded there, and here are those of NumPy
    if gap == 0:  # the leak is so near 1 that nothing is forced
        return state.only(np.arange(0))
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
    return state.only(np.setdiff1d(np.flatnonzero(degree), covering))


def _bound_from(problem: Problem, state: _Supports, price: float) -> Proof:
    """Return the head size that the edges on some columns prove, and its witness."""
    state = state.only(np.unique(state.table.indices).astype(np.intp))
    supports = stored(state.table)
    kept = _core.columns_with_edges(*supports, _core.edge_shares(*supports), price)
    state = state.only(kept.astype(np.intp))
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
        chosen = np.union1d(outside, np.setdiff1d(np.arange(vertices), outside)[:1]).astype(np.intp)
        rows = state.rows[np.flatnonzero(table[:, chosen].sum(axis=1))].tolist()
        columns = tuple(state.columns[chosen].tolist())
        edges = "supports of two of them are its edges, which no polygon has"
        reason = f"{len(columns)} keys are vertices of their hull, and {edges}"
        yield 3, reason, Hull(tuple(rows), columns, (Fraction(0),) * len(rows))


def _start_supports(problem: Problem) -> Iterator[_Supports]:
    """Yield the supports of all columns of each rectangle, and of those that few rows attend to."""
    most = int(min(PAIRS_LIMIT, PAIRS_PER_SECOND * problem.seconds))
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
