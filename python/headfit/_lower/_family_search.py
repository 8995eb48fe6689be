"""The searches for large families of rows and columns that the supports tell apart.

What the families prove is in `headfit._lower._bounded`, and how they are checked in
`headfit._lower._families`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from headfit._lower._families import Apart, Facts, Groups, Kind
from headfit._lower._problem import OutOfTimeError, Problem, line
from headfit._lower._visibility import Bools, Ints

MOST_PAIRS = 8_000_000
"""No table of the rows that share a column is made if it could have more entries than this."""

HEAVY = 8
"""Columns with so many times the mean of entries may be left out of groups."""


Claim = tuple[Apart | Groups, Facts]
"""A family, and what it proves unless the search is wrong: `facts` of the family checks that."""


def families(problem: Problem) -> Iterator[Claim]:
    """Yield families, as many as the time allows."""
    with suppress(OutOfTimeError):
        yield from _columns_apart(problem)
        for rows, columns in problem.rectangles():
            yield from _in_rectangle(problem, rows, columns)


def _apart(
    kind: Kind, members: tuple[int, ...], closed: bool, within: tuple[int, ...] | None = None
) -> Claim:
    facts = Facts(len(members), Fraction(1), joint=False, in_rows=False, closed=closed)
    return Apart(kind, members, within), facts


def _groups(
    kind: Kind, members: tuple[int, ...], groups: tuple[tuple[int, ...], ...], common: int
) -> Claim:
    size = len(groups[0])
    share = Fraction(size - common, size)
    in_rows = kind == "rows" or common == 0
    return Groups(kind, members, groups), Facts(len(members), share, True, in_rows, closed=True)


def _columns_apart(problem: Problem) -> Iterator[Claim]:
    """Yield columns of which every two are told apart by a row that sees both."""
    everything = np.arange(problem.target.n)
    if not problem.sight.limited:
        members = _different_lines(sp.csc_array(problem.supports), everything)
        yield _apart("columns", members, closed=True)
        return
    window = problem.sight.window
    spans = [everything]
    if window is not None and sum(window) + 1 < problem.target.n:
        # Columns that no row sees together are not told apart, so that none are further apart.
        length = sum(window) + 1
        starts = dict.fromkeys((0, (everything.size - length) // 2, everything.size - length))
        spans = [everything[first : first + length] for first in starts]
    for span in spans:
        members = _greedily_apart(problem, span)
        if len(members) > 1:
            yield _apart("columns", members, closed=False)


def _different_lines(lines: sp.csc_array | sp.csr_array, names: Ints) -> tuple[int, ...]:
    """Return one of each class of equal columns of a csc_array, or rows of a csr_array."""
    lines.sort_indices()
    first: dict[bytes, int] = {}
    for place, name in enumerate(names.tolist()):
        first.setdefault(line(lines, place).tobytes(), name)
    return tuple(first.values())


def _greedily_apart(problem: Problem, columns: Ints) -> tuple[int, ...]:
    """Take columns in ascending order, each that is told apart from all that were taken."""
    supports, sight = problem.supports, problem.sight
    by_column = sp.csc_array(supports)
    by_column.sort_indices()
    rows_of = {j: set(line(by_column, j).tolist()) for j in columns.tolist()}
    taken: list[int] = []
    inside: set[int] = set()

    def is_apart(j: int, x: int) -> bool:
        pair = np.array([j, x])
        return any(sight.sees(i, pair) for i in rows_of[j] ^ rows_of[x])

    # Columns without rows are not told apart from each other; one of them may come last.
    empty = [j for j in rows_of if not rows_of[j]]
    for j in [*(j for j in rows_of if rows_of[j]), *empty[:1]]:
        if problem.seconds == 0:
            break
        doubtful = taken
        if rows_of[j]:
            # A row of column j tells it from all that it sees and does not attend to.
            i = max(rows_of[j])
            support = line(supports, i).tolist()
            if sight.window is not None:
                low, high = (bisect_left(taken, end) for end in sight.span(i))
                doubtful = taken[:low] + taken[high:]
            else:
                seen = sight.row(i)
                doubtful = [x for x in taken if not seen[x]]
            doubtful = doubtful + [x for x in support if x in inside]
        if all(is_apart(j, x) for x in doubtful):
            taken.append(j)
            inside.add(j)
    return tuple(taken)


@dataclass(frozen=True, eq=False)
class _Lines:
    """One side of a rectangle in which every row sees every column: its rows, or its columns.

    Attributes
    ----------
    kind : "rows" or "columns"
        What the lines are.
    table : csr_array
        The supports within the rectangle, with one row for each line.
    names, others : ndarray of int
        The lines, and what crosses them, by their numbers in the target.
    within : tuple of int or None
        The same as `others`; None if the rectangle is the whole matrix.
    """

    kind: Kind
    table: sp.csr_array
    names: Ints
    others: Ints
    within: tuple[int, ...] | None

    @cached_property
    def degrees(self) -> Ints:
        """How many lines have an entry in each column of the table."""
        return np.bincount(self.table.indices, minlength=self.others.size)

    @cached_property
    def light(self) -> Bools:
        """Which columns of the table have at most `HEAVY` times the mean of entries."""
        return self.degrees <= HEAVY * max(1.0, float(self.degrees.mean()))


def _in_rectangle(problem: Problem, rows: Ints, columns: Ints) -> Iterator[Claim]:
    """Yield families of rows and columns that all see each other."""
    is_part = problem.sight.limited
    part = sp.csr_array(problem.supports[rows][:, columns]) if is_part else problem.supports
    if is_part:
        members = _different_lines(sp.csc_array(part), columns)
        if len(members) > 1:
            yield _apart("columns", members, closed=True, within=tuple(rows.tolist()))
    kinds: tuple[tuple[Kind, sp.csr_array, Ints, Ints], ...] = (
        ("rows", part, rows, columns),
        ("columns", sp.csr_array(part.T), columns, rows),
    )
    for kind, table, names, others in kinds:
        table.sort_indices()
        within = tuple(others.tolist()) if is_part else None
        yield from _of_lines(problem, _Lines(kind, table, names, others, within))


def _of_lines(problem: Problem, lines: _Lines) -> Iterator[Claim]:
    """Yield groups of lines, and rows of which none contains another."""
    yield from _matchings(problem, lines)
    everything = np.ones(lines.others.size, np.bool_)
    for keep in [everything] if lines.light.all() else [everything, lines.light]:
        problem.check_time()
        if np.square(lines.degrees[keep], dtype=np.float64).sum() > MOST_PAIRS:
            continue
        table = lines.table if keep is everything else sp.csr_array(lines.table[:, keep])
        table.sort_indices()
        common = sp.csr_array(table @ table.T).astype(np.int64)
        common.setdiag(0)
        common.eliminate_zeros()
        if keep is everything and lines.kind == "rows":
            members = _uncontained(problem, common, np.diff(table.indptr), lines.names)
            yield _apart("rows", members, closed=True, within=lines.within)
        yield from _of_equal_sizes(problem, lines, table, lines.others[keep], common)


def _of_equal_sizes(
    problem: Problem, lines: _Lines, table: sp.csr_array, others: Ints, common: sp.csr_array
) -> Iterator[Claim]:
    """Yield lines with equally many entries in a table, for the two sizes that most lines have.

    `common` says how many entries every two lines share.
    """
    sizes = np.diff(table.indptr)
    counts = np.bincount(sizes)
    counts[0] = 0
    for size in np.argsort(-counts)[:2].tolist():
        if counts[size] < 2:
            continue
        same = np.flatnonzero(sizes == size)
        shared = sp.csr_array(common[same][:, same])
        for most in sorted({0, 1, 2, size // 4, size // 2, 3 * size // 4, size - 1}):
            if most >= size:
                continue
            problem.check_time()
            chosen = same[_independent(problem, shared, shared.data > most)]
            groups = tuple(tuple(others[line(table, t)].tolist()) for t in chosen.tolist())
            if len(groups) > 1:
                yield _groups(lines.kind, tuple(lines.names[chosen].tolist()), groups, most)


def _uncontained(
    problem: Problem, common: sp.csr_array, sizes: Ints, names: Ints
) -> tuple[int, ...]:
    """Return lines of which none contains another."""
    row = np.repeat(np.arange(sizes.size), np.diff(common.indptr))
    contained = common.data >= np.minimum(sizes[row], sizes[common.indices])
    chosen = _independent(problem, common, contained)
    return tuple(names[chosen[sizes[chosen] > 0]].tolist())


def _matchings(problem: Problem, lines: _Lines) -> Iterator[Claim]:
    """Yield lines with one entry each, at which the other lines of the family have none."""
    table, names, degrees = lines.table, lines.names, lines.degrees
    row = np.repeat(np.arange(names.size), np.diff(table.indptr))
    for order in (degrees[table.indices], table.indices, -table.indices):
        problem.check_time()
        # Each line takes its first entry in this order, among those that few lines have.
        by = np.lexsort((order, ~lines.light[table.indices], row))
        first = by[np.unique(row[by], return_index=True)[1]]
        used, entry = row[first], table.indices[first]
        if degrees[entry].sum() > MOST_PAIRS:
            continue
        # Line r conflicts with line s if it has the entry that s takes.
        meets = sp.csr_array(sp.csc_array(table)[:, entry])[used]
        meets = sp.csr_array(meets + meets.T)
        meets.setdiag(0)
        meets.eliminate_zeros()
        chosen = _independent(problem, meets, np.ones(meets.nnz, np.bool_))
        if chosen.size > 1:
            groups = tuple((x,) for x in lines.others[entry[chosen]].tolist())
            yield _groups(lines.kind, tuple(names[used[chosen]].tolist()), groups, 0)


def _independent(problem: Problem, table: sp.csr_array, is_edge: Bools) -> Ints:
    """Return nodes without edges between them, as many as a greedy choice finds.

    Nodes are taken in their own order, and in the order of their numbers of edges.
    """
    row = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))[is_edge]
    target = table.indices[is_edge]
    start = np.searchsorted(row, np.arange(table.shape[0] + 1)).tolist()
    edges = np.diff(start)
    best = np.empty(0, np.intp)
    for order in (np.arange(edges.size), np.argsort(edges, kind="stable")):
        problem.check_time()
        is_free = np.ones(edges.size, np.bool_)
        is_taken = np.zeros(edges.size, np.bool_)
        for node in order.tolist():
            if is_free[node]:
                is_taken[node] = True
                is_free[target[start[node] : start[node + 1]]] = False
        chosen = np.flatnonzero(is_taken)
        best = chosen if chosen.size > best.size else best
    return best
