"""What the edges of a hull in space and in the plane may be: a planar graph, and one polygon.

Planar graphs. Let a planar graph have V vertices, E >= 5 edges, t triangles and s cycles of length
four. Join its components by further edges, which are on no cycle; this keeps it planar. Now it is
connected and has E' >= E edges and, by Euler, E' - V + 2 faces. As E' >= 5, the boundary of a face
of length 3 or 4 is a cycle of that length, and no such cycle bounds two faces: the graph would be
this cycle. The lengths of all F faces add up to 2 E'. So, as at most t faces
are triangles and at most s have length four,

- 3 F <= 2 E', which is E <= 3 V - 6;
- 4 F - t <= 2 E', which is E <= 2 V - 4 + t / 2;
- 5 F - 2 t - s <= 2 E', which is E <= (5 V - 10 + 2 t + s) / 3.

Polygons. A graph is a part of some polygon through V vertices only if every vertex has at most two
neighbours and no closed cycle leaves vertices out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from fractions import Fraction
from itertools import combinations

Pair = tuple[int, int]
Holders = dict[Pair, list[int]]
"""For each pair of columns, the lower one first: the rows whose tree may have this edge."""

PATHS_LIMIT = 2_000_000  # how many paths of two edges, or pairs of them, are looked at for cycles


def dim_of_edges(
    edges: Fraction | float, vertices: int, triangles: int | None = None, squares: int | None = None
) -> int:
    """Return the head size that a hull with at least so many edges proves; 0 for none.

    `triangles` and `squares` are bounds on its cycles of length 3 and 4, where they are known.
    """
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
    count = 0
    for a, b in holders:
        for c in near[a] & near[b]:
            if c > b and not _in_one_tree((holders[a, b], holders[a, c], holders[b, c])):
                count += 1
    return count


def count_squares(holders: Holders) -> int | None:
    """Count the cycles of four columns whose pairs have holders other than one common single row.

    None if there are too many paths to look at.
    """
    near = _neighbours(holders)
    if _number_of_pairs(near.values()) > PATHS_LIMIT:
        return None
    between: dict[Pair, list[int]] = defaultdict(list)
    for b, others in near.items():
        for a, c in combinations(sorted(others), 2):
            between[a, c].append(b)
    if _number_of_pairs(between.values()) > PATHS_LIMIT:
        return None
    count = 0
    for ends, middles in between.items():
        for two in combinations(middles, 2):
            around = [holders[min(x, y), max(x, y)] for x in ends for y in two]
            count += not _in_one_tree(around)
    return count // 2  # each was found from both of its diagonals


def _number_of_pairs(groups: Iterable[Collection[int]]) -> int:
    return sum(len(group) * (len(group) - 1) // 2 for group in groups)


def not_in_a_polygon(pairs: Iterable[Pair], vertices: int) -> tuple[int, ...]:
    """Return vertices whose given edges cannot all lie on one polygon through all vertices.

    They are a vertex and three of its neighbours, or the shortest closed cycle that leaves vertices
    out; () if there are none.
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
