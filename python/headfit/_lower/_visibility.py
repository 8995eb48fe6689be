"""Which columns each row may attend to, and sets of rows that may attend to the same columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import is_sparse
from headfit._base.masks import _window, allowed_places, as_allowed
from headfit._lower._deadline import check_time

MOST_RECTANGLES = 6

Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]


class Visibility:
    """Which columns each row may attend to ("sees"), for every form of mask of a `Target`."""

    def __init__(self, mask: Any, n: int) -> None:
        self.n = n
        self.window: tuple[int, int] | None = None
        self.table: Any = None
        self.by_column: Any = None
        if isinstance(mask, str):
            self.window = (n, 0)
        elif isinstance(mask, tuple):
            self.window = _window(mask[1])
        elif is_sparse(mask):
            self.table = allowed_places(mask)
            self.by_column = sp.csc_array(self.table)
        elif mask is not None:
            self.table = np.broadcast_to(as_allowed(mask), (n, n))
        self.limited = mask is not None

    def row(self, i: int) -> Bools:
        """Return which columns row i sees."""
        if self.window is not None:
            seen = np.zeros(self.n, np.bool_)
            seen[max(0, i - self.window[0]) : i + self.window[1] + 1] = True
            return seen
        return self._line(self.table, i)

    def sees(self, i: int, columns: Ints) -> bool:
        """Return whether row i sees all of these columns."""
        if not self.limited or columns.size == 0:
            return True
        if self.window is not None:
            left, right = self.window
            return bool(columns.min() >= i - left and columns.max() <= i + right)
        return bool(self.row(i)[columns].all())

    def column(self, j: int) -> Bools:
        """Return which rows see column j."""
        if self.window is not None:
            seen = np.zeros(self.n, np.bool_)
            seen[max(0, j - self.window[1]) : j + self.window[0] + 1] = True
            return seen
        if self.by_column is not None:
            return self._line(self.by_column, j)
        return np.ones(self.n, np.bool_) if self.table is None else np.array(self.table[:, j])

    def _line(self, table: Any, i: int) -> Bools:
        if table is None:
            return np.ones(self.n, np.bool_)
        if isinstance(table, np.ndarray):
            return np.array(table[i])
        seen = np.zeros(self.n, np.bool_)
        start, stop = table.indptr[i], table.indptr[i + 1]
        seen[table.indices[start:stop]] = table.data[start:stop]
        return seen

    def rectangles(self, deadline: float = math.inf) -> list[tuple[Ints, Ints]]:
        """Return sets of rows, each with columns that all of them see, most promising first."""
        everything = np.arange(self.n)
        if not self.limited:
            return [(everything, everything)]
        spans = self._window_spans() if self.window is not None else self._table_spans(deadline)
        spans = [(rows, columns) for rows, columns in spans if rows.size and columns.size >= 3]
        return spans[:MOST_RECTANGLES]

    def _window_spans(self) -> list[tuple[Ints, Ints]]:
        """Return rectangles of a window mask: consecutive rows and the columns that all see.

        Rows first ... stop - 1 all see columns stop - 1 - left ... first + right. Under a causal
        mask the rows after any cut of the sequence all see the columns before it; several cuts
        are tried. In a narrow window only few neighbouring rows see many columns in common.
        """
        assert self.window is not None
        n, (left, right) = self.n, self.window
        cuts = [(0, n)] if left >= n - 1 and right >= n - 1 else []
        for part in (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4):
            if left >= n:
                cuts.append((max(0, min(n - 1, math.ceil(part * n) - 1 - right)), n))
            elif right >= n:
                cuts.append((0, min(n, math.floor(part * n) + 1 + left)))
            else:
                length = max(1, round(part * (left + right + 1)))
                cuts += [(at, min(n, at + length)) for at in (n // 2, 0, max(0, n - length))]
        return [
            (np.arange(first, stop), np.arange(max(0, stop - 1 - left), min(n, first + right + 1)))
            for first, stop in dict.fromkeys(cuts)
        ]

    def _table_spans(self, deadline: float) -> list[tuple[Ints, Ints]]:
        """Return rectangles of a mask array: equal rows, and neighbours with common columns."""
        found: list[tuple[Ints, Ints]] = []
        alike: dict[bytes, list[int]] = {}
        packed = []
        for i in range(self.n):
            check_time(deadline)
            line = np.packbits(self.row(i))
            alike.setdefault(line.tobytes(), []).append(i)
            packed.append(line)
        for rows in sorted(alike.values(), key=len, reverse=True)[:MOST_RECTANGLES]:
            found.append((np.array(rows), np.flatnonzero(self.row(rows[0]))))
        if len(alike) == 1:
            return found
        table = np.array(packed)
        length = self.n
        while length >= 1 and len(found) < 30:
            middle = (self.n - length) // 2
            for first in dict.fromkeys((self.n - length, middle)):
                check_time(deadline)
                shared = np.bitwise_and.reduce(table[first : first + length], axis=0)
                columns = np.flatnonzero(np.unpackbits(shared, count=self.n))
                found.append((np.arange(first, first + length), columns))
            if length <= 4:
                break
            length = length * 2 // 3
        found.sort(key=lambda pair: (-pair[0].size * pair[1].size, int(pair[0][0])))
        return found
