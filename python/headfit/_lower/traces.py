"""Lower bounds from the supports alone: how halfspaces cut point sets, and orders for d = 1.

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

Does an order of the keys exist that has every support at one of its ends?
With d = 1 the logits of a row increase or decrease along the order of the keys, so its support is
a prefix or a suffix of the columns that the mask allows it. Take rows that may all attend to the
same columns, choose one of these columns, r, and replace every support that contains r by its
complement. The sets on one side of r are nested, and sets on different sides are disjoint. So take
the sets from small to large and build the two chains: each set must contain the last one of one
chain and be disjoint from the other chain. If a set does not fit, it crosses the last set x of a
chain, and these two rows and r cut the columns into four cells (on a line there are three at most);
or it contains both last sets, or is disjoint from both, and each of three columns is separated from
the other two by a row (no halfline does that for the middle one): `Traces` that exclude d = 1. If
all sets fit the order exists, which alone proves nothing about the tolerances.

With a mask, rows that may attend to different columns can be used as well: for any few columns,
each row must have its support at one end of those columns that it may attend to. (Equal keys have
equal logits, so they are on the same side in every row and may be put in any order.) If no order
of these columns suits every row, d = 1 is excluded: `NoOrder`.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from headfit import _core
from headfit._base.tolerances import Tolerances
from headfit._lower.problem import Candidate, Problem, Proof, Visibility, Witness, best_proof
from headfit._lower.supports import KINDS, Kind, are_places, line, stored
from headfit._target.target import Target, support_of

PAIRS_LIMIT = 6_000_000  # bound on the work of counting the points that two sets share
PAIRS_PER_SECOND = 2_000_000  # bound on the same work per second of the time limit
LARGEST_SET = 12  # the most sets of a family that the greedy search grows
NEAR, FAR = 40, 4  # how many sets with common points, and other ones, it may choose from
FEW = 5  # how many columns `NoOrder` may have: all of their orders are tried
MANY, STARTS = 60, 40  # how many rows it may have, and places drawn at which it is looked for


def least_dim(classes: int, vectors: int) -> int:
    """Return the least d with C(vectors-1, 0) + ... + C(vectors-1, d) >= classes."""
    reachable = itertools.accumulate(math.comb(vectors - 1, d) for d in itertools.count())
    return next(d for d, most in enumerate(reachable) if most >= classes)


@dataclass(frozen=True, repr=False)
class Traces(Witness):
    """Sets on which many points have different traces: columns and rows, or the other way round.

    Column j is the set of rows that attend to it, row i the set of columns in its support. The
    trace of a point says which of the sets contain it. `kind` says what the sets are; of the points
    there is one for each trace. `free` says whether the constant row is one of the sets, if they
    are rows.
    """

    kind: Kind
    sets: tuple[int, ...]
    points: tuple[int, ...]
    free: bool = False

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return the head size that this witness proves necessary; 0 if it is not valid."""
        n, columns = target.n, self.kind == "columns"
        if self.kind not in KINDS or (columns and self.free):
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


class _Sets(NamedTuple):
    """All columns (or rows) of a target as sets of points, with the core's searches."""

    kind: Kind
    search: _core.TraceSearch

    def proof(self, sets: list[int], free: bool, how: str) -> Proof:
        """Return what a family of sets proves, with one point for every trace."""
        points, vectors = self.search.points(sets, free), len(sets) + free
        classes = len(points) + (self.kind == "columns")  # where the free row has one more
        others = "rows" if self.kind == "columns" else "columns"
        dim = least_dim(classes, vectors)
        most = sum(math.comb(vectors - 1, i) for i in range(dim))
        ways = f"{len(sets)} {self.kind} are cut in {classes} ways by the {others}"
        text = f"{ways}, a head of size {dim - 1} does it in {most} at most ({how})"
        return dim, text, Traces(self.kind, tuple(sets), tuple(points), free)


def traces(problem: Problem, kind: Kind) -> list[Candidate]:
    """Return the bounds from sets with every trace, and from sets with many."""
    pairs = int(min(PAIRS_LIMIT, PAIRS_PER_SECOND * problem.seconds))
    search = _core.TraceSearch(problem.target.core, kind == "columns", pairs)
    sets = _Sets(kind, search)
    vc = "VC dimension" if kind == "columns" else "dual VC dimension"
    return [
        best_proof(vc, problem.within(0.3), lambda part: _shattered_sets(sets)),
        best_proof(f"traces of {kind}", problem.within(0.3), lambda part: _many(part, sets)),
    ]


