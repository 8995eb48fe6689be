"""The amplitudes of given frequencies: a linear program, to which violated offsets are added."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from headfit._filter.demand import SLACK, Demand, Limits, Proof
from headfit._filter.filter import Filter

__all__ = ["Solved", "closest", "is_out_of_reach", "sampled_offsets", "solve", "solve_with_moves"]

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
# A stencil of more offsets than this begins with a sample of so many.
INSIDE = 160
# A program that is to show that a norm is out of reach has so many offsets in the stencil, and some
# so many outside it.
FEW_INSIDE, FEW_OUTSIDE = 80, 200
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
    frequencies: Floats,
    demand: Demand,
    start: Offsets | None = None,
    *,
    norm_limit: float = math.inf,
    directions: int = DIRECTIONS,
    even: bool = False,
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
    norm_limit : float
        Programs with too few offsets have solutions of too small a norm: when one exceeds this,
        no more are solved.
    directions : int
        In how many directions amplitudes are bounded: the norm is least up to the factor
        1 / cos(pi / directions).
    even : bool
        Whether to leave out the sines, which a symmetric stencil does not need. The proof is then
        about filters without sines, and of others proves less.
    """
    return _exchange(frequencies, demand, start, norm_limit, None, directions, even)


def closest(
    frequencies: Floats, demand: Demand, max_norm: float, start: Offsets | None = None
) -> Solved | None:
    """Return a filter of norm at most `max_norm` that lacks the least at some of the offsets.

    Such a program always has a solution. If that lacks something, the lower bound of the
    norm that follows from its proof is above `max_norm` (up to rounding, and often far above): no
    filter within `max_norm` meets the demand. If it lacks nothing at these offsets, nothing
    follows. None if the solver fails.
    """
    return _exchange(frequencies, demand, start, -math.inf, max_norm, DIRECTIONS, False)


def is_out_of_reach(
    frequencies: Floats, demand: Demand, norm_limit: float, *, directions: int, even: bool
) -> bool:
    """Return whether a few offsets suffice to see that no filter of so small a norm meets a demand.

    The program asks how much a filter within the limit must lack at some of the offsets. It has few
    rows, and always a solution, where the solver may give up a whole program that is close to
    infeasible, after many iterations. True is the solver's word, good enough to leave frequencies
    out of a search; False proves nothing.
    """
    offsets = demand.stencil.offsets
    inside = offsets[_sample(offsets.size, FEW_INSIDE)]
    outside = sampled_offsets(demand, FEW_OUTSIDE)
    if even:
        inside, outside = _one_side(inside), _one_side(outside)
    limits = Limits.of(demand, inside, outside, np.empty(0, dtype=np.int64))
    # The program allows a smaller norm than it is given, since amplitudes seem smaller than they
    # are in few directions. Here no filter within the limit may be missed.
    allowed = norm_limit / _shrink(directions, even)
    result = _solved(frequencies, limits, directions, even, max_norm=allowed)
    return result is not None and float(result[0][-1]) > 2 * SLACK


def solve_with_moves(
    start: Solved, demand: Demand, radii: Floats, even: bool
) -> tuple[Floats, float] | None:
    """Return frequencies within `radii` of those of a filter, and the norm to expect of them.

    The program is linear in the moves: products of moves and amplitudes are those at the start.
    None if the solver finds no solution.
    """
    filter_ = start.filter
    inside = demand.stencil.offsets[_sample(demand.stencil.offsets.size)]
    parts = (inside, start.offsets, np.empty(0, dtype=np.int64))
    limits = (
        Limits.of(demand, *(_one_side(x) for x in parts)) if even else Limits.of(demand, *parts)
    )
    slopes = limits.slopes(filter_) * radii
    result = _solved(filter_.frequencies, limits, MOVING, even, slopes=slopes)
    if result is None:
        return None
    x = result[0]
    count = filter_.frequencies.size
    moved = filter_.frequencies + radii * x[3 * count : 4 * count]
    return np.clip(moved, 0, np.pi), float(x[2 * count : 3 * count].sum())


def _exchange(
    frequencies: Floats,
    demand: Demand,
    start: Offsets | None,
    norm_limit: float,
    max_norm: float | None,
    directions: int,
    even: bool,
) -> Solved | None:
    stencil, count = demand.stencil, frequencies.size
    outside = sampled_offsets(demand) if start is None else start
    inside = stencil.offsets[_sample(stencil.offsets.size)]
    limited = np.empty(0, dtype=np.int64)
    solved = None
    for _ in range(ROUNDS):
        if even:
            inside, outside, limited = (_one_side(x) for x in (inside, outside, limited))
        limits = Limits.of(demand, inside, outside, limited)
        result = _solved(frequencies, limits, directions, even, max_norm=max_norm)
        if result is None:
            return None
        x, multipliers = result
        made = Filter(frequencies, x[:count], x[count : 2 * count])
        _, above, large = deficits = demand.deficits(made)
        lacks = max(float(part.max(initial=-math.inf)) for part in deficits)
        binding = above[np.searchsorted(demand.others, outside)] > -IDLE
        proof = Proof(frequencies, inside, outside, limited, multipliers)
        solved = Solved(made, outside[binding], lacks, proof)
        if solved.meets or x[2 * count : 3 * count].sum() > norm_limit:
            break
        outside = np.union1d(solved.offsets, demand.others[_peaks(above)])
        limited = np.union1d(limited, stencil.first + _peaks(large))
        inside = np.union1d(inside, _extremes(made, demand))
    return solved


