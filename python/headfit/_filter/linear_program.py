"""The amplitudes of given frequencies: a linear program, to which violated offsets are added."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from headfit._filter.demand import SLACK, Demand, Filter, Limits
from headfit._filter.stencil import Floats, Offsets

# The amplitude hypot(a, b) is bounded from below by so many directions: within 2% of it.
DIRECTIONS = 16
# The same in programs that are only steps on the way.
COARSE = 8
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

# Offsets of a program: in the stencil, outside it, and where it bounds |logit| besides.
Places = tuple[Offsets, Offsets, Offsets]


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
    places, multipliers : Places, ndarray
        The offsets of the program, and the multipliers of its limits.
    """

    filter: Filter
    offsets: Offsets
    lacks: float
    places: Places
    multipliers: Floats

    @property
    def meets(self) -> bool:
        """Whether the filter meets the demand at every offset."""
        return self.lacks <= SLACK

    def least_norm(self, demand: Demand) -> float:
        """Return a lower bound of the norm of all filters of these frequencies for a demand.

        The demand may have other tolerances than the one of the program.
        """
        return Limits.of(demand, *self.places).least_norm(self.filter.frequencies, self.multipliers)


def solve(
    frequencies: Floats, demand: Demand, start: Offsets | None = None, *,
    norm_limit: float = math.inf, max_norm: float | None = None, directions: int = DIRECTIONS,
    even: bool = False, deadline: float = math.inf,
) -> Solved | None:  # fmt: skip
    """Return the filter of least norm, or None if the solver ends without a solution.

    The solver may call a program infeasible, or give up for numerical reasons, because the least
    norm is large: `max_norm` tells more.

    Offsets are as many as there are tokens: the program begins with some, and offsets where its
    solution exceeds the limits most, locally, are added until none is left.

    Parameters
    ----------
    frequencies : ndarray, shape (F,)
    demand : Demand
    start : ndarray of int64, optional
        Offsets outside the stencil to begin with; a sample when None.
    norm_limit : float
        Programs with too few offsets have solutions of too small a norm: when one exceeds this,
        no more are solved.
    max_norm : float, optional
        Return instead a filter within this norm that lacks the least at the first offsets, which
        always exists. If that lacks something, its `least_norm` is above `max_norm` (up to
        rounding, and often far above): no such filter meets the demand.
    directions : int
        In how many directions amplitudes are bounded: the norm is least up to the factor
        1 / cos(pi / directions).
    even : bool
        Whether to leave out the sines, which a symmetric stencil does not need. Multipliers then
        prove something about filters without sines, and less about others.
    deadline : float
        The value of ``time.perf_counter()`` at which the solver gives up.
    """
    stencil, others, solved = demand.stencil, demand.stencil.others, None
    outside = _sampled_others(demand) if start is None else start
    places = _sided(even, _sampled(stencil.offsets), outside, outside[:0])
    for _ in range(ROUNDS):
        limits = Limits.of(demand, *places)
        result = _program(
            frequencies, limits, directions, even, max_norm=max_norm, deadline=deadline
        )
        if result is None:
            return None
        (a, b, r, *_), multipliers = result
        made = Filter(frequencies, a, b)
        _, above, large = deficits = demand.deficits(made)
        lacks = max(float(part.max(initial=-math.inf)) for part in deficits)
        inside, outside, limited = places
        binding = outside[above[np.searchsorted(others, outside)] > -IDLE]
        solved = Solved(made, binding, lacks, places, multipliers)
        if solved.meets or max_norm is not None or r.sum() > norm_limit:
            break
        places = _sided(
            even,
            np.union1d(inside, _extremes(made, demand)),
            np.union1d(binding, others[_peaks(above)]),
            np.union1d(limited, stencil.first + _peaks(large)),
        )
    return solved


