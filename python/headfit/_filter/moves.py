"""Frequencies are moved to lower the norm of a filter: sequential linear programs."""

from __future__ import annotations

import time

import numpy as np

from headfit._filter.demand import Demand
from headfit._filter.linear_program import MOVING, Solved, solve, solve_with_moves

__all__ = ["improved"]

# The first radius of the moves, in radians at the farthest offset, and the least one.
FIRST, LEAST = 1.0, 1e-3
# A step that gains this share of what the program predicted lets the radius grow.
TRUSTED = 0.5


def improved(start: Solved, demand: Demand, steps: int, deadline: float) -> Solved:
    """Return a filter of no larger norm, whose frequencies lie near those of another.

    Each step solves the program linearised in the frequencies, within a radius, and then the exact
    one for the frequencies that come out: a trust-region method.
    """
    best, radius, even = start, FIRST, demand.is_symmetric
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
        found = solve(
            frequencies,
            demand,
            best.offsets,
            norm_limit=best.filter.norm,
            directions=MOVING,
            even=even,
        )
        gain = best.filter.norm - predicted
        if found is None or not found.meets or found.filter.norm >= best.filter.norm:
            radius /= 3
        else:
            radius *= 2 if best.filter.norm - found.filter.norm > TRUSTED * gain else 1
            best = found
    return best
