"""The design of a filter of a given size: frequencies are chosen, amplitudes are programmed."""

from __future__ import annotations

import math
import time

from headfit._filter.demand import Demand
from headfit._filter.layouts import Shape, first_layouts
from headfit._filter.linear_program import Solved, solve
from headfit._filter.moves import improved

__all__ = ["design"]

# Amplitudes are bounded in so many directions while layouts are compared.
COARSE = 8
# A layout is better if its norm is below this share of the best one's.
ENOUGH = 0.99


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
    stencil, count = demand.stencil, dim // 2
    if count < 1:
        return None
    shape = Shape.of(stencil)
    best: Solved | None = None
    starts = first_layouts(shape, count)
    waiting, seen = [*starts, *starts[0].neighbours(shape)], set()
    while waiting and time.perf_counter() < deadline:
        layout = waiting.pop(0)
        frequencies = layout.frequencies(stencil, shape, count)
        if frequencies is None or frequencies.tobytes() in seen:
            continue
        seen.add(frequencies.tobytes())
        limit = max_norm if best is None else best.filter.norm * ENOUGH
        found = solve(frequencies, demand, max_norm=limit, directions=COARSE)
        if found is not None and found.meets and found.filter.norm < limit:
            best = found
            waiting = list(layout.neighbours(shape))
    if best is None:
        return None
    best = improved(best, demand, moves, deadline)
    final = solve(best.filter.frequencies, demand, best.offsets)
    return final if final is not None and final.meets else best
