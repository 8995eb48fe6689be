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
   it has at most 3 V - 6 edges, and fewer where few of its cycles have length 3 or 4
   (`headfit._lower._planar`). Every edge of a cycle of F lies in the support of a row with a
   positive share. A cycle is not counted if the same single row has all its edges, as a tree has
   no cycle.
   If F has more edges than that, d >= 4. In the plane G is a polygon with V edges, so that more
   than V edges exclude d = 2.
4. Pairs. Where S_i & T has two columns, these are an edge of G. In the plane all such edges are
   edges of one polygon on T: a column with three neighbours, or a closed cycle that leaves a column
   of T out, excludes d = 2.

Steps 2 to 4 need four columns or more in T. The sums of step 1 are checked in integer arithmetic:
logarithms are multiplied by 2^40 and rounded so that every sum errs upwards, whatever its number of
rows.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

import numpy as np

from headfit._base.tolerances import Tolerances
from headfit._lower._exact import log_below
from headfit._lower._planar import (
    Holders,
    count_squares,
    count_triangles,
    dim_of_edges,
    not_in_a_polygon,
)
from headfit._lower._problem import are_places, support_of
from headfit._lower._visibility import Visibility
from headfit._target.target import Target

BITS = 40
"""What is added up are multiples of 2**-BITS, as integers."""


class Units(NamedTuple):
    """What the tolerances say about the sums of step 1, in multiples of 2**-BITS.

    Attributes
    ----------
    spread : int
        At least delta, and the errors of the two rounded logarithms that it is added to.
    gap : int
        At most log(1 / leak).
    """

    spread: int
    gap: int

    @classmethod
    def of(cls, tolerances: Tolerances, bits: int = BITS) -> Units:
        """Return the units of tolerances.

        Logarithms of floating-point numbers are at most 745, where a computed one has an error of
        at most 2^-43. So `in_units` errs by less than 1, and delta in units is less than its
        integral part plus 2.
        """
        spread = math.floor(math.log1p(tolerances.distortion) * 2**bits) + 2 + 2
        return cls(spread, math.floor(log_below(1 / Fraction(tolerances.leak)) * 2**bits))


def in_units(logarithm: float) -> int:
    """Return a logarithm in multiples of 2**-BITS, with an error of less than one of them."""
    return round(math.ldexp(logarithm, BITS))


@dataclass(frozen=True, repr=False)
class Hull:
    """Columns whose keys are vertices of their hull, and rows that need many edges of the hull.

    Attributes
    ----------
    rows, columns : tuple of int
        The sets R and T.
    shares : tuple of Fraction
        The share y_i of each row.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    shares: tuple[Fraction, ...]

    def __repr__(self) -> str:
        return f"Hull({len(self.rows)} rows, {len(self.columns)} columns)"

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return the head size that this witness proves necessary; 0 if it is not valid."""
        n, sight = target.n, Visibility(target.mask, target.n)
        if not are_places(n, self.rows, self.columns):
            return 0
        if len(self.shares) != len(self.rows) or any(not 0 <= y <= 1 for y in self.shares):
            return 0
        inside, units = set(self.columns), Units.of(tolerances)
        where = np.array(self.columns, np.intp)
        parts, attend = [], defaultdict(list)
        for i in self.rows:
            if not sight.sees(i, where):
                return 0
            support = support_of(target, i)
            part = {j: in_units(math.log(w)) for j, w in support.items() if j in inside}
            parts.append(part)
            for p in part:
                attend[p].append(part)
        for p in self.columns:
            totals: dict[int, int] = defaultdict(int)
            for part in attend[p]:
                for j, x in part.items():
                    totals[j] += x - part[p] + units.spread + units.gap
            # Every row contributes -gap; `totals` adds it back for rows with j in their support.
            ceiling = units.gap * len(attend[p])
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

    Cycles are counted where it depends on them and the deadline has not passed; `holders` is called
    for the rows of each pair only then.
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
