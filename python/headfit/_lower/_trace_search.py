"""The searches for columns (or rows) with many different traces.

The bounds that they look for, and their proofs, are described in `headfit._lower._traces`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from headfit._lower._deadline import OutOfTimeError, check_time
from headfit._lower._problem import Candidate, Problem
from headfit._lower._traces import Traces, least_dim, packed

PAIRS_LIMIT = 6_000_000  # bound on the work of counting the points that two sets share
PAIRS_PER_SECOND = 2_000_000  # bound on the same work per second of the time limit
LARGEST_SET = 12  # the most sets of a family that the greedy search grows


class Family:
    """All columns (or rows) as sets of points, in bits of Python integers made when needed."""

    def __init__(self, problem: Problem, kind: Literal["columns", "rows"]) -> None:
        self.kind = kind
        sight, supports, columns = problem.sight, problem.supports, kind == "columns"
        self.lines: Any = sp.csc_array(supports) if columns else supports
        self.visible = sight.column if columns else sight.row
        self.limited = sight.limited
        # How many points before and after its own position are visible to a set.
        self.window = None if sight.window is None else sight.window[:: -1 if columns else 1]
        self.n = problem.target.n
        self.all = (1 << self.n) - 1
        self.degree = np.diff(self.lines.indptr)
        self._bits: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self.is_complete = True
        seconds = problem.deadline - time.monotonic()
        self.shared_counts = self._shared_points(
            supports, min(PAIRS_LIMIT, int(PAIRS_PER_SECOND * seconds))
        )

    def _shared_points(self, supports: sp.csr_array, most: int) -> sp.csr_array:
        """Count the points that each two sets share.

        Points in many sets are left out if the count would take too long; `is_complete` tells.
        """
        sets: Any = sp.csr_array(supports.T) if self.kind == "columns" else supports.copy()
        weight = np.bincount(sets.indices, minlength=self.n).astype(np.int64)
        order = np.argsort(weight, kind="stable")
        heavy = order[np.cumsum(weight[order] ** 2) > most]
        if heavy.size:
            self.is_complete = False
            sets.data[np.isin(sets.indices, heavy)] = 0
            sets.eliminate_zeros()
        product: sp.csr_array = sp.csr_array(sets @ sets.T)
        return product

    def bits(self, s: int) -> int:
        """Return the points in set s."""
        if s not in self._bits:
            flags = np.zeros(self.n, np.bool_)
            flags[self.lines.indices[self.lines.indptr[s] : self.lines.indptr[s + 1]]] = True
            self._bits[s] = packed(flags)
        return self._bits[s]

    def seen(self, s: int) -> int:
        """Return the points whose membership in set s is not masked."""
        if not self.limited:
            return self.all
        if self.window is not None:  # bits first ... last are set
            before, after = self.window
            first, last = max(0, s - before), min(self.n - 1, s + after)
            return (1 << last + 1) - (1 << first)
        if s not in self._seen:
            self._seen[s] = packed(self.visible(s))
        return self._seen[s]

    def split(self, cells: dict[int, int], s: int, place: int) -> dict[int, int]:
        """Divide the points of each trace by their membership in one more set.

        Traces are codes: bit p is set for points in the set that was added at place p.
        """
        inside, seen, finer = self.bits(s), self.seen(s), {}
        for code, cell in cells.items():
            part = cell & inside
            if part:
                finer[code | 1 << place] = part
            part = cell & seen & ~inside
            if part:
                finer[code] = part
        return finer

    def witness(self, sets: Sequence[int], free: bool) -> Traces:
        """Return the witness of a family of sets, with one point for every trace."""
        cells = {0: self.all}
        for place, s in enumerate(sets):
            cells = self.split(cells, s, place)
        full = (1 << len(sets)) - 1
        kept: dict[int, int] = {}
        for code, cell in cells.items():
            key = code if free else min(code, full ^ code)
            kept.setdefault(key, (cell & -cell).bit_length() - 1)
        if self.kind == "columns":
            kept.pop(0, None)  # the free row has this trace
        points = tuple(sorted(kept.values()))
        return Traces(self.kind, tuple(int(s) for s in sets), points, free)


def _shattered(family: Family, size: int, deadline: float) -> list[int] | None:
    """Return `size` sets on which every trace occurs, or None if there are none.

    The search is exact. For columns the two constant traces need not occur. Each set of a
    shattered family has at least 2^(size-1) points and each two share at least 2^(size-2). Every
    subfamily is shattered as well, so that a branch ends when the first trace is missing.
    """
    spare = family.kind == "columns"
    usable = family.degree >= 2 ** (size - 1) - spare
    shared, least = family.shared_counts, 2 ** (size - 2) - spare

    def partners(s: int) -> list[int]:
        start, stop = shared.indptr[s], shared.indptr[s + 1]
        others = shared.indices[start:stop]
        keep = (others > s) & (shared.data[start:stop] >= least) & usable[others]
        return sorted(others[keep].tolist())

    def grow(chosen: list[int], cells: dict[int, int], pool: list[int]) -> list[int] | None:
        check_time(deadline)
        place = len(chosen)
        for at, s in enumerate(pool):
            finer = family.split(cells, s, place)
            last = place + 1 == size
            if len(finer) < 2 ** (place + 1):
                if not (last and spare):
                    continue
                if len(finer.keys() - {0, 2**size - 1}) < 2**size - 2:
                    continue
            if last:
                return [*chosen, s]
            rest = pool[at + 1 :]
            if place + 2 < size:
                near = set(partners(s))
                rest = [x for x in rest if x in near]
            found = grow([*chosen, s], finer, rest)
            if found:
                return found
        return None

    for s in np.flatnonzero(usable).tolist():
        check_time(deadline)
        pool = partners(s)
        if len(pool) >= size - 1:
            found = grow([s], family.split({0: family.all}, s, 0), pool)
            if found:
                return found
    return None


def shattering(problem: Problem, family: Family) -> Candidate:
    """Return the bound from the largest family with every trace, found by an exact search."""
    columns = family.kind == "columns"
    name = "VC dimension" if columns else "dual VC dimension"
    deadline = problem.share(0.3)
    best: list[int] = []
    size, finished = 3 if columns else 2, family.is_complete
    try:
        while found := _shattered(family, size, deadline):
            best = found
            size += 1
    except OutOfTimeError:
        finished = False
    end = "no larger one exists" if finished else "the search was not finished"
    if not best:
        if finished:
            return Candidate(name, 1, "proved", f"no {size} {family.kind} are shattered")
        return Candidate(name, None, "not finished", f"the search for {size} {family.kind}")
    traces = "all but the two constant traces" if columns else "every trace"
    witness = family.witness(best, free=not columns)
    dim = len(best) - columns
    reason = f"{len(best)} {family.kind} with {traces}; {end}"
    return Candidate(name, dim, "proved", reason, witness)


def _greedy(
    family: Family, start: int, pool: list[int], free: bool, rng: np.random.Generator
) -> tuple[int, list[int]]:
    """Grow one family greedily by the set that gives the most different traces.

    Returns the best head size that is proved on the way, and the family that proves it.
    """
    columns = family.kind == "columns"
    sets, best, kept = [start], 0, [start]
    cells = family.split({0: family.all}, start, 0)
    pool = [s for s in pool if s != start]
    while pool and len(sets) < LARGEST_SET:
        place, full = len(sets), (2 << len(sets)) - 1
        top: tuple[float, int, dict[int, int]] = (0.0, -1, {})
        for s, luck in zip(pool, rng.random(len(pool)).tolist(), strict=True):
            finer = family.split(cells, s, place)
            classes = len(finer) if free else len({min(c, full ^ c) for c in finer})
            if columns and 0 not in finer and full not in finer:
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


def counted(problem: Problem, family: Family) -> Candidate:
    """Return the best bound that a greedy search for many traces finds."""
    columns = family.kind == "columns"
    name = f"traces of {family.kind}"
    deadline, rng = problem.share(0.3), problem.rng
    best: tuple[int, list[int], bool] = (0, [], False)
    busy = np.argsort(-family.degree, kind="stable")[:16].tolist()
    starts = [*busy, *rng.permutation(family.n)[:48].tolist()]
    shared = family.shared_counts
    ended = ""
    try:
        for start in starts:
            for free in (False,) if columns else (False, True):
                check_time(deadline)
                near = shared.indices[shared.indptr[start] : shared.indptr[start + 1]]
                if near.size > 40:
                    near = rng.choice(near, 40, replace=False)
                far = rng.integers(family.n, size=4)
                pool = np.unique(np.concatenate([near, far])).tolist()
                dim, sets = _greedy(family, start, pool, free, rng)
                if dim > best[0]:
                    best = (dim, sets, free)
    except OutOfTimeError:
        ended = "; the time ended"
    if best[0] < 2:
        status = "not finished" if ended else "proved"
        return Candidate(name, None if ended else 1, status, f"nothing found{ended}")
    witness = family.witness(best[1], best[2])
    reason = f"{witness.text()} (a search by chance{ended})"
    return Candidate(name, best[0], "proved", reason, witness)
