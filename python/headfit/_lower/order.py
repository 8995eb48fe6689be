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

from headfit import _core
from headfit._base.tolerances import Tolerances
from headfit._lower.problem import (
    Problem,
    Proof,
    Visibility,
    Witness,
    are_places,
    line,
    stored,
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
