"""Lower bounds from how halfspaces cut point sets: VC dimension, its dual, and counting.

A leak below 1 means that the logits on each row's support exceed its other visible logits: for
each row i there is an offset c_i with q_i.k_j > c_i on the support and q_i.k_j < c_i elsewhere (if
one of the two parts is empty, choose c_i below or above all logits). So N_ij =
sign(<(q_i, -c_i), (k_j, 1)>), for those (i, j) where row i may attend to column j, are the signs of
a matrix of rank at most d + 1. A constant row (q = 0) can always be added: "the free row".

Cover (1965), Schlaefli: hyperplanes through 0 split m vectors of R^(d+1) in at most
2 (C(m-1, 0) + ... + C(m-1, d)) ways, and in half as many if a split and its opposite count as one.
- With the columns T, m = |T|, as the vectors, and the rows that may attend to all of T as the
  hyperplanes: the number of different traces S_i & T up to complement, including that of the free
  row (nothing or everything), is at most C(m-1, 0) + ... + C(m-1, d). If all 2^(m-1) traces occur,
  d < m - 1 is excluded: this is the VC bound |T| <= d + 1, where complements and the two constant
  traces need not occur.
- With rows as the vectors, and the columns that they all may attend to as the hyperplanes, the same
  holds. If the free row is among the vectors, all columns are on its positive side, and the
  statement becomes: t rows cut the columns into at most C(t, 0) + ... + C(t, d) cells, so that 2^t
  cells exclude d < t (the dual VC dimension).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from headfit._base.tolerances import Tolerances
from headfit._lower.problem import (
    Candidate,
    Ints,
    OutOfTimeError,
    Problem,
    Proof,
    Visibility,
    Witness,
    are_places,
    best_proof,
    line,
    lowest_bit,
    packed,
    support_of,
)
from headfit._target.target import Target

PAIRS_LIMIT = 6_000_000  # bound on the work of counting the points that two sets share
PAIRS_PER_SECOND = 2_000_000  # bound on the same work per second of the time limit
LARGEST_SET = 12  # the most sets of a family that the greedy search grows
NEAR, FAR = 40, 4  # how many sets with common points, and other ones, it may choose from


def least_dim(classes: int, vectors: int) -> int:
    """Return the least d with C(vectors-1, 0) + ... + C(vectors-1, d) >= classes."""
    d, reachable = 0, 1
    while reachable < classes:
        d += 1
        reachable += math.comb(vectors - 1, d)
    return d


@dataclass(frozen=True, repr=False)
class Traces(Witness):
    """Sets on which many points have different traces: columns and rows, or the other way round.

    Column j is the set of rows that attend to it, row i the set of columns in its support. The
    trace of a point says which of the sets contain it. `kind` says what the sets are; of the points
    there is one for each trace. `free` says whether the constant row is one of the sets, if they
    are rows.
    """

    kind: Literal["columns", "rows"]
    sets: tuple[int, ...]
    points: tuple[int, ...]
    free: bool = False

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return the head size that this witness proves necessary; 0 if it is not valid."""
        n, columns = target.n, self.kind == "columns"
        if self.kind not in ("columns", "rows") or (columns and self.free):
            return 0
        if not (self.sets and are_places(n, self.sets, self.points)):
            return 0
        sight, full = Visibility(target.mask, n), (1 << len(self.sets)) - 1
        seen = {0} if columns else set()
        for point in self.points:
            code = 0
            for place, one in enumerate(self.sets):
                row, column = (point, one) if columns else (one, point)
                if not sight.row(row)[column]:
                    return 0
                code |= (column in support_of(target, row)) << place
            seen.add(code if self.free else min(code, full ^ code))
        return least_dim(len(seen), len(self.sets) + self.free)

    def text(self) -> tuple[int, str]:
        """Return the head size that so many traces prove necessary, and the argument."""
        vectors, classes = len(self.sets) + self.free, len(self.points) + (self.kind == "columns")
        dim, others = least_dim(classes, vectors), "rows" if self.kind == "columns" else "columns"
        most = sum(math.comb(vectors - 1, i) for i in range(dim))
        sets = f"{len(self.sets)} {self.kind} are cut in {classes} ways by the {others}"
        return dim, f"{sets}, a head of size {dim - 1} does it in {most} at most"


