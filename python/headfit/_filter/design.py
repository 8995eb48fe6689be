"""The design of a filter of a given size: frequencies are chosen, amplitudes are programmed."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headfit._filter.demand import Demand
from headfit._filter.layouts import Layout, Modulated, Shape, first_layouts
from headfit._filter.linear_program import COARSE, Solved, is_out_of_reach, solve, solve_with_moves

# A layout is better if its norm is below this share of the best one's.
ENOUGH = 0.99
# The first radius of the moves, in radians at the farthest offset, and the least one.
FIRST, LEAST = 1.0, 1e-3
# A step that gains this share of what the program predicted lets the radius grow.
TRUSTED = 0.5


def design(
    demand: Demand,
    dim: int,
    *,
    max_norm: float = math.inf,
    deadline: float = math.inf,
    moves: int = 20,
) -> Solved | None:
    """Return the filter of least norm that is found at a size, or None if none is feasible.

    Parameters
    ----------
    demand : Demand
    dim : int
        At most so many dimensions, two for each frequency.
    max_norm : float
        Filters whose amplitudes sum to more are none.
    deadline : float
        The value of ``time.perf_counter()`` after which nothing more is tried.
    moves : int
        The most steps that move the frequencies of the best layout.

    Notes
    -----
    The amplitudes are optimal for their frequencies, up to 2%. Layouts of frequencies are
    searched one number at a time, until no neighbour of the best is better; then its frequencies
    are moved as long as the norm falls. Other frequencies are not tried.
    """
    if dim < 2:
        return None
    shape = Shape.of(demand.stencil)
    starts = first_layouts(shape, dim // 2)
    solved = _search(demand, shape, starts, dim // 2, max_norm, deadline)
    if solved is None and demand.tolerances.max_logit is not None:
        # A bound on the logits leaves few layouts: begin with one that is good without it.
        free = Demand(demand.stencil, replace(demand.tolerances, max_logit=None))
        near = _search(free, shape, starts, dim // 2, max_norm, deadline)
        solved = near and _search(demand, shape, [near[1]], dim // 2, max_norm, deadline)
    if solved is None:
        return None
    best = _moved(solved[0], demand, moves, deadline)
    even = demand.stencil.is_symmetric
    final = solve(best.filter.frequencies, demand, best.offsets, even=even)
    return final if final is not None and final.meets else best


def _search(
    demand: Demand,
    shape: Shape,
    starts: Sequence[Layout | Modulated],
    count: int,
    max_norm: float,
    deadline: float,
) -> tuple[Solved, Layout | Modulated] | None:
    """Return the best filter that is found by changing one number of a layout at a time."""
    best: tuple[Solved, Layout | Modulated] | None = None
    seen: set[bytes] = set()
    waiting: list[Layout | Modulated] = [*starts, *starts[0].neighbours(shape)]
    while waiting and time.perf_counter() < deadline:
        layout = waiting.pop(0)
        frequencies = layout.frequencies(demand.stencil, shape, count)
        if frequencies is None or frequencies.tobytes() in seen:
            continue
        seen.add(frequencies.tobytes())
        limit = max_norm if best is None else best[0].filter.norm * ENOUGH
        even = demand.stencil.is_symmetric
        if math.isfinite(limit) and is_out_of_reach(frequencies, demand, limit, even):
            continue
        solved = solve(frequencies, demand, norm_limit=limit, directions=COARSE, even=even)
        if solved is not None and solved.meets and solved.filter.norm < limit:
            best = solved, layout
            waiting = list(layout.neighbours(shape))
    return best


def _moved(start: Solved, demand: Demand, steps: int, deadline: float) -> Solved:
    """Return a filter of no larger norm, whose frequencies lie near those of another.

    Each step solves the program linearised in the frequencies, within a radius, and then the exact
    one for the frequencies that come out: a trust-region method.
    """
    best, radius, even = start, FIRST, demand.stencil.is_symmetric
    reach = max(-demand.stencil.first, demand.stencil.last, 1)
    if demand.stencil.wraps:
        return start  # frequencies must stay multiples of 2 pi / n
    for _ in range(steps):
        if time.perf_counter() >= deadline or radius < LEAST:
            break
        radii = radius * np.minimum(1 / reach, 0.3 * best.filter.frequencies)
        moved = solve_with_moves(best, demand, radii, even)
        if moved is None:
            radius /= 3
            continue
        frequencies, predicted = moved
        norm = best.filter.norm
        solved = solve(
            frequencies, demand, best.offsets, norm_limit=norm, directions=COARSE, even=even
        )
        if solved is None or not solved.meets or solved.filter.norm >= norm:
            radius /= 3
        else:
            radius *= 2 if norm - solved.filter.norm > TRUSTED * (norm - predicted) else 1
            best = solved
    return best