def is_out_of_reach(frequencies: Floats, demand: Demand, norm_limit: float, even: bool) -> bool:
    """Return whether a few offsets suffice to see that no filter of so small a norm meets a demand.

    The program asks how much a filter within the limit must lack at some of the offsets. It has few
    rows, and always a solution, where the solver may give up a whole program that is close to
    infeasible, after many iterations. True is the solver's word, good enough to leave frequencies
    out of a search; False proves nothing.
    """
    inside = _sampled(demand.stencil.offsets, FEW_INSIDE)
    outside = _sampled_others(demand, FEW_OUTSIDE)
    limits = Limits.of(demand, *_sided(even, inside, outside, outside[:0]))
    # The program allows a smaller norm than it is given, since amplitudes seem smaller than they
    # are in few directions. Here no filter within the limit may be missed.
    allowed = norm_limit / _shrink(COARSE, even)
    result = _program(frequencies, limits, COARSE, even, max_norm=allowed)
    return result is not None and float(result[0][-1].sum()) > 2 * SLACK


def solve_with_moves(
    start: Solved, demand: Demand, radii: Floats, even: bool
) -> tuple[Floats, float] | None:
    """Return frequencies within `radii` of those of a filter, and the norm to expect of them.

    The program is linear in the moves: products of moves and amplitudes are those at the start.
    None if the solver finds no solution.
    """
    frequencies, inside = start.filter.frequencies, _sampled(demand.stencil.offsets)
    limits = Limits.of(demand, *_sided(even, inside, start.offsets, inside[:0]))
    result = _program(frequencies, limits, COARSE, even, slopes=limits.slopes(start.filter) * radii)
    if result is None:
        return None
    _, _, r, moves, *_ = result[0]
    return np.clip(frequencies + radii * moves, 0, np.pi), float(r.sum())


def _sided(even: bool, *places: Offsets) -> Places:
    """Return places; for symmetric demands only their distances, which say all about these."""
    inside, outside, limited = (np.unique(np.abs(x)) if even else x for x in places)
    return inside, outside, limited


def _sampled(offsets: Offsets, most: int = INSIDE) -> Offsets:
    """Return at most so many of the offsets of a stencil, denser towards its ends."""
    count = offsets.size
    if count <= most:
        return offsets
    angles = np.linspace(0.0, np.pi, most)
    return offsets[np.unique(np.rint((count - 1) * (1 - np.cos(angles)) / 2).astype(np.int64))]


def _sampled_others(demand: Demand, count: int = 1000) -> Offsets:
    """Return offsets outside the stencil to begin with: all near its ends, some of the others."""
    others, inside = demand.stencil.others, demand.stencil.offsets
    right = np.searchsorted(inside, others)
    gaps = np.minimum(
        np.abs(others - inside[np.minimum(right, inside.size - 1)]),
        np.abs(others - inside[np.maximum(right - 1, 0)]),
    )
    near = 3 * (int(inside[-1] - inside[0]) + 1)
    groups = [np.flatnonzero(flags) for flags in (gaps <= 4, gaps <= near, gaps > near)]
    parts = [group[:: max(1, 3 * group.size // count)] for group in groups]
    return others[np.unique(np.concatenate(parts))]


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
    at = np.flatnonzero((deficits > SLACK) & (deficits >= np.maximum(padded[:-2], padded[2:])))
    return at[np.argsort(-deficits[at], kind="stable")[:ADDED]]


def _shrink(directions: int, even: bool) -> float:
    """Return the least share of an amplitude that is seen in so many directions."""
    return 1.0 if even else math.cos(math.pi / directions)


def _program(
    frequencies: Floats, limits: Limits, directions: int, even: bool, *,
    max_norm: float | None = None, slopes: Floats | None = None, deadline: float = math.inf,
) -> tuple[list[Floats], Floats] | None:  # fmt: skip
    """Return the variables of a program and the multipliers of its limits; None without a solution.

    Variables are amplitudes a and b, bounds r >= hypot(a, b) approximately, moves, c with m, and t.
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
    angles = 2 * np.pi * (np.arange(directions) + (0.0 if even else 0.5)) / directions
    parts += [sp.hstack([np.cos(x) * one, np.sin(x) * one, -one, rest]) for x in angles]
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

    options: Any = {"maxiter": ITERATIONS, "time_limit": max(0.0, deadline - time.perf_counter())}
    result: Any = linprog(cost, matrix, right, bounds=bounds, method="highs", options=options)
    if result.status != 0:
        return None
    variables = np.split(np.asarray(result.x), np.cumsum(sizes)[:-1])
    return variables, -np.asarray(result.ineqlin.marginals)[:height]