class Family:
    """All columns (or rows) as sets of points, in bits of Python integers made when needed."""

    def __init__(self, problem: Problem, kind: Literal["columns", "rows"]) -> None:
        self.kind, self.columns, self.n = kind, kind == "columns", problem.target.n
        self.sight = problem.sight.of_columns if self.columns else problem.sight
        sets: Any = problem.supports
        sets = sp.csr_array(sets.T) if self.columns else sets.copy()
        sets.sort_indices()
        self.lines, self.degree = sets.copy(), np.diff(sets.indptr)
        self.bits = functools.cache(self._bits)
        self.outside = functools.lru_cache(maxsize=8192)(self._outside)
        # `shared` counts the points that each two sets share. Points in many sets are left out if
        # that would take too long.
        weight = np.bincount(sets.indices, minlength=self.n).astype(np.int64)
        order = np.argsort(weight, kind="stable")
        most = min(PAIRS_LIMIT, int(PAIRS_PER_SECOND * problem.seconds))
        heavy = order[np.cumsum(weight[order] ** 2) > most]
        self.is_complete = not heavy.size
        if heavy.size:
            sets.data[np.isin(sets.indices, heavy)] = 0
            sets.eliminate_zeros()
        self.shared: sp.csr_array = sp.csr_array(sets @ sets.T)

    def _bits(self, s: int) -> int:
        """Return the points in set s."""
        flags = np.zeros(self.n, np.bool_)
        flags[line(self.lines, s)] = True
        return packed(flags)

    def _outside(self, s: int) -> int:
        """Return the points that are not in set s, where that is not masked."""
        first, stop = self.sight.span(s)
        in_window = self.sight.window is not None
        seen = (1 << stop) - (1 << first) if in_window else packed(self.sight.row(s))
        return seen & ~self.bits(s)

    def split(self, cells: dict[int, int], s: int, place: int) -> dict[int, int]:
        """Divide the cells, by the codes of their traces, by membership in one more set."""
        inside, outside, finer = self.bits(s), self.outside(s), {}
        for code, cell in cells.items():
            if part := cell & inside:
                finer[code | 1 << place] = part
            if part := cell & outside:
                finer[code] = part
        return finer

    def classes(self, cells: dict[int, int], count: int, free: bool) -> int:
        """Return how many traces on so many sets differ by more than complement, unless `free`."""
        full = (1 << count) - 1
        distinct = cells.keys() if free else {min(code, full ^ code) for code in cells}
        return len(distinct | {0} if self.columns else distinct)  # the free row, of columns

    def cells(self, sets: Sequence[int]) -> dict[int, int]:
        """Return the points of each trace on these sets."""
        cells = {0: (1 << self.n) - 1}
        for place, s in enumerate(sets):
            cells = self.split(cells, s, place)
        return cells

    def proof(self, sets: Sequence[int], free: bool, how: str) -> Proof:
        """Return what a family of sets proves, with one point for every trace."""
        full = (1 << len(sets)) - 1
        points: dict[int, int] = {}
        for code, cell in self.cells(sets).items():
            points.setdefault(code if free else min(code, full ^ code), lowest_bit(cell))
        if self.columns:
            points.pop(0, None)  # the free row has this trace
        witness = Traces(self.kind, tuple(sets), tuple(sorted(points.values())), free)
        dim, text = witness.text()
        return dim, f"{text} ({how})", witness


