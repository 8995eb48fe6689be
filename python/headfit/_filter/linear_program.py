"""The amplitudes of given frequencies: a linear program, to which violated offsets are added."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._filter.demand import SLACK, Demand
from headfit._filter.filter import Filter

__all__ = ["Solved", "sampled_offsets", "solve", "solve_with_moves"]

# The amplitude hypot(a, b) is bounded from below by so many directions: within 2% of it.
DIRECTIONS = 16
# The same in programs that move frequencies, which are only steps on the way.
MOVING = 8
# The most rounds in which violated offsets are added, and how many are added in each.
ROUNDS = 12
ADDED = 400
# The most iterations of the solver, some ten times what most programs take: a program that needs
# more is close to infeasible, and is given up.
ITERATIONS = 5000
# Offsets that lie further below their limit than this are dropped from the next program.
IDLE = 2.0

Floats = NDArray[np.float64]
Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Solved:
    """The filter of least norm for some frequencies.

    Attributes
    ----------
    filter : Filter
    offsets : ndarray of int64
        Offsets outside the stencil that bind, a good start for similar frequencies.
    lacks : float
        The largest deficit over all offsets, see `Demand.lacks`.
    """

    filter: Filter
    offsets: Offsets
    lacks: float

    @property
    def meets(self) -> bool:
        """Whether the filter meets the demand at every offset."""
        return self.lacks <= SLACK


def sampled_offsets(demand: Demand, count: int = 300) -> Offsets:
    """Return offsets outside the stencil to begin with: all near its ends, some of the others."""
    others, inside = demand.others, demand.stencil.offsets
    right = np.searchsorted(inside, others)
    gaps = np.minimum(
        np.abs(others - inside[np.minimum(right, inside.size - 1)]),
        np.abs(others - inside[np.maximum(right - 1, 0)]),
    )
    span = int(inside[-1] - inside[0]) + 1
    edge = np.flatnonzero(gaps <= 4)
    close = np.flatnonzero(gaps <= 3 * span)
    far = np.flatnonzero(gaps > 3 * span)
    parts = [part[:: max(1, 3 * part.size // count)] for part in (edge, close, far)]
    return others[np.unique(np.concatenate(parts))]


def solve(
    frequencies: Floats,
    demand: Demand,
    start: Offsets | None = None,
    *,
    max_norm: float = math.inf,
    directions: int = DIRECTIONS,
) -> Solved | None:
    """Return the filter of least norm, or None if the solver finds these frequencies infeasible.

    Offsets outside the stencil are as many as there are tokens: the program begins with some, and
    offsets where its solution exceeds the limits most, locally, are added until none is left.

    Parameters
    ----------
    frequencies : ndarray, shape (F,)
    demand : Demand
    start : ndarray of int64, optional
        Offsets to begin with; `sampled_offsets` when None.
    max_norm : float
        Programs with too few offsets have solutions of too small a norm: when one exceeds this,
        no more are solved.
    directions : int
        In how many directions amplitudes are bounded: the norm is least up to the factor
        1 / cos(pi / directions).
    """
    offsets = sampled_offsets(demand) if start is None else start
    limited = np.empty(0, dtype=np.int64)
    solved = None
    for _ in range(ROUNDS):
        program = _Program(frequencies, demand, offsets, limited, directions)
        x = program.solution()
        if x is None:
            return None
        found = program.filter(x)
        spread, above, large = demand.deficits(found)
        lacks = float(max(spread[0], above.max(initial=-math.inf), large.max(initial=-math.inf)))
        binding = _deficits_at(above, demand.others, offsets) > -IDLE
        solved = Solved(found, offsets[binding], lacks)
        if solved.meets or x[2 * frequencies.size : 3 * frequencies.size].sum() > max_norm:
            break
        offsets = np.union1d(solved.offsets, demand.others[_peaks(above)])
        limited = np.union1d(limited, demand.stencil.first + _peaks(large))
    return solved


def _deficits_at(above: Floats, others: Offsets, offsets: Offsets) -> Floats:
    return above[np.searchsorted(others, offsets)]


def _peaks(deficits: Floats) -> Offsets:
    """Return where deficits are positive and largest among their neighbours; the worst of them."""
    padded = np.concatenate([[-math.inf], deficits, [-math.inf]])
    is_peak = (deficits > SLACK) & (deficits >= padded[:-2]) & (deficits >= padded[2:])
    at = np.flatnonzero(is_peak)
    return at[np.argsort(-deficits[at], kind="stable")[:ADDED]]


def solve_with_moves(start: Solved, demand: Demand, radii: Floats) -> tuple[Floats, float] | None:
    """Return frequencies within `radii` of those of a filter, and the norm to expect of them.

    The program is linear in the moves: products of moves and amplitudes are those at the start.
    None if the solver finds no solution.
    """
    found = start.filter
    none = np.empty(0, dtype=np.int64)
    program = _Program(found.frequencies, demand, start.offsets, none, MOVING, found, radii)
    x = program.solution()
    if x is None:
        return None
    count = found.frequencies.size
    moved = found.frequencies + radii * x[3 * count : 4 * count]
    return np.clip(moved, 0, np.pi), float(x[2 * count : 3 * count].sum())


class _Program:
    """Amplitudes a and b, bounds r on hypot(a, b), moves, c and m; minimise the sum of r."""

    def __init__(
        self,
        frequencies: Floats,
        demand: Demand,
        offsets: Offsets,
        limited: Offsets,
        directions: int,
        around: Filter | None = None,
        radii: Floats | None = None,
    ) -> None:
        self.frequencies, self.around, self.radii = frequencies, around, radii
        self.count = frequencies.size
        self.moves = 0 if radii is None else self.count
        stencil, half = demand.stencil, demand.spread / 2
        inside, weights = stencil.offsets, stencil.log_weights
        self.is_even = demand.is_symmetric
        if self.is_even:
            directions = 2  # sines are zero
            inside, weights = inside[inside >= 0], weights[inside >= 0]
            offsets, limited = (np.unique(np.abs(x)) for x in (offsets, limited))
        self.parts = [
            (self._rows(inside, 1.0, -1.0, 0.0), weights + half),
            (self._rows(inside, -1.0, 1.0, 0.0), half - weights),
            (self._rows(inside, -1.0, 0.0, 1.0), np.zeros(inside.size)),
            (self._rows(offsets, 1.0, 0.0, -1.0), np.full(offsets.size, -demand.gap)),
        ]
        if math.isfinite(demand.max_logit):
            at = np.union1d(np.union1d(limited, inside), offsets)
            limit = np.full(at.size, demand.max_logit)
            self.parts += [(self._rows(at, sign, 0.0, 0.0), limit) for sign in (1.0, -1.0)]
        one, rest = sp.eye_array(self.count), sp.csr_array((self.count, self.moves + 2))
        shift = 0.0 if self.is_even else 0.5
        for angle in 2 * np.pi * (np.arange(directions) + shift) / directions:
            side = sp.hstack([np.cos(angle) * one, np.sin(angle) * one, -one, rest])
            self.parts.append((side, np.zeros(self.count)))

    def _rows(self, at: Offsets, sign: float, c: float, m: float) -> sp.csr_array:
        """Return rows that hold sign * p(x) + c * (variable c) + m * (variable m)."""
        angles = np.multiply.outer(at, self.frequencies)
        cosines, sines = np.cos(angles), np.sin(angles)
        part = np.zeros((at.size, 3 * self.count + self.moves + 2))
        part[:, : self.count] = sign * cosines
        part[:, self.count : 2 * self.count] = sign * sines
        if self.around is not None and self.radii is not None:
            slope = self.around.sines * cosines - self.around.cosines * sines
            part[:, 3 * self.count : -2] = sign * slope * np.multiply.outer(at, self.radii)
        part[:, -2], part[:, -1] = c, m
        return sp.csr_array(part)

    def solution(self) -> Floats | None:
        """Return the variables of the best solution, None if the solver finds none."""
        count, free = self.count, (None, None)
        matrix: Any = sp.csc_array(sp.vstack([rows for rows, _ in self.parts]))
        result = scipy.optimize.linprog(
            np.concatenate([np.zeros(2 * count), np.ones(count), np.zeros(self.moves + 2)]),
            A_ub=matrix,
            b_ub=np.concatenate([right for _, right in self.parts]),
            bounds=[
                *[free] * count,
                *[(0, 0) if self.is_even else free] * count,
                *[(0, None)] * count,
                *[(-1, 1)] * self.moves,
                *[free] * 2,
            ],
            method="highs",
            options={"maxiter": ITERATIONS},
        )
        return result.x if result.status == 0 else None

    def filter(self, x: Floats) -> Filter:
        """Return the filter of a solution."""
        return Filter(self.frequencies, x[: self.count], x[self.count : 2 * self.count])