def _one_side(offsets: Offsets) -> Offsets:
    """Return the distances of offsets, which say all about a symmetric demand."""
    return np.unique(np.abs(offsets))


def _sample(count: int, most: int = INSIDE) -> NDArray[np.int64]:
    """Return places in a stencil of so many offsets, denser towards its ends."""
    if count <= most:
        return np.arange(count)
    angles = np.linspace(0.0, np.pi, most)
    return np.unique(np.rint((count - 1) * (1 - np.cos(angles)) / 2).astype(np.int64))


def _extremes(filter_: Filter, demand: Demand) -> Offsets:
    """Return offsets in the stencil where the spread is exceeded, highest or lowest locally.

    The logits in the stencil, less the logarithms of weights, should lie in a band; it is centred
    here at the middle of their range. So are offsets whose logits are the least of all.
    """
    stencil = demand.stencil
    logits = filter_.logits_between(stencil.first, stencil.last)[stencil.offsets - stencil.first]
    error = logits - stencil.log_weights
    distance = np.abs(error - (error.max() + error.min()) / 2) - demand.spread / 2
    return stencil.offsets[np.union1d(_peaks(distance), np.argmin(logits))]


def _peaks(deficits: Floats) -> Offsets:
    """Return where deficits are positive and largest among their neighbours; the worst of them."""
    padded = np.concatenate([[-math.inf], deficits, [-math.inf]])
    is_peak = (deficits > SLACK) & (deficits >= padded[:-2]) & (deficits >= padded[2:])
    at = np.flatnonzero(is_peak)
    return at[np.argsort(-deficits[at], kind="stable")[:ADDED]]


def _shrink(directions: int, even: bool) -> float:
    """Return the least share of an amplitude that is seen in so many directions."""
    return 1.0 if even else math.cos(math.pi / directions)


def _solved(
    frequencies: Floats,
    limits: Limits,
    directions: int,
    even: bool,
    *,
    max_norm: float | None = None,
    slopes: Floats | None = None,
) -> tuple[Floats, Floats] | None:
    """Return the variables of a program and the multipliers of its limits; None without a solution.

    Variables are amplitudes a and b, bounds r >= hypot(a, b) approximately, moves, c, m and t.
    Without `max_norm`, t = 0 and the sum of r is minimal. With it, the sum of r is at most
    `max_norm`, and t minimal, by which all limits are relaxed (but those that define m). Moves
    have columns where `slopes` says what they do to each limit.
    """
    count, height, rows = frequencies.size, limits.right.size, limits.matrix(frequencies)
    moved = np.zeros((height, 0)) if slopes is None else slopes
    relaxed = np.where(limits.on_m == 1.0, 0.0, -1.0)[:, np.newaxis]
    by_column = [rows[:, : 2 * count], np.zeros((height, count)), moved, rows[:, 2 * count :]]
    parts: list[Any] = [sp.csr_array(np.hstack([*by_column, relaxed]))]
    sizes = [count, count, count, moved.shape[1], 2, 1]
    if even:
        directions = 2  # sines are zero, and r >= |a|
    one, rest = sp.eye_array(count), sp.csr_array((count, sum(sizes[3:])))
    for angle in 2 * np.pi * (np.arange(directions) + (0.0 if even else 0.5)) / directions:
        parts.append(sp.hstack([np.cos(angle) * one, np.sin(angle) * one, -one, rest]))
    right = np.concatenate([limits.right, np.zeros(directions * count)])
    cost = sum_of_r = np.repeat([0.0, 0.0, 1.0, 0.0, 0.0, 0.0], sizes)
    if max_norm is not None:
        cost = np.repeat([0.0, 0.0, 0.0, 0.0, 0.0, 1.0], sizes)
        parts.append(sp.csr_array(sum_of_r[np.newaxis]))
        right = np.append(right, max_norm * _shrink(directions, even))
    free, no_sines, no_t = math.inf, 0.0 if even else -math.inf, max_norm is None
    least = np.repeat([-free, no_sines, 0.0, -1.0, -free, 0.0], sizes)
    most = np.repeat([free, abs(no_sines), free, 1.0, free, 0.0 if no_t else free], sizes)
    matrix: Any = sp.csc_array(sp.vstack(parts))
    bounds: Any = np.stack([least, most], axis=1)
    from scipy.optimize import linprog  # takes long to import

    result = linprog(
        cost,
        A_ub=matrix,
        b_ub=right,
        bounds=bounds,
        method="highs",
        options={"maxiter": ITERATIONS},
    )
    if result.status != 0:
        return None
    return np.asarray(result.x), -np.asarray(result.ineqlin.marginals)[:height]