def traces(problem: Problem, kind: Literal["columns", "rows"]) -> list[Candidate]:
    """Return the bounds from sets with every trace, and from sets with many."""
    family = Family(problem, kind)
    vc = "VC dimension" if kind == "columns" else "dual VC dimension"
    return [
        best_proof(vc, problem.within(0.3), lambda part: _shattered_sets(part, family)),
        best_proof(f"traces of {kind}", problem.within(0.3), lambda part: _many(part, family)),
    ]


def _shattered_sets(problem: Problem, family: Family) -> Iterator[Proof]:
    """Yield ever larger families with every trace, which an exact search finds."""
    size = 3 if family.columns else 2
    while sets := shattered(problem, family, size):
        yield family.proof(sets, not family.columns, "every trace occurs")
        size += 1
    if not family.is_complete:
        raise OutOfTimeError


def shattered(problem: Problem, family: Family, size: int) -> list[int] | None:
    """Return `size` sets on which every trace occurs (of columns: but the constant ones), or None.

    Each set of such a family has at least 2^(size-1) points and each two share 2^(size-2). Every
    subfamily is shattered as well, so that a branch ends when the first trace is missing.
    """
    spare = family.columns
    usable = family.degree >= 2 ** (size - 1) - spare
    shared, least = family.shared, 2 ** (size - 2) - spare
    constant, needed = {0, 2**size - 1} if spare else set(), 2**size - 2 * spare

    def partners(s: int) -> list[int]:
        others, counts = line(shared, s), shared.data[shared.indptr[s] : shared.indptr[s + 1]]
        return sorted(others[(others > s) & (counts >= least) & usable[others]].tolist())

    def grow(chosen: list[int], cells: dict[int, int], pool: list[int]) -> list[int] | None:
        problem.check_time()
        place = len(chosen)
        for at, s in enumerate(pool):
            finer = family.split(cells, s, place)
            if place + 1 == size:
                if len(finer) >= needed and len(finer.keys() - constant) == needed:
                    return [*chosen, s]
            elif len(finer) == 2 ** (place + 1):
                near = set(partners(s) if place + 2 < size else pool)
                rest = [x for x in pool[at + 1 :] if x in near]
                if sets := grow([*chosen, s], finer, rest):
                    return sets
        return None

    for s in np.flatnonzero(usable).tolist():
        pool = partners(s)
        if len(pool) >= size - 1 and (sets := grow([s], family.cells([s]), pool)):
            return sets
    return None


def _many(problem: Problem, family: Family) -> Iterator[Proof]:
    """Yield families with many traces, which a greedy search finds from some sets."""
    rng, shared, best = problem.rng, family.shared, 1
    busy = np.argsort(-family.degree, kind="stable")[:16].tolist()
    for start in [*busy, *rng.permutation(family.n)[:48].tolist()]:
        for free in (False,) if family.columns else (False, True):
            problem.check_time()
            near: Ints = line(shared, start)
            if near.size > NEAR:
                near = rng.choice(near, NEAR, replace=False)
            far = rng.integers(family.n, size=FAR)
            pool = np.setdiff1d(np.union1d(near, far), start).tolist()
            dim, sets = _greedy(family, start, pool, free, rng)
            if dim > best:
                best = dim
                yield family.proof(sets, free, "a search by chance")


def _greedy(
    family: Family, start: int, pool: list[int], free: bool, rng: np.random.Generator
) -> tuple[int, list[int]]:
    """Grow a family greedily, and return the best head size on the way, and what proves it."""
    sets, best, kept = [start], 0, [start]
    cells = family.cells(sets)
    while pool and len(sets) < LARGEST_SET:
        place = len(sets)
        classes = [family.classes(family.split(cells, s, place), place + 1, free) for s in pool]
        top = int(np.argmax(classes + rng.random(len(pool)) / 2))
        dim = least_dim(classes[top], place + 1 + free)
        sets.append(pool.pop(top))
        cells = family.split(cells, sets[-1], place)
        if dim > best:
            best, kept = dim, list(sets)
        elif len(sets) > len(kept) + 4:
            break
    return best, kept
