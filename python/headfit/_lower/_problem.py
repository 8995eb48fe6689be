"""What every lower bound starts from: supports, what each row sees, tolerances, the clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._base.arrays import as_array, is_sparse
from headfit._base.masks import _window, allowed_places
from headfit._target.target import Target

MOST_RECTANGLES = 6

Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]


class Sight:
    """Which columns each row may attend to, for every form of mask that a Target accepts."""

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
            self.table = np.broadcast_to(as_array(mask, "mask"), (n, n))
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
        """Return sets of rows with columns that all of them see, the most promising first."""
        everything = np.arange(self.n)
        if not self.limited:
            return [(everything, everything)]
        spans = self._window_spans() if self.window is not None else self._table_spans(deadline)
        spans = [(rows, columns) for rows, columns in spans if rows.size and columns.size >= 3]
        return spans[:MOST_RECTANGLES]

    def _window_spans(self) -> list[tuple[Ints, Ints]]:
        """Rows first ... stop - 1 of a window all see columns stop - 1 - left ... first + right.

        Under a causal mask the last rows see every earlier column: any cut of the sequence gives
        a rectangle, and one of many rows holds the most supports of several columns. In a narrow
        window rows see much together where they are few and neighbours.
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
        """Rows of a table that see the same, and neighbouring rows with what they share."""
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


@dataclass(frozen=True, eq=False)
class Problem:
    """A target with its tolerances.

    Attributes
    ----------
    delta : float
        log(1 + distortion): how far the logits minus log A may spread on a support.
    gap : float
        log(1 / leak): how far the rest of a row lies below its support.
    deadline : float
        Of `time.monotonic`.
    """

    target: Target
    leak: float
    distortion: float
    sight: Sight
    supports: sp.csr_array
    logs: sp.csr_array
    deadline: float
    rng: np.random.Generator

    @classmethod
    def of(cls, target: Target, leak: float, distortion: float, limit: float, rng: Any) -> Problem:
        """Return the problem of a validated target."""
        m = target.matrix
        supports = sp.csr_array((np.ones(m.nnz, np.int64), m.indices, m.indptr), shape=m.shape)
        logs = sp.csr_array((np.log(m.data), m.indices, m.indptr), shape=m.shape)
        sight = Sight(target.mask, target.n)
        clock = time.monotonic() + limit
        generator = np.random.default_rng(rng)
        return cls(target, leak, distortion, sight, supports, logs, clock, generator)

    @property
    def delta(self) -> float:
        """log(1 + distortion)."""
        return math.log1p(self.distortion)

    @property
    def gap(self) -> float:
        """log(1 / leak)."""
        return -math.log(self.leak)

    def share(self, part: float) -> float:
        """Return the deadline of a search that may use this part of the time left."""
        now = time.monotonic()
        return now + part * max(0.0, self.deadline - now)


class OutOfTimeError(Exception):
    """A search met its deadline."""


def check_time(deadline: float) -> None:
    """Raise when the deadline has passed."""
    if time.monotonic() > deadline:
        raise OutOfTimeError


class Witness(Protocol):
    """Evidence for a lower bound."""

    def proves(self, target: Target, leak: float, distortion: float) -> int:
        """Return the head size that this proves necessary, worked out afresh; 0 for none."""


@dataclass(frozen=True, repr=False)
class Candidate:
    """One bound that was tried.

    Attributes
    ----------
    name : str
    dim : int or None
        The head size it proves necessary; None where nothing was proved.
    status : str
        "proved", or "not finished" where the time ended before anything was.
    reason : str
    witness : object or None
    """

    name: str
    dim: int | None
    status: str
    reason: str
    witness: Witness | None = None

    def __repr__(self) -> str:
        value = self.status if self.dim is None else f"d >= {self.dim}"
        return f"Candidate({self.name}: {value}; {self.reason})"


def support_of(target: Target, i: int) -> dict[int, float]:
    """Return the columns and weights of one row (for checking witnesses)."""
    m = target.matrix
    start, stop = int(m.indptr[i]), int(m.indptr[i + 1])
    pairs = zip(m.indices[start:stop].tolist(), m.data[start:stop].tolist(), strict=True)
    return dict(pairs)


def are_distinct(numbers: tuple[int, ...], n: int) -> bool:
    """Whether these are different indices of n things."""
    return len(set(numbers)) == len(numbers) and all(0 <= x < n for x in numbers)
