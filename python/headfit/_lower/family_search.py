"""The searches for large families of rows and columns that the supports tell apart.

`headfit._lower.bounded` says what the families prove, and checks them.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp

from headfit import _core
from headfit._base.calls import calls_until
from headfit._lower.bounded import Apart, Groups, Limits, Separated, needed
from headfit._lower.problem import Candidate, Problem
from headfit._lower.supports import Ints, Kind, line, off_diagonal

MOST_PAIRS = 8_000_000  # bound on the entries of a table of the rows that share a column
HEAVY = 8  # Columns with so many times the mean of entries may be left out of groups

NAMES = ("keys apart", "queries apart", "queries and keys apart")

# A family, and the argument of its `says`, unless the search is wrong: its `facts` checks that.
Claim = tuple[Apart | Groups, Any]


def bounded(problem: Problem, limits: Limits) -> list[Candidate]:
    """Return the best bounds for a head whose norms or logits are bounded."""
    best = {name: Candidate(name, None, "not finished", "no family found") for name in NAMES}
    with suppress(TimeoutError):
        for family, known in families(problem.within(0.5)):
            facts = family.says(known)
            if facts.points < 2:
                continue
            name = NAMES[2 if facts.joint else family.kind == "rows"]
            dim, proof = needed(facts, limits, problem.tolerances.leak, problem.target.n)
            if dim > (best[name].dim or 1):
                share = "" if facts.share == 1 else f"{facts.share} "
                what = f"{facts.points} {name.removesuffix(' apart')} are apart by a gap of"
                reason = f"{what} {share}ln(1/leak) in bounded heads ({proof})"
                best[name] = Candidate(name, dim, "proved", reason, Separated(family, limits))
        best |= {n: Candidate(n, 1, "proved", "nothing found") for n in NAMES if not best[n].dim}
    return list(best.values())


def families(problem: Problem) -> Iterator[Claim]:
    """Yield families; raises TimeoutError where the time ends before."""
    with calls_until(time.perf_counter() + problem.seconds):
        if problem.sight.limited:
            yield from _columns_apart(problem)
        for rows, columns in problem.sight.rectangles(problem.check_time):
            part = sp.csr_array(problem.supports[rows][:, columns])
            within = tuple(rows.tolist()) if problem.sight.limited else None
            yield Apart("columns", _different_columns(part, columns), within), True
            yield from _of_lines(problem, _Lines("rows", part, rows, columns))
            yield from _of_lines(problem, _Lines("columns", part.T, columns, rows))


def _columns_apart(problem: Problem) -> Iterator[Claim]:
    """Yield columns of which every two are told apart by a row that sees both."""
    n, window = problem.target.n, problem.sight.window
    # Columns that no row sees together are not told apart, so that none are further apart.
    length = n if window is None else min(n, sum(window) + 1)
    for first in dict.fromkeys((0, (n - length) // 2, n - length)):
        members = tuple(_core.columns_apart(problem.target.core, first, first + length))
        yield Apart("columns", members), False


def _different_columns(table: sp.csr_array, names: Ints) -> tuple[int, ...]:
    """Return the names of one of each class of equal columns."""
    by_column = sp.csc_array(table)  # whose indices are sorted
    first: dict[bytes, int] = {}
    for place, name in enumerate(names.tolist()):
        first.setdefault(line(by_column, place).tobytes(), name)
    return tuple(first.values())


class _Lines:
    """One side of a rectangle in which every row sees every column: its rows, or its columns.

    `table` has the supports, with one row for each line; `names` and `others` number the lines and
    what crosses them in the target.
    """

    def __init__(self, kind: Kind, table: Any, names: Ints, others: Ints) -> None:
        self.kind, self.names, self.others = kind, names, others
        self.table = sp.csr_array(table)
        self.table.sort_indices()

    def groups(self, members: Ints, groups: Iterable[Any], common: int) -> Claim:
        """Return the family of some lines, each with places in `others`."""
        taken = tuple(tuple(np.atleast_1d(group).tolist()) for group in groups)
        return Groups(self.kind, tuple(self.names[members].tolist()), taken), common


def _of_lines(problem: Problem, lines: _Lines) -> Iterator[Claim]:
    """Yield groups of lines, and rows of which none contains another."""
    degrees = np.bincount(lines.table.indices, minlength=lines.others.size)
    light = degrees <= HEAVY * max(1.0, float(degrees.mean()))
    yield from _matchings(problem, lines, degrees, light)
    everything = np.ones(lines.others.size, np.bool_)
    for keep in [everything] if light.all() else [everything, light]:
        problem.check_time()
        if np.square(degrees[keep], dtype=np.float64).sum() > MOST_PAIRS:
            continue
        table, others = sp.csr_array(lines.table[:, keep]), lines.others[keep]
        table.sort_indices()
        # How many entries every two lines share.
        common = off_diagonal(sp.csr_array(table @ table.T).astype(np.int64))
        sizes = np.diff(table.indptr)
        if keep is everything and lines.kind == "rows":
            row = np.repeat(np.arange(sizes.size), np.diff(common.indptr))
            contained = common.data >= np.minimum(sizes[row], sizes[common.indices])
            chosen = _independent(problem, common, contained)
            members = tuple(lines.names[chosen[sizes[chosen] > 0]].tolist())
            within = tuple(others.tolist()) if problem.sight.limited else None
            yield Apart("rows", members, within), True
        counts = np.bincount(sizes)
        counts[0] = 0
        for size in np.argsort(-counts)[:2].tolist():  # the sizes that most lines have
            same = np.flatnonzero(sizes == size)
            shared = sp.csr_array(common[same][:, same])
            shares = {0, 1, 2, size // 4, size // 2, 3 * size // 4, size - 1}
            for most in sorted(x for x in shares if x < size and counts[size] >= 2):
                chosen = same[_independent(problem, shared, shared.data > most)]
                if chosen.size > 1:
                    groups = (others[line(table, t)] for t in chosen.tolist())
                    yield lines.groups(chosen, groups, most)


def _matchings(problem: Problem, lines: _Lines, degrees: Ints, light: Any) -> Iterator[Claim]:
    """Yield lines with one entry each, at which the other lines of the family have none."""
    table = lines.table
    row = np.repeat(np.arange(lines.names.size), np.diff(table.indptr))
    for order in (degrees[table.indices], table.indices, -table.indices):
        # Each line takes its first entry in this order, among those that few lines have.
        by = np.lexsort((order, ~light[table.indices], row))
        first = by[np.unique(row[by], return_index=True)[1]]
        used, entry = row[first], table.indices[first]
        if degrees[entry].sum() > MOST_PAIRS:
            continue
        # Line r conflicts with line s if it has the entry that s takes.
        meets = sp.csr_array(sp.csc_array(table)[:, entry])[used]
        meets = off_diagonal(sp.csr_array(meets + meets.T))
        chosen = _independent(problem, meets, meets.data > 0)
        if chosen.size > 1:
            yield lines.groups(used[chosen], lines.others[entry[chosen]], 0)


def _independent(problem: Problem, table: sp.csr_array, is_edge: Any) -> Ints:
    """Return nodes without edges between them, as many as two greedy orders find."""
    problem.check_time()
    row = np.repeat(np.arange(table.shape[0]), np.diff(table.indptr))[is_edge]
    offsets = np.searchsorted(row, np.arange(table.shape[0] + 1))
    return _core.independent_nodes(offsets, table.indices[is_edge].astype(np.int32)).astype(np.intp)
