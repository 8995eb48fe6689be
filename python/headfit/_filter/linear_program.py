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
from headfit._filter.limits import Limits, Proof

__all__ = ["Solved", "closest", "sampled_offsets", "solve"]

# The amplitude hypot(a, b) is bounded from below by so many directions: within 2% of it.
DIRECTIONS = 16
# The most rounds in which violated offsets are added, and how many are added in each.
ROUNDS = 12
ADDED = 400
# A stencil of more offsets than this begins with a sample of so many.
INSIDE = 160
# Offsets that lie further below their limit than this are dropped from the next program.
IDLE = 2.0

Floats = NDArray[np.float64]
Offsets = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Solved:
    """A filter that a linear program found.

    Attributes
    ----------
    filter : Filter
    offsets : ndarray of int64
        Offsets outside the stencil that bind, a good start for similar frequencies.
    lacks : float
        The largest deficit over all offsets, see `Demand.lacks`.
    proof : Proof
        From which a lower bound of the norm of all filters of these frequencies follows.
    """

    filter: Filter
    offsets: Offsets
    lacks: float
    proof: Proof

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
    """Return the filter of least norm, or None if the solver ends without a solution.

    The solver may call a program infeasible, or give up for numerical reasons, because the least
    norm is large: `closest` tells more.

    Offsets are as many as there are tokens: the program begins with some, and offsets where its
    solution exceeds the limits most, locally, are added until none is left.

    Parameters
    ----------
    frequencies : ndarray, shape (F,)
    demand : Demand
    start : ndarray of int64, optional
        Offsets outside the stencil to begin with; `sampled_offsets` when None.
    rounds : int
        The most programs that are solved.
    """
    return _exchange(frequencies, demand, start, rounds, None)


def closest(
    frequencies: Floats, demand: Demand, max_norm: float, start: Offsets | None = None
) -> Solved | None:
    """Return a filter of norm at most `max_norm` that lacks the least at some of the offsets.

    Such a program always has a solution. If that lacks something, the lower bound of the
    norm that follows from its proof is above `max_norm` (up to rounding, and often far above): no
    filter within `max_norm` meets the demand. If it lacks nothing at these offsets, nothing
    follows. None if the solver fails.
    """
    return _exchange(frequencies, demand, start, 1, max_norm)


def _exchange(
    frequencies: Floats,
    demand: Demand,
    start: Offsets | None,
    rounds: int,
    max_norm: float | None,
) -> Solved | None:
    stencil = demand.stencil
    outside = sampled_offsets(demand) if start is None else start
    inside = stencil.offsets[_sample(stencil.offsets.size)]
    limited = np.empty(0, dtype=np.int64)
    solved = None
    for _ in range(rounds):
        limits = Limits.of(demand, inside, outside, limited)
        found = _program(frequencies, limits, max_norm)
        if found is None:
            return None
        made, multipliers = found
        spread, above, large = demand.deficits(made)
        lacks = float(max(spread[0], above.max(initial=-math.inf), large.max(initial=-math.inf)))
        binding = above[np.searchsorted(demand.others, outside)] > -IDLE
        proof = Proof(frequencies, inside, outside, limited, multipliers)
        solved = Solved(made, outside[binding], lacks, proof)
        if solved.meets:
            break
        outside = np.union1d(solved.offsets, demand.others[_peaks(above)])
        limited = np.union1d(limited, stencil.first + _peaks(large))
        inside = np.union1d(inside, _extremes(made, demand))
    return solved


def _sample(count: int) -> NDArray[np.int64]:
    """Return places in a stencil of so many offsets, denser towards its ends."""
    if count <= INSIDE:
        return np.arange(count)
    angles = np.linspace(0.0, np.pi, INSIDE)
    return np.unique(np.rint((count - 1) * (1 - np.cos(angles)) / 2).astype(np.int64))


def _extremes(found: Filter, demand: Demand) -> Offsets:
    """Return offsets in the stencil where the spread is exceeded, highest or lowest locally.

    The logits in the stencil, less the logarithms of weights, should lie in a band; it is centred
    here at the middle of their range. So are offsets whose logits are the least of all.
    """
    stencil = demand.stencil
    logits = found.logits_between(stencil.first, stencil.last)[stencil.offsets - stencil.first]
    error = logits - stencil.log_weights
    distance = np.abs(error - (error.max() + error.min()) / 2) - demand.spread / 2
    return stencil.offsets[np.union1d(_peaks(distance), np.argmin(logits))]


def _peaks(deficits: Floats) -> Offsets:
    """Return where deficits are positive and largest among their neighbours; the worst of them."""
    padded = np.concatenate([[-math.inf], deficits, [-math.inf]])
    is_peak = (deficits > SLACK) & (deficits >= padded[:-2]) & (deficits >= padded[2:])
    at = np.flatnonzero(is_peak)
    return at[np.argsort(-deficits[at], kind="stable")[:ADDED]]


def _program(
    frequencies: Floats, limits: Limits, max_norm: float | None
) -> tuple[Filter, Floats] | None:
    """Solve for a, b, r >= hypot(a, b) approximately, c, m and t.

    Without `max_norm`, t = 0 and the sum of r is minimal. With it, the sum of r is at most
    `max_norm`, and t minimal, by which all limits are relaxed (but those that define m). Returns
    the filter and the multipliers of the limits.
    """
    count = frequencies.size
    rows = limits.matrix(frequencies)
    relaxed = np.where(limits.on_m == 1.0, 0.0, -1.0)[:, np.newaxis]
    part = np.hstack([rows[:, : 2 * count], np.zeros((rows.shape[0], count)), rows[:, 2 * count :]])
    parts, right = [sp.csr_array(np.hstack([part, relaxed]))], [limits.right]
    one, rest = sp.eye_array(count), sp.csr_array((count, 3))
    for angle in 2 * np.pi * (np.arange(DIRECTIONS) + 0.5) / DIRECTIONS:
        side = sp.hstack([np.cos(angle) * one, np.sin(angle) * one, -one, rest])
        parts.append(sp.csr_array(side))
        right.append(np.zeros(count))
    amplitudes = np.concatenate([np.zeros(2 * count), np.ones(count), np.zeros(3)])
    least_t = np.append(np.zeros(3 * count + 2), 1.0)
    if max_norm is not None:
        parts.append(sp.csr_array(amplitudes[np.newaxis]))
        right.append(np.array([max_norm * math.cos(math.pi / DIRECTIONS)]))
    free: tuple[float | None, float | None] = (None, None)
    bounds = [*[free] * (2 * count), *[(0.0, None)] * count, free, free]
    bounds.append((0.0, 0.0 if max_norm is None else None))
    matrix: Any = sp.csc_array(sp.vstack(parts))
    result = scipy.optimize.linprog(
        amplitudes if max_norm is None else least_t,
        A_ub=matrix,
        b_ub=np.concatenate(right),
        bounds=bounds,
        method="highs",
    )
    if result.status != 0:
        return None
    solution, marginals = np.asarray(result.x), np.asarray(result.ineqlin.marginals)
    multipliers = -marginals[: limits.right.size]
    found = Filter(frequencies, solution[:count], solution[count : 2 * count])
    return found, multipliers
