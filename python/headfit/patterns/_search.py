"""Exact nearest neighbours, and the greedy choice under a column cap."""

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


# Temporary arrays of the neighbour search hold about this many entries (of 8 bytes).
_BLOCK_ENTRIES = 1 << 20
# Beyond this many dimensions a KD-tree visits nearly every point anyway.
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
    """The nearest points of any point, in the order (squared distance, index).

    The squares that decide are those of one function, `_squares`, whatever search brings
    the candidates: ties, and near ties that two formulas would round apart, come out the
    same for every search and every number of candidates.
    """

    def __init__(self, points: Floats) -> None:
        self.points = points
        self.tree: cKDTree | None = None
        if points.shape[1] <= _TREE_DIMENSIONS:
            from scipy.spatial import cKDTree

            self.tree = cKDTree(points)

    def nearest(self, rows: Ints, m: int, limits: _Limits | None = None) -> Pairs:
        """The `m` nearest of each row, nearest first, without those beyond the limits."""
        m = min(m, len(self.points) - 1)
        asked = min(len(self.points), m + 8)
        parts = []
        for some in self._blocks(rows, asked):
            columns, squares = self._block(some, m, asked)
            part = Pairs(some.repeat(m), columns.ravel(), squares.ravel())
            parts.append(part if limits is None else part.keep(limits.admit(part)))
        return Pairs.join(parts)

    def _use_tree(self, asked: int) -> bool:
        # A tree that is asked for much of what it holds only adds to the work.
        return self.tree is not None and asked < max(32, len(self.points) // 16)

    def _blocks(self, rows: Ints, asked: int) -> Iterator[Ints]:
        width = asked if self._use_tree(asked) else len(self.points)
        height = max(1, _BLOCK_ENTRIES // width)
        for start in range(0, len(rows), height):
            yield rows[start : start + height]

    def _block(self, rows: Ints, m: int, asked: int) -> tuple[Ints, Floats]:
        n = len(self.points)
        found, furthest = self._candidates(rows, asked)
        exact = self._squares(rows, found)
        exact[found == rows[:, None]] = np.inf  # oneself, where found at all
        order = np.lexsort((found, exact))[:, :m]
        columns = np.take_along_axis(found, order, axis=1)
        squares = np.take_along_axis(exact, order, axis=1)
        if asked < n:
            # What was not found is at least as far as the furthest found, up to rounding:
            # a row whose last choice is nearer is settled, the others ask for more.
            unsettled = np.flatnonzero(squares[:, -1] * (1 + 1e-9) >= furthest)
            more = min(n, 4 * asked)
            for some in self._blocks(unsettled, more):
                columns[some], squares[some] = self._block(rows[some], m, more)
        return columns, squares

    def _candidates(self, rows: Ints, asked: int) -> tuple[Ints, Floats]:
        """The `asked` nearest of each row, itself mostly among them, and how far they go."""
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
        """Squared distances, one coordinate after the other: symmetric to the last bit."""
        total = np.zeros(columns.shape)
        for coordinate in self.points.T:
            total += np.square(coordinate[columns] - coordinate[rows, None])
        return total


def capped(neighbours: Neighbours, k: int, cap: int) -> Pairs:
    """The greedy choice of pairs, nearest first, `k` a row and `cap` a column at most.

    Rows and columns rank pairs by one common order, (distance, row, column), and so the
    greedy choice is the one stable matching, which deferred acceptance finds in rounds
    instead of pair by pair: every row proposes its best `k` pairs that are left, every
    column keeps its best `cap` proposals and refuses all that is worse, for ever. Rows
    that run out ask the search for further candidates.
    """
    n = len(neighbours.points)
    asked = np.full(n, min(n - 1, 2 * k))
    pool = neighbours.nearest(np.arange(n), 2 * k)
    while True:
        pool = _settle(pool, n, k, cap)
        counts = np.bincount(pool.rows, minlength=n)
        short = np.flatnonzero((counts < k) & (asked < n - 1))
        if short.size == 0:
            return pool.keep(_rank_in_group(pool.rows) < k)
        more = min(n - 1, 4 * int(asked[short].max()))
        asked[short] = more
        fresh = neighbours.nearest(short, more, _limits(pool, n, k, cap))
        pool = Pairs.join([pool.keep(~np.isin(pool.rows, short)), fresh])


def _settle(pool: Pairs, n: int, k: int, cap: int) -> Pairs:
    """Rounds of proposals and refusals until no column refuses any pair."""
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
        # The order by column outlives the removal, with places renumbered.
        by_column = (np.cumsum(stays) - 1)[by_column[~refused]]


def _rank_in_group(groups: Ints, counted: NDArray[np.bool_] | None = None) -> Ints:
    """How many counted entries of the same group come before; equal groups are adjacent."""
    before = np.arange(groups.size) if counted is None else np.cumsum(counted) - counted
    new = np.ones(groups.size, dtype=np.bool_)
    new[1:] = groups[1:] != groups[:-1]
    return np.asarray(before - before[new][np.cumsum(new) - 1])


@dataclass(frozen=True)
class _Limits:
    """The worst pair that each full column keeps; infinitely bad where it has room."""

    squares: Floats
    rows: Ints

    def admit(self, pairs: Pairs) -> NDArray[np.bool_]:
        square, row = self.squares[pairs.columns], self.rows[pairs.columns]
        tied = (pairs.squares == square) & (pairs.rows <= row)
        return np.asarray((pairs.squares < square) | tied)


def _limits(pool: Pairs, n: int, k: int, cap: int) -> _Limits:
    # Columns only become harder to please: what they refuse now they would refuse later.
    kept = pool.keep(_rank_in_group(pool.rows) < k)
    order = np.lexsort((kept.rows, kept.squares, kept.columns))
    columns = kept.columns[order]
    last = _rank_in_group(columns) == cap - 1
    limits = _Limits(np.full(n, np.inf), np.zeros(n, dtype=np.int64))
    limits.squares[columns[last]] = kept.squares[order][last]
    limits.rows[columns[last]] = kept.rows[order][last]
    return limits
