"""What searches and witnesses share: a target and what its rows see, the time, and proofs."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import scipy.sparse as sp

from headfit._base.arrays import is_sparse
from headfit._base.calls import calls_until
from headfit._base.masks import allowed_places, as_allowed, as_window
from headfit._base.tolerances import Tolerances
from headfit._lower.supports import Bools, Ints, line
from headfit._target.target import Target

MOST_RECTANGLES = 6


class Visibility:
    """Which columns each row may attend to ("sees"), for every form of mask of a `Target`.

    `window` says how many columns before and after its own place a row sees; None where the mask is
    an array, `table`. `limited` says whether there is a mask.
    """

    def __init__(self, mask: Any, n: int) -> None:
        self.n, self.limited = n, mask is not None
        self.window = as_window(mask, n)
        self.table: Any = allowed_places(mask) if is_sparse(mask) else None
        if self.window is None and self.table is None:
            self.table = np.broadcast_to(as_allowed(mask), (n, n))

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
            seen[line(self.table, i)] = True
        else:
            seen[:] = self.table[i]
        return seen

    def sees(self, i: int, columns: Ints) -> bool:
        """Return whether row i sees all of these columns."""
        if self.window is None or columns.size == 0:
            return bool(self.row(i)[columns].all())
        first, stop = self.span(i)
        return bool(columns.min() >= first and columns.max() < stop)

    def all_see(self, rows: Iterable[int], columns: Iterable[int]) -> bool:
        """Return whether every row sees every column."""
        if not self.limited:
            return True
        wanted = np.array(list(columns), dtype=np.intp)
        return all(self.sees(i, wanted) for i in rows)

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
        mask the rows after any cut all see the columns before it; several cuts are tried.
        """
        n, (left, right) = self.n, self.window or (self.n, self.n)
        cuts = [(0, n)] if min(left, right) >= n - 1 else []
        for part in (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4):
            if left >= n - 1:
                cuts.append((max(0, min(n - 1, math.ceil(part * n) - 1 - right)), n))
            elif right >= n - 1:
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
        bits = []
        for i in range(self.n):
            check_time()
            bits.append(np.packbits(self.row(i)))
            alike.setdefault(bits[i].tobytes(), []).append(i)
        sets = [np.array(rows) for rows in sorted(alike.values(), key=len, reverse=True)]
        sets = sets[:MOST_RECTANGLES]
        length = self.n if len(alike) > 1 else 0
        while length >= 1 and len(sets) < 30:
            starts = dict.fromkeys((self.n - length, (self.n - length) // 2))
            sets += [np.arange(first, first + length) for first in starts]
            length = length * 2 // 3 if length > 4 else 0
        table, spans = np.array(bits), []
        for rows in sets:
            check_time()
            common = np.bitwise_and.reduce(table[rows], axis=0)
            spans.append((rows, np.flatnonzero(np.unpackbits(common, count=self.n))))
        return sorted(spans, key=lambda pair: (-pair[0].size * pair[1].size, int(pair[0][0])))


@dataclass(frozen=True, eq=False)
class Problem:
    """A target and the tolerances that a head shall meet, with what the searches need.

    `supports` and `logs` have ones and log A on the supports. A search ends at the `deadline`.
    """

    target: Target
    tolerances: Tolerances
    sight: Visibility
    supports: sp.csr_array
    logs: sp.csr_array
    deadline: float
    rng: np.random.Generator

    @classmethod
    def of(cls, target: Target, tolerances: Tolerances, seconds: float, rng: Any = 0) -> Self:
        """Return the problem of a checked target, with so many seconds for the searches."""
        m = target.matrix
        supports = sp.csr_array((np.ones(m.nnz, np.int64), m.indices, m.indptr), shape=m.shape)
        logs = sp.csr_array((np.log(m.data), m.indices, m.indptr), shape=m.shape)
        sight, deadline = Visibility(target.mask, target.n), time.monotonic() + seconds
        return cls(target, tolerances, sight, supports, logs, deadline, np.random.default_rng(rng))

    @property
    def seconds(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    def within(self, share: float) -> Self:
        """Return the same problem for a search that may use this share of the time left."""
        return replace(self, deadline=time.monotonic() + share * self.seconds)

    def check_time(self) -> None:
        """Raise a TimeoutError if the deadline has passed."""
        if time.monotonic() > self.deadline:
            raise TimeoutError


class Witness(ABC):
    """Evidence for a lower bound: a frozen dataclass."""

    @abstractmethod
    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Check the evidence and return the head size that it proves necessary; 0 for none."""

    def __repr__(self) -> str:
        values = vars(self).items()
        words = [f"{len(v)} {name}" if isinstance(v, tuple) else str(v) for name, v in values]
        return f"{type(self).__name__}({', '.join(words)})"


@dataclass(frozen=True, repr=False)
class Candidate:
    """A kind of bound that was tried. `dim` is None if nothing was proved before the time ended."""

    name: str
    dim: int | None
    status: str
    reason: str
    witness: Witness | None = None

    def __repr__(self) -> str:
        value = self.status if self.dim is None else f"d >= {self.dim}"
        return f"Candidate({self.name}: {value}; {self.reason})"


# A head size that is proved necessary (0: nothing is decided), the argument, the evidence.
Proof = tuple[int, str, Witness | None]


def best_proof(
    name: str, problem: Problem, search: Callable[[Problem], Iterator[Proof]]
) -> Candidate:
    """Return the largest size of all proofs that a search yields before its time ends."""
    best: Proof | None = None
    ended = ""
    try:
        with calls_until(time.perf_counter() + problem.seconds):
            for proof in search(problem):
                if best is None or proof[0] > best[0]:
                    best = proof
    except TimeoutError:
        ended = "; the time ended"
    dim, reason, witness = best or (0 if ended else 1, "nothing found", None)
    status = "proved" if dim else "not finished"
    return Candidate(name, dim or None, status, f"{reason}{ended}", witness)