def _shattered_sets(family: _Sets) -> Iterator[Proof]:
    """Yield ever larger families with every trace (of columns: but the constant ones)."""
    by_rows = family.kind == "rows"
    for size in itertools.count(2 if by_rows else 3):
        sets = family.search.shattered(size)
        if not sets:
            break
        yield family.proof(sets, by_rows, "every trace occurs")
    if not family.search.is_complete:
        raise TimeoutError


def _many(problem: Problem, family: _Sets) -> Iterator[Proof]:
    """Yield families with many traces, which a greedy search finds from some sets."""
    rng, n, best, m = problem.rng, problem.target.n, 1, problem.supports
    by_rows = family.kind == "rows"
    degrees = np.diff(m.indptr) if by_rows else np.bincount(m.indices, minlength=n)
    busy = np.argsort(-degrees, kind="stable")[:16].tolist()
    for start in [*busy, *rng.permutation(n)[:48].tolist()]:
        for free in (False, True) if by_rows else (False,):
            problem.check_time()
            near = np.array(family.search.near(start), np.intp)
            if near.size > NEAR:
                near = rng.choice(near, NEAR, replace=False)
            pool = np.setdiff1d(np.union1d(near, rng.integers(n, size=FAR)), start).tolist()
            # Grows a family greedily, and keeps the one on the way that proves most.
            sets, most, kept = [start], 0, [start]
            while pool and len(sets) < min(LARGEST_SET, len(kept) + 5):
                classes = family.search.classes_with(sets, pool, free)
                top = int(np.argmax(classes + rng.random(len(pool)) / 2))
                sets.append(pool.pop(top))
                dim = least_dim(classes[top], len(sets) + free)
                if dim > most:
                    most, kept = dim, list(sets)
            if most > best:
                best = most
                yield family.proof(kept, free, "a search by chance")


@dataclass(frozen=True, repr=False)
class NoOrder(Witness):
    """A few columns no order of which has the supports of some rows at one of its ends."""

    columns: tuple[int, ...]
    rows: tuple[int, ...]

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return 2 if no order of the columns suits the rows, 0 if one does."""
        n, sight = target.n, Visibility(target.mask, target.n)
        if not are_places(n, self.columns, self.rows) or len(self.columns) > FEW:
            return 0
        lines = []
        for i in self.rows:
            seen, support = sight.row(i), support_of(target, i)
            lines.append({j: j in support for j in self.columns if seen[j]})
        for order in itertools.permutations(self.columns):
            rows = [[inside[j] for j in order if j in inside] for inside in lines]
            if all(row in (sorted(row), sorted(row, reverse=True)) for row in rows):
                return 0
        return 2


def order_proofs(problem: Problem) -> Iterator[Proof]:
    """Yield d >= 2 if no order of the keys suits; without a mask, d >= 1 if one does."""
    for rows, columns in problem.sight.rectangles(problem.check_time):
        conflict = _core.order_conflict(*stored(problem.supports[rows][:, columns]))
        if conflict:
            cutting, cut = rows[conflict[0]].tolist(), columns[conflict[1]].tolist()
            if len(cutting) == 2:
                how, witness = "two rows cut four cells", Traces("rows", (*cutting,), (*cut,), True)
            else:
                how, witness = "three columns are cut off", Traces("columns", (*cut,), (*cutting,))
            yield 2, f"no order has every support at an end: {how}", witness
            return
    if not problem.sight.limited:
        yield 1, "an order of the keys exists: the supports alone do not exclude d = 1", None
        return
    # Tries neighbouring columns, and those that neighbouring rows attend to.
    m, n, rng = problem.supports, problem.target.n, problem.rng
    by_column = sp.csc_array(m)
    drawn = rng.integers(0, max(1, n - FEW), size=STARTS).tolist()
    for start in [0, max(0, n - FEW), n // 2, *drawn]:
        near = np.unique(np.clip(start + np.arange(FEW), 0, n - 1))
        attended = np.unique(np.concatenate([line(m, i) for i in near]))
        if attended.size > FEW:
            attended = rng.choice(attended, FEW, False)
        for columns in (near, attended):
            problem.check_time()
            if columns.size < 3:
                continue
            rows = np.unique(np.concatenate([line(by_column, j) for j in columns]))
            if rows.size > MANY:
                rows = np.sort(rng.choice(rows, MANY, False))
            few = NoOrder(tuple(columns.tolist()), tuple(rows.tolist()))
            if few.proves(problem.target, problem.tolerances):
                yield 2, f"no order of {len(columns)} columns has what each row sees at an end", few
                return
    yield 0, "no contradiction among rows that see the same columns; others are not decided", None
