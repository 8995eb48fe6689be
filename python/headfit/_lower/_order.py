"""Heads of size 1: does an order of the keys exist that has every support at one of its ends?

With d = 1 the logits of a row increase or decrease along the order of the keys, so its support is
a prefix or a suffix of the columns that the mask allows it. Take rows that may all attend to the
same columns, choose one of these columns, r, and replace every support that contains r by its
complement. The resulting sets on one side of r are nested, and sets on different sides are
disjoint. Fix one set X: the sets that intersect X lie on the same side, all others on the other
side. This gives the two sides, and the order exists if and only if each side is a chain (nested)
and the largest sets of the two sides are disjoint. If not, there are either two rows that cut the
columns into four cells (on a line there are three at most), or three columns, each of which a row
separates from the other two (no halfline does that for the middle one): `Traces` that exclude
d = 1. If the order exists, this alone proves nothing about the tolerances.

With a mask, rows that may attend to different columns can be used as well: for any few columns,
each row must have its support at one end of those columns that it may attend to. (Equal keys have
equal logits, so they are on the same side in every row and may be put in any order.) If no order
of these columns suits every row, d = 1 is excluded: `NoOrder`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np
import scipy.sparse as sp

from headfit._lower._deadline import OutOfTimeError, check_time
from headfit._lower._problem import Candidate, Problem, are_distinct, support_of
from headfit._lower._traces import Traces, packed
from headfit._lower._visibility import Ints, Visibility
from headfit._target.target import Target

FEW = 5  # how many columns `NoOrder` may have: all of their orders are tried
MANY = 60  # how many rows it may have

Split = tuple[int, int]  # a set of columns as bits, and the row that it comes from


@dataclass(frozen=True, repr=False)
class KeyOrder:
    """An order of all columns that has every support at one of its ends: d = 1 is not excluded."""

    columns: tuple[int, ...]

    def proves(self, target: Target, leak: float, distortion: float) -> int:
        """Return 1 if this is such an order, 0 if not."""
        n = target.n
        if target.mask is not None or not are_distinct(self.columns, n) or len(self.columns) != n:
            return 0
        place = {j: at for at, j in enumerate(self.columns)}
        for i in range(n):
            at = [place[j] for j in support_of(target, i)]
            if at and max(at) - min(at) + 1 != len(at):
                return 0
            if at and min(at) > 0 and max(at) < n - 1:
                return 0
        return 1

    def __repr__(self) -> str:
        return f"KeyOrder({len(self.columns)} columns)"


@dataclass(frozen=True)
class NoOrder:
    """A few columns no order of which has the supports of all given rows at one of its ends."""

    columns: tuple[int, ...]
    rows: tuple[int, ...]

    def proves(self, target: Target, leak: float, distortion: float) -> int:
        """Return 2 if no order of the columns suits the rows, 0 if one does."""
        n = target.n
        if not (are_distinct(self.columns, n) and are_distinct(self.rows, n) and 0 < leak < 1):
            return 0
        if len(self.columns) > FEW:
            return 0
        sight, splits = Visibility(target.mask, n), []
        for i in self.rows:
            seen = sight.row(i)
            splits.append((support_of(target, i), [j for j in self.columns if seen[j]]))
        for order in permutations(self.columns):
            if all(
                _is_at_an_end([j in support for j in order if j in seen])
                for support, seen in splits
            ):
                return 0
        return 2


def _is_at_an_end(inside: list[bool]) -> bool:
    """Return whether the True values are all at the start or all at the end."""
    return inside == sorted(inside) or inside == sorted(inside, reverse=True)


def _lowest_bit(bits: int) -> int:
    """Return the position of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


def _four_cells(x: Split, y: Split, r: int) -> Traces:
    """Return the witness that two rows, whose sets cross, cut the columns into four cells."""
    points = (_lowest_bit(x[0] & y[0]), _lowest_bit(x[0] & ~y[0]), _lowest_bit(y[0] & ~x[0]), r)
    return Traces("rows", (x[1], y[1]), points, free=True)


def _three_cut_off(x: Split, y: Split, z: Split, columns: tuple[int, int, int]) -> Traces:
    """Return the witness that each of three columns is separated from the others by a row."""
    return Traces("columns", columns, (x[1], y[1], z[1]))


def _nested(x: Split, y: Split) -> bool:
    """Return whether one of two sets contains the other."""
    return x[0] & y[0] in (x[0], y[0])


