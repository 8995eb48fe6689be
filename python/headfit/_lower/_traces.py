"""Bounds from how halfspaces cut points: VC dimension, its dual, and counting.

Leak below 1 puts every row's support strictly above the rest that the row sees: for each row i
there is an offset c_i with q_i.k_j > c_i on the support, < c_i elsewhere (a row without either
part takes c_i below or above everything). So N_ij = sign(<(q_i, -c_i), (k_j, 1)>) is the sign
pattern of a matrix of rank at most d + 1, wherever row i sees column j; a constant row (q = 0)
may be added freely, "the free row".

Cover (1965), Schlaefli: m vectors of R^(d+1) are split in two by hyperplanes through 0 in at
most 2 (C(m-1, 0) + ... + C(m-1, d)) ways, half of that if a split and its opposite count once.
- Columns T as the vectors, rows that see all of T as hyperplanes: the number of different
  traces S_i & T up to complement, the free row's (nothing | everything) among them, is at most
  C(m-1, 0) + ... + C(m-1, d), m = |T|. All 2^(m-1) of them exclude d < m - 1: this is the VC
  bound |T| <= d + 1 with complements and the two constant traces for free.
- Rows as the vectors, columns that all of them see as hyperplanes: the same. With the free row
  among the vectors every column is positive there, and it reads: t rows cut the columns into at
  most C(t, 0) + ... + C(t, d) cells, so 2^t cells exclude d < t (the dual VC dimension).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from headfit._lower._problem import (
    Bools,
    Candidate,
    OutOfTimeError,
    Problem,
    Sight,
    are_distinct,
    check_time,
    support_of,
)
from headfit._target.target import Target

PAIRS_LIMIT = 6_000_000  # of the product that counts how often two sets meet
PAIRS_A_SECOND = 2_000_000  # and of what the time allows
LARGEST_SET = 12


def least_dim(classes: int, vectors: int) -> int:
    """Return the least d with C(vectors-1, 0) + ... + C(vectors-1, d) >= classes."""
    d, reachable = 0, 1
    while reachable < classes:
        d += 1
        reachable += math.comb(vectors - 1, d)
    return d


@dataclass(frozen=True)
class Traces:
    """Sets (columns or rows) that the points (rows or columns) cut in many ways.

    Attributes
    ----------
    kind : "columns" or "rows"
        What the sets are; the points are the other.
    sets, points : tuple of int
        One point for every different trace.
    free : bool
        Whether the constant row is one of the sets; only where the sets are rows.
    """

    kind: Literal["columns", "rows"]
    sets: tuple[int, ...]
    points: tuple[int, ...]
    free: bool = False

    def proves(self, target: Target, leak: float, distortion: float) -> int:
        """Return the head size that this proves necessary; 0 if it is not what it says."""
        n, columns = target.n, self.kind == "columns"
        if not (are_distinct(self.sets, n) and are_distinct(self.points, n) and self.sets):
            return 0
        if not 0 < leak < 1 or (columns and self.free):
            return 0
        sight = Sight(target.mask, n)
        full = (1 << len(self.sets)) - 1
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

    def text(self) -> str:
        """Say it in words."""
        columns, vectors = self.kind == "columns", len(self.sets) + self.free
        classes = len(self.points) + columns
        d = least_dim(classes, vectors) - 1
        most = sum(math.comb(vectors - 1, i) for i in range(d + 1))
        return (
            f"{len(self.sets)} {self.kind} are cut in {classes} ways by the "
            f"{'rows' if columns else 'columns'}, a head of size {d} does it in {most} at most"
        )


def packed(flags: Bools) -> int:
    """Return flags as the bits of an integer, the first one the lowest."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


class Family:
    """Sets over points, as bits of Python integers, made when they are asked for."""

    def __init__(self, problem: Problem, kind: Literal["columns", "rows"]) -> None:
        self.kind = kind
        sight, supports, columns = problem.sight, problem.supports, kind == "columns"
        self.lines: Any = sp.csc_array(supports) if columns else supports
        self.look = sight.column if columns else sight.row
        self.limited = sight.limited
        # How far before and after its own place a set sees points.
        self.window = None if sight.window is None else sight.window[:: -1 if columns else 1]
        self.n = problem.target.n
        self.all = (1 << self.n) - 1
        self.degree = np.diff(self.lines.indptr)
        self._bits: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self.whole = True
        seconds = problem.deadline - time.monotonic()
        self.meets = self._meets(supports, min(PAIRS_LIMIT, int(PAIRS_A_SECOND * seconds)))

    def _meets(self, supports: sp.csr_array, most: int) -> sp.csr_array:
        """Count the points that two sets share; heavy points are left out if there are many."""
        sets: Any = sp.csr_array(supports.T) if self.kind == "columns" else supports.copy()
        weight = np.bincount(sets.indices, minlength=self.n).astype(np.int64)
        order = np.argsort(weight, kind="stable")
        heavy = order[np.cumsum(weight[order] ** 2) > most]
        if heavy.size:
            self.whole = False
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
        """Return the points for which set s is not masked."""
        if not self.limited:
            return self.all
        if self.window is not None:  # bits first ... last of all
            before, after = self.window
            first, last = max(0, s - before), min(self.n - 1, s + after)
            return (1 << last + 1) - (1 << first)
        if s not in self._seen:
            self._seen[s] = packed(self.look(s))
        return self._seen[s]

    def split(self, cells: dict[int, int], s: int, place: int) -> dict[int, int]:
        """Return the points of each trace, by its code, after one more set."""
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
        """Return the witness, with one point for every trace."""
        cells = {0: self.all}
        for place, s in enumerate(sets):
            cells = self.split(cells, s, place)
        full = (1 << len(sets)) - 1
        kept: dict[int, int] = {}
        for code, cell in cells.items():
            key = code if free else min(code, full ^ code)
            kept.setdefault(key, (cell & -cell).bit_length() - 1)
        if self.kind == "columns":
            kept.pop(0, None)  # the free row's
        points = tuple(sorted(kept.values()))
        return Traces(self.kind, tuple(int(s) for s in sets), points, free)


def _shattered(family: Family, size: int, deadline: float) -> list[int] | None:
    """Return `size` sets with every trace, or None if there are none: an exact search.

    For columns the two constant traces are not asked for. Two sets of a shattered family share
    2^(size-2) points at least, and each has 2^(size-1); every part is shattered, so a branch
    ends with the first trace that is missing.
    """
    spare = family.kind == "columns"
    usable = family.degree >= 2 ** (size - 1) - spare
    meets, least = family.meets, 2 ** (size - 2) - spare

    def partners(s: int) -> list[int]:
        start, stop = meets.indptr[s], meets.indptr[s + 1]
        others = meets.indices[start:stop]
        keep = (others > s) & (meets.data[start:stop] >= least) & usable[others]
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
    """Return the bound from the largest shattered family, found by an exact search."""
    columns = family.kind == "columns"
    name = "VC dimension" if columns else "dual VC dimension"
    deadline = problem.share(0.3)
    best: list[int] = []
    size, finished = 3 if columns else 2, family.whole
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
    """Grow one family, each time by the set that makes the most different traces."""
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
    meets = family.meets
    ended = ""
    try:
        for start in starts:
            for free in (False,) if columns else (False, True):
                check_time(deadline)
                near = meets.indices[meets.indptr[start] : meets.indptr[start + 1]]
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
