"""The searches for columns (or rows) with many different traces.

The bounds that they look for, and their proofs, are described in `headfit._lower._traces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from headfit._lower._problem import Candidate, OutOfTimeError, Problem, Proof, best_proof, line
from headfit._lower._traces import Traces, least_dim, lowest_bit, packed
from headfit._lower._visibility import Ints

PAIRS_LIMIT = 6_000_000  # bound on the work of counting the points that two sets share
PAIRS_PER_SECOND = 2_000_000  # bound on the same work per second of the time limit
LARGEST_SET = 12  # the most sets of a family that the greedy search grows
NEAR, FAR = 40, 4  # how many sets with common points, and other ones, it may choose from


class Family:
    """All columns (or rows) as sets of points, in bits of Python integers made when needed."""

    def __init__(self, problem: Problem, kind: Literal["columns", "rows"]) -> None:
        self.kind, self.columns = kind, kind == "columns"
        sight, supports = problem.sight, problem.supports
        self.lines: Any = sp.csc_array(supports) if self.columns else supports
        self.sight = sight.of_columns if self.columns else sight
        self.n = problem.target.n
        self.degree = np.diff(self.lines.indptr)
        self._bits: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self.shared_counts = self._shared_points(
            supports, min(PAIRS_LIMIT, int(PAIRS_PER_SECOND * problem.seconds))
        )

    def _shared_points(self, supports: sp.csr_array, most: int) -> sp.csr_array:
        """Count the points that each two sets share.

        Points in many sets are left out if the count would take too long; `is_complete` tells.
        """
        sets: Any = sp.csr_array(supports.T) if self.columns else supports.copy()
        weight = np.bincount(sets.indices, minlength=self.n).astype(np.int64)
        order = np.argsort(weight, kind="stable")
        heavy = order[np.cumsum(weight[order] ** 2) > most]
        self.is_complete = not heavy.size
        if heavy.size:
            sets.data[np.isin(sets.indices, heavy)] = 0
            sets.eliminate_zeros()
        product: sp.csr_array = sp.csr_array(sets @ sets.T)
        return product

    def bits(self, s: int) -> int:
        """Return the points in set s."""
        if s not in self._bits:
            flags = np.zeros(self.n, np.bool_)
            flags[line(self.lines, s)] = True
            self._bits[s] = packed(flags)
        return self._bits[s]

    def seen(self, s: int) -> int:
        """Return the points whose membership in set s is not masked."""
        if self.sight.window is not None:
            first, stop = self.sight.span(s)
            return (1 << stop) - (1 << first)
        if s not in self._seen:
            self._seen[s] = packed(self.sight.row(s))
        return self._seen[s]

    def split(self, cells: dict[int, int], s: int, place: int) -> dict[int, int]:
        """Divide the points of each trace by their membership in one more set.

        Traces are codes: bit p is set for points in the set that was added at place p.
        """
        inside, seen, finer = self.bits(s), self.seen(s), {}
        for code, cell in cells.items():
            for key, part in (
                (code | 1 << place, cell & inside),
                (code, cell & seen & ~inside),
            ):
                if part:
                    finer[key] = part
        return finer

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
        return witness.dim, f"{witness.text()} ({how})", witness


def traces(problem: Problem, kind: Literal["columns", "rows"]) -> list[Candidate]:
    """Return the bounds from sets with every trace, and from sets with many."""
    family = Family(problem, kind)
    vc = "VC dimension" if kind == "columns" else "dual VC dimension"
    return [
        best_proof(vc, problem.within(0.3), lambda part: _shattered_sets(part, family)),
        best_proof(f"traces of {kind}", problem.within(0.3), lambda part: _many(part, family)),
    ]


def _shattered_sets(problem: Problem, family: Family) -> Iterator[Proof]:
    """Yield ever larger families with every trace, found by an exact search."""
    size = 3 if family.columns else 2
    while sets := shattered(problem, family, size):
        yield family.proof(sets, not family.columns, "every trace occurs")
        size += 1
    if not family.is_complete:
        raise OutOfTimeError


def shattered(problem: Problem, family: Family, size: int) -> list[int] | None:
    """Return `size` sets on which every trace occurs, or None if there are none.

    The search is exact. For columns the two constant traces need not occur. Each set of a
    shattered family has at least 2^(size-1) points and each two share at least 2^(size-2). Every
    subfamily is shattered as well, so that a branch ends when the first trace is missing.
    """
    spare = family.columns
    usable = family.degree >= 2 ** (size - 1) - spare
    shared, least = family.shared_counts, 2 ** (size - 2) - spare

    def partners(s: int) -> list[int]:
        others, counts = line(shared, s), shared.data[shared.indptr[s] : shared.indptr[s + 1]]
        return sorted(others[(others > s) & (counts >= least) & usable[others]].tolist())

    def grow(chosen: list[int], cells: dict[int, int], pool: list[int]) -> list[int] | None:
        problem.check_time()
        place = len(chosen)
        for at, s in enumerate(pool):
            finer = family.split(cells, s, place)
            if place + 1 == size:
                constant = {0, 2**size - 1} if spare else set()
                if len(finer.keys() - constant) == 2**size - len(constant):
                    return [*chosen, s]
            elif len(finer) == 2 ** (place + 1):
                near = set(partners(s))
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
    rng, shared, best = problem.rng, family.shared_counts, 1
    busy = np.argsort(-family.degree, kind="stable")[:16].tolist()
    for start in [*busy, *rng.permutation(family.n)[:48].tolist()]:
        for free in (False,) if family.columns else (False, True):
            problem.check_time()
            near: Ints = line(shared, start)
            if near.size > NEAR:
                near = rng.choice(near, NEAR, replace=False)
            far = rng.integers(family.n, size=FAR)
            pool = np.union1d(near, far).tolist()
            dim, sets = _greedy(family, start, pool, free, rng)
            if dim > best:
                best = dim
                yield family.proof(sets, free, "a search by chance")


def _greedy(
    family: Family, start: int, pool: list[int], free: bool, rng: np.random.Generator
) -> tuple[int, list[int]]:
    """Grow one family greedily by the set that gives the most different traces.

    Returns the best head size that is proved on the way, and the family that proves it.
    """
    sets, best, kept = [start], 0, [start]
    cells = family.cells(sets)
    pool = [s for s in pool if s != start]
    while pool and len(sets) < LARGEST_SET:
        place, full = len(sets), (2 << len(sets)) - 1
        top: tuple[float, int, dict[int, int]] = (0.0, -1, {})
        for s, luck in zip(pool, rng.random(len(pool)).tolist(), strict=True):
            finer = family.split(cells, s, place)
            classes = len(finer) if free else len({min(c, full ^ c) for c in finer})
            if family.columns and 0 not in finer and full not in finer:
                classes += 1
            top = max(top, (classes + luck / 2, s, finer), key=lambda item: item[0])
        if top[1] < 0:
            break
        sets.append(top[1])
        pool.remove(top[1])
        cells = top[2]
        dim = least_dim(int(top[0]), len(sets) + free)
        if dim > best:
            best, kept = dim, list(sets)
        elif len(sets) > len(kept) + 4:
            break
    return best, kept
