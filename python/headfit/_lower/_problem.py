"""What every lower bound starts from: supports, what each row sees, tolerances, the clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._arrays import as_array, is_sparse
from headfit._masks import _window, allowed_places
from headfit.targets import Target

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

    def rectangles(self) -> list[tuple[Ints, Ints]]:
        """Return sets of rows with columns that all of them see, the largest first."""
        everything = np.arange(self.n)
        if not self.limited:
            return [(everything, everything)]
        ranges = {(0, self.n)}
        length = self.n
        while length > 4 and len(ranges) < 20:
            length = length * 2 // 3
            middle = (self.n - length) // 2
            ranges |= {(self.n - length, self.n), (middle, middle + length)}
        found = []
        for first, stop in ranges:
            shared = np.ones(self.n, np.bool_)
            for i in range(first, stop):
                shared &= self.row(i)
                if not shared.any():
                    break
            if shared.sum() >= 3:
                found.append((np.arange(first, stop), np.flatnonzero(shared)))
        found.sort(key=lambda pair: (-pair[0].size * pair[1].size, int(pair[0][0])))
        return found[:6]


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
