"""The amplitudes of given frequencies: a linear program, with offsets added as they are violated."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._filter.demand import SLACK, Demand
from headfit._filter.filter import Filter

__all__ = ["Solved", "sampled_offsets", "solve"]

# The amplitude hypot(a, b) is bounded from below by so many directions: within 2% of it.
DIRECTIONS = 16
# The most rounds in which violated offsets are added, and how many are added in each.
ROUNDS = 12
ADDED = 400
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


def sampled_offsets(demand: Demand, count: int = 1000) -> Offsets:
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
    frequencies: Floats, demand: Demand, start: Offsets | None = None, rounds: int = ROUNDS
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
    rounds : int
        The most programs that are solved.
    """
    offsets = sampled_offsets(demand) if start is None else start
    limited = np.empty(0, dtype=np.int64)
    solved = None
    for _ in range(rounds):
        found = _program(frequencies, demand, offsets, limited)
        if found is None:
            return None
        spread, above, large = demand.deficits(found)
        lacks = float(max(spread[0], above.max(initial=-math.inf), large.max(initial=-math.inf)))
        binding = _deficits_at(above, demand.others, offsets) > -IDLE
        solved = Solved(found, offsets[binding], lacks)
        if solved.meets:
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


def _program(
    frequencies: Floats, demand: Demand, offsets: Offsets, limited: Offsets
) -> Filter | None:
    """Solve for a, b, r >= hypot(a, b) approximately, c and m; minimise the sum of r."""
    count, stencil = frequencies.size, demand.stencil

    def rows(at: Offsets, sign: float, c: float, m: float) -> sp.csr_array:
        angles = np.multiply.outer(at, frequencies)
        part = np.zeros((at.size, 3 * count + 2))
        part[:, :count], part[:, count : 2 * count] = sign * np.cos(angles), sign * np.sin(angles)
        part[:, -2], part[:, -1] = c, m
        return sp.csr_array(part)

    inside, weights, half = stencil.offsets, stencil.log_weights, demand.spread / 2
    parts = [
        (rows(inside, 1.0, -1.0, 0.0), weights + half),
        (rows(inside, -1.0, 1.0, 0.0), half - weights),
        (rows(inside, -1.0, 0.0, 1.0), np.zeros(inside.size)),
        (rows(offsets, 1.0, 0.0, -1.0), np.full(offsets.size, -demand.gap)),
    ]
    if math.isfinite(demand.max_logit):
        at = np.union1d(np.union1d(limited, inside), offsets)
        parts += [(rows(at, s, 0.0, 0.0), np.full(at.size, demand.max_logit)) for s in (1.0, -1.0)]
    one = sp.eye_array(count)
    rest = sp.csr_array((count, 2))
    for angle in 2 * np.pi * (np.arange(DIRECTIONS) + 0.5) / DIRECTIONS:
        side = sp.hstack([np.cos(angle) * one, np.sin(angle) * one, -one, rest])
        parts.append((side, np.zeros(count)))
    free = (None, None)
    result = scipy.optimize.linprog(
        np.concatenate([np.zeros(2 * count), np.ones(count), np.zeros(2)]),
        A_ub=sp.csc_array(sp.vstack([matrix for matrix, _ in parts])),
        b_ub=np.concatenate([right for _, right in parts]),
        bounds=[*[free] * (2 * count), *[(0, None)] * count, free, free],
        method="highs",
    )
    if result.status != 0:
        return None
    return Filter(frequencies, result.x[:count], result.x[count : 2 * count])
