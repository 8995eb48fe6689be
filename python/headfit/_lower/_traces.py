"""Lower bounds from how halfspaces cut point sets: VC dimension, its dual, and counting.

A leak below 1 means that the logits on each row's support exceed its other visible logits: for
each row i there is an offset c_i with q_i.k_j > c_i on the support and q_i.k_j < c_i elsewhere (if
one of the two parts is empty, choose c_i below or above all logits). So N_ij =
sign(<(q_i, -c_i), (k_j, 1)>), for those (i, j) where row i may attend to column j, are the signs of
a matrix of rank at most d + 1. A constant row (q = 0) can always be added: "the free row".

Cover (1965), Schlaefli: hyperplanes through 0 split m vectors of R^(d+1) in at most
2 (C(m-1, 0) + ... + C(m-1, d)) ways, and in half as many if a split and its opposite count as one.
- With the columns T, m = |T|, as the vectors, and the rows that may attend to all of T as the
  hyperplanes: the number of different traces S_i & T up to complement, including that of the free
  row (nothing or everything), is at most C(m-1, 0) + ... + C(m-1, d). If all 2^(m-1) traces occur,
  d < m - 1 is excluded: this is the VC bound |T| <= d + 1, where complements and the two constant
  traces need not occur.
- With rows as the vectors, and the columns that they all may attend to as the hyperplanes, the same
  holds. If the free row is among the vectors, all columns are on its positive side, and the
  statement becomes: t rows cut the columns into at most C(t, 0) + ... + C(t, d) cells, so that 2^t
  cells exclude d < t (the dual VC dimension).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headfit._base.tolerances import Tolerances
from headfit._lower._problem import are_places, support_of
from headfit._lower._visibility import Bools, Visibility
from headfit._target.target import Target


def least_dim(classes: int, vectors: int) -> int:
    """Return the least d with C(vectors-1, 0) + ... + C(vectors-1, d) >= classes."""
    d, reachable = 0, 1
    while reachable < classes:
        d += 1
        reachable += math.comb(vectors - 1, d)
    return d


@dataclass(frozen=True)
class Traces:
    """A family of columns (or rows) on which rows (or columns) have many different traces.

    Column j is the set of rows that attend to it, row i the set of columns in its support. The
    trace of a point is the subset of the family that contains it.

    Attributes
    ----------
    kind : "columns" or "rows"
        Whether the sets are columns and the points are rows, or the other way round.
    sets, points : tuple of int
        The family, and one point for every different trace.
    free : bool
        Whether the constant row is one of the sets; only if the sets are rows.
    """

    kind: Literal["columns", "rows"]
    sets: tuple[int, ...]
    points: tuple[int, ...]
    free: bool = False

    def proves(self, target: Target, tolerances: Tolerances) -> int:
        """Return the head size that this witness proves necessary; 0 if it is not valid."""
        n, columns = target.n, self.kind == "columns"
        if self.kind not in ("columns", "rows") or (columns and self.free):
            return 0
        if not (self.sets and are_places(n, self.sets, self.points)):
            return 0
        sight = Visibility(target.mask, n)
        full = (1 << len(self.sets)) - 1
        seen = {0} if columns else set()
        for point in self.points:
            code = 0
            for place, one in enumerate(self.sets):
                row, column = (point, one) if columns else (one, point)
                if not sight.row(row)[column]:
                    return 0
                code |= (column in support_of(target, row)) << place
            seen.add(code if self.free else min(code, full ^ code))
        return least_dim(len(seen), len(self.sets) + self.free)

    @property
    def dim(self) -> int:
        """The head size that so many traces prove necessary."""
        return least_dim(self._classes, len(self.sets) + self.free)

    @property
    def _classes(self) -> int:
        return len(self.points) + (self.kind == "columns")

    def text(self) -> str:
        """Return the argument in a sentence."""
        others = "rows" if self.kind == "columns" else "columns"
        vectors = len(self.sets) + self.free
        most = sum(math.comb(vectors - 1, i) for i in range(self.dim))
        return (
            f"{len(self.sets)} {self.kind} are cut in {self._classes} ways by the {others}, a head "
            f"of size {self.dim - 1} does it in {most} at most"
        )


def packed(flags: Bools) -> int:
    """Return flags as the bits of an integer; the first flag is the lowest bit."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")


def lowest_bit(bits: int) -> int:
    """Return the position of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1
