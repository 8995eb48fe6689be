"""Heads of size 1: does an order of the keys exist that has every support at one of its ends?

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

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import scipy.sparse as sp

from headfit._base.tolerances import Tolerances
from headfit._lower.problem import (
    Ints,
    Problem,
    Proof,
    Visibility,
    Witness,
    are_places,
    line,
    lowest_bit,
    packed,
    support_of,
)
from headfit._lower.traces import Traces
from headfit._target.target import Target

FEW = 5  # how many columns `NoOrder` may have: all of their orders are tried
MANY, STARTS = 60, 40  # how many rows it may have, and places drawn at which it is looked for


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
        for order in permutations(self.columns):
            rows = [[inside[j] for j in order if j in inside] for inside in lines]
            if all(row in (sorted(row), sorted(row, reverse=True)) for row in rows):
                return 0
        return 2


def no_chains(sets: dict[int, int], r: int) -> Traces | None:
    """Return the proof that sets (bits, and their rows) form no two chains around column r."""
    tops: list[int] = []  # the last set of each chain
    for bits in sorted(sets, key=int.bit_count):
        met = [x for x in tops if x & bits]
        for x in met:
            if x & ~bits:
                points = (x & bits, x & ~bits, bits & ~x)
                cells = (*(lowest_bit(p) for p in points), r)
                return Traces("rows", (sets[x], sets[bits]), cells, free=True)
        if len(met) == 2 or (len(tops) == 2 and not met):
            last = r if met else lowest_bit(bits)
            columns = (lowest_bit(tops[0]), lowest_bit(tops[1]), last)
            return Traces("columns", columns, (sets[tops[0]], sets[tops[1]], sets[bits]))
        tops = [x for x in tops if x not in met] + [bits]
    return None


def _sets(problem: Problem, rows: Ints, columns: Ints, most: int) -> tuple[dict[int, int], int]:
    """Return the different supports, complemented where they contain r, and the column r.

    All rows see these columns; the fewest attend to r. At most `most` sets are collected.
    """
    m, n = problem.supports, problem.target.n
    inside = np.zeros(n, np.bool_)
    inside[columns] = True
    r = int(columns[np.argmin(np.bincount(m.indices, minlength=n)[columns])])
    everything = packed(inside)
    sets: dict[int, int] = {}
    for i in rows.tolist():
        problem.check_time()
        support = line(m, i)
        bits = sum(1 << j for j in support[inside[support]].tolist())
        bits ^= everything * (bits >> r & 1)
        if bits:
            sets.setdefault(bits, i)
        if len(sets) >= most:
            break
    return sets, r


def order_proofs(problem: Problem) -> Iterator[Proof]:
    """Yield d >= 2 if no order of the keys suits; without a mask, d >= 1 if one does."""
    for rows, columns in problem.sight.rectangles(problem.check_time):
        for most in (1000, problem.target.n):  # a thousand sets usually suffice to exclude d = 1
            sets, r = _sets(problem, rows, columns, most)
            traces = no_chains(sets, r)
            if traces is not None:
                by_rows = traces.kind == "rows"
                cut = "two rows cut four cells" if by_rows else "three columns are cut off"
                yield 2, f"no order has every support at an end: {cut}", traces
                return
            if len(sets) < most:
                break
    if not problem.sight.limited:
        yield 1, "an order of the keys exists: the supports alone do not exclude d = 1", None
        return
    yield from _search_few_columns(problem)


def _search_few_columns(problem: Problem) -> Iterator[Proof]:
    """Try neighbouring columns, and those that neighbouring rows attend to."""
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
            witness = NoOrder(tuple(columns.tolist()), tuple(rows.tolist()))
            if witness.proves(problem.target, problem.tolerances):
                few = f"no order of {len(columns)} columns has what each row sees at an end"
                yield 2, few, witness
                return
    yield 0, "no contradiction among rows that see the same columns; others are not decided", None