def _two_chains(sets: list[Split], r: int) -> Traces | tuple[list[int], list[int]]:
    """Return the chains of sets on both sides of column r, or a witness that there are none."""
    if not sets:
        return [], []
    x = sets[0]
    sides: list[list[Split]] = [[s for s in sets if s[0] & x[0]], []]
    sides[1] = [s for s in sets if not s[0] & x[0]]
    for side in sides:
        side.sort(key=lambda s: s[0].bit_count())
        for a, b in pairwise(side):
            if _nested(a, b):
                continue
            if a[0] & b[0]:
                return _four_cells(a, b, r)
            if side is sides[1]:  # three disjoint sets
                return _three_cut_off(
                    a, b, x, (_lowest_bit(a[0]), _lowest_bit(b[0]), _lowest_bit(x[0]))
                )
            for y in (a, b):
                if not _nested(x, y):
                    return _four_cells(x, y, r)
            # Both a and b are contained in x.
            return _three_cut_off(a, b, x, (_lowest_bit(a[0]), _lowest_bit(b[0]), r))
    if sides[1]:
        z, y = sides[0][-1], sides[1][-1]
        # These are the largest sets of the two sides; z intersects x and y does not.
        if z[0] & y[0]:
            if not _nested(z, y):
                return _four_cells(z, y, r)
            # Here z contains both x and y.
            return _three_cut_off(x, y, z, (_lowest_bit(x[0]), _lowest_bit(y[0]), r))
    return [s[0] for s in sides[0]], [s[0] for s in sides[1]]


def _splits(
    problem: Problem, rows: Ints, columns: Ints, most: int, deadline: float
) -> tuple[list[Split], int]:
    """Return the different supports, complemented where they contain r, and the column r.

    Only the given columns count, to all of which the rows may attend; r is the one that the
    fewest rows attend to. At most `most` sets are collected.
    """
    inside = np.zeros(problem.target.n, np.bool_)
    inside[columns] = True
    m = problem.supports
    degree = np.bincount(m.indices, minlength=problem.target.n)
    r = int(columns[np.argmin(degree[columns])])
    full = packed(inside)
    found: dict[int, int] = {}
    for i in rows.tolist():
        check_time(deadline)
        support = m.indices[m.indptr[i] : m.indptr[i + 1]]
        bits = 0
        for j in support[inside[support]].tolist():
            bits |= 1 << j
        if bits >> r & 1:
            bits ^= full
        if bits:
            found.setdefault(bits, i)
        if len(found) >= most:
            break
    return list(found.items()), r


def order(problem: Problem) -> Candidate:
    """Return the bound d >= 2 if no order of the keys suits; exact without a mask, given time."""
    name, deadline = "order of the keys", problem.share(0.4)
    try:
        return _search_order(problem, name, deadline)
    except OutOfTimeError:
        return Candidate(name, None, "not finished", "the time ended")


def _search_order(problem: Problem, name: str, deadline: float) -> Candidate:
    for rows, columns in problem.sight.rectangles(deadline):
        found: Traces | tuple[list[int], list[int]] = ([], [])
        for most in (1000, problem.target.n):  # a thousand sets usually suffice to exclude d = 1
            sets, r = _splits(problem, rows, columns, most, deadline)
            found = _two_chains(sets, r)
            if isinstance(found, Traces) or len(sets) < most:
                break
        if isinstance(found, Traces):
            cut = "two rows cut four cells" if found.kind == "rows" else "three columns are cut off"
            reason = f"no order has every support at an end: {cut}"
            return Candidate(name, 2, "proved", reason, found)
        if not problem.sight.limited:
            left, right = found
            used, placed = 0, []
            for chain in (left, right):
                part = []
                for bits in chain:
                    part += [j for j in columns.tolist() if (bits & ~used) >> j & 1]
                    used |= bits
                placed.append(part)
            middle = [j for j in columns.tolist() if not used >> j & 1]
            keys = KeyOrder((*placed[0], *middle, *placed[1][::-1]))
            reason = "an order of the keys exists: the supports alone do not exclude d = 1"
            return Candidate(name, 1, "proved", reason, keys)
    few = _search_few_columns(problem, deadline)
    if few is not None:
        reason = f"no order of {len(few.columns)} columns has what each row sees at an end"
        return Candidate(name, 2, "proved", reason, few)
    reason = "no contradiction among rows that see the same columns; others are not decided"
    return Candidate(name, None, "not finished", reason)


def _search_few_columns(problem: Problem, deadline: float) -> NoOrder | None:
    """Search for a few columns that no order suits.

    Neighbouring columns are tried, and columns that neighbouring rows attend to.
    """
    target, rng = problem.target, problem.rng
    n, m = target.n, problem.supports
    by_column = sp.csc_array(m)
    ends = [0, max(0, n - FEW), n // 2]
    for start in [*ends, *rng.integers(0, max(1, n - FEW), size=40).tolist()]:
        rows = np.unique(np.clip(start + np.arange(FEW), 0, n - 1))
        attended = np.unique(
            np.concatenate([m.indices[m.indptr[i] : m.indptr[i + 1]] for i in rows])
        )
        for columns in (
            rows,
            attended if attended.size <= FEW else rng.choice(attended, FEW, False),
        ):
            if columns.size < 3:
                continue
            if time.monotonic() > deadline:
                return None
            touching = np.concatenate(
                [by_column.indices[by_column.indptr[j] : by_column.indptr[j + 1]] for j in columns]
            )
            touching = np.unique(touching)
            if touching.size > MANY:
                touching = np.sort(rng.choice(touching, MANY, False))
            found = NoOrder(tuple(columns.tolist()), tuple(touching.tolist()))
            if found.proves(target, problem.leak, problem.distortion):
                return found
    return None
