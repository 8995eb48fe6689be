"""Exact nearest neighbours, and their greedy choice under a bound on columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headfit.patterns._build import (
    Floats,
    Ints,
)

if TYPE_CHECKING:
    from scipy.spatial import cKDTree


# Temporary arrays of the neighbour search have about this many entries of 8 bytes.
_BLOCK_ENTRIES = 1 << 20
# In more dimensions than this, a search in a KD-tree visits nearly every point.
_TREE_DIMENSIONS = 12


@dataclass(frozen=True)
class Pairs:
    """Pairs of a row and a column with their squared distances, grouped by row."""

    rows: Ints
    columns: Ints
    squares: Floats

    def keep(self, mask: NDArray[np.bool_]) -> Pairs:
        return Pairs(self.rows[mask], self.columns[mask], self.squares[mask])

    @staticmethod
    def join(parts: Sequence[Pairs]) -> Pairs:
        return Pairs(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.columns for part in parts]),
            np.concatenate([part.squares for part in parts]),
        )


class Neighbours:
    """A search for the nearest points of any point, ordered by (squared distance, index).

    Candidates come from a KD-tree or from all distances, but the order is always decided by
    the distances of `_squares`. So ties, and near ties that formulas would round differently,
    have the same outcome for each kind of search and each number of candidates.
    """

    def __init__(self, points: Floats) -> None:
        self.points = points
        self.tree: cKDTree | None = None
        if points.shape[1] <= _TREE_DIMENSIONS:
            from scipy.spatial import cKDTree

            self.tree = cKDTree(points)

    def nearest(self, rows: Ints, m: int, limits: _Limits | None = None) -> Pairs:
        """Return the `m` nearest points of each row, nearest first, that the limits admit."""
        m = min(m, len(self.points) - 1)
        asked = min(len(self.points), m + 8)
        parts = []
        for some in self._blocks(rows, asked):
            columns, squares = self._block(some, m, asked)
            part = Pairs(some.repeat(m), columns.ravel(), squares.ravel())
            parts.append(part if limits is None else part.keep(limits.admit(part)))
        return Pairs.join(parts)

    def _use_tree(self, asked: int) -> bool:
        # A tree that must return a large share of its points is slower than all distances.
        return self.tree is not None and asked < max(32, len(self.points) // 16)

    def _blocks(self, rows: Ints, asked: int) -> Iterator[Ints]:
        """Yield parts of the rows that are small enough for the temporary arrays."""
        width = asked if self._use_tree(asked) else len(self.points)
        height = max(1, _BLOCK_ENTRIES // width)
        for start in range(0, len(rows), height):
            yield rows[start : start + height]

    def _block(self, rows: Ints, m: int, asked: int) -> tuple[Ints, Floats]:
        """Return the columns and squared distances of the `m` nearest of each row."""
        n = len(self.points)
        found, furthest = self._candidates(rows, asked)
        exact = self._squares(rows, found)
        exact[found == rows[:, None]] = np.inf  # a point is not its own neighbour
        order = np.lexsort((found, exact))[:, :m]
        columns = np.take_along_axis(found, order, axis=1)
        squares = np.take_along_axis(exact, order, axis=1)
        if asked < n:
            # Points that were not found are at least as far as the furthest that was, up to
            # rounding. So a row whose m-th neighbour is nearer than that is finished; the
            # others ask for more candidates.
            unsettled = np.flatnonzero(squares[:, -1] * (1 + 1e-9) >= furthest)
            more = min(n, 4 * asked)
            for some in self._blocks(unsettled, more):
                columns[some], squares[some] = self._block(rows[some], m, more)
        return columns, squares

    def _candidates(self, rows: Ints, asked: int) -> tuple[Ints, Floats]:
        """Return about the `asked` nearest points of each row, and the furthest's squared distance.

        The row itself is usually among them.
        """
        n = len(self.points)
        if self.tree is not None and self._use_tree(asked):
            distances, found = map(np.asarray, self.tree.query(self.points[rows], k=asked))
            return found, np.square(distances[:, -1])
        if asked == n:
            return np.broadcast_to(np.arange(n), (len(rows), n)), np.full(len(rows), np.inf)
        from scipy.spatial.distance import cdist

        squares = cdist(self.points[rows], self.points, "sqeuclidean")
        found = np.argpartition(squares, asked - 1, axis=1)[:, :asked]
        return found, np.take_along_axis(squares, found, axis=1).max(axis=1)

    def _squares(self, rows: Ints, columns: Ints) -> Floats:
        """Return squared distances, summed by coordinate: exactly symmetric in row and column."""
        total = np.zeros(columns.shape)
        for coordinate in self.points.T:
            total += np.square(coordinate[columns] - coordinate[rows, None])
        return total


def capped(neighbours: Neighbours, k: int, cap: int) -> Pairs:
    """Return the greedy choice of pairs, nearest first, at most `k` per row and `cap` per column.

    Rows and columns rank pairs by the same order, (distance, row, column). Therefore the greedy
    choice is the unique stable matching, which deferred acceptance (Gale and Shapley 1962) finds
    in rounds instead of pair by pair: every row proposes its best `k` remaining pairs, every
    column keeps its best `cap` proposals and refuses all worse ones for good. Rows that run out
    of candidates ask the search for more.
    """
    n = len(neighbours.points)
    asked = np.full(n, min(n - 1, 2 * k))
    pool = neighbours.nearest(np.arange(n), 2 * k)
    while True:
        pool = _deferred_acceptance(pool, k, cap)
        counts = np.bincount(pool.rows, minlength=n)
        short = np.flatnonzero((counts < k) & (asked < n - 1))
        if short.size == 0:
            return pool.keep(_rank_in_group(pool.rows) < k)
        more = min(n - 1, 4 * int(asked[short].max()))
        asked[short] = more
        fresh = neighbours.nearest(short, more, _limits(pool, n, k, cap))
        pool = Pairs.join([pool.keep(~np.isin(pool.rows, short)), fresh])


def _deferred_acceptance(pool: Pairs, k: int, cap: int) -> Pairs:
    """Make rounds of proposals and refusals until no column refuses a pair."""
    order = np.lexsort((pool.columns, pool.squares, pool.rows))
    pool = Pairs(pool.rows[order], pool.columns[order], pool.squares[order])
    by_column = np.lexsort((pool.rows, pool.squares, pool.columns))
    while True:
        proposed = _rank_in_group(pool.rows) < k
        columns = pool.columns[by_column]
        refused = _rank_in_group(columns, proposed[by_column]) >= cap
        if not refused.any():
            return pool
        stays = np.ones(pool.rows.size, dtype=np.bool_)
        stays[by_column[refused]] = False
        pool = pool.keep(stays)
        # The order by column stays the same after the removal; only indices are renumbered.
        by_column = (np.cumsum(stays) - 1)[by_column[~refused]]


def _rank_in_group(groups: Ints, counted: NDArray[np.bool_] | None = None) -> Ints:
    """Return for each entry how many counted entries of its group precede it.

    Entries of the same group must be adjacent.
    """
    before = np.arange(groups.size) if counted is None else np.cumsum(counted) - counted
    new = np.ones(groups.size, dtype=np.bool_)
    new[1:] = groups[1:] != groups[:-1]
    return np.asarray(before - before[new][np.cumsum(new) - 1])


@dataclass(frozen=True)
class _Limits:
    """The worst pair that each full column keeps; columns with room have an infinite distance."""

    squares: Floats
    rows: Ints

    def admit(self, pairs: Pairs) -> NDArray[np.bool_]:
        """Return which pairs are not worse than the worst pair that their column keeps."""
        square, row = self.squares[pairs.columns], self.rows[pairs.columns]
        tied = (pairs.squares == square) & (pairs.rows <= row)
        return np.asarray((pairs.squares < square) | tied)


def _limits(pool: Pairs, n: int, k: int, cap: int) -> _Limits:
    # A column's worst accepted pair only improves, so what it refuses now it would refuse later.
    kept = pool.keep(_rank_in_group(pool.rows) < k)
    order = np.lexsort((kept.rows, kept.squares, kept.columns))
    columns = kept.columns[order]
    last = _rank_in_group(columns) == cap - 1
    limits = _Limits(np.full(n, np.inf), np.zeros(n, dtype=np.int64))
    limits.squares[columns[last]] = kept.squares[order][last]
    limits.rows[columns[last]] = kept.rows[order][last]
    return limits
