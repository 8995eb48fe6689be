"""Which columns each row may attend to, and sets of rows that may attend to the same columns."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headfit._base.arrays import is_sparse
from headfit._base.masks import _window, allowed_places, as_allowed

MOST_RECTANGLES = 6

Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]


class Visibility:
    """Which columns each row may attend to ("sees"), for every form of mask of a `Target`.

    Attributes
    ----------
    window : (int, int) or None
        How many columns before and after its own place a row sees; None if that varies.
    table : ndarray or csr_array of bool, shape (n, n), or None
        What each row sees, if the mask is no window.
    limited : bool
        Whether there is a mask.
    """

    def __init__(self, mask: Any, n: int) -> None:
        self.n = n
        self.limited = mask is not None
        self.table: Any = None
        self.window: tuple[int, int] | None = None
        if mask is None:
            self.window = (n, n)
        elif isinstance(mask, str):
            self.window = (n, 0)
        elif isinstance(mask, tuple):
            self.window = _window(mask[1])
        elif is_sparse(mask):
            self.table = allowed_places(mask)
        else:
            self.table = np.broadcast_to(as_allowed(mask), (n, n))

    @cached_property
    def of_columns(self) -> Visibility:
        """Which rows see each column, as rows of the transposed mask."""
        other = Visibility(None, self.n)
        other.limited = self.limited
        other.window = None if self.window is None else self.window[::-1]
        if self.table is not None:
            other.table = self.table.T.tocsr() if is_sparse(self.table) else self.table.T
        return other

    def span(self, i: int) -> tuple[int, int]:
        """Return the first column that row i sees and the one after the last, in a window."""
        left, right = self.window or (self.n, self.n)
        return max(0, i - left), min(self.n, i + right + 1)

    def row(self, i: int) -> Bools:
        """Return which columns row i sees."""
        seen = np.zeros(self.n, np.bool_)
        if self.window is not None:
            seen[slice(*self.span(i))] = True
        elif is_sparse(self.table):
            start, stop = self.table.indptr[i], self.table.indptr[i + 1]
            seen[self.table.indices[start:stop]] = self.table.data[start:stop]
        else:
            seen[:] = self.table[i]
        return seen

    def sees(self, i: int, columns: Ints) -> bool:
        """Return whether row i sees all of these columns."""
        if columns.size == 0:
            return True
        if self.window is not None:
            first, stop = self.span(i)
            return bool(columns.min() >= first and columns.max() < stop)
        return bool(self.row(i)[columns].all())

    def rectangles(self, check_time: Callable[[], None]) -> list[tuple[Ints, Ints]]:
        """Return sets of rows, each with columns that all of them see, most promising first."""
        everything = np.arange(self.n)
        if not self.limited:
            return [(everything, everything)]
        spans = self._table_spans(check_time) if self.window is None else self._window_spans()
        spans = [(rows, columns) for rows, columns in spans if rows.size and columns.size >= 3]
        return spans[:MOST_RECTANGLES]

    def _window_spans(self) -> list[tuple[Ints, Ints]]:
        """Return rectangles of a window mask: consecutive rows and the columns that all see.

        Rows first ... stop - 1 all see columns stop - 1 - left ... first + right. Under a causal
        mask the rows after any cut of the sequence all see the columns before it; several cuts
        are tried. In a narrow window only few neighbouring rows see many columns in common.
        """
        n, (left, right) = self.n, self.window or (self.n, self.n)
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

    def _table_spans(self, check_time: Callable[[], None]) -> list[tuple[Ints, Ints]]:
        """Return rectangles of a mask array: equal rows, and neighbours with common columns."""
        alike: dict[bytes, list[int]] = {}
        packed = []
        for i in range(self.n):
            check_time()
            packed.append(np.packbits(self.row(i)))
            alike.setdefault(packed[i].tobytes(), []).append(i)
        sets = [np.array(rows) for rows in sorted(alike.values(), key=len, reverse=True)]
        sets = sets[:MOST_RECTANGLES]
        length = self.n if len(alike) > 1 else 0
        while length >= 1 and len(sets) < 30:
            starts = dict.fromkeys((self.n - length, (self.n - length) // 2))
            sets += [np.arange(first, first + length) for first in starts]
            length = length * 2 // 3 if length > 4 else 0
        table, spans = np.array(packed), []
        for rows in sets:
            check_time()
            common = np.bitwise_and.reduce(table[rows], axis=0)
            spans.append((rows, np.flatnonzero(np.unpackbits(common, count=self.n))))
        return sorted(spans, key=lambda pair: (-pair[0].size * pair[1].size, int(pair[0][0])))
